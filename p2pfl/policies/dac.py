"""DAC: sample peers by a softmax of similarity, and average by samples or by similarity."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import inf, isfinite
from typing import Any, Literal

import numpy as np

from p2pfl.algorithms import aggregation, selection, similarity
from p2pfl.parameters import Parameters
from p2pfl.policies.schedule import Schedule, stages
from p2pfl.policy import Extras, Me, Merge, Peers, ReportedStage, Update, check_epochs, merge, samples

TAU = {"cosine-weights": 140.0, "cosine-gradients": 140.0, "l2": 19.0, "inverse-loss": 5000.0}


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
        schedule: `synchronous` (default) or `sequential` (literal); see p2pfl.policies.schedule.
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

    met: dict[str, float] = field(default_factory=dict, init=False, repr=False)
    estimated: dict[str, float] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.neighbours < 0:
            raise ValueError(f"neighbours must be 0 or more, got {self.neighbours}")
        check_epochs(self.epochs)
        if not 0 <= self.tau < inf:
            raise ValueError(f"tau must be 0 or more, and finite, got {self.tau}")
        self.tau = self.tau or TAU[self.similarity]

    async def prepare(self, me: Me, peers: Peers) -> Merge:
        return Merge(me.params, {me.id: 1.0})

    async def round(self, me: Me, peers: Peers) -> Merge:
        trained = await me.train(epochs=self.epochs)
        await peers.publish(trained, similarity_extras(self.met))

        known = self.estimated | self.met
        p = selection.probabilities(np.array([known.get(id, 0.0) for id in peers.ids]), self.tau)
        before = dict(zip(peers.ids, p.tolist(), strict=True))
        chosen = peers.within_budget(selection.sample(me.rng("peers"), peers.ids, p, me.budget.cap(self.neighbours)))

        updates = await peers.models(chosen, stages(self.schedule, me, peers, chosen))
        self.met |= await self._measure(me, peers, trained, updates)
        self.estimate(peers.ids, updates, me.robust)

        if self.aggregation == "fedavg":
            weights = aggregation.fedavg(samples(me, updates))
        else:
            scores = before if self.weights == "probability" else self.met
            weights = aggregation.fedsim(me.id, {u.sender: scores.get(u.sender, 0.0) for u in updates})
        merged = await merge(me, trained, updates, weights)
        if self.schedule == "sequential":
            await peers.publish(merged.params, similarity_extras(self.met), stage="merged")
        return merged

    async def _measure(self, me: Me, peers: Peers, own: Parameters, updates: Sequence[Update]) -> dict[str, float]:
        """Return the similarity of the own model to that of the sender of each update."""
        senders = [update.sender for update in updates]
        models = [update.params for update in updates]
        if not models:
            return {}
        if self.similarity == "cosine-weights":
            values = similarity.cosine_weights(own, models)
        elif self.similarity == "cosine-gradients":
            values = similarity.cosine_gradients(own, models, me.initial)
        elif self.similarity == "l2":
            values = similarity.inverse_l2(own, models)
        elif self.score_on == "own":
            values = similarity.inverse_loss(await me.loss(models, split="train"))
        else:
            losses = await peers.remote_losses(senders, own)
            senders = [id for id in senders if id in losses]
            # No data suit a node's model better than its own training data. A lower loss is a false report.
            least = float((await me.loss([own], split="train"))[0]) if me.robust != "none" else 0.0
            values = similarity.inverse_loss([max(losses[id], least) if losses[id] >= 0 else losses[id] for id in senders])
        return dict(zip(senders, values.tolist(), strict=True))

    def estimate(self, ids: Sequence[str], updates: Sequence[Update], robust: str = "none") -> None:
        """Store similarities from the sampled peers, for peers of `ids` that this node has not met."""
        if self.two_hop == "none":
            return
        unmet = {short_id(id): id for id in ids if id not in self.met}
        lent = [(own := self.met.get(u.sender, 0.0), self._borrow(u.extras, unmet, own, robust)) for u in updates]
        self.estimated |= selection.two_hop(lent, unmet.values(), self.two_hop)

    def _borrow(self, extras: Extras, names: Mapping[int, str], own: float, robust: str) -> dict[str, float]:
        """Return the similarities to `names` in an update's extras, limited to the range of the measure.

        If the federation protects itself against lying members, a value is at most the own similarity to its sender,
        `own`, and at least that of an unknown peer.
        """
        least, most = similarity.RANGES[self.similarity]
        if robust != "none":
            least, most = 0.0, max(0.0, min(own, most))
        return {id: min(max(value, least), most) for id, value in _read(extras, names).items()}

    @property
    def asks_scores(self) -> bool:
        return self.similarity == "inverse-loss" and self.score_on == "peer"

    def state(self) -> dict[str, Any]:
        return {"met": self.met, "estimated": self.estimated}

    def restore(self, state: dict[str, Any]) -> None:
        self.met, self.estimated = dict(state["met"]), dict(state["estimated"])


@lru_cache(maxsize=100_000)
def short_id(name: str) -> int:
    """Return an 8-byte integer that represents a name in an update."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")


def similarity_extras(met: Mapping[str, float]) -> Extras:
    """Return measured similarities by name, encoded as extras of an update."""
    return {
        "peers": np.array([short_id(name) for name in met], np.uint64),
        "similarities": np.array(list(met.values()), np.float32),
    }


def _read(extras: Extras, names: Mapping[int, str]) -> dict[str, float]:
    """Return the similarities to `names` in an update's extras; invalid entries are left out."""
    peers, values = extras.get("peers"), extras.get("similarities")
    if peers is None or values is None or peers.dtype != np.uint64 or values.dtype != np.float32:
        return {}
    if peers.ndim != 1 or peers.shape != values.shape:
        return {}
    pairs = zip(peers.tolist(), values.tolist(), strict=True)
    return {names[key]: value for key, value in pairs if key in names and isfinite(value)}
