"""Section on attacks: heat maps of rule by attack, and the weight that honest nodes gave to attackers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from p2pfl.sim.report.figures import clipped, distribution, lines
from p2pfl.sim.report.folder import Entry
from p2pfl.sim.report.series import Figure, Run, Section, Series
from p2pfl.sim.results.attack_study import NO_ATTACK, AttackRow, AttackStudy, attack_studies, title

UNCHANGED = (
    "The rule median-clip, and all rules of a coordinator, move models and leave the weights of the policy unchanged."
    " Coordinate-wise rules have the mean weight over coordinates."
)


class Quantity(NamedTuple):
    """A quantity of the cells of a heat map; `higher` states whether more is better."""

    id: str
    title: str
    label: str
    unit: str
    value: Callable[[AttackRow], float | None]
    higher: bool


def attacks_section(series: Sequence[Series]) -> Section | None:
    """Return the section; None without attackers."""
    attacked = [one for one in series if one.shown.attackers]
    if not attacked:
        return None
    figures = [*heat_maps(series), *_trust(attacked)]
    return {"id": "attacks", "title": "Attacks", "text": [_attackers(attacked)], "figures": figures}


def _attackers(series: Sequence[Series]) -> str:
    counts = sorted({len(one.shown.attackers) for one in series})
    span = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    nodes = max(one.shown.nodes for one in series)
    return f"{span} of {nodes:,} nodes attack. All figures of this section are of the honest nodes."


# Rule by attack


def attack_rows(runs: Sequence[Run]) -> list[AttackRow]:
    """Return the rows of a study of robust rules; [] for pools, and for runs with unknown settings."""
    return [
        AttackRow(
            run.name,
            run.settings,
            run.mean(entry.test.mean for entry in run.entries),
            run.mean(entry.test.worst_decile for entry in run.entries),
            {entry.seed: entry.test.nodes for entry in run.entries},
            {entry.seed: entry.attackers for entry in run.entries},
        )
        for run in runs
        if run.settings and not run.shown.pool
    ]


def heat_maps(series: Sequence[Series]) -> list[Figure]:
    """Return heat maps of rule by attack: mean and worst tenth of the honest nodes, and the weight of attackers.

    Returns:
        [] if the runs do not differ both in their rule and in their attack, or differ in their metric.
    """
    if len({one.metric for one in series}) > 1:
        return []
    studies = attack_studies(attack_rows(series))
    if not studies:
        return []
    higher, label = series[0].shown.higher_is_better, f"test {series[0].metric}"
    given = {one.name: trust for one in series if one.shown.attackers and (trust := mean_weight(one)) is not None}
    quantities = (
        Quantity("attacks-mean", "Mean of the honest nodes", label, "", lambda row: row.mean, higher),
        Quantity("attacks-worst-tenth", "Worst tenth of the honest nodes", label, "", lambda row: row.worst_tenth, higher),
        Quantity(
            "attacks-trust",
            "Weight that honest nodes gave to attackers",
            "weight of attackers",
            "%",
            lambda row: given.get(row.name),
            False,
        ),
    )
    return [_heat_map(quantity, studies) for quantity in quantities]


def _heat_map(quantity: Quantity, studies: Sequence[AttackStudy]) -> Figure:
    """Return a heat map with a view for each study, and before them one of the worst values over all settings."""
    of_all = []
    shares = list(dict.fromkeys(study.attackers for study in studies))
    for attackers in shares:
        alike = [study for study in studies if study.attackers == attackers]
        if len(alike) > 1 and not quantity.unit:  # a policy with fixed weights would hide all others
            share = f", {attackers} attackers" if len(shares) > 1 else ""
            of_all.append(_view(f"worst of {len(alike)} settings{share}", alike, quantity))
    return {
        "id": quantity.id,
        "kind": "heatmap",
        "title": quantity.title,
        "note": "The worst attack on each rule is in bold." + (f" {UNCHANGED}" if quantity.unit else ""),
        "y_label": "rule",
        "x_label": "attack",
        "label": quantity.label,
        "unit": quantity.unit,
        "log": False,
        "missing": "none" if quantity.unit else "no value",
        "views": [*of_all, *(_view(title(study, studies), [study], quantity) for study in studies)],
        "unfiltered": True,
    }


def _view(label: str, studies: Sequence[AttackStudy], quantity: Quantity) -> dict[str, Any]:
    """Return the cells of studies; of several values for a rule and an attack the worst."""
    rules = list(dict.fromkeys(rule for study in studies for rule in study.rules))
    attacks = list(dict.fromkeys(attack for study in studies for attack in study.attacks))
    if quantity.unit:  # without attack nobody trusts an attacker
        attacks = [attack for attack in attacks if attack != NO_ATTACK]
    worst_of = min if quantity.higher else max
    cells = {}
    for k, rule in enumerate(rules):
        attacked: list[tuple[float, str]] = []
        for j, attack in enumerate(attacks):
            rows = [row for study in studies if (row := study.cells.get((rule, attack))) is not None]
            known = [(value, row.name) for row in rows if (value := quantity.value(row)) is not None]
            if rows:
                value, name = worst_of(known) if known else (None, rows[0].name)
                cells[name] = {"row": k, "column": j, "value": value}
            attacked += known if attack != NO_ATTACK else []
        if attacked:
            cells[worst_of(attacked)[1]]["bold"] = True
    return {"label": label or "all", "rows": rules, "columns": attacks, "cells": cells}


# Trust in attackers
def _trust(series: Sequence[Series]) -> list[Figure]:
    """Return the share of the merges that attackers' models had, by round and by node."""
    figures = [
        lines(
            series,
            weight_by_round,
            id="attackers-weight",
            title="Weight of attackers by round",
            y_label="weight of attackers",
            note=f"Share of the weights in the merges of honest nodes that models of attackers had. {UNCHANGED}",
            y_unit="%",
        ),
        lines(
            series,
            models_by_round,
            id="attackers-models",
            title="Models of attackers by round",
            y_label="models of attackers",
            note="Share of the models of other nodes in the merges of honest nodes that came from attackers.",
            y_unit="%",
        ),
    ]
    figures = [clipped(figure) for figure in figures if figure["y"]]
    return [*figures, _by_node(series)] if figures else []


def mean_weight(series: Series) -> float | None:
    """Return the mean weight of attackers in the merges of honest nodes, over nodes, rounds and seeds, in percent."""
    values = [
        float(np.nanmean(found)) for entry in series.entries if np.isfinite(found := weight_by_node(series, entry)).any()
    ]
    return round(float(np.mean(values)), 1) if values else None


def weight_by_round(series: Series, entry: Entry) -> np.ndarray | None:
    """Return the mean over the honest nodes of the weight of attackers in each round, in percent."""
    if not entry.attackers:
        return None
    rounds, edges = series.rounds(entry), series.weights(entry)
    last = int(rounds["round"].max(initial=1))
    merges = np.bincount(rounds["round"][~_of(rounds["node"], entry)] - 1, minlength=last)
    trusted = _of(edges["src"], entry) & ~_of(edges["dst"], entry)
    given = np.bincount(edges["round"][trusted] - 1, edges["weight"][trusted], minlength=last)
    return _percent(given, merges)


def models_by_round(series: Series, entry: Entry) -> np.ndarray | None:
    """Return the share of models from attackers among those that honest nodes merged in each round, in percent."""
    if not entry.attackers:
        return None
    links = series.links(entry)
    last = max(series.done(links), 1)
    honest = ~_of(links["dst"], entry)
    total = np.bincount(links["round"][honest] - 1, minlength=last)
    taken = np.bincount(links["round"][honest & _of(links["src"], entry)] - 1, minlength=last)
    return _percent(taken, total)


def weight_by_node(series: Series, entry: Entry) -> np.ndarray:
    """Return the mean weight of attackers in the merges of each node, in percent; NaN for attackers."""
    rounds, edges = series.rounds(entry), series.weights(entry)
    merges = np.bincount(rounds["node"], minlength=entry.nodes)
    trusted = _of(edges["src"], entry)
    given = np.bincount(edges["dst"][trusted], edges["weight"][trusted], minlength=entry.nodes)
    return np.where(_of(np.arange(entry.nodes), entry), np.nan, _percent(given, merges))


def _by_node(series: Sequence[Series]) -> Figure:
    return distribution(
        series,
        {one.name: weight_by_node(one, one.shown) for one in series},
        higher_is_better=False,
        id="attackers-trusted",
        title="Weight of attackers by honest node",
        note="One mark per honest node: the mean weight of attackers in its merges, of one seed. The tenth that trusted"
        " attackers most is highlighted.",
        x_label="weight of attackers",
        unit="%",
    )


def _of(nodes: np.ndarray, entry: Entry) -> np.ndarray:
    return np.isin(nodes, entry.attackers)


def _percent(part: np.ndarray, total: np.ndarray) -> np.ndarray:
    share = np.full(len(total), np.nan)
    np.divide(100 * part, total, out=share, where=total > 0)
    return share
