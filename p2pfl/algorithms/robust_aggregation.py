"""Protection against lying members, applied to received models before the policy sees them.

The rule `none` changes nothing, as in the papers. The rule `median-clip` clips models and caps the numbers of samples
that peers claim. (p2pfl.policies.dac and p2pfl.node.exchange.message_exchange also limit what members report.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import floor, isfinite, sqrt

import numpy as np
from msgspec.structs import replace

from p2pfl.parameters import Parameters
from p2pfl.policy import Submission, Update

LARGEST_SHARE = 0.5  # of any peer in a mean by samples, even with few participants
FAR = 3.0  # times the radius: a model further away is an outlier
FEW = 3  # peers; with fewer, the own movement also limits the radius


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
        outliers: number of models of each peer that were further away than three times the radius.
    """

    def __init__(self) -> None:
        self.outliers: Counter[str] = Counter()
        self._distances: dict[str, float] = {}

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
        *distances, moved = distances_from(own, [*models, initial])
        self._distances.update(zip(senders, distances, strict=True))
        known = list(self._distances.values())
        radius = _lower_median(known if len(known) >= FEW or not moved else [*known, moved])
        self.outliers.update([id for id, far in zip(senders, distances, strict=True) if far > FAR * radius])
        radii = radii_of(radius, samples or [1] * len(models))
        return [clip_towards(model, own, far, most) for model, far, most in zip(models, distances, radii, strict=True)]

    def forget(self, known: Sequence[str]) -> None:
        """Forget the distances of all peers that are not in `known`."""
        self._distances = {id: far for id, far in self._distances.items() if id in known}


def radii_of(radius: float, samples: Sequence[int]) -> list[float]:
    """Return the radius of each model; it is smaller for models with more samples than the median."""
    usual = _lower_median(samples)
    return [radius * min(1.0, usual / n) if n else radius for n in samples]


def clip_towards(model: Parameters, own: Parameters, far: float, radius: float) -> Parameters:
    """Return a model at the distance `far` from the own model, moved towards it to a distance of at most `radius`.

    An outlier, beyond three times the radius, is moved nearer: to three times the square of the radius divided by
    `far`.
    """
    if far <= radius:
        return model
    share = radius / far
    return own + np.float32(share * min(1.0, FAR * share)) * (model - own)


def distances_from(own: Parameters, models: Sequence[Parameters]) -> list[float]:
    """Return the Euclidean distances of models from the own model, [P] each."""
    difference = np.empty_like(own)
    with np.errstate(over="ignore"):
        squares = [float(np.dot(np.subtract(model, own, out=difference), difference)) for model in models]
    return [
        sqrt(square) if isfinite(square) else float(np.linalg.norm(model.astype(np.float64) - own))
        for model, square in zip(models, squares, strict=True)
    ]


def _lower_median(values: Sequence[float]) -> float:
    """Return the median; for an even count the lower of the two middle values, which one liar of two cannot raise."""
    return sorted(values)[(len(values) - 1) // 2]


def cap_samples(own: int, claimed: Mapping[str, int]) -> dict[str, int]:
    """Return the peers' numbers of samples, reduced so that none exceeds 2/n of the total, nor half of it.

    Args:
        own: the node's own number, which is not reduced; n includes the node.
        claimed: the number that each peer claims.
    """
    share = min(LARGEST_SHARE, 2 / (len(claimed) + 1))
    largest_first = sorted(claimed.values(), reverse=True)
    rest = own + sum(largest_first)
    for cut, count in enumerate(largest_first):  # the `cut` largest are cut to the value of just their share
        if cut * share >= 1:
            break
        cap = share * rest / (1 - cut * share)
        if count <= cap:
            return {id: min(n, max(1, floor(cap))) for id, n in claimed.items()} if cut else dict(claimed)
        rest -= count
    cut = len(largest_first)
    cap = share * own / (1 - cut * share) if cut * share < 1 else 0.0
    return {id: min(n, max(1, floor(cap))) for id, n in claimed.items()}


def cap_updates(own: int, updates: Sequence[Update]) -> list[Update]:
    """Return the updates with capped numbers of samples; see `cap_samples`."""
    capped = cap_samples(own, {update.sender: update.n_samples for update in updates})
    return [u if capped[u.sender] == u.n_samples else replace(u, n_samples=capped[u.sender]) for u in updates]


def coarse(loss: float) -> float:
    """Return a loss rounded to three digits for a peer, so that it reveals less about single samples."""
    return float(f"{loss:.3g}")


def protect_submissions(submissions: Sequence[Submission], own: str) -> list[Submission]:
    """Return submissions for a coordinator's step: clipped towards one of them, with capped numbers of samples.

    Args:
        own: the coordinator's name. The others are clipped towards its submission. If it has none, they are clipped
            towards the submission with the lowest median distance from the others.
    """
    if len(submissions) < 2:
        return list(submissions)
    models = [s.params for s in submissions]

    def distances(one: Submission) -> dict[str, float]:
        far = zip(submissions, distances_from(one.params, models), strict=True)
        return {s.sender: d for s, d in far if s is not one}

    centre = next((s for s in submissions if s.sender == own), None)
    if centre is None:
        centre = min(submissions, key=lambda one: _lower_median(list(distances(one).values())))
    others = {**distances(centre), centre.sender: 0.0}
    capped = cap_samples(0, {s.sender: s.n_samples for s in submissions})
    radius = _lower_median([far for id, far in others.items() if id != centre.sender])
    radii = radii_of(radius, [capped[s.sender] for s in submissions])
    return [
        replace(s, params=clip_towards(s.params, centre.params, others[s.sender], most), n_samples=capped[s.sender])
        for s, most in zip(submissions, radii, strict=True)
    ]
