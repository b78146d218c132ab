"""Comparison of two folders: the difference of each run that both have, seed by seed, against its spread over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from p2pfl.sim.formatting import count, difference, number
from p2pfl.sim.report.folder import Folder
from p2pfl.sim.report.series import Series, folder_names, gather
from p2pfl.sim.scenario.sweep import label

MOST = 7  # sentences on runs; of more runs only the greatest gain and the greatest loss are mentioned


@dataclass(frozen=True)
class Comparison:
    """A run in two folders.

    Attributes:
        name: name of the run in both folders.
        first, second: the run in each folder.
        seeds: seeds that both have.
        before, after: test metric in the first and in the second folder, for each of these seeds.
    """

    name: str
    first: Series
    second: Series
    seeds: tuple[int, ...]
    before: np.ndarray
    after: np.ndarray

    @property
    def differences(self) -> np.ndarray:
        """Return the test metric of the second folder minus that of the first, for each seed."""
        differences: np.ndarray = self.after - self.before
        return differences

    @property
    def label(self) -> str:
        """Return the name in words, such as "ring, no budget"."""
        return label(self.name, self.first.shown.varied)

    @property
    def mean(self) -> float:
        return float(self.differences.mean())

    @property
    def spread(self) -> float | None:
        """Return the standard deviation of the differences over the seeds; None with one seed."""
        return float(self.differences.std(ddof=1)) if len(self.seeds) > 1 else None

    @property
    def gain(self) -> float:
        """Return the mean difference, above 0 if the second folder is better."""
        return self.mean if self.first.shown.better_is_higher else -self.mean

    @property
    def decided(self) -> bool:
        return self.spread is not None and abs(self.mean) > self.spread


def comparisons(series: Sequence[Series]) -> list[Comparison]:
    """Return the runs that both of two folders have, with the same metric and common seeds; [] for more folders."""
    folders = list(dict.fromkeys(one.folder for one in series))
    if len(folders) != 2:
        return []
    found = []
    for first in (one for one in series if one.folder is folders[0]):
        for second in series:
            alike = (second.row, second.metric) == (first.row, first.metric) and second.folder is folders[1]
            if alike and (made := _compare(first, second)) is not None:
                found.append(made)
    return found


def _compare(first: Series, second: Series) -> Comparison | None:
    means = [one.means_by_seed() for one in (first, second)]
    seeds = tuple(seed for seed in means[0] if seed in means[1])
    if not seeds:
        return None
    before, after = (np.array([found[seed] for seed in seeds]) for found in means)
    return Comparison(first.row, first, second, seeds, before, after)


def sentences(found: Sequence[Comparison], names: Sequence[str]) -> list[str]:
    """Return the comparison in words.

    Args:
        names: names of both folders.
    """
    if len(found) <= MOST:
        return [_sentence(each, names[1]) for each in found]
    better = sum(each.decided and each.gain > 0 for each in found)
    worse = sum(each.decided and each.gain < 0 for each in found)
    said = f"Of {count(len(found), 'run')}, {names[1]} is better than {names[0]} in {better}, and worse in {worse}"
    equal = sum(not each.differences.any() for each in found)
    for runs, state in ((equal, "equal"), (len(found) - better - worse - equal, "not decided")):
        said += f"; {runs} {'is' if runs == 1 else 'are'} {state}" if runs else ""
    order = sorted(found, key=lambda each: each.gain)
    extremes = [order[-1]] * (order[-1].gain > 0) + [order[0]] * (order[0].gain < 0)
    return [f"{said}.", *(_sentence(each, names[1]) for each in extremes)]


def _sentence(each: Comparison, second: str) -> str:
    before, after = float(each.before.mean()), float(each.after.mean())
    figures = f"{number(after)} instead of {number(before)}"
    if each.spread is None:
        doubt = "a single seed has no spread"
    else:
        words = "above" if each.decided else "within"
        doubt = f"{words} the spread of {number(each.spread)} over {count(len(each.seeds), 'seed')}"
    if each.spread is not None and not each.decided:
        return f"{each.label}: not decided ({figures}); the margin of {difference(each.mean)} is {doubt}."
    if number(before) == number(after):
        return f"{each.label}: {second} has the same test {each.first.metric} ({number(after)}); {doubt}."
    way = "raises" if each.mean > 0 else "lowers"
    return f"{each.label}: {second} {way} the test {each.first.metric} by {number(abs(each.mean))} ({figures}); {doubt}."


def compare(paths: Sequence[Path]) -> list[str]:
    """Return the comparison of two folders in words; [] for other numbers of folders.

    Raises:
        ConfigurationError: a folder has no finished run, or a file of it is damaged.
    """
    if len(paths) != 2:
        return []
    with ExitStack() as stack:
        folders = [stack.enter_context(Folder(path)) for path in paths]
        return sentences(comparisons(gather(folders)), folder_names(paths))
