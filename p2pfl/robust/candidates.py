"""Models of one merge as robust rules see them, the interface of the rules, and limits on what members report and learn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import floor, isfinite, sqrt
from typing import ClassVar, NamedTuple

import numpy as np

from p2pfl.parameters import Parameters, weighted_mean

SMALLEST = 1 / 64  # of a squared distance relative to the squared norms, which lose as many digits
BLOCK = 2**13  # coordinates of all models that are compared at once; they fit into the cache
LARGEST = 1e30  # squared norms; larger ones leave no room for sums of products in float32
LARGEST_SHARE = 0.5  # of any peer in a mean by samples, even with few participants


class Candidates:
    """Models of one merge, the node's own first; or of B merges with K models each. A value: rules never write into it.

    The arrays of several merges have one more dimension in front, [B]. A rule works on the last dimensions, so that it
    computes one merge and many with the same formula.

    Attributes:
        models: of one merge: K vectors, float32 [P] each; `models[0]` is the own model x_i, the others are x_j.
        weights: the policy's weights w, float64 [K], with the sum 1. Those of peers are greater than 0.
        losses: the loss of each model on the node's own data, float64 [K]; None unless the rule needs them.
    """

    def __init__(
        self, models: Sequence[Parameters], weights: Sequence[float], losses: Sequence[float] | None = None
    ) -> None:
        self.models = models
        self.weights = np.array(weights, np.float64)
        self.losses = None if losses is None else np.array(losses, np.float64)

    @property
    def peers(self) -> int:
        """Number of peers' models in a merge, K - 1."""
        return int(self.weights.shape[-1]) - 1

    @cached_property
    def distances(self) -> np.ndarray:
        """Return d_j = ||x_j - x_i||, float64 [K]; that of the own model is 0."""
        return np.array([0.0, *distances_from(self.models[0], self.models[1:])])

    @cached_property
    def squares(self) -> np.ndarray:
        """Return the squared distances ||x_j - x_k||^2, float64 [K, K]."""
        products = np.zeros((len(self.models), len(self.models)))
        with np.errstate(over="ignore", invalid="ignore"):
            for start in range(0, len(self.models[0]), BLOCK):
                part = slice(start, start + BLOCK)
                differences = np.array([model[part] for model in self.models]) - self.models[0][part]
                products += differences @ differences.T
        if not np.isfinite(products).all():
            wide = np.array(self.models, np.float64) - self.models[0]
            products = wide @ wide.T
        return squares_of(self.models, products)

    def squares_from(self, shares: np.ndarray) -> np.ndarray:
        """Return the squared distance of each model from the combination sum_k shares_k x_k; [K].

        With D_jk = ||x_j - x_k||^2 they are D shares - (shares^T D shares) / 2.

        Args:
            shares: float64 [K], with the sum 1.
        """
        mixed = np.matmul(self.squares, shares[..., None])[..., 0]
        found: np.ndarray = np.maximum(mixed - (shares * mixed).sum(-1, keepdims=True) / 2, 0.0)
        return found

    def nearest(self, count: int) -> np.ndarray:
        """Return the sum of the `count` smallest squared distances of each model from the others; [K]."""
        sums: np.ndarray = np.sort(self.squares)[..., 1 : count + 1].sum(-1)
        return sums


class Combined(NamedTuple):
    """Result of a merge under a rule: the new parameters, and the weight of each model.

    A rule with its own merge reports the mean weight of a model over the coordinates.
    """

    params: Parameters
    weights: Sequence[float]


@dataclass(frozen=True)
class Reweighting:
    """Base of rules that only change the policy's weights; the merge stays a weighted mean.

    Attributes:
        needs_losses: whether the rule needs the loss of each model on the node's own data.
        needs_pairs: whether it needs the distances of all models, and not only those from the own one.
        prefers_own: whether the result depends on which of the models is the own one, if only between equal scores.
    """

    needs_losses: ClassVar[bool] = False
    needs_pairs: ClassVar[bool] = False
    prefers_own: ClassVar[bool] = True

    def reweight(self, candidates: Candidates) -> np.ndarray:
        """Return the new weights, float64 [K], with the sum 1; [B, K] for several merges. There is at least one peer."""
        raise NotImplementedError


@dataclass(frozen=True)
class OwnMerge:
    """Base of rules that replace the weighted mean, such as the coordinate-wise ones.

    The own model is one of the models, at any place.
    """

    needs_losses: ClassVar[bool] = False
    prefers_own: ClassVar[bool] = False

    def combine(self, candidates: Candidates) -> Combined:
        """Return the merged model. There is at least one peer."""
        raise NotImplementedError

    def combine_rows(self, array: np.ndarray, index: np.ndarray, weights: np.ndarray) -> list[Combined]:
        """Return the results of B merges of K models each.

        Args:
            array: models as rows, float32 [M, P].
            index: the rows of each merge, int [B, K].
            weights: the policy's weights, float64 [B, K].
        """
        return [
            self.combine(Candidates([array[row] for row in rows], given))
            for rows, given in zip(index.tolist(), weights.tolist(), strict=True)
        ]

    def bounds(self, models: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the lowest and highest value of each coordinate that the rule lets through, [P] each.

        Args:
            models: float32, shape [K, P].
        """
        raise NotImplementedError


MergeRule = Reweighting | OwnMerge


def combine(
    rule: MergeRule,
    models: Sequence[Parameters],
    weights: Sequence[float],
    *,
    own: int = 0,
    losses: Sequence[float] | None = None,
) -> Combined:
    """Return the merge of a node's own model with those of peers under a rule, and their weights.

    Args:
        models: K vectors, float32 [P].
        weights: the policy's weights, with the sum 1; those of peers are greater than 0.
        own: place of the own model.
        losses: of each model on the node's own data; None unless the rule needs them.
    """
    if isinstance(rule, OwnMerge):
        return rule.combine(Candidates(models, weights))
    order = [own, *range(own), *range(own + 1, len(models))]
    candidates = Candidates(
        [models[k] for k in order],
        [weights[k] for k in order],
        None if losses is None else [losses[k] for k in order],
    )
    after = [0.0] * len(order)
    for place, weight in zip(order, rule.reweight(candidates).tolist(), strict=True):
        after[place] = weight
    kept = [place for place, weight in enumerate(after) if weight]
    return Combined(weighted_mean([models[place] for place in kept], [after[place] for place in kept]), after)


def squares_of(models: Sequence[Parameters] | np.ndarray, products: np.ndarray) -> np.ndarray:
    """Return the squared distances of n models, float64 [n, n]: ||x||^2 + ||y||^2 - 2 <x, y>.

    Those that are small against the norms, or of models with large norms, are computed from the differences.

    Args:
        products: the inner products of the models relative to any vector, float64 [n, n].
    """
    with np.errstate(over="ignore", invalid="ignore"):
        both = np.diagonal(products)[:, None] + np.diagonal(products)
        squares: np.ndarray = both - 2 * products
        inexact = ~((squares >= SMALLEST * both) & (both < LARGEST))
    np.fill_diagonal(squares, 0.0)
    np.fill_diagonal(inexact, False)
    if inexact.any():
        one, other = np.nonzero(np.triu(inexact))
        squares[one, other] = squares[other, one] = direct_squares(models, one, other)
    return squares


def direct_squares(models: Sequence[Parameters] | np.ndarray, one: np.ndarray, other: np.ndarray) -> list[float]:
    """Return the squared distances of some pairs of models from their differences.

    Args:
        one, other: places of the models of each pair, [E].
    """
    return [distances_from(models[k], [models[j]])[0] ** 2 for k, j in zip(one.tolist(), other.tolist(), strict=True)]


def distances_from(own: Parameters, models: Sequence[Parameters]) -> list[float]:
    """Return the Euclidean distances of models from the own model, [P] each."""
    difference = np.empty_like(own)
    with np.errstate(over="ignore", invalid="ignore"):
        squares = [float(np.dot(np.subtract(model, own, out=difference), difference)) for model in models]
    return [
        sqrt(square) if isfinite(square) else float(np.linalg.norm(model.astype(np.float64) - own))
        for model, square in zip(models, squares, strict=True)
    ]


def check_share(share: float, name: str = "share") -> None:
    """Raise ValueError unless a share of attackers is at least 0 and less than a half."""
    if not 0 <= share < 0.5:
        raise ValueError(f"{name} must be at least 0 and less than 0.5, got {share}")


def attackers_of(share: float, attackers: int, peers: int) -> int:
    """Return the assumed number of attackers among some peers, less than half of all models.

    Args:
        share: assumed share of attackers among the peers, which is rounded to the nearest number.
        attackers: their number, in place of the share; -1 takes the share.
    """
    assumed = attackers if attackers >= 0 else floor(share * peers + 0.5)
    return min(assumed, peers // 2)


@dataclass(frozen=True)
class Counting:
    """Options of rules that assume a number of attackers.

    Attributes:
        share: assumed share of attackers among the peers whose models are merged; f is this share, rounded to the
            nearest number and at most half of the peers.
        attackers: f itself, in place of the share; -1 takes the share.
    """

    share: float = 0.2
    attackers: int = -1

    def __post_init__(self) -> None:
        check_share(self.share)
        if self.attackers < -1:
            raise ValueError(f"attackers must be 0 or more, or -1 for the share, got {self.attackers}")

    def attackers_among(self, peers: int) -> int:
        """Return f for a number of peers."""
        return attackers_of(self.share, self.attackers, peers)


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


def coarse(loss: float) -> float:
    """Return a loss rounded to three digits for a peer, so that it reveals less about single samples."""
    return float(f"{loss:.3g}")
