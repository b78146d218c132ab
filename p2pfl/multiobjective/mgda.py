"""How to weigh several objectives by their losses and gradients. Pure, in float64."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from p2pfl.multiobjective.preferences import nearest

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
STEPS, SETTLED = 2000, 1e-10  # of the descent that finds the weights: at most, and how little the last one changes


def sketch(gradients: NDArray[np.float32], size: int, rng: np.random.Generator) -> Matrix:
    """Return vectors [m, P] as [m, size], whose inner products are about the same (the count sketch: Charikar et al. 2002).

    Sums of sketches that are made with the same draws are sketches of the sums.
    """
    places = rng.integers(0, size, gradients.shape[1])
    signed = gradients * rng.choice(np.array([-1.0, 1.0]), gradients.shape[1])
    return np.array([np.bincount(places, row, size) for row in signed])


def least(gram: Matrix, towards: Vector) -> Vector:
    """Return the point w of the simplex for which the length of sum_k (w_k - towards_k) g_k is least.

    With `towards` 0 it is MGDA (Desideri 2012): the combined gradient of least length, along which no objective gets worse.

    Args:
        gram: the inner products of the gradients g, [m, m].
    """
    longest = float(np.linalg.eigvalsh(gram)[-1])
    point: Vector = np.full(len(gram), 1 / len(gram))
    if longest <= 0:
        return point
    for _ in range(STEPS):
        before, point = point, nearest(point - gram @ (point - towards) / longest)
        if np.abs(point - before).max() < SETTLED:
            break
    return point


def balancing(losses: Vector, preference: Vector) -> tuple[float, Vector]:
    """Return how unequal preference times loss is, and how much each objective is to blame; see EPO search.

    (Mahapatra and Rajan, "Multi-task learning with user preferences", 2020: mu, the Kullback-Leibler divergence from equal
    parts, and their adjustments a, of which the absolute values have the sum 1 here.)

    Args:
        losses: 0 or more, [m].
        preference: [m].
    """
    weighed = preference * losses
    if not weighed.sum() > 0:
        return 0.0, np.zeros(len(losses))
    shares = weighed / weighed.sum()
    logs = np.log(np.maximum(shares * len(shares), np.finfo(np.float64).tiny))
    uneven = float((shares * logs).sum())
    blame: Vector = preference * (logs - uneven)
    total = np.abs(blame).sum()
    return uneven, blame / total if total > 0 else blame


def weigh(losses: Vector, gram: Matrix, preference: Vector, tolerance: float, floor: float) -> Vector:
    """Return the weights of objectives by which to train next, [m]: not negative, with the sum 1.

    Where preference times loss is not equal for all objectives, those that are too great come down; where it is, all do. If
    only one objective is wanted, it has all the weight that `floor` leaves.

    Args:
        tolerance: how unequal they may be; see `balancing`.
        floor: this share of the weight is divided equally.
    """
    uneven, blame = balancing(losses, preference)
    if (preference > 0).sum() == 1:
        point = (preference > 0).astype(np.float64)
    else:
        point = least(gram, blame if uneven > tolerance else np.zeros(len(losses)))
    found: Vector = point * (1 - floor) + floor / len(point)
    return found
