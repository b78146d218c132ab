"""How much each model counts: weights by peer, own included, that sum to 1. The mean itself is `weighted_mean`."""

from __future__ import annotations

from collections.abc import Mapping


def fedavg(samples: Mapping[str, float]) -> dict[str, float]:
    """Weights n_j / sum n, by the number of training samples (McMahan et al. 2017; eq. 3 of Listo Zec et al.).

    Args:
        samples: training samples by id, the own id included.
    """
    total = sum(samples.values())
    if not total:
        return dict.fromkeys(samples, 1 / len(samples))
    return {name: n / total for name, n in samples.items()}


def fedsim(me: str, similarities: Mapping[str, float]) -> dict[str, float]:
    """Weights by similarity, the own weight being the greatest of them (FedSim, eq. 7 of Listo Zec et al.).

    Args:
        me: the own id.
        similarities: by peer, without the own id. Negative ones count as 0; where all are 0, only the own model counts.
    """
    clipped = {name: max(value, 0.0) for name, value in similarities.items()}
    own = max(clipped.values(), default=0.0)
    if own == 0.0:
        return {me: 1.0} | dict.fromkeys(clipped, 0.0)
    total = own + sum(clipped.values())
    return {me: own / total} | {name: value / total for name, value in clipped.items()}
