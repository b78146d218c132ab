"""Pareto simulated annealing over preferences (Czyzak and Jaszkiewicz 1998): which weights are to be tried next.

MOFL/D (Hartmann's dissertation, chapter 3, algorithm 2 and table 3.1) names this metaheuristic, and in table A.1 how many
iterations and samples it has. What it leaves open is decided here: a solution is a preference, and its value that of the
model that was trained with it; the generating solutions start uniformly on the simplex; a neighbour is the point of the
simplex nearest to the preference moved by a normal step; values are compared by what they are of the range that each
objective has on the front found so far; the closest solution is that by the Euclidean distance of values; the temperature
falls by a constant factor after each iteration.
"""

from __future__ import annotations

from math import exp, inf

import msgspec
import numpy as np
from numpy.typing import NDArray

from p2pfl.errors import ConfigurationError
from p2pfl.multiobjective.preferences import nearest
from p2pfl.pareto_metrics import Points, non_dominated
from p2pfl.random_streams import RandomStreams

MOST_ITERATIONS, MOST_SAMPLES = 100_000, 10_000  # a mistake makes more


class Schedule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    Attributes:
        iterations: how many, the first of which is the starting sample.
        samples: candidates in each: one for each generating solution.
        step: the deviation of the normal step to a neighbour, in each weight.
        temperature: of the first step; a solution that is worse by this weighted share of the objectives' ranges is accepted
            with probability 1/e.
        cooling: by which the temperature is multiplied after each iteration.
        alpha: by which the weights of a generating solution move it away from the closest other one; more than 1.
    """

    iterations: int = 20
    samples: int = 5
    step: float = 0.2
    temperature: float = 0.1
    cooling: float = 0.9
    alpha: float = 1.05

    def check(self) -> None:
        """Raise ConfigurationError for values that make no sense."""
        for name, most in {"iterations": MOST_ITERATIONS, "samples": MOST_SAMPLES}.items():
            if not 1 <= (value := getattr(self, name)) <= most:
                raise ConfigurationError(f"search.{name} must be from 1 to {most:,}, got {value}")
        if not 0 < self.step <= 1:
            raise ConfigurationError(f"search.step must be more than 0 and at most 1, got {self.step}")
        if not 0 < self.temperature < inf:
            raise ConfigurationError(f"search.temperature must be more than 0, and finite, got {self.temperature}")
        if not 0 < self.cooling <= 1:
            raise ConfigurationError(f"search.cooling must be more than 0 and at most 1, got {self.cooling}")
        if not 1 < self.alpha < inf:
            raise ConfigurationError(f"search.alpha must be more than 1, and finite, got {self.alpha}")


class Annealing:
    """The generating solutions of a search. What it proposes follows from the seed and the values that it was told.

    Attributes:
        iteration: how many have ended.
        preferences, values: of the generating solutions, [n, m] each; of the values more is better.
        weights: those by which each generating solution judges its neighbour, [n, m]; not those that are trained with.
    """

    def __init__(self, objectives: int, schedule: Schedule, seed: int) -> None:
        self.iteration = 0
        self.preferences: Points = np.zeros((0, objectives))
        self.values: Points = np.zeros((0, objectives))
        self.weights: Points = np.zeros((0, objectives))
        self._schedule = schedule
        self._draws = RandomStreams(seed, "search for preferences")
        self._front: Points = np.zeros((0, objectives))
        self._shape = schedule.samples, objectives

    @property
    def temperature(self) -> float:
        """That of the iteration that comes next."""
        return float(self._schedule.temperature * self._schedule.cooling ** max(self.iteration - 1, 0))

    def propose(self) -> Points:
        """Return the preferences of the next iteration, [n, m]: the starting sample, or a neighbour of each solution."""
        samples, objectives = self._shape
        if not self.iteration:
            return self._draws.generator(0, "start").dirichlet([1.0] * objectives, samples)
        steps = self._draws.generator(self.iteration, "step").normal(0, self._schedule.step, self._shape)
        return np.array([nearest(point) for point in self.preferences + steps])

    def tell(self, proposed: Points, values: Points) -> list[bool]:
        """Take in the values of what was proposed, and say of each whether it is a generating solution now.

        The solutions are gone through in order; each neighbour depends on its own solution only, so that all candidates of
        an iteration may be solved before.
        """
        self._front = non_dominated(np.concatenate([self._front, values]))
        if not self.iteration:
            self.preferences, self.values, self.weights = proposed.copy(), values.copy(), np.zeros(self._shape)
            self.iteration = 1
            return [True] * len(values)
        samples, objectives = self._shape
        drawn = self._draws.generator(self.iteration, "weights").dirichlet([1.0] * objectives, samples)
        chance = self._draws.generator(self.iteration, "accept").random(samples)
        scale = ranges(self._front)
        taken = []
        for k, value in enumerate(values):
            scaled = self.values / scale
            other = closest(scaled, k)
            if other is None or self.iteration == 1:
                self.weights[k] = drawn[k]
            else:
                self.weights[k] = spread_weights(self.weights[k], scaled[k], scaled[other], self._schedule.alpha)
            taken.append(bool(chance[k] < acceptance(scaled[k], value / scale, self.weights[k], self.temperature)))
            if taken[-1]:
                self.preferences[k], self.values[k] = proposed[k], value
        self.iteration += 1
        return taken


def ranges(front: Points) -> NDArray[np.float64]:
    """Return the range of each objective on a front, [m]; 1 where it has none."""
    found: NDArray[np.float64] = front.max(0) - front.min(0)
    return np.where(found > 0, found, 1.0)


def closest(values: Points, k: int) -> int | None:
    """Return which other solution is closest to that at place k, of those of which neither is as good everywhere."""
    own = values[k]
    incomparable = np.flatnonzero((values > own).any(1) & (values < own).any(1))
    if not len(incomparable):
        return None
    return int(incomparable[np.linalg.norm(values[incomparable] - own, axis=1).argmin()])


def spread_weights(
    weights: NDArray[np.float64], own: NDArray[np.float64], other: NDArray[np.float64], alpha: float
) -> NDArray[np.float64]:
    """Return weights that count more where a solution is as good as the closest other one, and less where it is worse."""
    changed = np.where(own >= other, weights * alpha, weights / alpha)
    moved: NDArray[np.float64] = changed / changed.sum()
    return moved


def acceptance(
    own: NDArray[np.float64], new: NDArray[np.float64], weights: NDArray[np.float64], temperature: float
) -> float:
    """Return the probability of a step (the rule "SL" of Czyzak and Jaszkiewicz): min(1, exp(weights (new - own) / T))."""
    return exp(min(0.0, float(weights @ (new - own)) / temperature))
