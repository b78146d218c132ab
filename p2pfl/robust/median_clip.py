"""Clipping of received models to the median distance from the node's own model: the default of live nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from math import inf
from typing import NamedTuple

import numpy as np

from p2pfl.parameters import Parameters
from p2pfl.robust.candidates import distances_from

FAR = 3.0  # times the radius: a model further away is an outlier
FEW = 3  # peers; with fewer, the own movement also limits the radius
RECENT = 9  # rounds for which a remembered distance counts as it is, even if most others are older
BLOCK = 2**14  # values that are clipped at once; they fit into the cache


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
    not be safe here; see p2pfl.robust.assignments.

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
