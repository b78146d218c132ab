"""Pareto simulated annealing over preferences (Czyzak and Jaszkiewicz 1998): it proposes the next weights to try.

MOFL/D (Hartmann's dissertation, chapter 3, algorithm 2 and table 3.1) uses this metaheuristic, with the numbers of
iterations and samples of table A.1. The details that it leaves open are defined as follows:

- A solution is a preference. Its value is that of the model that was trained with it.
- The generating solutions start uniformly on the simplex.
- A neighbour is the point of the simplex nearest to the preference after a normal step.
- Values are compared relative to the range of each objective on the front found so far.
- The closest solution is the one with the lowest Euclidean distance of values.
- The temperature decreases by a constant factor after each iteration.
"""

from __future__ import annotations

from math import exp, inf

import msgspec
import numpy as np
from numpy.typing import NDArray

from p2pfl.errors import must_be
from p2pfl.multiobjective.preferences import nearest
from p2pfl.pareto_metrics import Points, non_dominated
from p2pfl.random_streams import RandomStreams

MOST_ITERATIONS, MOST_SAMPLES = 100_000, 10_000  # higher values are considered mistakes


class Schedule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a search.

    Attributes:
        iterations: number of iterations, including the starting sample.
        samples: candidates in each iteration: one for each generating solution.
        step: standard deviation of the normal step to a neighbour, in each weight.
        temperature: temperature of the first step. A solution that is worse by this weighted fraction of the
            objectives' ranges is accepted with probability 1/e.
        cooling: factor of the temperature after each iteration.
        alpha: factor of the weights that moves a generating solution away from the closest other one; more than 1.
    """

    iterations: int = 20
    samples: int = 5
    step: float = 0.2
    temperature: float = 0.1
    cooling: float = 0.9
    alpha: float = 1.05

    def check(self) -> None:
        """Raise ConfigurationError if a value is invalid."""
        for name, most in {"iterations": MOST_ITERATIONS, "samples": MOST_SAMPLES}.items():
            if not 1 <= (value := getattr(self, name)) <= most:
                raise must_be(f"search.{name}", f"from 1 to {most:,}", value)
        if not 0 < self.step <= 1:
            raise must_be("search.step", "more than 0 and at most 1", self.step)
        if not 0 < self.temperature < inf:
            raise must_be("search.temperature", "more than 0, and finite", self.temperature)
        if not 0 < self.cooling <= 1:
            raise must_be("search.cooling", "more than 0 and at most 1", self.cooling)
        if not 1 < self.alpha < inf:
            raise must_be("search.alpha", "more than 1, and finite", self.alpha)


class Annealing:
    """Generating solutions of a search. The proposals depend only on the seed and the reported values.

    Attributes:
        iteration: number of completed iterations.
        preferences, values: of the generating solutions, [n, m] each; for the values higher is better.
        weights: the weights with which each generating solution compares its neighbour, [n, m]; not the trained ones.
    """

    def __init__(self, objectives: int, schedule: Schedule, seed: int) -> None:
        self.iteration = 0
        self.preferences: Points = np.zeros((0, objectives))
        self.values: Points = np.zeros((0, objectives))
        self.weights: Points = np.zeros((0, objectives))
        self._schedule = schedule
        self._streams = RandomStreams(seed, "search for preferences")
        self._front: Points = np.zeros((0, objectives))
        self._shape = schedule.samples, objectives

    @property
    def temperature(self) -> float:
        """Temperature of the next iteration."""
        return float(self._schedule.temperature * self._schedule.cooling ** max(self.iteration - 1, 0))

    def propose(self) -> Points:
        """Return the preferences of the next iteration, [n, m]: the start, or a neighbour of each solution."""
        samples, objectives = self._shape
        if not self.iteration:
            return self._streams.generator(0, "start").dirichlet([1.0] * objectives, samples)
        steps = self._streams.generator(self.iteration, "step").normal(0, self._schedule.step, self._shape)
        return np.array([nearest(point) for point in self.preferences + steps])

    def tell(self, proposed: Points, values: Points) -> list[bool]:
        """Record the values of the proposals, and return for each whether it becomes a generating solution.

        The solutions are processed in order. Each neighbour depends only on its own solution, so all candidates of an
        iteration can be solved in advance.
        """
        self._front = non_dominated(np.concatenate([self._front, values]))
        if not self.iteration:
            self.preferences, self.values, self.weights = proposed.copy(), values.copy(), np.zeros(self._shape)
            self.iteration = 1
            return [True] * len(values)
        samples, objectives = self._shape
        drawn = self._streams.generator(self.iteration, "weights").dirichlet([1.0] * objectives, samples)
        chance = self._streams.generator(self.iteration, "accept").random(samples)
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
    """Return the range of each objective on a front, [m]; 1 for an objective without a range."""
    found: NDArray[np.float64] = front.max(0) - front.min(0)
    return np.where(found > 0, found, 1.0)


def closest(values: Points, k: int) -> int | None:
    """Return the index of the other solution closest to solution k, among those where neither dominates the other."""
    own = values[k]
    incomparable = np.flatnonzero((values > own).any(1) & (values < own).any(1))
    if not len(incomparable):
        return None
    return int(incomparable[np.linalg.norm(values[incomparable] - own, axis=1).argmin()])


def spread_weights(
    weights: NDArray[np.float64], own: NDArray[np.float64], other: NDArray[np.float64], alpha: float
) -> NDArray[np.float64]:
    """Return weights with a higher weight where a solution is as good as the closest other one, and lower elsewhere."""
    changed = np.where(own >= other, weights * alpha, weights / alpha)
    moved: NDArray[np.float64] = changed / changed.sum()
    return moved


def acceptance(
    own: NDArray[np.float64], new: NDArray[np.float64], weights: NDArray[np.float64], temperature: float
) -> float:
    """Return the probability of a step (Czyzak and Jaszkiewicz's rule "SL"): min(1, exp(weights (new - own) / T))."""
    return exp(min(0.0, float(weights @ (new - own)) / temperature))
