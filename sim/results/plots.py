"""Learning curves of runs, drawn by matplotlib."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from p2pfl.errors import MissingRequirementError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHADE = 0.15  # opacity of the bands


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
    for name, seeds in runs.items():
        rounds, mean, spread = _curve(seeds)
        (line,) = ax.plot(rounds, mean, label=name)
        ax.fill_between(rounds, mean - spread, mean + spread, color=line.get_color(), alpha=SHADE, linewidth=0)
    ax.set_xlabel("round")
    ax.set_ylabel(f"{what}, mean over nodes")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.grid(alpha=0.3)
    if len(runs) > 1:
        ax.legend(frameon=False)
    return ax


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
            mean, spread = np.nanmean(means, axis=0), np.nanstd(means, axis=0)
    found = np.isfinite(mean)
    return np.arange(1, last + 1)[found], mean[found], spread[found]
