"""Base class of policies with a shared model that is averaged and a personal model on each node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from p2pfl.parameters import Layout, Parameters
from p2pfl.policies.coordinated import sender, together
from p2pfl.policy import Assignment, Me, Merge, Peers, ReportedStage, Submission, check_epochs


@dataclass
class Personal:
    """A shared model by federated averaging (McMahan et al. 2017), and a personal model on each node.

    Only the shared model leaves the node: it is submitted and averaged. The node's parameters are its personal model.
    In reports, `merged` is the personal model, and `trained` is the shared model as this node trained it. A node that
    misses a round continues with its trained shared model.

    Attributes:
        epochs: epochs of training in each round, for each model that is trained.
        reported_stage: the model that drives early stopping and is reported.
    """

    epochs: int = 1
    reported_stage: ReportedStage = "merged"

    shared: Parameters | None = field(default=None, init=False, repr=False)  # None is the common initial model

    def __post_init__(self) -> None:
        check_epochs(self.epochs)

    async def prepare(self, me: Me, peers: Peers) -> Merge:
        return Merge(me.params, {me.id: 1.0})

    def _shared_values(self, me: Me) -> Parameters:
        return me.initial if self.shared is None else self.shared

    async def _share(self, me: Me, peers: Peers, trained: Parameters) -> tuple[Parameters, Mapping[str, float]]:
        """Submit the shared model. Return the assigned one and each node's weight in it."""
        assignment = await peers.submit(trained)
        if assignment is None:
            self.shared, weights = trained, {me.id: 1.0}
        else:
            self.shared, weights = assignment.params, dict(assignment.weights)
        return self.shared, weights

    def step(
        self, submissions: Sequence[Submission], state: Mapping[str, Any], layout: Layout
    ) -> tuple[dict[str, Assignment], dict[str, Any]]:
        """Assign to all the mean of all models, weighted by samples and summed in the order of ids. It has no state."""
        return together(sorted(submissions, key=sender)), {}

    def state(self) -> dict[str, Any]:
        return {"shared": to_bytes(self.shared)}

    def restore(self, state: dict[str, Any]) -> None:
        self.shared = from_bytes(state["shared"])


def to_bytes(params: Parameters | None) -> bytes:
    """Return a model as bytes for a state; b"" for None."""
    return b"" if params is None else params.tobytes()


def from_bytes(data: bytes) -> Parameters | None:
    return np.frombuffer(data, np.float32) if data else None
