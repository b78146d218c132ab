"""Preferences: a node's weights of several objectives, and their distribution over the nodes.

A preference is a point of the simplex. It stays on its node: it is not part of `public_info`, and no message contains
it. If it is drawn from the seed, as in a simulation, anyone with the seed can draw it too. On a real node, its owner
sets it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from math import comb, inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2pfl._util.binding import build, choose
from p2pfl.errors import ConfigurationError
from p2pfl.random_streams import RandomStreams
from p2pfl.task import Part

Preference = NDArray[np.float64]
"""float64, shape [m]: non-negative, with the sum 1."""

ROUNDING = 1e-6  # tolerated difference of the sum of configured weights from 1
MOST_POINTS = 2**16  # of a lattice
MOST_DRAWS = 10_000
MOST = 1e6  # of a distribution's parameter: draws overflow far beyond it


def validate_preference(where: str, weights: Sequence[float], objectives: int) -> Preference:
    """Return weights as a preference, normalised to the sum 1 within the precision of floats.

    Raises:
        ConfigurationError: the number of weights is wrong, one is negative, or the sum is not 1.
    """
    if len(weights) != objectives:
        raise ConfigurationError(f"{where} must have {objectives} weights, one for each objective, got {len(weights)}")
    point: Preference = np.array(weights, np.float64)
    if not (point >= 0).all() or not abs(point.sum() - 1) <= ROUNDING:
        raise ConfigurationError(f"{where} must be weights of 0 or more with the sum 1")
    point /= point.sum()
    return point


def dirichlet(part: Part, rng: np.random.Generator, objectives: int, *, alpha: float = 1.0, number: int = 0) -> Preference:
    """Draw from a symmetric Dirichlet distribution.

    With alpha 1 it is uniform on the simplex, as in FedPref (Hartmann et al., "Dirichlet": "sampled uniformly at
    random from the weight simplex").

    Args:
        alpha: concentration parameter.
        number: index of the draw, from 0, for different preferences of otherwise identical nodes.
    """
    if not 0 < alpha <= MOST:
        raise ConfigurationError(f"task.preferences.alpha must be more than 0, and at most {MOST:.0f}, got {alpha}")
    if not 0 <= number < MOST_DRAWS:
        raise ConfigurationError(f"task.preferences.number must be from 0 to {MOST_DRAWS - 1:,}, got {number}")
    for _ in range(number):
        rng.dirichlet([alpha] * objectives)
    return rng.dirichlet([alpha] * objectives)


def gaussian(part: Part, rng: np.random.Generator, objectives: int, *, deviation: float = 0.1) -> Preference:
    """Draw each weight from N(1/m, deviation^2), and take the nearest point of the simplex.

    FedPref (Hartmann et al., "Gaussian") gives neither mean nor deviation, nor the normalisation of the sum. It states
    that preferences are most similar under this distribution.
    """
    if not 0 <= deviation <= MOST:
        raise ConfigurationError(f"task.preferences.deviation must be 0 or more, and at most {MOST:.0f}, got {deviation}")
    return nearest(rng.normal(1 / objectives, deviation, objectives))


def equidistant(part: Part, rng: np.random.Generator, objectives: int) -> Preference:
    """Return the node's point of equally spaced points on the simplex (FedPref, "equidistant").

    The points are those of the simplex lattice (Das and Dennis 1998) with the fewest divisions that gives enough
    points. If it gives more, each selected point is the one farthest from those before (Gonzalez 1985), starting with
    the corners. (The paper does not define its points; with 20 nodes and 2 or 4 objectives the lattice has exactly 20.)
    """
    point: Preference = _spread(part.count, objectives)[part.index]
    return point


def groups(part: Part, rng: np.random.Generator, objectives: int, *, weights: list[list[float]]) -> Preference:
    """Return the preference of the node's group: blocks of (nearly) equal size, one for each row of `weights`."""
    rows = [validate_preference(f"task.preferences.weights[{k}]", row, objectives) for k, row in enumerate(weights)]
    if not rows:
        raise ConfigurationError("task.preferences.weights must have a row for each group")
    return rows[_group(part, len(rows))]


DISTRIBUTIONS = {"dirichlet": dirichlet, "gaussian": gaussian, "equidistant": equidistant, "groups": groups}


def preference_of(
    part: Part, seed: int, objectives: int, own: Sequence[float], distribution: Mapping[str, Any]
) -> tuple[Preference, int | None]:
    """Return a node's preference, and the number of its group if preferences are given by groups.

    Args:
        own: the node's own weights; empty if they are to be drawn.
        distribution: for example { name = "dirichlet", alpha = 1.0 }; see DISTRIBUTIONS.

    Raises:
        ConfigurationError: the weights or the distribution are invalid.
    """
    if len(own):
        return validate_preference("task.preference", own, objectives), None
    make, options = choose("task.preferences", distribution, DISTRIBUTIONS)
    rng = RandomStreams(seed, f"preference/{part.index}").generator(0, "preference")
    point: Preference = build("task.preferences", make, options, part=part, rng=rng, objectives=objectives)
    return point, _group(part, len(options["weights"])) if make is groups else None


def nearest(point: NDArray[np.float64]) -> Preference:
    """Return the point of the simplex with the least Euclidean distance (Duchi et al. 2008, figure 1)."""
    moved = point - point.max()  # the nearest point is the same, and rounding cannot lose a sum of 1
    descending: NDArray[np.float64] = np.sort(moved)[::-1]
    excess = np.cumsum(descending) - 1
    positive = np.flatnonzero(descending - excess / np.arange(1, len(point) + 1) > 0)[-1]
    found: Preference = np.maximum(moved - excess[positive] / (positive + 1), 0)
    return found


def lattice(divisions: int, objectives: int) -> NDArray[np.float64]:
    """Return all points of the simplex with weights that are multiples of 1/divisions; [n, m], lexicographic order."""
    bars = combinations(range(divisions + objectives - 1), objectives - 1)
    edges = np.array([(-1, *bar, divisions + objectives - 1) for bar in bars])
    return (np.diff(edges) - 1) / divisions


def _spread(count: int, objectives: int) -> NDArray[np.float64]:
    divisions = 1
    while (points := comb(divisions + objectives - 1, objectives - 1)) < count:
        if objectives == 1:
            return np.ones((count, 1))
        divisions += 1
    if points > MOST_POINTS:
        raise ConfigurationError(f"{objectives} objectives are too many for equidistant preferences of {count} nodes")
    all_points = lattice(divisions, objectives)
    if points == count:
        return all_points
    chosen = [points - 1]
    distances = np.full(points, inf)
    while len(chosen) < count:
        distances = np.minimum(distances, np.linalg.norm(all_points - all_points[chosen[-1]], axis=1))
        chosen.append(int(distances.argmax()))
    return all_points[sorted(chosen)]


def _group(part: Part, count: int) -> int:
    return part.index * count // part.count
