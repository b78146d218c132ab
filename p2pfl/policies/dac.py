"""DAC: sample peers by a softmax of similarity, and average by samples or by similarity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from operator import itemgetter
from typing import Any, Literal

import numpy as np

from p2pfl.algorithms import selection, similarity
from p2pfl.algorithms.similarity import PeerSimilarities, SimilaritiesOfEach
from p2pfl.cohort import IdsOfEach, UpdatesOfEach, WeightsOfEach, of_each
from p2pfl.parameters import Parameters
from p2pfl.policies.random import Schedule, stages
from p2pfl.policy import (
    Extras,
    Me,
    Merge,
    Peers,
    PlannedTraining,
    ReportedStage,
    Update,
    built_in,
    check_epochs,
    merge,
    samples,
)

TAU = {"cosine-weights": 140.0, "cosine-gradients": 140.0, "l2": 19.0, "inverse-loss": 5000.0}


async def _measure_of_each(policy: Dac, me: Any, peers: Peers, own: Any, updates: UpdatesOfEach) -> WeightsOfEach:
    if policy.similarity == "inverse-loss":
        values = similarity.inverse_loss(me.losses(updates, "train"))
    else:
        values = me.compare(own, updates, policy.similarity)
    return WeightsOfEach(updates.ids, values, np.zeros(len(updates.ids.counts)))


def _estimate_of_each(policy: Dac, ids: IdsOfEach, updates: UpdatesOfEach, robust: str) -> None:
    known: Any = policy.known
    if policy.two_hop != "none":
        known.borrow(ids, updates, policy.similarity, policy.two_hop == "most")


def _scores_of_each(
    updates: UpdatesOfEach, p: WeightsOfEach | None, known: SimilaritiesOfEach, ids: IdsOfEach
) -> WeightsOfEach:
    if p is None:
        return known.of(updates.ids)
    return WeightsOfEach(updates.ids, p.others[similarity.ids_in(ids, updates.ids)], p.own)


@of_each(_scores_of_each)
def scores_of(
    updates: Sequence[Update], p: np.ndarray | None, known: PeerSimilarities, ids: Sequence[str]
) -> dict[str, float]:
    """Return by sender of each update its probability `p` among `ids`, or else the measured similarity to it."""
    scores = known.measured if p is None else dict(zip(ids, p.tolist(), strict=True))
    return {update.sender: scores.get(update.sender, 0.0) for update in updates}


@built_in("dac")
@dataclass
class Dac:
    """Decentralized adaptive clustering (Listo Zec et al., "On the effects of similarity metrics in decentralized deep
    learning under distributional shift", sections 2.1 and 3).

    Each round a node trains, samples m peers with probability softmax(tau * s), measures its similarity to them, and
    averages with them. The similarity to a peer never met is estimated by that of a sampled peer that has met it.
    Therefore an update carries the similarities that its sender has measured.

    Where the paper's text and the settings that reproduce its table differ, the default follows the recommendation for
    live nodes, and the option that reproduces the table is marked `literal` below.

    Attributes:
        neighbours: m, the number of peers sampled each round; a node with fewer peers takes all.
        similarity: the measure of similarity; greater is more similar.
        aggregation: `fedavg` weights models by training samples, `fedsim` by similarity.
        tau: inverse temperature of the softmax, finite; 0 takes the paper's value for the synthetic problem.
        two_hop: if several sampled peers have met a peer, the one whose similarity is used: the `most` similar
            (default), the `least` (literal), or `none`.
        weights: weights of FedSim: the `similarity` after this round's measurement (default), or the sampling
            `probability` before it (literal).
        score_on: data on which `inverse-loss` takes the mean loss: `own` evaluates the peer's model (literal for the
            table; no further transfer), `peer` uploads the own model and evaluates it there (the paper's text).
        schedule: `synchronous` (default) or `sequential` (literal); see p2pfl.policies.random.Schedule.
        epochs: epochs of training in each round.
        reported_stage: the model that drives early stopping and is reported.
    """

    neighbours: int = 5
    similarity: Literal["cosine-weights", "cosine-gradients", "l2", "inverse-loss"] = "cosine-weights"
    aggregation: Literal["fedavg", "fedsim"] = "fedsim"
    tau: float = 0.0
    two_hop: Literal["most", "least", "none"] = "most"
    weights: Literal["similarity", "probability"] = "similarity"
    score_on: Literal["own", "peer"] = "own"
    schedule: Schedule = "synchronous"
    epochs: int = 1
    reported_stage: ReportedStage = "auto"

    known: PeerSimilarities = field(default_factory=lambda: PeerSimilarities({}, {}), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.neighbours < 0:
            raise ValueError(f"neighbours must be 0 or more, got {self.neighbours}")
        check_epochs(self.epochs)
        if not 0 <= self.tau < inf:
            raise ValueError(f"tau must be 0 or more, and finite, got {self.tau}")
        self.tau = self.tau or TAU[self.similarity]

    @property
    def cohort(self) -> bool:
        return self.schedule == "synchronous" and not self.asks_scores

    def under_privacy(self, rounds: int) -> PlannedTraining | str:
        if self.similarity == "inverse-loss":
            return "its similarity inverse-loss is a loss on training data; set policy.similarity to another measure"
        return PlannedTraining(rounds * self.epochs)

    async def prepare(self, me: Me, peers: Peers) -> Merge:
        self.known = similarity.unknown(peers.ids)
        return Merge(me.params, {me.id: 1.0})

    async def round(self, me: Me, peers: Peers) -> Merge:
        trained = await me.train(epochs=self.epochs)
        await peers.publish(trained, self.known.lent())

        ids = peers.ids
        p = selection.probabilities(self.known.of(ids), self.tau)
        chosen = peers.within_budget(selection.sample(me.rng("peers"), ids, p, me.budget.cap(self.neighbours)))

        updates = await peers.models(chosen, stages(self.schedule, me, peers, chosen))
        self.known.measure(await self._measure(me, peers, trained, updates))
        self.estimate(peers.ids, updates, me.robust)

        if self.aggregation == "fedavg":
            weights = selection.fedavg(samples(me, updates))
        else:
            scores = scores_of(updates, p if self.weights == "probability" else None, self.known, ids)
            weights = selection.fedsim(me.id, scores)
        merged = await merge(me, trained, updates, weights)
        if self.schedule == "sequential":
            await peers.publish(merged.params, self.known.lent(), stage="merged")
        return merged

    @of_each(_measure_of_each)
    async def _measure(self, me: Me, peers: Peers, own: Parameters, updates: Sequence[Update]) -> dict[str, float]:
        """Return the similarity of the own model to that of the sender of each update."""
        senders = [update.sender for update in updates]
        models = [update.params for update in updates]
        if not models:
            return {}
        if self.similarity != "inverse-loss":
            query = similarity.CompareModels(self.similarity, own, models, me.initial)
            # In sequence, no two nodes share a batch. Waiting would only regroup the means, and so change their last bits.
            values = similarity.compare(query) if self.schedule == "sequential" else await me.compute(query)
        elif self.score_on == "own":
            values = similarity.inverse_loss(await me.loss(models, split="train"))
        else:
            losses = await peers.remote_losses(senders, own)
            senders = [id for id in senders if id in losses]
            # No data suit a node's model better than its own training data. A lower loss is a false report.
            least = float((await me.loss([own], split="train"))[0]) if me.robust != "none" else 0.0
            values = similarity.inverse_loss([max(losses[id], least) if losses[id] >= 0 else losses[id] for id in senders])
        return dict(zip(senders, values.tolist(), strict=True))

    @of_each(_estimate_of_each)
    def estimate(self, ids: tuple[str, ...], updates: Sequence[Update], robust: str = "none") -> None:
        """Borrow similarities from the sampled peers, for peers of `ids` that this node has not met.

        They are limited to the range of the measure. If the federation protects itself against lying members, one is at
        most the own similarity to its lender, and at least that of an unknown peer.
        """
        read = [(self.known.measured.get(update.sender, 0.0), *_read(update.extras)) for update in updates]
        if self.two_hop == "none" or not read:
            return
        read.sort(key=_own_similarity, reverse=self.two_hop == "least")  # the last lender overrides the others
        own, keys, lent = zip(*read, strict=True)
        least, most = similarity.RANGES[self.similarity]
        values = np.concatenate(lent, dtype=np.float64)
        if robust == "none":
            values = np.minimum(np.maximum(values, least), most)
        else:
            values = np.minimum(np.maximum(values, 0.0), np.repeat(np.clip(own, 0.0, most), [len(part) for part in keys]))
        self.known.borrow(ids, np.concatenate(keys), values)

    @property
    def asks_scores(self) -> bool:
        return self.similarity == "inverse-loss" and self.score_on == "peer"

    def state(self) -> dict[str, Any]:
        return {"met": self.known.measured, "estimated": self.known.borrowed}

    def restore(self, state: dict[str, Any]) -> None:
        self.known = PeerSimilarities(state["met"], state["estimated"])


def similarity_extras(measured: Mapping[str, float]) -> Extras:
    """Return measured similarities by name, encoded as extras of an update."""
    return PeerSimilarities(measured, {}).lent()


def _read(extras: Extras) -> tuple[np.ndarray, np.ndarray]:
    """Return the short ids and the similarities in an update's extras; none if they are invalid."""
    peers, values = extras.get("peers"), extras.get("similarities")
    if peers is None or values is None or peers.dtype != np.uint64 or values.dtype != np.float32:
        return _NOTHING
    return (peers, values) if peers.ndim == 1 and peers.shape == values.shape else _NOTHING


_NOTHING = np.empty(0, np.uint64), np.empty(0, np.float32)
_own_similarity = itemgetter(0)
