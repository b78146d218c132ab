"""Fronts of the solutions of nodes whose models hold one for every preference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from p2pfl.node.node import Node
from p2pfl.task import solutions_of

MOST_NODES = 15  # nodes in the summary


def of_nodes(nodes: Sequence[Node]) -> dict[str, Any] | None:
    """Return each of the first nodes' non-dominated solutions on its test data; None if there are none.

    higher_is_better: by the name of each objective.
    nodes: of each, preferences and points [k, m]; a node without test data has none.
    """
    found = [solutions_of(node.task, node.result) for node in nodes[:MOST_NODES]]
    there = [each for each in found if each is not None]
    if not there:
        return None
    told = [
        {"preferences": [], "points": []}
        if each is None
        else {"preferences": each.preferences.tolist(), "points": each.points.tolist()}
        for each in found
    ]
    return {"higher_is_better": dict(there[0].higher_is_better), "nodes": told}
