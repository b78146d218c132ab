"""Clipping of received models to the median distance from the node's own model: the default of live nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from p2pfl.parameters import Parameters
from p2pfl.robust.candidates import distances_from

FAR = 3.0  # times the radius: a model further away is an outlier
FEW = 3  # peers; with fewer, the own movement also limits the radius
BLOCK = 2**14  # values that are clipped at once; they fit into the cache


class Clipped(NamedTuple):
    """Received models after clipping.

    Attributes:
        models: float32, [P] each.
        distances: of each model from the own one before clipping.
        radius: the median distance, to which models are clipped.
    """

    models: list[Parameters]
    distances: list[float]
    radius: float


class MedianClip:
    """Clipping of models to the median distance from the node's own model.

    Self-centred clipping (He, Karimireddy and Jaggi, "Byzantine-robust decentralized learning via ClippedGossip",
    2022): a model x further than the radius r from the own model w becomes w + r (x - w) / ||x - w||. The radius is the
    lower median of the latest known distance of each peer. If fewer than three are known, the own model's distance from
    the initial model is added to these values. As long as fewer than half of the peers lie, no model moves the node
    further than an honest one, even if the node fetches few models in a round. A peer with more samples than most has a
    smaller radius, so that its influence is no greater than theirs. Beyond three times the radius, the influence of a
    model decreases with its distance.

    Attributes:
        distances: the latest known distance of each peer's model from the own one.
        outliers: number of models of each peer that were further away than three times the radius.
    """

    def __init__(self) -> None:
        self.outliers: Counter[str] = Counter()
        self.distances: dict[str, float] = {}

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
        return self.record(senders, clip_models([own, *models], initial, self.distances_of_others(senders), samples))

    def distances_of_others(self, senders: Sequence[str]) -> list[float]:
        """Return the latest known distances of all peers that are not in `senders`."""
        return [far for id, far in self.distances.items() if id not in senders]

    def record(self, senders: Sequence[str], clipped: Clipped) -> list[Parameters]:
        """Record the distances of models, and return the clipped models.

        Args:
            senders: the sender of each model.
        """
        distances = list(zip(senders, clipped.distances, strict=True))
        self.distances.update(distances)
        self.outliers.update([id for id, far in distances if far > FAR * clipped.radius])
        return clipped.models

    def forget(self, known: Sequence[str]) -> None:
        """Forget the distances of all peers that are not in `known`."""
        self.distances = {id: far for id, far in self.distances.items() if id in known}


def clip_models(
    models: Sequence[Parameters],
    initial: Parameters,
    known: Sequence[float],
    samples: Sequence[int] = (),
    distances: list[float] | None = None,
) -> Clipped:
    """Return received models, each clipped if it is too far away; see MedianClip.

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
    clipped = [clip_towards(model, own, far, most) for model, far, most in zip(received, distances, radii, strict=True)]
    return Clipped(clipped, distances, radius)


def radii_of(radius: float, samples: Sequence[int]) -> list[float]:
    """Return the radius of each model; it is smaller for models with more samples than the median."""
    usual = lower_median(samples)
    return [radius * min(1.0, usual / n) if n else radius for n in samples]


def clip_towards(model: Parameters, own: Parameters, far: float, radius: float) -> Parameters:
    """Return a model at the distance `far` from the own model, moved towards it to a distance of at most `radius`.

    An outlier, beyond three times the radius, is moved nearer: to three times the square of the radius divided by
    `far`.
    """
    if far <= radius:
        return model
    share = radius / far
    factor = np.float32(share * min(1.0, FAR * share))
    clipped = np.empty_like(model)
    for start in range(0, len(model), BLOCK):
        part = slice(start, start + BLOCK)
        block = np.subtract(model[part], own[part], out=clipped[part])
        block *= factor
        block += own[part]
    return clipped


def lower_median(values: Sequence[float]) -> float:
    """Return the median; for an even count the lower of the two middle values, which one liar of two cannot raise."""
    return sorted(values)[(len(values) - 1) // 2]
