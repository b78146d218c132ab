"""Test metric of the mean of the honest nodes' models, with the key `mean_model` of a scenario."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from p2pfl.node.node import Node
from p2pfl.parameters import Parameters
from p2pfl.random_streams import RandomStreams
from p2pfl.sim.simulation.simulation import Run
from p2pfl.task import group_of


def of_mean_model(run: Run, metric: str) -> dict[str, dict[str, Any]]:
    """Return additional metrics: `mean_model`, of the mean of all honest nodes' models, and `mean_model_G` of each group G.

    A mean model is evaluated on the test data of the nodes in the mean; the figure is the mean over these nodes. No
    single node has it: `nodes` is empty. Private parts are not averaged: each node keeps its own.
    """
    attackers = () if run.recorder.view is None else run.recorder.view.attackers
    honest = [node for name, node in run.nodes.items() if name not in attackers]
    groups: dict[str, list[Node]] = {"mean_model": honest}
    for node in honest:
        if (group := group_of(node.task)) is not None:
            groups.setdefault(f"mean_model_{group}", []).append(node)
    return {name: {"mean": _metric(run, nodes, metric), "nodes": []} for name, nodes in groups.items()}


def _metric(run: Run, nodes: Sequence[Node], metric: str) -> float:
    mean: Parameters = np.array([node.task.layout.shared_of(node.result) for node in nodes]).mean(axis=0)
    known: dict[int, float] = {}  # nodes with the same test data have the same figure
    values = []
    for node in nodes:
        key = _test_data(node)
        if key not in known:
            learner = node.task.learner(RandomStreams(run.scenario.seed, node.name), run.scenario.device)
            whole = node.task.layout.with_private(mean, node.result)
            known[key] = learner.evaluate([whole], ["test"])[0].get(f"test_{metric}", np.nan)
        values.append(known[key])
    return float(np.mean(values))


def _test_data(node: Node) -> int:
    """Return a key of a node's test data; with private parts, each node has its own key."""
    data = getattr(node.task, "data", {}).get("test")
    return id(node) if data is None or node.task.layout.unshared else hash((id(data.x), id(data.y)))
