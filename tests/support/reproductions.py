"""Shipped scenarios of papers as the suite runs them: with one seed, and with the tested rows.

With P2PFL_WHOLE_TABLES=1 the tests of the whole tables also run: the commands of docs/reproduced.md, with all rows and
all seeds, for about six minutes on two cores. Run them for a release; results/measured.json has their figures.
"""

import os

import msgspec
import pytest

from p2pfl.sim.execution.runner import check_all, run_all
from p2pfl.sim.results.results import summarise
from p2pfl.sim.scenario.claims import check
from p2pfl.sim.scenario.scenario import load

whole_tables = pytest.mark.skipif(
    os.environ.get("P2PFL_WHOLE_TABLES", "") != "1", reason="P2PFL_WHOLE_TABLES=1 makes whole tables of papers: ten minutes"
)


def outcome(name, rows, form="full"):
    """Run rows of a scenario with seed 0 and check its claims about them; return the table and the runs, by name."""
    file = load(name, [f"form={form}"] if form != "full" else [])
    kept = tuple(run for run in file.runs if run.name in rows)
    assert len(kept) == len(rows)
    against = file.against if file.against in rows else ""
    file = msgspec.structs.replace(file, runs=kept, seeds=(0,), against=against)
    check_all(file)
    summary = summarise(file, run_all(file, "local"))
    claimed = [claim for claim in file.claims if claim.holds]  # a single seed may fulfil a claim that the mean does not
    checked = check(claimed, file.figure, summary["table"])
    assert checked
    assert [str(claim) for claim in checked if not claim.held] == []
    return {row["name"]: row for row in summary["table"]}, {run["name"]: run for run in summary["runs"]}
