"""What policies have in common whose nodes have a personal model beside the shared one that travels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from p2pfl.parameters import Layout, Parameters
from p2pfl.policies.coordinated import sender, together
from p2pfl.policy import Assignment, Me, Merge, Peers, Stage, Submission, check_epochs


@dataclass
class Personal:
    """A shared model by federated averaging (McMahan et al. 2017), and a personal one at each node.

    The shared model is submitted and averaged, and nothing else leaves the node. The node's parameters are its personal
    model: `merged` in reports is the personal one, `trained` the shared one as this node has trained it. Who misses a round
    goes on with that.

    Attributes:
        epochs: of training in each round, of each model that is trained.
    """

    epochs: int = 1
    reported_stage: Stage = "merged"

    shared: Parameters | None = field(default=None, init=False, repr=False)  # None: still the common initial model

    def __post_init__(self) -> None:
        check_epochs(self.epochs)

    async def prepare(self, me: Me, peers: Peers) -> Merge:
        return Merge(me.params, {me.id: 1.0})

    def _shared_values(self, me: Me) -> Parameters:
        return me.initial if self.shared is None else self.shared

    async def _share(self, me: Me, peers: Peers, trained: Parameters) -> tuple[Parameters, Mapping[str, float]]:
        """Submit the shared model; return it as it is assigned, and how much each node's counted in it."""
        assignment = await peers.submit(trained)
        if assignment is None:
            self.shared, weights = trained, {me.id: 1.0}
        else:
            self.shared, weights = assignment.params, dict(assignment.weights)
        return self.shared, weights

    def step(
        self, submissions: Sequence[Submission], state: Mapping[str, Any], layout: Layout
    ) -> tuple[dict[str, Assignment], dict[str, Any]]:
        """Give all the mean of all, weighted by samples and summed in the order of ids. It has no state."""
        return together(sorted(submissions, key=sender)), {}

    def state(self) -> dict[str, Any]:
        return {"shared": to_bytes(self.shared)}

    def restore(self, state: dict[str, Any]) -> None:
        self.shared = from_bytes(state["shared"])


def to_bytes(params: Parameters | None) -> bytes:
    """Return a model as bytes for a state; none as b""."""
    return b"" if params is None else params.tobytes()


def from_bytes(data: bytes) -> Parameters | None:
    return np.frombuffer(data, np.float32) if data else None
