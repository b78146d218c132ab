"""Weights of models in a mean: by peer, own included, with the sum 1. `weighted_mean` computes the mean itself."""

from __future__ import annotations

from collections.abc import Mapping


def fedavg(samples: Mapping[str, float]) -> dict[str, float]:
    """Return weights n_j / sum n, by the number of training samples (McMahan et al. 2017; eq. 3 of Listo Zec et al.).

    Args:
        samples: training samples by id, including the own id.
    """
    total = sum(samples.values())
    if not total:
        return dict.fromkeys(samples, 1 / len(samples))
    return {name: n / total for name, n in samples.items()}


def fedsim(me: str, similarities: Mapping[str, float]) -> dict[str, float]:
    """Return weights by similarity; the own weight equals the greatest of them (FedSim, eq. 7 of Listo Zec et al.).

    Args:
        me: the own id.
        similarities: by peer, without the own id. Negative ones count as 0. If all are 0, only the own model counts.
    """
    clipped = {name: max(value, 0.0) for name, value in similarities.items()}
    own = max(clipped.values(), default=0.0)
    if own == 0.0:
        return {me: 1.0} | dict.fromkeys(clipped, 0.0)
    total = own + sum(clipped.values())
    return {me: own / total} | {name: value / total for name, value in clipped.items()}
