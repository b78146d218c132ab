"""FedAvg without a server: each node averages with its peers and optionally fine-tunes at the end."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Any, Literal

import numpy as np

from p2pfl.algorithms.selection import fedavg
from p2pfl.parameters import Parameters
from p2pfl.policy import Me, Merge, Peers, PlannedTraining, ReportedStage, built_in, check_epochs, merge, samples
from p2pfl.update_rules import Rule

FineTuning = Literal["", "replace-last", "from-best"]


@built_in("fedavg")
@dataclass
class FedAvg:
    """Federated averaging (McMahan et al. 2017, algorithm 1), with all participants in every round.

    There is no server: a node averages with all peers that it may fetch from. On a complete graph all nodes compute the
    same mean, which is FedAvg; on other graphs this is averaging among neighbours. Under a budget a node averages with
    as many peers as fit, drawn at random in each round.

    Attributes:
        epochs: epochs of local training in each round.
        ft: fine-tuning. `replace-last` trains in the last round and does not aggregate (FedAvg+FT of Hartmann et al.,
            FedPref). `from-best` trains for 2 * `epochs` more after the last round, from the aggregated model with the
            lowest own validation loss (FedAvg+FT of Kharrat et al. 2024, appendix F.6); the result replaces the last
            round's aggregated model. As with every policy, the node's result is the model that was best on validation.
            A node that stops early has no last round.
        reported_stage: the model that drives early stopping and is reported.
    """

    epochs: int = 1
    ft: FineTuning = ""
    reported_stage: ReportedStage = "merged"

    best: Parameters | None = field(default=None, init=False, repr=False)
    loss: float = field(default=inf, init=False, repr=False)

    def __post_init__(self) -> None:
        check_epochs(self.epochs)

    @property
    def cohort(self) -> bool:
        return self.ft != "from-best"  # each node remembers its own best round

    def under_privacy(self, rounds: int) -> PlannedTraining | str:
        return planned_averages(self, rounds)

    async def prepare(self, me: Me, peers: Peers) -> Merge:
        return Merge(me.params, {me.id: 1.0})

    async def round(self, me: Me, peers: Peers) -> Merge:
        trained = await self._train(me)
        last = me.round >= me.rounds
        if self.ft == "replace-last" and last:
            return Merge(trained, {me.id: 1.0})
        merged = await self.aggregate(me, peers, trained)
        if self.ft == "from-best":
            await self._remember(me, merged.params)
            if last:
                tuned = await me.train(self.best, epochs=2 * self.epochs, purpose="fine tuning", rule=self._tuning_rule(me))
                return Merge(tuned, merged.weights)
        return merged

    async def _train(self, me: Me) -> Parameters:
        return await me.train(epochs=self.epochs, proximal=self._proximal(me), rule=self._rule(me))

    async def aggregate(self, me: Me, peers: Peers, trained: Parameters) -> Merge:
        """Return the merge of a round in which this node has trained this model. Subclasses may override it."""
        await peers.publish(trained)
        updates = await peers.models(peers.within_budget(peers.ids))
        return await merge(me, trained, updates, fedavg(samples(me, updates)))

    async def _remember(self, me: Me, params: Parameters) -> None:
        """Keep the model if it has the lowest validation loss so far, or if there are no validation data."""
        loss = float((await me.loss([params]))[0])
        if self.best is None or loss < self.loss or not isfinite(self.loss):
            self.best, self.loss = params.copy(), loss

    def _proximal(self, me: Me) -> tuple[float, Parameters] | None:
        return None

    def _rule(self, me: Me) -> Rule | None:
        return None

    def _tuning_rule(self, me: Me) -> Rule | None:
        """Return the rule of the fine-tuning `from-best`."""
        return None

    def state(self) -> dict[str, Any]:
        return {"best": b"" if self.best is None else self.best.tobytes(), "loss": self.loss}

    def restore(self, state: dict[str, Any]) -> None:
        self.best = np.frombuffer(state["best"], np.float32) if state["best"] else None
        self.loss = state["loss"]


def planned_averages(policy: FedAvg, rounds: int) -> PlannedTraining:
    """Return what a policy that trains as FedAvg plans in a run."""
    if policy.ft != "from-best":
        return PlannedTraining(rounds * policy.epochs)
    return PlannedTraining((rounds + 2) * policy.epochs, validates=True)
