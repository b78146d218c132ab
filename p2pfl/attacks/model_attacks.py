"""Attacks that publish one harmful model for all peers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import numpy as np

from p2pfl.attacks.attack import Attack, Scene
from p2pfl.parameters import Parameters, weighted_mean
from p2pfl.policy import Extras
from p2pfl.robust.candidates import combine
from p2pfl.robust.clipping import MedianClip
from p2pfl.robust.registry import CLIPPING, NONE, Robust, make_rule, split_robust

STEPS = 8  # of the search of `reward-bait`
MOST_BYTES = 1_000_000  # of extras; a message carries little more


def check_factor(factor: float, name: str = "factor") -> None:
    """Raise ValueError unless a factor is finite and not negative."""
    if not 0 <= factor < inf:
        raise ValueError(f"{name} must be 0 or more, and finite, got {factor}")


@dataclass(frozen=True)
class SignFlip(Attack):
    """Send the own training step in the opposite direction: start - factor * (own - start).

    Attributes:
        factor: length of the step relative to the honest one.
    """

    factor: float = 1.0

    def __post_init__(self) -> None:
        check_factor(self.factor)

    async def forge(self, scene: Scene) -> Parameters:
        start = scene.me.params
        return start - np.float32(self.factor) * (scene.own - start)


@dataclass(frozen=True)
class Scale(Attack):
    """Send the own model, multiplied by a factor.

    Attributes:
        factor: factor of all values.
    """

    factor: float = 100.0

    def __post_init__(self) -> None:
        check_factor(self.factor)

    async def forge(self, scene: Scene) -> Parameters:
        return np.float32(self.factor) * scene.own


@dataclass(frozen=True)
class Gaussian(Attack):
    """Send independent normal values.

    Attributes:
        sigma: standard deviation of the values.
    """

    sigma: float = 1.0

    def __post_init__(self) -> None:
        check_factor(self.sigma, "sigma")

    async def forge(self, scene: Scene) -> Parameters:
        noise = scene.me.rng("attack").standard_normal(scene.own.size, np.float32)
        return np.float32(self.sigma) * noise


@dataclass(frozen=True)
class LabelFlip(Attack):
    """Train on wrong labels: class y becomes C - 1 - y, and a target of a regression changes its sign."""

    flips_labels = True


@dataclass(frozen=True)
class Alie(Attack):
    """A little is enough (Baruch, Baruch and Goldberg, "A Little Is Enough", NeurIPS 2019): mu + z * sigma, with mean and
    standard deviation of each coordinate over the honest models.

    Attributes:
        z: number of standard deviations.
    """

    z: float = 1.5

    async def forge(self, scene: Scene) -> Parameters:
        mean, std = scene.view.moments
        return mean + np.float32(self.z) * std


@dataclass(frozen=True)
class Ipm(Attack):
    """Inner product manipulation (Xie, Koyejo and Gupta, "Fall of Empires", UAI 2019): the mean step of the honest nodes
    in the opposite direction: start - tau * (mu - start).

    The start is the mean of the models with which the honest nodes began the round.

    Attributes:
        tau: length of the step relative to the honest one.
    """

    tau: float = 2.0

    async def forge(self, scene: Scene) -> Parameters:
        return scene.start - np.float32(self.tau) * (scene.view.moments.mean - scene.start)


@dataclass(frozen=True)
class Searching(Attack):
    """Options of attacks that search for the most harmful length of their step, as in ByzFL.

    The search maximises the distance between the mean of the honest models and the merge of all models, with equal
    weights, under a robust rule. The own model of the rule is that of the first honest node. The search doubles its step
    while that helps, and then shrinks it.

    Attributes:
        against: the robust rule that the attackers assume.
        evals: number of merges that are tried.
        delta: first step of the search.
        ratio: factor by which the step shrinks.
    """

    against: Robust = NONE
    evals: int = 20
    delta: float = 10.0
    ratio: float = 0.8

    def __post_init__(self) -> None:
        if self.evals < 1:
            raise ValueError(f"evals must be 1 or more, got {self.evals}")
        if not 0.5 < self.ratio < 1:
            raise ValueError(f"ratio must be more than 0.5 and less than 1, got {self.ratio}")
        make_rule(self.against)

    async def forge(self, scene: Scene) -> Parameters:
        key = type(self).__name__, scene.me.round
        if key not in scene.view.forged:
            stack, mean = scene.view.stack, scene.view.moments.mean
            direction = self.direction(scene)
            attackers = max(len(scene.view.attackers), 1)

            def harm(length: float) -> float:
                forged = mean + np.float32(length) * direction
                return float(np.linalg.norm(self.merged([*stack, *[forged] * attackers]) - mean))

            scene.view.forged[key] = mean + np.float32(self.longest(harm)) * direction
        return scene.view.forged[key]

    def direction(self, scene: Scene) -> Parameters:
        """Return the direction from the honest mean in which the forged model lies."""
        raise NotImplementedError

    def merged(self, models: list[Parameters]) -> Parameters:
        """Return the merge of models with equal weights under the assumed rule; the first one is the merging node's."""
        weights = [1 / len(models)] * len(models)
        name, _ = split_robust(self.against)
        if name in CLIPPING:
            own, *others = models
            models = [own, *MedianClip().clip(own, own, [str(k) for k in range(len(others))], others)]
        rule = make_rule(self.against)
        if rule is not None:
            return combine(rule, models, weights, losses=[0.0] * len(models)).params
        return weighted_mean(models, weights)

    def longest(self, harm: Callable[[float], float]) -> float:
        """Return the length of a step with the most harm that the search finds."""
        best, delta, growing = 0.0, self.delta, True
        most = harm(best)
        for _ in range(self.evals - 1):
            found = harm(best + delta)
            if found > most:
                best, most = best + delta, found
                delta *= 2 if growing else self.ratio
            else:
                growing = False
                delta *= self.ratio
        return best


@dataclass(frozen=True)
class OptAlie(Searching):
    """`alie` with the most harmful z against a rule (Shejwalkar and Houmansadr, "Manipulating the Byzantine", NDSS 2021)."""

    def direction(self, scene: Scene) -> Parameters:
        return scene.view.moments.std


@dataclass(frozen=True)
class OptIpm(Searching):
    """`ipm` with the most harmful tau against a rule (Shejwalkar and Houmansadr, NDSS 2021)."""

    def direction(self, scene: Scene) -> Parameters:
        return scene.start - scene.view.moments.mean

    def longest(self, harm: Callable[[float], float]) -> float:
        return super().longest(lambda tau: harm(1 + tau)) + 1  # tau = 0 is the start of the round


@dataclass(frozen=True)
class Mimic(Attack):
    """All attackers copy one honest node (Karimireddy, He and Jaggi, "Byzantine-Robust Learning on Heterogeneous Datasets
    via Bucketing", ICLR 2022), so that it counts for more than the others.

    Attributes:
        node: number of the copied node among the honest ones.
    """

    node: int = 0

    async def forge(self, scene: Scene) -> Parameters:
        copied: Parameters = scene.view.stack[self.node % len(scene.view.stack)]
        return copied


@dataclass(frozen=True)
class Stale(Attack):
    """Send the initial model in every round."""

    async def forge(self, scene: Scene) -> Parameters:
        return scene.me.initial


@dataclass(frozen=True)
class FreeRide(Attack):
    """Do not train: send the model with which the round began, with a little noise.

    Attributes:
        sigma: standard deviation of the noise.
    """

    sigma: float = 1e-3

    def __post_init__(self) -> None:
        check_factor(self.sigma, "sigma")

    async def forge(self, scene: Scene) -> Parameters:
        noise = scene.me.rng("attack").standard_normal(scene.own.size, np.float32)
        return scene.me.params + np.float32(self.sigma) * noise


@dataclass(frozen=True)
class RewardBait(Attack):
    """Pass the choice of a policy by validation loss, such as that of `dpfl`.

    The model lies on the way from the honest mean mu to start - factor * (mu - start). It goes as far as its loss on the
    attacker's validation data is at most `worse` times the loss of mu. In the preparation it is the honest mean.

    Attributes:
        factor: length of the harmful step relative to the honest one.
        worse: accepted increase of the loss.
    """

    factor: float = 10.0
    worse: float = 1.05

    def __post_init__(self) -> None:
        check_factor(self.factor)
        check_factor(self.worse, "worse")

    async def forge(self, scene: Scene) -> Parameters:
        mean, start = scene.view.moments.mean, scene.start
        if not scene.me.round:
            return mean
        harmful = start - np.float32(self.factor) * (mean - start)
        models = [mean + np.float32(k / STEPS) * (harmful - mean) for k in range(STEPS + 1)]
        losses = await scene.me.loss(models)
        passing = [model for model, loss in zip(models, losses, strict=True) if loss <= self.worse * losses[0]]
        return passing[-1] if passing else mean


@dataclass(frozen=True)
class BudgetFlood(Attack):
    """Send honest models with useless extras, which use up the byte budgets of the peers.

    Attributes:
        bytes: size of the extras, at most 1,000,000.
    """

    bytes: int = 100_000

    def __post_init__(self) -> None:
        if not 0 <= self.bytes <= MOST_BYTES:
            raise ValueError(f"bytes must be from 0 to {MOST_BYTES}, got {self.bytes}")

    def forge_extras(self, extras: Extras, scene: Scene) -> Extras:
        return {**extras, "flood": np.zeros(self.bytes // 8, np.uint64)}
