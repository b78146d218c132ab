"""What the solutions of nodes are worth whose models hold one for every preference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from p2pfl.node.node import Node
from p2pfl.task import solutions_of

MOST_NODES = 15  # of which it is told


def of_nodes(nodes: Sequence[Node]) -> dict[str, Any] | None:
    """Return of the results of the first nodes what none of their solutions dominates, on their test data; None without any.

    higher_is_better: by the name of each objective.
    nodes: of each, preferences and points [k, m]; those of a node without test data are none.
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
