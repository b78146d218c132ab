"""Weights of several objectives from their losses and gradients (MGDA, EPO search). Pure, in float64."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from p2pfl.multiobjective.preferences import nearest

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
STEPS, SETTLED = 2000, 1e-10  # of the descent that finds the weights: maximum number of steps, and smallest change


def sketch(gradients: NDArray[np.float32], size: int, rng: np.random.Generator) -> Matrix:
    """Return vectors [m, P] as [m, size] with about the same inner products (count sketch: Charikar et al. 2002).

    Sums of sketches with the same draws are sketches of the sums.
    """
    places = rng.integers(0, size, gradients.shape[1])
    signed = gradients * rng.choice(np.array([-1.0, 1.0]), gradients.shape[1])
    return np.array([np.bincount(places, row, size) for row in signed])


def least(gram: Matrix, towards: Vector) -> Vector:
    """Return the point w of the simplex that minimises the length of sum_k (w_k - towards_k) g_k.

    With `towards` 0 it is MGDA (Desideri 2012): the combined gradient of minimal length, along which no objective gets
    worse.

    Args:
        gram: the inner products of the gradients g, [m, m].
        towards: the target point, [m].
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
    """Return the inequality of preference times loss, and the contribution of each objective to it; see EPO search.

    (Mahapatra and Rajan, "Multi-task learning with user preferences", 2020: mu, the Kullback-Leibler divergence from
    equal parts, and their adjustments a. Here the absolute values of a have the sum 1.)

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
    """Return the weights of objectives for the next training, [m]: non-negative, with the sum 1.

    If preference times loss is not equal for all objectives, the weights reduce the products that are too high;
    otherwise they reduce all. If only one objective has a preference, it has all the weight that `floor` leaves.

    Args:
        tolerance: tolerated inequality; see `balancing`.
        floor: fraction of the weight that is divided equally.
    """
    uneven, blame = balancing(losses, preference)
    if (preference > 0).sum() == 1:
        point = (preference > 0).astype(np.float64)
    else:
        point = least(gram, blame if uneven > tolerance else np.zeros(len(losses)))
    found: Vector = point * (1 - floor) + floor / len(point)
    return found
