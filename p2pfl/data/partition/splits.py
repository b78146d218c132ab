"""Division of a node's data into training, validation and test samples."""

from __future__ import annotations

import numpy as np

from p2pfl.data.partition.label_partition import quotas
from p2pfl.errors import ConfigurationError

Rng = np.random.Generator
FEW = 20  # test samples of a node, below which a note names the reason


def check_sizes(samples: int, validation: float, test: int) -> None:
    """Raise ConfigurationError if a size is invalid."""
    if samples < 0 or test < 0:
        raise ConfigurationError(f"task.samples and task.test must be 0 or more, got {samples} and {test}")
    if not (0 <= validation <= 0.5 or (validation >= 1 and validation == int(validation))):
        raise ConfigurationError(f"task.validation must be a whole number, or a share of at most 0.5, got {validation}")


def hold_out(share: np.ndarray, rng: Rng, samples: int, validation: float) -> tuple[np.ndarray, np.ndarray]:
    """Divide a node's share into training and validation samples; the rest, if any, is not used.

    Args:
        share: indices, [n].
        rng: the generator of the draw.
        samples: maximum number of training samples; 0 is no limit.
        validation: number of validation samples, or a fraction of all samples that the node uses, at most 0.5. A node
            with at least two samples has at least one, and at most half of its share.

    Returns:
        Training and validation samples: sorted, disjoint, drawn at random.
    """
    n = len(share)
    if validation < 1:
        used = min(n, round(samples / (1 - validation))) if samples else n
        held = round(validation * used)
    else:
        held = int(validation)
    held = min(max(held, 1), n // 2) if validation else 0
    train = min(samples, n - held) if samples else n - held
    order = rng.permutation(share)
    return np.sort(order[:train]), np.sort(order[train : train + held])


def by_class(labels: np.ndarray, classes: int) -> list[np.ndarray]:
    """Return the indices of each class's samples."""
    return [np.flatnonzero(labels == label) for label in range(classes)]


def histogram(labels: np.ndarray, classes: int) -> np.ndarray:
    """Return the number of samples of each class, int64 [classes]."""
    return np.bincount(labels, minlength=classes)


def draw_test(wanted: np.ndarray, pools: list[np.ndarray], rng: Rng, size: int) -> np.ndarray:
    """Draw test samples in the proportions of a node's training samples (largest remainder).

    No sample is drawn twice. The result has fewer than `size` samples if the test part has too few of a class to keep
    the proportions. Other nodes may draw the same samples. A class that the test part lacks is left out.

    Args:
        wanted: the histogram of the node's training labels, [classes].
        pools: the test part's indices of each class.
        rng: the generator of the draw.
        size: number of samples; 0 draws as many as the proportions allow.

    Returns:
        Sorted indices; empty if the test part has none of the node's classes.
    """
    there = np.array([len(pool) for pool in pools])
    weights = np.where(there > 0, wanted, 0)
    held = weights > 0
    if not held.any():
        return np.empty(0, np.int64)
    n = int((there[held] * weights.sum() // weights[held]).min())
    n = min(n, size) if size else n
    counts = quotas(n, weights)
    while (counts > there).any():  # rounding up may require one too many
        n -= 1
        counts = quotas(n, weights)
    drawn = [rng.permutation(pool)[:count] for pool, count in zip(pools, counts.tolist(), strict=True) if count]
    return np.sort(np.concatenate(drawn))
