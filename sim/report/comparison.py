"""Comparison of folders: differences of the runs that two folders share, and of the scenarios of all.

Runs are compared seed by seed. A difference counts as decided if its mean over the seeds is greater than its spread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from p2pfl.sim.formatting import count, difference, number
from p2pfl.sim.markup import bullets, paragraphs, table
from p2pfl.sim.report.figures import worst
from p2pfl.sim.report.folder import Folder
from p2pfl.sim.report.series import Figure, Section, Series, by_key, flat, folder_names, gather
from p2pfl.sim.scenario.sweep import label

MOST = 7  # sentences on runs; of more runs only the greatest gain and the greatest loss are mentioned
MOST_VALUES = 6


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


def comparison_section(series: Sequence[Series]) -> Section | None:
    """Return the section; None without two folders that have a run in common."""
    found = comparisons(series)
    if not found:
        return None
    first, second = folder_names([found[0].first.folder.path, found[0].second.folder.path])
    figures: list[Figure] = []
    for metric, alike in by_key([each.second for each in found], lambda one: one.metric).items():
        shared = [each for each in found if each.second in alike]
        suffix = "" if metric == found[0].first.metric else f"-{metric}"
        figures += [_of_seeds(suffix, metric, shared), *_of_nodes(suffix, metric, shared)]
    text = [f"Differences are {second} minus {first}, for runs with the same name and the same seed."]
    return {"id": "comparison", "title": f"Comparison of {first} and {second}", "text": text, "figures": figures}


def _of_seeds(suffix: str, metric: str, found: Sequence[Comparison]) -> Figure:
    runs = {
        each.second.name: {"values": each.differences, "worst": np.zeros(len(each.seeds), np.uint8), "mean": each.mean}
        for each in found
    }
    figure: Figure = {"id": f"difference{suffix}", "kind": "distribution", "title": f"Difference in the test {metric}"}
    figure |= {"x_label": f"difference in test {metric}", "note": "One mark per seed: the mean over the nodes."}
    alike = len({each.seeds for each in found}) == 1
    figure |= {"labels": [f"seed {seed}" for seed in found[0].seeds]} if alike else {}
    return figure | {"of": "seed", "zero": True, "runs": runs, "unfiltered": True}


def _of_nodes(suffix: str, metric: str, found: Sequence[Comparison]) -> list[Figure]:
    """Return a figure of the difference of each node with one seed; [] if the folders have other nodes."""
    runs = {}
    for each in found:
        first, second = each.first.shown, each.second.shown
        values = [np.array([np.nan if v is None else v for v in entry.test.nodes], float) for entry in (first, second)]
        if first.seed != second.seed or len(values[0]) != len(values[1]) or not np.isfinite(values[1] - values[0]).any():
            continue
        differences = values[1] - values[0]
        marks = worst(differences, second.better_is_higher)
        runs[each.second.name] = {"values": differences, "worst": marks, "mean": float(np.nanmean(differences))}
    if not runs:
        return []
    labels = next((each.second.shown.labels for each in found if each.second.name in runs), [])
    alike = all(each.second.shown.labels in (labels, []) for each in found)
    figure: Figure = {"id": f"difference-nodes{suffix}", "kind": "distribution"}
    figure |= {"title": f"Difference in the test {metric} of each node", "x_label": f"difference in test {metric}"}
    figure |= {"note": f"One mark per node, seed {found[0].second.shown.seed}; the tenth that loses most is highlighted."}
    return [figure | ({"labels": labels} if labels and alike else {}) | {"zero": True, "runs": runs, "unfiltered": True}]


def differences(folders: Sequence[Folder], names: Sequence[str]) -> str:
    """Return a table of the keys that differ, as HTML.

    Runs are compared by name. If the folders have no runs of the same name, the values of all runs are compared.
    """
    runs = [_runs(folder) for folder in folders]
    if not all(runs):
        missing = [name for name, found in zip(names, runs, strict=True) if not found]
        return paragraphs([f"The scenarios cannot be compared: no readable scenario.toml in {', '.join(missing)}."])
    shared = [run for run in runs[0] if all(run in found for found in runs[1:])]
    compared = [{run: found[run] for run in shared} if shared else found for found in runs]
    keys = list(dict.fromkeys(key for found in compared for table in found.values() for key in table))
    rows = [["seeds", *(_value(folder.scenario.get("seeds")) for folder in folders)]]
    rows = rows if len(set(rows[0][1:])) > 1 else []
    for key in keys:
        values = [{run: table.get(key) for run, table in found.items()} for found in compared]
        differ = (
            any(each != values[0] for each in values[1:]) if shared else len({_format_values(each) for each in values}) > 1
        )
        if differ:
            rows.append([key, *(_format_values(each) for each in values)])
    html = table(["Key", *names], rows) if rows else ""
    words = [] if rows else ["The runs with the same names have equal settings." if shared else "All settings are equal."]
    only = [
        f"Only in {name}: {', '.join(run for run in found if run not in shared)}."
        for name, found in zip(names, runs, strict=True)
        if shared and len(found) > len(shared)
    ]
    if not shared:
        only.append("No run has the same name in all folders, so the table compares the values of all runs.")
    return html + paragraphs(words) + bullets(only)


def _runs(folder: Folder) -> dict[str, dict[str, Any]]:
    """Return each run's keys with dots; only the runs in the summary."""
    names = dict.fromkeys(entry.name for entry in folder.summary.runs)
    found = {name: flat(folder.settings(name)) for name in names}
    return {name: table for name, table in found.items() if table}


def _format_values(values: Mapping[str, Any]) -> str:
    """Return the common value of all runs, or each value with its runs."""
    runs: dict[str, list[str]] = {}
    for run, value in values.items():
        runs.setdefault(_value(value), []).append(run)
    if len(runs) == 1:
        return next(iter(runs))
    words = [f"{value} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})" for value, names in runs.items()]
    return "; ".join(words[:MOST_VALUES]) + ("; ..." if len(words) > MOST_VALUES else "")


def _value(value: Any) -> str:
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
