"""Tabular Q-learning in a deterministic environment with several rewards, without neural network and torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2pfl.errors import DivergenceError
from p2pfl.learner import answers
from p2pfl.multiobjective.preferences import Preference
from p2pfl.parameters import Layout, Parameters
from p2pfl.queries import Train
from p2pfl.random_streams import RandomStreams
from p2pfl.rl.evaluation import JudgedByReturns
from p2pfl.task import Task


@dataclass(frozen=True)
class Environment:
    """Tables of an environment with S states, A actions and m rewards.

    Attributes:
        next: the next state, [S, A].
        rewards: the rewards of a step, float64 [S, A, m].
        ends: whether the step ends the episode, [S, A].
        names: names of the rewards.
        start: the state in which an episode begins.
    """

    next: NDArray[np.int64]
    rewards: NDArray[np.float64]
    ends: NDArray[np.bool_]
    names: tuple[str, ...]
    start: int = 0


@dataclass
class TabularTask(Task):
    """Q-learning (Watkins and Dayan 1992) on the linearly scalarised reward; the model is the table Q [S, A].

    Attributes:
        preference: the node's weights of the rewards, [m]; they stay on this node.
        group: the number of the node's group if preferences are given by groups; it stays on this node too.
        lr: alpha.
        discount: gamma.
        steps: steps of the environment in an epoch; an unfinished episode is discarded at the end.
        longest: steps after which an episode is cut off; the estimated value of the rest still counts.
        explore_rounds: the probability of a random action decreases linearly from 1 at the start of round 1 to
            `explore_least` after this number of rounds.
        reference, front: the worst returns of interest, and all optimal returns; see p2pfl.task.Task.
    """

    environment: Environment
    preference: Preference = field(repr=False)
    group: int | None = field(default=None, repr=False)
    lr: float = 0.3
    discount: float = 0.98
    steps: int = 500
    longest: int = 100
    explore_rounds: float = 11.2
    explore_least: float = 0.07
    metric: str = "reward"
    higher_is_better: bool = True
    public_info: Mapping[str, Any] = field(default_factory=dict)
    reference: tuple[float, ...] = ()
    front: tuple[tuple[float, ...], ...] = field(default=(), repr=False)

    @property
    def layout(self) -> Layout:
        return Layout((("q", self.environment.next.shape),), self.environment.next.size)

    @property
    def n_samples(self) -> int:
        return self.steps

    @property
    def goals(self) -> Mapping[str, bool]:
        return dict.fromkeys(self.environment.names, True)

    def initial(self, seed: int) -> Parameters:
        """Return a table of zeros, for any seed."""
        return np.zeros(self.layout.size, np.float32)

    def learner(self, streams: RandomStreams, device: str = "cpu") -> QLearner:
        return QLearner(self, streams)


class QLearner(JudgedByReturns):
    """The learner of a TabularTask (see p2pfl.learner).

    The tables are lists, which Python reads faster than arrays: a step takes about 1 us.
    """

    def __init__(self, task: TabularTask, streams: RandomStreams) -> None:
        environment = task.environment
        super().__init__(task.environment.names, task.preference, task.metric)
        self.task = task
        self.streams = streams
        self._next = environment.next.tolist()
        self._ends = environment.ends.tolist()
        self._rewards = environment.rewards.tolist()
        self._scalar = (environment.rewards @ task.preference).tolist()

    @answers(Train)
    def _train(self, query: Train) -> Parameters:
        """Return the table after `epochs` times the task's steps.

        Args:
            query: its `proximal`, (mu, anchor), adds mu/2 (q - anchor)^2 of the updated entry to the minimised
                function of a step.
        """
        task, n, proximal = self.task, query.epochs * self.task.steps, query.proximal
        q: list[list[float]] = self._table(query.params)
        mu, anchor = (0.0, q) if proximal is None else (proximal[0], self._table(proximal[1]))
        random = random_actions(task, self.streams.generator(query.round, query.purpose), query.round, n)
        state, length = task.environment.start, 0
        for wanted in random:
            row = q[state]
            action = row.index(max(row)) if wanted < 0 else wanted
            after = self._next[state][action]
            ended = self._ends[state][action]
            value = self._scalar[state][action]
            if not ended:
                value += task.discount * max(q[after])
            change = value - row[action]
            if mu:
                change -= mu * (row[action] - anchor[state][action])
            row[action] += task.lr * change
            length += 1
            state = after
            if ended or length == task.longest:
                state, length = task.environment.start, 0
        with np.errstate(over="ignore"):  # overflow gives a value that is not finite
            trained = np.array(q, np.float32).reshape(-1)
        if not np.isfinite(trained).all():
            raise DivergenceError(self.streams.name, query.round)
        return trained

    def returns(self, params: Parameters) -> NDArray[np.float64]:
        """Return the undiscounted sums of the rewards of the greedy policy, [m]; ties go to the first action."""
        best = params.reshape(self.task.environment.next.shape).argmax(1).tolist()
        state, total = self.task.environment.start, np.zeros(len(self.task.environment.names))
        for _ in range(self.task.longest):
            action = best[state]
            total += self._rewards[state][action]
            if self._ends[state][action]:
                break
            state = self._next[state][action]
        return total

    def _table(self, params: Parameters) -> list[list[float]]:
        states, actions = self.task.environment.next.shape
        table: list[list[float]] = params.reshape(states, actions).tolist()
        return table


def random_actions(task: TabularTask, rng: np.random.Generator, round: int, n: int) -> list[int]:
    """Return a random action, or -1 for the best one, for each of the n steps of a round."""
    done = max(round - 1, 0) + np.arange(n) / n
    chance = np.maximum(1 - (1 - task.explore_least) * done / task.explore_rounds, task.explore_least)
    actions = rng.integers(task.environment.next.shape[1], size=n)
    chosen: list[int] = np.where(rng.random(n) < chance, actions, -1).tolist()
    return chosen
