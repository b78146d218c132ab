"""Rules that clip models to a distance from the node's own model, for peers' models and for a coordinator's assignments.

The rules `scclip`, `cs+`, `cs-he` and `gts` clip in the merge. Live nodes clip on reception by default, before the policy
sees a model: to the median distance of many peers' models from the own one (`clip_models`, which
p2pfl.node.policy_api.NodePeers asks for).

A coordinator's assignments need another radius. All of them come from one sender, which would also set their median. Their
radius therefore contains no distance of an assignment, neither before nor after clipping. It is the length of the node's own
training steps. In the same way, the loss of an assignment is compared with the lowest loss with which the node has begun a
round. The node's own model is no measure: a coordinator can make it worse step by step, and an honest mean may be much worse
for a node than what it has trained itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import NamedTuple

import numpy as np

from p2pfl.parameters import Parameters
from p2pfl.robust.candidates import Candidates, Reweighting, check_share, distances_from

FAR = 3.0  # times the radius: a model further away is an outlier
FEW = 3  # peers; with fewer, the own movement also limits the radius
RECENT = 9  # rounds for which a remembered distance counts as it is, even if most others are older
BLOCK = 2**14  # values that are clipped at once; they fit into the cache
STEPS = 9  # training steps of which the longest is the radius


@dataclass(frozen=True)
class ScClip(Reweighting):
    """Self-centred clipping (He, Karimireddy and Jaggi, "Byzantine-robust decentralized learning via ClippedGossip",
    2022, eq. 5): x_i + sum_j w_j clip(x_j - x_i, tau), with clip(z, tau) = min(1, tau / ||z||) z.

    As weights: w'_j = w_j min(1, tau / d_j), and the rest belongs to the own model.

    Attributes:
        tau: the radius; 0 takes the `rank`-th largest distance, as the paper's program does.
        rank: rank of the distance that becomes the radius, from 1; with fewer peers the smallest distance.
    """

    tau: float = 0.0
    rank: int = 2

    def __post_init__(self) -> None:
        if not 0 <= self.tau < inf:
            raise ValueError(f"tau must be 0 or more, and finite, got {self.tau}")
        if self.rank < 1:
            raise ValueError(f"rank must be 1 or more, got {self.rank}")

    def reweight(self, candidates: Candidates) -> np.ndarray:
        if self.tau:
            return _clip_weights(candidates, np.array(self.tau))
        nearest_first = np.sort(candidates.distances[..., 1:])
        return _clip_weights(candidates, nearest_first[..., max(candidates.peers - self.rank, 0), None])


@dataclass(frozen=True)
class _Farthest(Reweighting):
    """Options of rules that assume that the farthest share of the peers' weight belongs to attackers.

    Attributes:
        share: assumed share of attackers in the weight of the peers; b = share * sum_j w_j.
    """

    share: float = 0.2

    def __post_init__(self) -> None:
        check_share(self.share)

    def nearer_weights(self, candidates: Candidates) -> np.ndarray:
        """Return the peers' weights without the farthest b of weight, float64 [..., K - 1]; one may lose a part."""
        weights = candidates.weights[..., 1:]
        order = np.argsort(-candidates.distances[..., 1:], kind="stable")
        ordered = np.take_along_axis(weights, order, axis=-1)
        farther = np.cumsum(ordered, axis=-1) - ordered
        cut = np.clip(self.share * weights.sum(-1, keepdims=True) - farther, 0.0, ordered)
        nearer = np.empty_like(weights)
        np.put_along_axis(nearer, order, ordered - cut, axis=-1)
        return nearer


@dataclass(frozen=True)
class CsPlus(_Farthest):
    """CS+ (Gaucher, Dieuleveut and Hendrikx, "Unified Breakdown Analysis for Byzantine Robust Gossip", ICML 2025).

    The models are clipped as by `scclip`. The radius is such that the farthest 2 b of weight are clipped:
    tau = max {t : sum of w_j over d_j >= t is at least 2 b}.
    """

    def reweight(self, candidates: Candidates) -> np.ndarray:
        far, weights = candidates.distances[..., 1:], candidates.weights[..., 1:]
        farthest_first = np.argsort(-far, kind="stable")
        total = np.cumsum(np.take_along_axis(weights, farthest_first, axis=-1), axis=-1)
        last = np.sum(total < (2 * self.share - 1e-9) * total[..., -1:], axis=-1, keepdims=True)
        return _clip_weights(candidates, np.take_along_axis(far, np.take_along_axis(farthest_first, last, -1), -1))


@dataclass(frozen=True)
class CsHe(_Farthest):
    """Self-centred clipping with the practical radius of He, Karimireddy and Jaggi (2022).

    In the form of Gaucher, Dieuleveut and Hendrikx (ICML 2025), tau^2 = (1 / b) sum of w_j d_j^2 over the peers without
    the farthest b of weight.
    """

    def reweight(self, candidates: Candidates) -> np.ndarray:
        if not self.share:
            return candidates.weights.copy()
        assumed = self.share * candidates.weights[..., 1:].sum(-1, keepdims=True)
        squares = self.nearer_weights(candidates) * candidates.distances[..., 1:] ** 2
        return _clip_weights(candidates, np.sqrt(squares.sum(-1, keepdims=True) / assumed))


@dataclass(frozen=True)
class Gts(_Farthest):
    """Geometric trimming (Gaucher, Dieuleveut and Hendrikx, "Unified Breakdown Analysis for Byzantine Robust Gossip", ICML
    2025): the farthest b of weight belongs to the own model instead. `nna` scales the other weights instead.
    """

    def reweight(self, candidates: Candidates) -> np.ndarray:
        nearer = self.nearer_weights(candidates)
        own = candidates.weights.sum(-1, keepdims=True) - nearer.sum(-1, keepdims=True)
        return np.concatenate([own, nearer], axis=-1)


def _clip_weights(candidates: Candidates, tau: np.ndarray) -> np.ndarray:
    """Return the weights w_j min(1, tau / d_j); the own model gets the rest."""
    far = candidates.distances
    factors = np.divide(tau, far, out=np.ones_like(far), where=far > tau)
    weights: np.ndarray = candidates.weights * factors
    weights[..., 0] = candidates.weights.sum(-1) - weights[..., 1:].sum(-1)
    return weights


class Clipped(NamedTuple):
    """Result of the clipping of received models: model k becomes own + factors[k] (model - own).

    Attributes:
        factors: from 0 to 1; 1 for a model that is not too far away.
        distances: of each model from the own one before clipping.
        radius: the median distance, to which models are clipped.
    """

    factors: list[float]
    distances: list[float]
    radius: float

    def models(self, own: Parameters, received: Sequence[Parameters]) -> list[Parameters | ClippedModel]:
        """Return the models, each clipped if it is too far away."""
        given = zip(received, self.factors, strict=True)
        return [model if factor == 1.0 else ClippedModel(model, own, factor) for model, factor in given]


class ClippedModel:
    """Clipped model whose values are computed when they are first read. A weighted mean does not read them.

    Attributes:
        received: the model before clipping, float32 [P].
        own: the model towards which it is moved, [P].
        factor: the part of the distance that remains, from 0 to 1.
    """

    def __init__(self, received: Parameters, own: Parameters, factor: float) -> None:
        self.received = received
        self.own = own
        self.factor = factor

    @cached_property
    def values(self) -> Parameters:
        """The values after clipping, [P]."""
        return move_towards(self.received, self.own, self.factor)


class MedianClip:
    """Clipping of models to the median distance from the node's own model.

    Self-centred clipping (He, Karimireddy and Jaggi, "Byzantine-robust decentralized learning via ClippedGossip",
    2022): a model x further than the radius r from the own model w becomes w + r (x - w) / ||x - w||. The radius is the
    lower median of the latest known distance of each peer. If fewer than three are known, the own model's distance from
    the initial model is added to these values. As long as fewer than half of the peers lie, no model moves the node
    further than an honest one, even if the node fetches few models in a round. A peer with more samples than most has a
    smaller radius, so that its influence is no greater than theirs. Beyond three times the radius, the influence of a
    model decreases with its distance.

    What is remembered are distances before clipping, so that the radius follows a node whose distance from all peers
    grows. Each peer has one value, and a liar's counts no more than any other value above the median, however large it
    is and however often it is sent. The distances of a coordinator's assignments, which all come from one sender, would
    not be safe here: they have a limit of their own, AssignmentLimits.

    A policy may fetch from few peers for many rounds. Most distances are then of a time when models were further apart,
    and their median would let a peer that has been chosen move the node much further than the others. Therefore, if more
    than half of the distances are older than `RECENT` rounds, each of these counts as at most the median of the others.

    Attributes:
        distances: the latest known distance of each peer's model from the own one.
        rounds: the round of each of these distances.
        outliers: number of models of each peer that were further away than three times the radius.
    """

    def __init__(self) -> None:
        self.outliers: Counter[str] = Counter()
        self.distances: dict[str, float] = {}
        self.rounds: dict[str, int] = {}

    def clip(
        self,
        own: Parameters,
        initial: Parameters,
        senders: Sequence[str],
        models: Sequence[Parameters],
        samples: Sequence[int] = (),
    ) -> list[Parameters]:
        """Return the models, each clipped if it is too far away.

        Args:
            own: the node's own model, float32 [P].
            initial: the common initial model, [P].
            senders: the sender of each model.
            models: float32, each [P].
            samples: the number of samples of each sender, if models are weighted by them.
        """
        clipped = clip_models([own, *models], initial, self.distances_of_others(senders), samples)
        self.record(senders, clipped)
        return [move_towards(model, own, factor) for model, factor in zip(models, clipped.factors, strict=True)]

    def distances_of_others(self, senders: Sequence[str], round: int = 0) -> list[float]:
        """Return the latest known distances of all peers that are not in `senders`, old ones limited in `round`."""
        recent = {id: far for id, far in self.distances.items() if self.rounds.get(id, 0) > round - RECENT}
        most = lower_median(list(recent.values())) if 0 < 2 * len(recent) < len(self.distances) else inf
        return [recent.get(id, min(far, most)) for id, far in self.distances.items() if id not in senders]

    def record(self, senders: Sequence[str], clipped: Clipped, round: int = 0) -> None:
        """Record the distances of models in a round.

        Args:
            senders: the sender of each model.
        """
        distances = list(zip(senders, clipped.distances, strict=True))
        self.distances.update(distances)
        self.rounds.update(dict.fromkeys(senders, round))
        self.outliers.update([id for id, far in distances if far > FAR * clipped.radius])

    def forget(self, known: Sequence[str]) -> None:
        """Forget the distances of all peers that are not in `known`."""
        self.distances = {id: far for id, far in self.distances.items() if id in known}
        self.rounds = {id: round for id, round in self.rounds.items() if id in known}


def clip_models(
    models: Sequence[Parameters],
    initial: Parameters,
    known: Sequence[float],
    samples: Sequence[int] = (),
    distances: list[float] | None = None,
) -> Clipped:
    """Return how received models are clipped if they are too far away; see MedianClip.

    Args:
        models: the own model, then the received ones; float32, [P] each.
        initial: the common initial model, [P].
        known: the latest known distances of the peers that have sent none of these models.
        samples: the number of samples of each sender, if models are weighted by them.
        distances: of each received model from the own one; computed if None.
    """
    own, *received = models
    distances = distances_from(own, received) if distances is None else distances
    limits = [*known, *distances]
    if len(limits) < FEW:
        limits += [moved for moved in distances_from(own, [initial]) if moved]
    radius = lower_median(limits)
    radii = radii_of(radius, samples or [1] * len(received))
    return Clipped([factor_of(far, most) for far, most in zip(distances, radii, strict=True)], distances, radius)


def without_clipping(
    models: Sequence[Parameters | ClippedModel], weights: Sequence[float]
) -> tuple[list[Parameters], list[float]]:
    """Return models of which none is clipped, and weights, with the same weighted sum.

    The model towards which clipped models are moved is added, with the part of their weights that their factors take.
    """
    given: list[Parameters] = []
    shares: list[float] = []
    owns: dict[int, Parameters] = {}  # by identity
    moved: dict[int, float] = {}
    for model, weight in zip(models, weights, strict=True):
        if isinstance(model, ClippedModel):
            own, kept = model.own, weight * model.factor
            owns[id(own)] = own
            moved[id(own)] = moved.get(id(own), 0.0) + weight - kept
            model, weight = model.received, kept
        given.append(model)
        shares.append(weight)
    return [*given, *owns.values()], [*shares, *moved.values()]


def radii_of(radius: float, samples: Sequence[int]) -> list[float]:
    """Return the radius of each model; it is smaller for models with more samples than the median."""
    usual = lower_median(samples)
    return [radius * min(1.0, usual / n) if n else radius for n in samples]


def factor_of(far: float, radius: float) -> float:
    """Return the part of its distance that a model at the distance `far` from the own model keeps.

    A model is moved to a distance of at most `radius`, and an outlier, beyond three times the radius, nearer: to three
    times the square of the radius divided by `far`.
    """
    if far <= radius:
        return 1.0
    share = radius / far
    return share * min(1.0, FAR * share)


def move_towards(model: Parameters, own: Parameters, factor: float) -> Parameters:
    """Return own + factor (model - own); for the factor 1 the model itself."""
    if factor == 1.0:
        return model
    moved, part_of_it = np.empty_like(model), np.float32(factor)
    for start in range(0, len(model), BLOCK):
        part = slice(start, start + BLOCK)
        block = np.subtract(model[part], own[part], out=moved[part])
        block *= part_of_it
        block += own[part]
    return moved


def lower_median(values: Sequence[float]) -> float:
    """Return the median; for an even count the lower of the two middle values, which one liar of two cannot raise."""
    return sorted(values)[(len(values) - 1) // 2]


class AssignmentLimits:
    """Limits on assignments, which follow from a node's own training and validation data.

    The radius is the length of the longest of the node's last training steps, from the model with which a round began to
    the trained one. The mean of models that have trained as long is about that far from the trained model, or nearer. A
    node that is moved by the radius in each round makes longer steps on its way back. As long as training does not
    overshoot, the radius grows by at most one undisturbed step in a round, and not with the distance of assignments.

    Attributes:
        steps: lengths of the last training steps, by their round modulo `STEPS`.
        best: the lowest loss of a model with which the node has begun a round.
    """

    def __init__(self) -> None:
        self.steps: dict[str, float] = {}
        self.best = inf

    def record_step(self, round: int, length: float) -> None:
        """Record a training step of the node."""
        self.steps[str(round % STEPS)] = length

    def record_start(self, loss: float) -> None:
        """Record the loss of the model with which a round began; NaN without validation data."""
        if loss < self.best:
            self.best = loss

    @property
    def radius(self) -> float:
        """The radius for a node with as many samples as most of its peers; 0 before the first step."""
        return max(self.steps.values(), default=0.0)


def ratio_of(own: int, peers: Sequence[int]) -> float:
    """Return by how much longer the steps of most peers are than the own ones, at least 1.

    A node with fewer samples takes shorter steps than its peers, and would not keep up with their mean.

    Args:
        own: the node's number of samples.
        peers: those that its peers claim; a minority of them cannot raise the median.
    """
    return max(1.0, lower_median(peers) / own) if own and peers else 1.0
