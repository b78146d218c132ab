"""PraFFL's SYNTHETIC: two Gaussians in the plane, with a sensitive attribute that depends on the position."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

MEANS = np.array([[-2.0, -2.0], [2.0, 2.0]])
COVARIANCES = np.array([[[10.0, 1.0], [1.0, 3.0]], [[5.0, 1.0], [1.0, 5.0]]])
POSITIVE = 0.6  # fraction of positive labels
TURN = np.pi / 4  # rotation of a point before its attribute is drawn


class Synthetic(NamedTuple):
    """Inputs (x1, x2, z), float32 [n, 3]; labels y and attributes z, 0 or 1, int64 [n]."""

    x: np.ndarray
    y: np.ndarray
    z: np.ndarray


def synthetic(rng: np.random.Generator, n: int) -> Synthetic:
    """Draw n samples.

    y ~ Bernoulli(0.6); x | y ~ N(MEANS[y], COVARIANCES[y]); z ~ Bernoulli(p1(x') / (p1(x') + p0(x'))). Here x' is x
    rotated by 45 degrees, and p_y is the density of x | y. z and y therefore depend on each other, and a classifier of
    x alone is not fair. (Zeng, Chen and Lee 2021, "Improving fairness via federated learning", after Zafar et al. 2017;
    PraFFL, section 6.1, uses n = 5,000.)
    """
    y = (rng.random(n) < POSITIVE).astype(np.int64)
    roots = np.linalg.cholesky(COVARIANCES)
    x = MEANS[y] + np.einsum("nij,nj->ni", roots[y], rng.standard_normal((n, 2)))
    turned = x @ np.array([[np.cos(TURN), np.sin(TURN)], [-np.sin(TURN), np.cos(TURN)]])
    ratio = log_density(turned, 0) - log_density(turned, 1)
    z = (rng.random(n) * (1 + np.exp(np.minimum(ratio, 700))) < 1).astype(np.int64)
    return Synthetic(np.column_stack([x, z]).astype(np.float32), y, z)


def log_density(x: np.ndarray, label: int) -> np.ndarray:
    """Return the logarithm of the density of x | y = label at points [n, 2], up to a constant."""
    away = x - MEANS[label]
    distance = np.einsum("ni,ij,nj->n", away, np.linalg.inv(COVARIANCES[label]), away)
    result: np.ndarray = -(distance + np.log(np.linalg.det(COVARIANCES[label]))) / 2
    return result
