"""Metrics of a run by round, from the columns of its rounds (see p2pfl.sim.simulation.recorder.Recorder.rounds_table).

A node without an evaluation in a round, or one that has stopped, counts with its last value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

Columns = Mapping[str, np.ndarray]


def grid(rounds: Columns, values: np.ndarray) -> np.ndarray:
    """Return values by round and node; shape [rounds, nodes], NaN if there is none."""
    last = int(rounds["round"].max(initial=0))
    there = np.bincount(rounds["node"]) > 0
    place = np.cumsum(there) - 1
    table = np.full((last, np.count_nonzero(there)), np.nan)
    table[rounds["round"] - 1, place[rounds["node"]]] = values
    return table


def fill_gaps(table: np.ndarray) -> np.ndarray:
    """Return a table in which NaN is replaced by the last earlier value, if there is one."""
    rows = np.where(np.isnan(table), 0, np.arange(len(table))[:, None])
    return np.take_along_axis(table, np.maximum.accumulate(rows, axis=0), axis=0)


def reported(rounds: Columns, stage: str, what: str) -> np.ndarray:
    """Return a metric of the models that count, for each row of the rounds; NaN if there is none.

    Args:
        stage: the reported stage; see p2pfl.node.evaluations.counted_stage, which decides alike.
    """
    nothing = np.full(len(rounds["round"]), np.nan)
    merged = rounds.get(f"merged_{what}", nothing)
    if stage == "auto":
        trained, of_merged = (
            np.nan_to_num(rounds.get(f"{each}_validation_loss", nothing), nan=np.inf) for each in ("trained", "merged")
        )
        return np.where(trained < of_merged, rounds.get(f"trained_{what}", nothing), merged)
    chosen = rounds.get(f"{stage}_{what}", nothing)
    return np.where(np.isnan(chosen), merged, chosen)


def of_nodes(rounds: Columns, stage: str, what: str) -> np.ndarray:
    """Return a metric of the models that count by round and node, without gaps; shape [rounds, nodes]."""
    return fill_gaps(grid(rounds, reported(rounds, stage, what)))


def mean(table: np.ndarray) -> np.ndarray:
    """Return the mean over the nodes for each round; NaN until all that ever have a number have one.

    Attackers have none.
    """
    counted = table[:, ~np.isnan(table).all(axis=0)]
    found: np.ndarray = counted.mean(axis=1) if counted.size else np.full(len(table), np.nan)
    return found


def bytes_sent(rounds: Columns, preparation: int) -> np.ndarray:
    """Return the total bytes sent by all nodes until the end of each round, including the preparation."""
    total = np.bincount(rounds["round"] - 1, rounds["bytes_out"]) if len(rounds["round"]) else np.zeros(0)
    return np.cumsum(total) + preparation


def total_sent(traffic: Mapping[str, Any]) -> int:
    """Return the total bytes sent by all nodes in a run.

    They include the preparation, because a policy uses it to save bytes later.

    Args:
        traffic: of an entry of `runs` in summary.json.
    """
    return int(traffic["bytes"] + traffic["preparation"]["bytes"])


def round_ends(rounds: Columns) -> np.ndarray:
    """Return the time at which the last node ended each round, in virtual seconds."""
    table = grid(rounds, rounds["virtual_time"])
    return np.fmax.accumulate(np.fmax.reduce(table, axis=1)) if table.size else np.zeros(0)
