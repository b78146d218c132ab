"""Fronts of the solutions of nodes whose models hold one for every preference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from p2pfl.sim.simulation.simulation import Run
from p2pfl.system.printable import plural
from p2pfl.task import solutions_of

MOST_NODES = 15  # nodes in the summary


def of_run(run: Run) -> dict[str, Any] | None:
    """Return each of the first nodes' non-dominated solutions on its test data; None if there are none.

    higher_is_better: by the name of each objective.
    nodes: of each, preferences and points [k, m]; a node without test data has none.
    dead: number of all nodes whose solutions are all the same, or all constant; left out if there are none.
    """
    found = [solutions_of(node.task, node.result) for node in [*run.nodes.values()][:MOST_NODES]]
    there = [each for each in found if each is not None]
    if not there:
        return None
    answers = [
        {"preferences": [], "points": []}
        if each is None
        else {"preferences": each.preferences.tolist(), "points": each.points.tolist()}
        for each in found
    ]
    dead = sum(figures.get("test_dead", 0.0) > 0 for figures in run.recorder.results.values())
    return {
        "higher_is_better": dict(there[0].higher_is_better),
        "nodes": answers,
        **({"dead": dead} if dead else {}),
    }


def died(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each run with nodes whose model ignores the preference, with the cure.

    Args:
        runs: entries of `runs` in summary.json.
    """
    return [
        f"{plural(run['answers']['dead'], 'node')} of {run['name']!r}, seed {run['seed']}: its solutions do not depend on"
        " the preference, or are constant, probably because all ReLU units of the shared part give 0: train for more"
        " rounds, or lower task.optimizer.lr"
        for run in runs
        if run.get("answers", {}).get("dead")
    ]
