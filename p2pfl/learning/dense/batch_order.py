"""Order of a node's samples in a training, the same for torch and NumPy."""

from __future__ import annotations

import numpy as np

from p2pfl.queries import Train
from p2pfl.random_streams import RandomStreams
from p2pfl.update_rules import Mixture


def orders(
    draws: RandomStreams, round: int, purpose: str, *, n: int, batch_size: int, epochs: int
) -> list[np.ndarray] | list[None]:
    """Return a permutation of n samples for each epoch, or None for each if all samples fit into one batch.

    A single batch has no order, so none is drawn.
    """
    if n <= batch_size:
        return [None] * epochs
    rng = draws.generator(round, purpose)
    return [rng.permutation(n) for _ in range(epochs)]


def occasion(query: Train) -> str:
    """Return the name under which the state of a lasting optimiser is kept after a training.

    Trainings of one purpose with and without a proximal term, or the rule `Mixture`, are of different models, as in
    Ditto and APFL.
    """
    if isinstance(query.rule, Mixture):
        return f"{query.purpose}, mixture"
    return query.purpose if query.proximal is None else f"{query.purpose}, proximal"
