"""Attacks that send each victim another model. They need a modelled network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from p2pfl.attacks.attack import Attack, HonestView, Scene
from p2pfl.attacks.model_attacks import Searching, check_factor
from p2pfl.parameters import Parameters, plain_sum
from p2pfl.policies.dac import similarity_extras
from p2pfl.policy import Extras

LARGEST_GRAPH = 3000  # nodes whose Laplacian is decomposed; the vector of a larger graph is approximated
STEPS = 200  # of the approximation


@dataclass(frozen=True)
class Dissensus(Attack):
    """Dissensus (He, Karimireddy and Jaggi, "Byzantine-robust decentralized learning via ClippedGossip", 2022): drive each
    victim away from its honest neighbours.

    Victim i receives x_i - epsilon * (sum of w_ij (x_j - x_i) over its honest neighbours) / (sum of w_ij over the
    attackers among its neighbours). With epsilon 1 and the victims' weights it is the isolation attack of Wu, Chen and
    Ling (2023).

    Attributes:
        epsilon: with 1 the attackers cancel the effect of the honest neighbours.
        weights: w, as in the policy `dsgd`.
    """

    targeted = True

    epsilon: float = 1.0
    weights: Literal["uniform", "metropolis"] = "uniform"

    def __post_init__(self) -> None:
        check_factor(self.epsilon, "epsilon")

    def forge_for(self, victim: str, sent: Parameters, view: HonestView) -> Parameters:
        return (
            sent
            if victim not in view.models
            else away_from_neighbours(victim, view, self.epsilon, self.weights == "metropolis")
        )


def away_from_neighbours(victim: str, view: HonestView, epsilon: float, metropolis: bool = False) -> Parameters:
    """Return the model of `dissensus` for a victim whose model is known."""
    own, around = view.models[victim], view.neighbours[victim]

    def weight(id: str) -> float:
        return 1 / (1 + max(len(around), len(view.neighbours[id]))) if metropolis else 1.0

    honest = {id: weight(id) for id in around if id in view.models}
    if not honest:
        return own
    shares = np.array([*honest.values()], np.float32)
    apart = shares @ np.array([view.models[id] for id in honest]) - shares.sum() * own
    attackers = plain_sum(weight(id) for id in around if id in view.attackers) or 1.0
    forged: Parameters = own - np.float32(epsilon / attackers) * apart
    return forged


@dataclass(frozen=True)
class NegatedMean(Attack):
    """Send each victim -factor times the mean of the models of the victim and its honest neighbours.

    This is the inner product manipulation in the program of He, Karimireddy and Jaggi (2022), with the factor 0.1, and
    the sign flip of Wu, Chen and Ling (2023), with the factor 1.

    Attributes:
        factor: length of the model relative to the mean.
    """

    targeted = True
    trains = False

    factor: float = 0.1

    def __post_init__(self) -> None:
        check_factor(self.factor)

    def forge_for(self, victim: str, sent: Parameters, view: HonestView) -> Parameters:
        near = models_around(victim, view)
        if near is None:
            return sent
        forged: Parameters = np.float32(-self.factor) * near.mean(axis=0)
        return forged


@dataclass(frozen=True)
class LocalAlie(Attack):
    """`alie` for each victim: mu - z * sigma, over the models of the victim and its honest neighbours.

    So is the attack in the program of He, Karimireddy and Jaggi (2022), with z = 10.

    Attributes:
        z: number of standard deviations.
    """

    targeted = True
    trains = False

    z: float = 10.0

    def forge_for(self, victim: str, sent: Parameters, view: HonestView) -> Parameters:
        near = models_around(victim, view)
        if near is None or len(near) < 2:
            return sent
        forged: Parameters = near.mean(axis=0) - np.float32(self.z) * near.std(axis=0, ddof=1)
        return forged


def models_around(victim: str, view: HonestView) -> np.ndarray | None:
    """Return the models of a victim and its honest neighbours, float32 [1 + H, P]; None if the victim has none yet."""
    own = view.models.get(victim)
    return (
        None if own is None else np.array([own, *(view.models[id] for id in view.neighbours[victim] if id in view.models)])
    )


@dataclass(frozen=True)
class Spectral(Attack):
    """Drive the two sides of the narrowest cut of the honest graph apart (after the spectral attack of Gaucher, Dieuleveut
    and Hendrikx, "Unified Breakdown Analysis for Byzantine Robust Gossip", ICML 2025).

    With the Fiedler vector v of the honest nodes' Laplacian, victim i receives x_i + factor * v_i * (sum_k v_k x_k): the
    component of the models along v grows.

    Attributes:
        factor: length of the step relative to that component.
    """

    targeted = True

    factor: float = 10.0

    def __post_init__(self) -> None:
        check_factor(self.factor)

    def forge_for(self, victim: str, sent: Parameters, view: HonestView) -> Parameters:
        known = victim in view.models and victim in fiedler_vector(view)
        return across_the_cut(victim, view, self.factor) if known else sent


def across_the_cut(victim: str, view: HonestView, factor: float) -> Parameters:
    """Return the model of `spectral` for a victim whose model is known."""
    fiedler = fiedler_vector(view)
    component = view.forged.get(("spectral", 0))
    if component is None:
        known = [id for id in sorted(view.models) if id in fiedler]
        shares = np.array([fiedler[id] for id in known], np.float32)
        component = view.forged["spectral", 0] = shares @ np.array([view.models[id] for id in known])
    forged: Parameters = view.models[victim] + np.float32(factor * fiedler[victim]) * component
    return forged


def fiedler_vector(view: HonestView) -> dict[str, float]:
    """Return the eigenvector of the second smallest eigenvalue of the honest nodes' Laplacian, by name.

    That of more than 3000 nodes is an approximation.
    """
    kept: dict[str, float] | None = view.__dict__.get("fiedler")
    if kept is not None:
        return kept
    honest = sorted(set(view.neighbours) - set(view.attackers))
    place = {id: k for k, id in enumerate(honest)}
    pairs = {(place[id], place[other]) for id in honest for other in view.neighbours[id] if other in place}
    edges = np.array(sorted(pairs | {(other, one) for one, other in pairs}), np.int64).reshape(-1, 2)
    column = (_decompose if len(honest) <= LARGEST_GRAPH else _approximate)(edges, len(honest))
    column = column * (1.0 if column[np.argmax(np.abs(column))] > 0 else -1.0)
    found = dict(zip(honest, column.tolist(), strict=True))
    view.__dict__["fiedler"] = found
    return found


def _decompose(edges: np.ndarray, count: int) -> np.ndarray:
    """Return the Fiedler vector of a graph, [count]; `edges` has both directions of each edge, int [E, 2]."""
    adjacent = np.zeros((count, count))
    adjacent[edges[:, 0], edges[:, 1]] = 1.0
    _, vectors = np.linalg.eigh(np.diag(adjacent.sum(axis=1)) - adjacent)
    column: np.ndarray = vectors[:, min(1, count - 1)]
    return column


def _approximate(edges: np.ndarray, count: int) -> np.ndarray:
    """Return an approximation of `_decompose` for a large graph."""
    import torch  # here, because reports read the names of attacks without it

    each = np.arange(count)
    degrees = np.bincount(edges[:, 0], minlength=count).astype(np.float64)
    places = np.concatenate([edges.T, [each, each]], axis=1)
    values = np.concatenate([np.full(len(edges), -1.0), degrees])
    laplacian = torch.sparse_coo_tensor(
        torch.from_numpy(places), torch.from_numpy(values), (count, count), check_invariants=False
    ).coalesce()
    start = np.stack([np.ones(count), np.random.default_rng(0).standard_normal(count)], axis=1)
    _, vectors = torch.lobpcg(laplacian, k=2, X=torch.from_numpy(start), largest=False, niter=STEPS)
    column: np.ndarray = vectors[:, 1].numpy()
    return column


@dataclass(frozen=True)
class _SearchingVictim(Searching):
    """Base of targeted attacks that search, for each victim, for the most harmful length along a direction.

    The harm is the distance between the merge of the victim with the attackers' models under the assumed rule, and the
    mean of its own model and those of its honest neighbours. The search is that of Gaucher, Dieuleveut and Hendrikx
    (2025) with `delta = 1`, `evals = 16` and the rule of the victims in `against`.
    """

    targeted = True
    trains = False

    async def forge(self, scene: Scene) -> Parameters:
        return scene.own

    def forge_for(self, victim: str, sent: Parameters, view: HonestView) -> Parameters:
        near = models_around(victim, view)
        if near is None:
            return sent
        key = f"{type(self).__name__} {victim}", 0
        if key not in view.forged:
            attackers = max(sum(id in view.attackers for id in view.neighbours[victim]), 1)
            target = near.mean(axis=0)

            def harm(length: float) -> float:
                forged = self.forge_at(victim, view, length)
                return float(np.linalg.norm(self.merged([*near, *[forged] * attackers]) - target))

            view.forged[key] = self.forge_at(victim, view, self.longest(harm))
        return view.forged[key]

    def forge_at(self, victim: str, view: HonestView, length: float) -> Parameters:
        """Return the forged model for a victim whose model is known, at a length along the direction."""
        raise NotImplementedError


@dataclass(frozen=True)
class OptDissensus(_SearchingVictim):
    """`dissensus` with the most harmful epsilon for each victim, against a rule."""

    def forge_at(self, victim: str, view: HonestView, length: float) -> Parameters:
        return away_from_neighbours(victim, view, length)


@dataclass(frozen=True)
class OptSpectral(_SearchingVictim):
    """`spectral` with the most harmful factor for each victim, against a rule."""

    def forge_at(self, victim: str, view: HonestView, length: float) -> Parameters:
        return across_the_cut(victim, view, length)


@dataclass(frozen=True)
class Equivocation(Attack):
    """Send different models of one round: victims get mu + z * sigma and mu - z * sigma in turn.

    Attributes:
        z: number of standard deviations of the honest models.
    """

    targeted = True

    z: float = 1.5

    def forge_for(self, victim: str, sent: Parameters, view: HonestView) -> Parameters:
        mean, std = view.moments
        sign = 1 if view.places[victim] % 2 else -1
        return mean + np.float32(sign * self.z) * std


@dataclass(frozen=True)
class DacSimilarity(Attack):
    """Lie to `dac` about similarity: send each victim its own model, scaled, which has the cosine 1, and report that all
    attackers are similar and no honest node is.

    Attributes:
        factor: factor of the victim's model.
    """

    targeted = True

    factor: float = 3.0

    def __post_init__(self) -> None:
        check_factor(self.factor)

    def forge_for(self, victim: str, sent: Parameters, view: HonestView) -> Parameters:
        own = view.models.get(victim)
        return sent if own is None else np.float32(self.factor) * own

    def forge_extras(self, extras: Extras, scene: Scene) -> Extras:
        lies = dict.fromkeys(scene.view.models, -1.0) | dict.fromkeys(scene.view.attackers, 1.0)
        return {**extras, **similarity_extras(lies)}
