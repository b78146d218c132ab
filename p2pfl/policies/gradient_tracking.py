"""Gradient tracking: decentralised SGD in which each node follows an estimate of the mean of all nodes' steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from p2pfl.errors import ConfigurationError
from p2pfl.parameters import Parameters
from p2pfl.policies.dsgd import Dsgd, mixing_weights, reported_degree
from p2pfl.policies.personal import from_bytes, to_bytes
from p2pfl.policy import Me, Merge, Peers, PlannedTraining, built_in, merge, passes_and_steps


@built_in("gradient-tracking")
@dataclass
class GradientTracking(Dsgd):
    """Distributed stochastic gradient tracking (Pu and Nedic, "Distributed stochastic gradient tracking methods",
    Mathematical Programming 2021, algorithm DSGT; Di Lorenzo and Scutari 2016).

    With decentralised SGD each node follows its own gradient, so that nodes with different data never agree at a constant
    step size. Here each follows y, which tracks the mean of all nodes' steps. Let d(x) be the step that local training
    makes from x: x minus the trained model. In each round, with the weights W of `dsgd`,

        y_i = (sum_j W_ij y_j of the round before) + d(x_i) - d(x_i of the round before),   first y_i = d(x_i)
        x_i = sum_j W_ij (x_j - y_j)

    With one step of plain SGD (`steps = 1`) d is the step size times the gradient, and this is the paper's algorithm, with
    the second sum made at the same time as the first. With more steps d is a pseudo-gradient, as in federated averaging.

    The running means and variances of batch norm follow no gradient, and are averaged as in `dsgd`: with y a variance could
    fall below 0.

    A node publishes two models: x - y (stage `trained`) and y (stage `merged`), so that a round costs two models for each
    neighbour. The sum of all y is that of all d if the weights are doubly stochastic and no model is lost; what is lost
    stays as a constant error, with which the nodes agree on another model than the best for all. So these are refused: a
    robust rule, a codec that loses digits, nodes that do not wait, a topology with a graph for each round, and a budget
    without room for two models of each neighbour. With `weights = "uniform"`, or on a directed graph, y follows a mean in
    which some nodes count more than others.

    Attributes:
        weights, steps, epochs, mixing, reported_stage: see `dsgd`.
        momentum, start_noise: refused; they are not part of the algorithm.
    """

    counts_models: ClassVar[bool] = True
    synchronous: ClassVar[bool] = True

    tracked: Parameters | None = field(default=None, init=False, repr=False)  # the mean of the y; None before round 1
    stepped: Parameters | None = field(default=None, init=False, repr=False)  # d of the round before

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.momentum or self.start_noise:
            raise ValueError("gradient-tracking has neither `momentum` nor `start_noise`: leave them out")
        if self.weights == "graph":
            raise ValueError('gradient-tracking needs a topology that never changes: its `weights` cannot be "graph"')

    def under_privacy(self, rounds: int) -> PlannedTraining:
        return passes_and_steps(rounds, self.epochs, self.steps)

    async def prepare(self, me: Me, peers: Peers) -> Merge:
        if me.robust != "none":
            raise ConfigurationError(
                f'the policy gradient-tracking needs robust = "none", got {me.robust!r}: a rule would change its sums'
            )
        needed, budget = 2 * len(peers.ids), me.budget
        size = 4 * me.layout.size
        for limit, room in (("models", budget.models), ("held", budget.held), ("bytes", budget.bytes // size)):
            if getattr(budget, limit) and room < needed:
                raise ConfigurationError(
                    f"the policy gradient-tracking needs room for {needed} models of {size:,} bytes, two of each neighbour,"
                    f" but budget.{limit} is {getattr(budget, limit):,}; with fewer its sums would be wrong"
                )
        return await super().prepare(me, peers)

    async def round(self, me: Me, peers: Peers) -> Merge:
        step = me.params - await self._train(me)
        y = step if self.tracked is None or self.stepped is None else self.tracked + step - self.stepped
        y[me.layout.n_trained :] = step[me.layout.n_trained :]
        ahead, ids = me.params - y, peers.ids
        extras = reported_degree(ids)
        await peers.publish(ahead, extras)
        await peers.publish(y, extras, stage="merged")
        chosen = peers.within_budget(ids)
        if me.budget.models:
            chosen = chosen[: me.budget.models // 2]  # of each, two models
        updates = await peers.models(chosen)
        moved = await merge(me, ahead, updates, mixing_weights(updates, me.id, ids, self))
        updates = await peers.models(peers.within_budget(chosen), "merged")
        self.tracked = (await merge(me, y, updates, mixing_weights(updates, me.id, ids, self))).params
        self.stepped = step
        return moved

    def state(self) -> dict[str, Any]:
        return {**super().state(), "tracked": to_bytes(self.tracked), "stepped": to_bytes(self.stepped)}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self.tracked, self.stepped = from_bytes(state["tracked"]), from_bytes(state["stepped"])
