"""Sentences about robust rules under attack: the cost without attack, and the share of the accuracy that each keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from p2pfl.sim.formatting import number
from p2pfl.sim.results.attack_study import (
    FIGURES,
    MEAN,
    NO_RULE,
    AttackStudy,
    attack_studies,
    rows_of_summary,
    title,
)

LEAST_KEPT, MOST_LOST = 0.95, 0.02  # of a rule that is suitable as a default
WORDS = ("mean", "worst tenth")  # of FIGURES


class Extreme(NamedTuple):
    """The least favourable value of a rule over all studies, and its place."""

    value: float
    place: str


def attack_findings(summary: Mapping[str, Any], scenario_runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return one sentence for each robust rule; [] without rows that differ in rule and attack.

    Only metrics of which more is better have sentences, because they compare shares of a metric.

    Args:
        scenario_runs: the tables [[run]] of the resolved scenario.
    """
    if not summary["runs"][0].get("higher_is_better"):
        return []
    studies = attack_studies(rows_of_summary(summary, scenario_runs))
    rules = list(dict.fromkeys(rule for study in studies for rule in study.rules))
    return [sentence for rule in rules if (sentence := _sentence(rule, studies))]


def _sentence(rule: str, studies: Sequence[AttackStudy]) -> str:
    kept = [_least_kept(rule, studies, figure) for figure in FIGURES]
    mean, tenth = kept
    if mean is None:
        return ""
    words = f"{rule}: the worst attack leaves {_percent(mean.value)} of the mean accuracy ({mean.place})"
    words += "" if tenth is None else f", and {_percent(tenth.value)} of that of the worst tenth ({tenth.place})"
    lost = most_lost(rule, studies)
    if lost is None:
        return f"{words}."
    cost = f"without attack it loses at most {number(max(lost.value, 0.0))}" + (f" ({lost.place})" if lost.place else "")
    within = [
        word
        for word, each in zip(WORDS, kept, strict=True)
        if each is not None and each.value >= LEAST_KEPT and lost.value <= MOST_LOST
    ]
    verdict = f"it is in the limits of {_percent(LEAST_KEPT)} kept and {MOST_LOST:g} lost: {', '.join(within) or 'no'}"
    return f"{words}; {cost}; {verdict}."


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def most_lost(rule: str, studies: Sequence[AttackStudy]) -> Extreme | None:
    """Return the greatest difference between no rule and a rule without attack; None for no rule, or without figures."""
    found = [
        Extreme(without - with_rule, title(study, studies))
        for study in studies
        if rule != NO_RULE
        if (without := study.clean(NO_RULE, MEAN)) is not None and (with_rule := study.clean(rule, MEAN)) is not None
    ]
    return max(found, default=None)


def _least_kept(rule: str, studies: Sequence[AttackStudy], figure: str) -> Extreme | None:
    """Return the least share that an attack leaves of the figure without attack, over all studies."""
    found = []
    for study in studies:
        if (least := study.least_kept(rule, figure)) is not None:
            share, attack = least
            found.append(Extreme(share, ", ".join(part for part in (title(study, studies), attack) if part)))
    return min(found, default=None)
