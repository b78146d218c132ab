"""Metrics of a run by round and over time, from the columns of its rounds, and their curves, drawn by matplotlib.

The columns are those of p2pfl.sim.simulation.recorder.Recorder.rounds_table. A node without an evaluation in a round, or
one that has stopped, counts with its last value.

What all nodes have together depends on when one looks. Synchronous nodes wait for each other: a run is looked at when the
last node has ended a round, and each node counts with its model of that round. Asynchronous nodes do not: at one moment a
fast node may be in round 40 and a slow one in round 4. Their run is looked at whenever a node ends a round, and each node
counts with the model that it has at that moment. `Timeline` is a run in either form.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from p2pfl.errors import MissingRequirementError

if TYPE_CHECKING:
    from matplotlib.axes import Axes


Columns = Mapping[str, np.ndarray]
SHADE = 0.15  # opacity of the bands
STYLES = ("-", "--", ":", "-.")  # of lines, each with every colour of matplotlib's cycle
ROUNDING = 1e-9  # share of a measure within which two are equal
MOST_KEYS = 25  # in a column of the legend
MOST_MOMENTS = 4096  # at which an asynchronous run is looked at
MOST_VALUES = 2**22  # of all nodes at all moments; fewer moments if there are more
AXES = ("seconds", "bytes", "trainings")  # measures of a run at which runs can be compared


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


def total_sent(traffic: Mapping[str, Any]) -> int:
    """Return the total bytes sent by all nodes in a run.

    They include the preparation, because a policy uses it to save bytes later.

    Args:
        traffic: of an entry of `runs` in summary.json.
    """
    return int(traffic["bytes"] + traffic["preparation"]["bytes"])


def incomplete(rounds: Columns, nodes: int, attackers: Collection[int]) -> bool:
    """Return whether some honest node of a run has ended no round, so that there is never a mean over all nodes."""
    return len({*np.unique(rounds["node"]).tolist(), *attackers}) < nodes


@dataclass(frozen=True)
class Timeline:
    """A run at the moments at which it is looked at: K of them, ascending.

    Attributes:
        rounds_table: columns of its rounds.
        asynchronous: whether its nodes do not wait for each other.
        preparation: bytes that all nodes sent before the first round.
        at: moments, in virtual seconds, in place of those at which nodes end a round; for asynchronous nodes only.
        incomplete: see the function `incomplete`; metrics are then NaN at all moments.
    """

    rounds_table: Columns
    asynchronous: bool = False
    preparation: int = 0
    at: np.ndarray | None = None
    incomplete: bool = False

    @cached_property
    def seconds(self) -> np.ndarray:
        """Virtual seconds since the start, [K]. Of very many moments, some at equal distances are left, and the last."""
        if not self.asynchronous:
            table = grid(self.rounds_table, self.rounds_table["virtual_time"])
            return np.fmax.accumulate(np.fmax.reduce(table, axis=1)) if table.size else np.zeros(0)  # of the last node
        if self.at is not None:
            return self.at
        ends = np.unique(self.rounds_table["virtual_time"])
        most = max(1, min(MOST_MOMENTS, MOST_VALUES // max(1, len(self._nodes))))
        if len(ends) <= most:
            return ends
        return ends[np.unique(np.linspace(len(ends) - 1, 0, most).round().astype(np.int64))]

    @cached_property
    def bytes(self) -> np.ndarray:
        """Bytes sent by all nodes until then, including the preparation; int64 [K].

        Asynchronous nodes are in the middle of a round at most moments: what a node sends in a round counts in proportion
        to the time of the round that has passed.
        """
        if not self.asynchronous:
            rounds = self.rounds_table["round"]
            total = np.bincount(rounds - 1, self.rounds_table["bytes_out"]) if len(rounds) else np.zeros(0)
            return np.cumsum(total) + self.preparation
        sent: np.ndarray = np.rint(self._sums("bytes_out", within=True)).astype(np.int64) + self.preparation
        return sent

    @cached_property
    def rounds(self) -> np.ndarray:
        """Rounds that a node has ended by then, mean over the nodes; float64 [K]."""
        if not self.asynchronous:
            return np.arange(1.0, len(self.seconds) + 1)
        return self._sums(None) / max(1, len(self._nodes))

    @cached_property
    def trainings(self) -> np.ndarray:
        """Local trainings in the rounds that a node has ended by then, mean over the nodes; float64 [K].

        A folder of an earlier version lacks them: one training a round is assumed.
        """
        table = self.rounds_table
        if "trainings" not in table:
            return self.rounds
        if not self.asynchronous:
            count = max(1, len(np.unique(table["node"])))
            by_round = np.bincount(table["round"] - 1, table["trainings"], len(self.seconds))
            found: np.ndarray = np.cumsum(by_round) / count
            return found
        return self._sums("trainings") / max(1, len(self._nodes))

    @cached_property
    def joules(self) -> np.ndarray:
        """Joules that a node has spent by then, mean over the nodes; float64 [K]. Zeros without devices.

        As bytes, those of a round that an asynchronous node has not ended count in proportion.
        """
        table = self.rounds_table
        if "joules" not in table:
            return np.zeros(len(self.seconds))
        if not self.asynchronous:
            by_round = np.bincount(table["round"] - 1, table["joules"], len(self.seconds))
            found: np.ndarray = np.cumsum(by_round) / max(1, len(np.unique(table["node"])))
            return found
        return self._sums("joules", within=True) / max(1, len(self._nodes))

    def values(self, rows: np.ndarray) -> np.ndarray:
        """Return what each node has at each moment, [K, nodes], of a value for each row; NaN before its first one."""
        if not self.asynchronous:
            return fill_gaps(grid(self.rounds_table, rows))
        table = np.full((len(self.seconds), len(self._nodes)), np.nan)
        for column, (mine, ends) in zip(table.T, self._nodes, strict=True):
            known = mine[~np.isnan(rows[mine])]
            place = ends[~np.isnan(rows[mine])].searchsorted(self.seconds, side="right") - 1
            if len(known):
                column[:] = np.where(place >= 0, rows[known[np.maximum(place, 0)]], np.nan)
        return table

    def reported(self, stage: str, what: str) -> np.ndarray:
        """Return a metric of the models that count, of each node at each moment; [K, nodes]. See the function `reported`."""
        found = self.values(reported(self.rounds_table, stage, what))
        return np.full_like(found, np.nan) if self.incomplete else found

    def value_at(self, curve: np.ndarray, axis: str, most: float) -> float:
        """Return a curve, [K], at the last moment with at most this much of a measure; NaN before the first moment.

        Args:
            axis: one of AXES, or "joules".
        """
        place = int(np.searchsorted(getattr(self, axis), most * (1 + ROUNDING), side="right")) - 1
        return float(curve[place]) if place >= 0 else np.nan

    @cached_property
    def _nodes(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """The rows of each node in the order of time, and the ends of their rounds."""
        table = self.rounds_table
        order = np.lexsort((table["round"], table["virtual_time"], table["node"]))
        parts = np.split(order, np.flatnonzero(np.diff(table["node"][order])) + 1)
        return [(rows, table["virtual_time"][rows]) for rows in parts if len(rows)]

    def _sums(self, column: str | None, within: bool = False) -> np.ndarray:
        """Return the sum of a column, or the number of rows, over the rounds of all nodes that have ended by then; [K].

        Args:
            within: count rounds that have not ended in proportion.
        """
        total = np.zeros(len(self.seconds))
        for rows, ends in self._nodes:
            each = np.ones(len(rows)) if column is None else self.rounds_table[column][rows]
            sums = np.concatenate([[0.0], np.cumsum(each)])
            if within:
                total += np.interp(self.seconds, np.concatenate([[0.0], ends]), sums)
            else:
                total += sums[ends.searchsorted(self.seconds, side="right")]
        return total


def draw_curves(runs: Mapping[str, Sequence[np.ndarray]], what: str, ax: Axes | None = None) -> Axes:
    """Draw the mean over the nodes of each run against the round.

    A band shows the standard deviation over the seeds or, for a single seed, over the nodes.

    Args:
        runs: for each seed of a run, the values by round and node, [rounds, nodes].
        what: label of the vertical axis.
        ax: axes to draw on; by default those of a new figure.

    Raises:
        MissingRequirementError: matplotlib is not installed.
    """
    try:
        from matplotlib import pyplot
        from matplotlib.ticker import MaxNLocator
    except ImportError as error:
        raise MissingRequirementError("plot() needs matplotlib: pip install 'p2pfl-node[notebook]'") from error
    if ax is None:
        _, ax = pyplot.subplots(layout="constrained")
    for k, (name, seeds) in enumerate(runs.items(), len(ax.get_lines())):
        rounds, mean, spread = _curve(seeds)
        (line,) = ax.plot(rounds, mean, **style(k), label=name)
        ax.fill_between(rounds, mean - spread, mean + spread, color=line.get_color(), alpha=SHADE, linewidth=0)
    ax.set_xlabel("round")
    ax.set_ylabel(f"{what}, mean over nodes")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.grid(alpha=0.3)
    if len(runs) > 1:
        add_legend(ax, len(runs))
    return ax


def style(k: int) -> dict[str, Any]:
    """Return the colour and the line style of a run by its number; 40 runs differ."""
    return {"color": f"C{k % 10}", "linestyle": STYLES[k // 10 % len(STYLES)]}


def add_legend(ax: Axes, runs: int) -> None:
    """Put the legend to the right of the axes, so that it covers no curve."""
    columns = -(-runs // MOST_KEYS)
    ax.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5), ncols=columns, fontsize="small")


def _curve(seeds: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the rounds with a value, and there the mean and the standard deviation."""
    last = max(len(table) for table in seeds)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of rounds without a value
        if len(seeds) == 1:
            mean, spread = np.nanmean(seeds[0], axis=1), np.nanstd(seeds[0], axis=1)
        else:
            means = np.full((len(seeds), last), np.nan)
            for row, table in zip(means, seeds, strict=True):
                row[: len(table)] = np.nanmean(table, axis=1)
            mean, spread = np.nanmean(means, axis=0), np.nanstd(means, axis=0, ddof=1)
    found = np.isfinite(mean)
    return np.arange(1, last + 1)[found], mean[found], spread[found]
