"""Deep-sea treasure: a submarine dives for treasures, and more valuable ones take more time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from p2pfl.errors import ConfigurationError
from p2pfl.multiobjective.preferences import preference_of
from p2pfl.rl.tabular_q_learning import Environment, TabularTask
from p2pfl.task import Part

ROWS = 11
DEPTHS = (1, 2, 3, 4, 4, 4, 7, 7, 9, 10)  # the row of each column's treasure, with rock below
TREASURES = (0.7, 8.2, 11.5, 14.0, 15.1, 16.1, 19.6, 20.3, 22.4, 23.7)
MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))  # up, down, left, right
REFERENCE = (0.0, -50.0)  # of treasure and time, for the hypervolume (the usual one of this environment)
GROUPS = [[0.9, 0.1], [0.5, 0.5], [0.25, 0.75], [0.05, 0.95]]

FRONT = tuple((value, -float(depth + column)) for column, (depth, value) in enumerate(zip(DEPTHS, TREASURES, strict=True)))
"""(treasure, time) of the shortest path to each treasure: the attainable front."""


def deep_sea_treasure(
    part: Part,
    seed: int,
    *,
    lr: float = 0.3,
    discount: float = 0.98,
    steps: int = 500,
    longest: int = 100,
    explore_rounds: float = 11.2,
    explore_least: float = 0.07,
    preference: Sequence[float] = (),
    preferences: Mapping[str, Any] | None = None,
) -> TabularTask:
    """Tabular Q-learning of deep-sea treasure, with the objectives `treasure` and `time`.

    The map has 11 rows and 10 columns (Vamplew et al. 2011) and the treasures of Yang et al. 2019, 0.7 to 23.7. It is
    mo-gymnasium's deep-sea-treasure-v0 without its eleventh column of open water. The submarine starts in the upper
    left corner and moves up, down, left or right. After a move into rock or off the map it stays in place. Each step
    costs 1 of time, and an episode ends at a treasure. The reported reward is the undiscounted scalarised return of the
    greedy policy.

    Args:
        lr, discount, steps, longest, explore_rounds, explore_least: see p2pfl.rl.tabular_q_learning.TabularTask. By
            default exploration ends after the first 40 % of 28 rounds.
        preference: this node's own weights of treasure and time.
        preferences: distribution of the nodes' weights if none are given (see p2pfl.multiobjective.preferences). The
            default is four groups, with 0.9, 0.5, 0.25 and 0.05 on treasure.
    """
    for name, value in {"steps": steps, "longest": longest}.items():
        if value < 1:
            raise ConfigurationError(f"task.{name} must be 1 or more, got {value}")
    for name, fraction in {"lr": lr, "discount": discount, "explore_least": explore_least}.items():
        if not 0 <= fraction <= 1:
            raise ConfigurationError(f"task.{name} must be from 0 to 1, got {fraction}")
    if not explore_rounds > 0:
        raise ConfigurationError(f"task.explore_rounds must be more than 0, got {explore_rounds}")
    drawn = {"name": "groups", "weights": GROUPS} if preferences is None else preferences
    point, group = preference_of(part, seed, 2, preference, drawn)
    return TabularTask(
        environment(),
        point,
        group,
        lr,
        discount,
        steps,
        longest,
        explore_rounds,
        explore_least,
        reference=REFERENCE,
        front=FRONT,
    )


@lru_cache(maxsize=1)
def environment() -> Environment:
    """Return the tables of the environment; the state is 10 * row + column."""
    columns = len(DEPTHS)
    after = np.zeros((ROWS * columns, len(MOVES)), np.int64)
    rewards = np.zeros((ROWS * columns, len(MOVES), 2))
    rewards[..., 1] = -1
    ends = np.zeros(after.shape, np.bool_)
    for row in range(ROWS):
        for column in range(columns):
            for action, (down, right) in enumerate(MOVES):
                there = row + down, column + right
                inside = there[0] >= 0 and 0 <= there[1] < columns and there[0] <= DEPTHS[there[1]]
                r, c = there if inside else (row, column)
                after[columns * row + column, action] = columns * r + c
                if inside and r == DEPTHS[c]:
                    rewards[columns * row + column, action, 0] = TREASURES[c]
                    ends[columns * row + column, action] = True
    return Environment(after, rewards, ends, ("treasure", "time"))
