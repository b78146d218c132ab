"""LFT+FedAvg and LFT+Ensemble: each node balances its own groups; models are averaged or form an ensemble."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf, sqrt
from typing import Any

import numpy as np

from p2pfl.algorithms.group_statistics import CountGroups, GroupCounts, even, fedfb_step
from p2pfl.parameters import Parameters
from p2pfl.policies.coordinated import CoordinatedFedAvg
from p2pfl.policies.fedavg import FedAvg
from p2pfl.policy import Me, Merge, Peers, built_in, refused_under_privacy, samples
from p2pfl.prediction_mixing import ModelEnsemble
from p2pfl.update_rules import Weighted


@dataclass
class LocalFair(FedAvg):
    """Local fair training (Zeng, Chen and Lee 2021, "Improving fairness via federated learning", section 3, with
    FairBatch, Roh et al. 2021). A node weights its samples by label and group, so that its groups get equal shares of
    positive decisions. Nothing about its groups leaves the node.

    The epochs of a round are divided into `updates` parts. Before each part,
    p2pfl.algorithms.group_statistics.fedfb_step updates the weights from the model's decisions on the node's own
    training samples. The t-th update has the step size `alpha` / sqrt(t).

    Simplified: the step is FedFB's, for any number of groups; FairBatch takes a step of fixed length for the label
    whose losses differ most. Samples are weighted, not drawn. The optimiser restarts after each update.

    Attributes:
        epochs, ft: see `fedavg`; fine-tuning is not balanced.
        alpha: the fairness hyperparameter; 0 disables the balancing.
        updates: number of updates of the weights in a round; the epochs must be divisible by it.
    """

    alpha: float = 0.1
    updates: int = 1

    weights: np.ndarray | None = field(default=None, init=False, repr=False)
    moves: int = field(default=0, init=False, repr=False)
    began: GroupCounts | None = field(default=None, init=False, repr=False)  # counts of the round's initial model

    def __post_init__(self) -> None:
        super().__post_init__()
        check_step("alpha", self.alpha)
        if self.updates < 1 or self.epochs % self.updates:
            raise ValueError(f"updates must be 1 or more, and divide epochs, got {self.updates} of {self.epochs}")

    async def _train(self, me: Me) -> Parameters:
        params = me.params
        for part in range(self.updates):
            found = await me.compute(CountGroups(params))
            if not part:
                self.began = found
            self.moves += 1
            before = even(found.counts.shape[1]) if self.weights is None else self.weights
            self.weights = fedfb_step(before, found, self.alpha / sqrt(self.moves))
            purpose = f"train {part}" if part else "train"
            rule = Weighted(self.weights)
            params = await me.train(params, epochs=self.epochs // self.updates, purpose=purpose, rule=rule)
        return params

    def state(self) -> dict[str, Any]:
        weights = [] if self.weights is None else self.weights.tolist()
        return {**super().state(), "weights": weights, "moves": self.moves}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self.weights = np.array(state["weights"]) if state["weights"] else None
        self.moves = state["moves"]


@built_in("lft-fedavg")
@dataclass
class LftFedAvg(LocalFair, CoordinatedFedAvg):
    """LFT+FedAvg (Zeng, Chen and Lee 2021): federated averaging of models trained with local fairness. `LocalFair` in
    p2pfl/policies/lft.py describes the training and its simplifications.

    Attributes:
        epochs, ft: see `fedavg`; fine-tuning is not balanced.
        alpha: the fairness hyperparameter: step size of the weights by label and group; 0 disables the balancing.
        updates: number of updates of the weights in a round; the epochs must be divisible by it.
    """

    under_privacy = refused_under_privacy("it weighs samples by counts of labels and groups on training data")


@built_in("lft-ensemble")
@dataclass
class LftEnsemble(LocalFair):
    """LFT+Ensemble (Zeng, Chen and Lee 2021): nodes train alone with local fairness and predict with all their models.
    The prediction is the mean of the models' probabilities, weighted by samples. `LocalFair` in p2pfl/policies/lft.py
    describes the training and its simplifications.

    The parameters remain those of the node's own model: it is published, continues in the next round, and is exported.
    The predictions of the ensemble are evaluated and reported. An ensemble consists of the own model of a round and the
    models of the peers of the last one. (In the paper, models are sent once, at the end. Here they are fetched in each
    round, so that every round can be evaluated.) A peer whose model did not arrive is left out of the round's ensemble.

    Attributes:
        epochs, ft: see `fedavg`; fine-tuning is not balanced.
        alpha: the fairness hyperparameter: step size of the weights by label and group; 0 disables the balancing.
        updates: number of updates of the weights in a round; the epochs must be divisible by it.
    """

    under_privacy = refused_under_privacy("it weighs samples by counts of labels and groups on training data")

    others: Sequence[Parameters] = field(default=(), init=False, repr=False)
    shares: Sequence[float] = field(default=(), init=False, repr=False)

    @property
    def memory(self) -> ModelEnsemble:
        return ModelEnsemble(self.others, self.shares)

    async def aggregate(self, me: Me, peers: Peers, trained: Parameters) -> Merge:
        await peers.publish(trained)
        updates = await peers.models(peers.within_budget(peers.ids))
        all_samples = sum(samples(me, updates).values())
        self.others = [update.params for update in updates]
        self.shares = [update.n_samples / all_samples for update in updates]
        return Merge(trained, {me.id: 1.0})

    def state(self) -> dict[str, Any]:
        return {**super().state(), "others": [model.tobytes() for model in self.others], "shares": list(self.shares)}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self.others = [np.frombuffer(model, np.float32) for model in state["others"]]
        self.shares = state["shares"]


def check_step(name: str, value: float) -> None:
    """Raise ValueError if a policy's option is not a valid step size."""
    if not 0 <= value < inf:
        raise ValueError(f"{name} must be 0 or more, and finite, got {value}")
