"""Final state of all nodes of a run as columns, from which its results are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from p2pfl.cohort import Counts
from p2pfl.node.node import Node
from p2pfl.parameters import Parameters
from p2pfl.policy import Policy

LIMITS = ("models", "held", "bytes")  # of what a node receives


@dataclass(frozen=True)
class FinalState:
    """Final state of all nodes, whether they ran one by one or as a cohort.

    Attributes:
        policies: of each node; that of a cohort alone if it selects no peers in the preparation.
        models: the model of each node that counts as its result, float32 [P] each.
        last: the model of each node at its end.
        judged: whether any node has a figure on its validation data.
        counts: int64 [N] by name:

            - sent: bytes in rounds; control: bytes of other kinds; prepared_bytes: bytes sent in the preparation.
            - received, prepared: models in all, and in the preparation.
            - rounds: rounds done; round_models, round_bytes, most_held: see p2pfl.budget.BudgetTracker.
        limits: budget of each node by kind, [N]; 0 means no limit.
        trained: what the trainings of each node have cost, [N] by name: trainings, samples, train_s, joules (0 without
            devices), and refused, the trainings that the budget has refused.
    """

    policies: Sequence[Policy]
    models: Sequence[Parameters] | np.ndarray
    last: Sequence[Parameters] | np.ndarray
    judged: bool
    counts: Mapping[str, Counts]
    limits: Mapping[str, np.ndarray]
    trained: Mapping[str, np.ndarray]


def state_of(nodes: Sequence[Node]) -> FinalState:
    """Return the final state of single nodes."""
    training = [node.me.training for node in nodes]
    done = {name: np.array([getattr(of, name) for of in training], np.int64) for name in ("trainings", "samples", "refused")}
    traffic, trackers = [node.exchange.traffic for node in nodes], [node.peers.budget_tracker for node in nodes]
    counts = {
        "sent": [each.sent_in_rounds for each in traffic],
        "control": [each.sent["control"] for each in traffic],
        "prepared_bytes": [each.sent["preparation"] for each in traffic],
        "received": [each.received["models"] for each in traffic],
        "prepared": [each.preparation_models for each in trackers],
        "rounds": [node.round for node in nodes],
        **{name: [getattr(each, name) for each in trackers] for name in ("round_models", "round_bytes", "most_held")},
    }
    return FinalState(
        [node.policy for node in nodes],
        [node.result for node in nodes],
        [node.me.whole for node in nodes],
        any(node.early_stopping.loss != inf for node in nodes),
        {name: np.array(column, np.int64) for name, column in counts.items()},
        {kind: np.array([getattr(node.me.budget, kind) for node in nodes], np.int64) for kind in (*LIMITS, "trainings")}
        | {"joules": np.array([node.me.budget.joules for node in nodes])},
        {
            **done,
            "train_s": np.array([of.effort.seconds for of in training]),
            "joules": np.array([of.effort.joules or 0.0 for of in training]),
        },
    )
