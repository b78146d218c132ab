"""FedAvg and FedProx with a coordinator, and the common parts of all coordinated policies.

FedProx adds a proximal term to the loss, which keeps nodes near the model with which the round began.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, ClassVar

import numpy as np

from p2pfl.algorithms.selection import fedavg
from p2pfl.parameters import Layout, Parameters, weighted_mean
from p2pfl.policies.fedavg import FedAvg, planned_averages
from p2pfl.policy import Assignment, Extras, Me, Merge, Peers, PlannedTraining, Submission, built_in


@built_in("coordinated-fedavg")
@dataclass
class CoordinatedFedAvg(FedAvg):
    """Federated averaging (McMahan et al. 2017, algorithm 1). The elected coordinator computes the mean once.

    In a run in memory, and if nodes train one by one, the result is bit for bit that of `fedavg` on a complete graph. A
    node that misses a round continues with its own trained model and does not enter that round's mean.

    Attributes:
        epochs, ft: see `fedavg`; with `replace-last` nothing is submitted in the last round.
    """

    only_mean: ClassVar[bool] = True

    needs_start: ClassVar[bool] = False  # whether the step needs the model with which a round began
    previous: Extras = field(default_factory=dict, init=False, repr=False)

    def under_privacy(self, rounds: int) -> PlannedTraining | str:
        return planned_averages(self, rounds)._replace(submits=not self.ft)

    async def aggregate(self, me: Me, peers: Peers, trained: Parameters) -> Merge:
        self._forget_later_extras(me.round)
        start = self._start(me) if self.needs_start else None
        assignment = await peers.submit(trained, extras=self._extras(), previous=self.previous, start=start)
        if assignment is None:
            return Merge(trained, {me.id: 1.0})
        self.previous = assignment.extras if self._credible(assignment.extras, me.round) else {}
        return Merge(assignment.params, assignment.weights)

    def _forget_later_extras(self, round: int) -> None:
        """Forget the assigned extras if no step before this round can have assigned them.

        This happens when the node goes back to an earlier round.
        """
        if self.previous and not self._credible(self.previous, round - 1):
            self.previous = {}

    def _extras(self) -> Extras:
        """Return the extras to submit with the model."""
        return {}

    def _credible(self, extras: Extras, round: int) -> bool:
        """Return whether a step of this round can have assigned these extras.

        A lying coordinator can assign anything. If participants repeated it, the next coordinator could not make a
        step. A subclass whose step assigns extras should override this method, and refuse other names.
        """
        return not extras or type(self).step is not CoordinatedFedAvg.step

    def _start(self, me: Me) -> Parameters:
        return me.params

    def step(
        self, submissions: Sequence[Submission], state: Mapping[str, Any], layout: Layout
    ) -> tuple[dict[str, Assignment], dict[str, Any]]:
        """Assign to all the mean of all models, weighted by samples and summed in the order of ids. It has no state."""
        there = sorted(submissions, key=sender)
        return together(there), {}

    def state(self) -> dict[str, Any]:
        previous = {
            name: [array.dtype.name, list(array.shape), array.ravel().tolist()] for name, array in self.previous.items()
        }
        return {**super().state(), "previous": previous}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        said = state["previous"].items()
        self.previous = {name: np.array(values, dtype).reshape(shape) for name, (dtype, shape, values) in said}


@built_in("fedprox")
@dataclass
class FedProx(FedAvg):
    """FedAvg with `mu/2 ||w - w_t||^2` added to the local loss (Li et al., "Federated Optimization in Heterogeneous
    Networks", 2020, algorithm 2). w_t is the aggregated model of the previous round. All participants take part and
    train for the same number of epochs; in the paper slow ones may train for fewer.

    Attributes:
        mu: the weight of the proximal term.
    """

    mu: float = 0.1

    @property
    def cohort(self) -> bool:
        return self.ft != "from-best"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.mu < inf:
            raise ValueError(f"mu must be 0 or more, and finite, got {self.mu}")

    def under_privacy(self, rounds: int) -> PlannedTraining | str:
        return planned_averages(self, rounds)

    def _proximal(self, me: Me) -> tuple[float, Parameters] | None:
        return self.mu, me.params


@built_in("coordinated-fedprox")
@dataclass
class CoordinatedFedProx(CoordinatedFedAvg, FedProx):
    """`coordinated-fedavg` with the proximal term of FedProx (Li et al. 2020, algorithm 2); see `fedprox`."""

    only_mean: ClassVar[bool] = True

    def under_privacy(self, rounds: int) -> PlannedTraining | str:
        return planned_averages(self, rounds)._replace(submits=not self.ft)


def sender(submission: Submission) -> str:
    return submission.sender


def together(
    submissions: Sequence[Submission], extras: Extras | None = None, weights: Mapping[str, float] | None = None
) -> dict[str, Assignment]:
    """Assign to each sender the common mean of their models.

    Args:
        submissions: one or more, in the order of their senders' ids.
        extras: the extras of every assignment.
        weights: by id, with the sum 1; by default proportional to the samples.
    """
    weights = weights or fedavg({s.sender: s.n_samples for s in submissions})
    mean = weighted_mean([s.params for s in submissions], list(weights.values()))
    return {id: Assignment(mean, weights, extras or {}) for id in weights}


def apart(submissions: Sequence[Submission], weights: np.ndarray, extras: Extras | None = None) -> dict[str, Assignment]:
    """Assign to each sender its own mean.

    Args:
        submissions: one or more, in the order of their senders' ids.
        weights: of sender j's model in i's mean; shape [n, n], rows sum to 1.
        extras: the extras of every assignment.
    """
    ids = [s.sender for s in submissions]
    means = weights.astype(np.float32) @ np.array([s.params for s in submissions])
    return {
        id: Assignment(mean, dict(zip(ids, row.tolist(), strict=True)), extras or {})
        for id, mean, row in zip(ids, means, weights, strict=True)
    }
