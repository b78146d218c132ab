"""Compact table of robust rules under attack in a terminal: one line for each rule and each combination of settings."""

from __future__ import annotations

from collections.abc import Sequence

from p2pfl.sim.cli.console import print_whole
from p2pfl.sim.formatting import number
from p2pfl.sim.report.attacks import attack_rows
from p2pfl.sim.report.series import Run
from p2pfl.sim.results.attack_study import FIGURES, MEAN, NO_ATTACK, AttackStudy, attack_studies, title


def print_attack_table(runs: Sequence[Run]) -> None:
    """Print the worst attack on each rule; nothing unless the runs differ in their rule and in their attack."""
    from rich.table import Table

    studies = attack_studies(attack_rows(runs))
    if not studies:
        return
    higher = runs[0].shown.higher_is_better
    clean = any(NO_ATTACK in study.attacks for study in studies)
    table = Table()
    named = any(title(study, studies) for study in studies)
    for head in ("settings", "rule") if named else ("rule",):
        table.add_column(head, no_wrap=True)
    for head in ([NO_ATTACK] if clean else []) + ["worst attack", "mean", "worst tenth"]:
        table.add_column(head, justify="left" if head == "worst attack" else "right", no_wrap=True)
    for study in studies:
        for k, rule in enumerate(study.rules):
            first = ["" if k else title(study, studies)] if named else []
            table.add_row(*first, rule, *_figures(study, rule, higher, clean))
        table.add_section()
    print(f"robust rules: test {runs[0].metric} of the honest nodes under the attack with the worst mean")
    print_whole(table)


def _figures(study: AttackStudy, rule: str, higher: bool, clean: bool) -> list[str]:
    """Return the mean and the worst tenth without attack; the attack with the worst mean; and the worst of both."""
    found = [study.worst(rule, figure, higher) for figure in FIGURES]
    alone = " / ".join(number(study.clean(rule, figure)) for figure in FIGURES) if clean else ""
    attack = next((each[1] for figure, each in zip(FIGURES, found, strict=True) if figure == MEAN and each), "")
    return [*([alone.strip(" /")] if clean else []), attack, *("" if each is None else number(each[0]) for each in found)]
