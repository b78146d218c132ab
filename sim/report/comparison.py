"""Comparison of folders: differences of the runs that two folders share, and of the scenarios of all.

Runs are compared seed by seed. A difference counts as decided if its mean over the seeds is greater than its spread.

Here are the pairs and the figures. `p2pfl.sim.report.findings` puts the pairs into the sentences at the head of a report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from p2pfl.sim.formatting import bullets, paragraphs, table
from p2pfl.sim.report.figures import distribution
from p2pfl.sim.report.folder import Folder
from p2pfl.sim.report.series import Figure, Run, Section, Series, by_key, flat, folder_names, reported_model
from p2pfl.sim.scenario.questions import label

MOST_VALUES = 6


@dataclass(frozen=True)
class Comparison:
    """A run, and the same run after a change: in another folder, or with a budget.

    Attributes:
        label: the run in words, such as "ring, no budget".
        seeds: seeds that both have.
        before, after: test metric of the first and of the second run, for each of these seeds.
    """

    label: str
    first: Run
    second: Run
    seeds: tuple[int, ...]
    before: np.ndarray
    after: np.ndarray

    @property
    def differences(self) -> np.ndarray:
        """Return the test metric of the second run minus that of the first, for each seed."""
        differences: np.ndarray = self.after - self.before
        return differences

    @property
    def mean(self) -> float:
        return float(self.differences.mean())

    @property
    def spread(self) -> float | None:
        """Return the standard deviation of the differences over the seeds; None with one seed."""
        return float(self.differences.std(ddof=1)) if len(self.seeds) > 1 else None

    @property
    def gain(self) -> float:
        """Return the mean difference, above 0 if the second run is better."""
        return self.mean if self.first.shown.higher_is_better else -self.mean

    @property
    def decided(self) -> bool:
        return self.spread is not None and abs(self.mean) > self.spread

    @property
    def sent(self) -> tuple[int, int]:
        """Return the bytes sent by the first and by the second run with the common seeds."""
        first, second = (
            sum(entry.sent for entry in run.entries if entry.seed in self.seeds) for run in (self.first, self.second)
        )
        return first, second

    @property
    def same(self) -> bool:
        """Return whether both runs have the same events, and thus the same results."""
        traces = [[entry.trace for entry in run.entries if entry.seed in self.seeds] for run in (self.first, self.second)]
        return traces[0] == traces[1] and not self.differences.any() and self.sent[0] == self.sent[1]


def comparisons(series: Sequence[Series]) -> list[Comparison]:
    """Return the runs that both of two folders have, with the same metric and common seeds; [] for more folders."""
    folders = list(dict.fromkeys(one.folder for one in series))
    if len(folders) != 2:
        return []
    found = []
    for first in (one for one in series if one.folder is folders[0]):
        for second in series:
            alike = (second.row, second.metric) == (first.row, first.metric) and second.folder is folders[1]
            if alike and (made := compared(label(first.row, first.shown.varied), first, second)) is not None:
                found.append(made)
    return found


def compared(label: str, first: Run, second: Run) -> Comparison | None:
    """Return the comparison of two runs; None if they have no common seed with a number."""
    before, after = first.means_by_seed(), second.means_by_seed()
    seeds = tuple(seed for seed in before if seed in after)
    if not seeds:
        return None
    return Comparison(label, first, second, seeds, *(np.array([means[seed] for seed in seeds]) for means in (before, after)))


def comparison_section(series: Sequence[Series]) -> Section | None:
    """Return the section; None without two folders that have a run in common."""
    found = comparisons(series)
    if not found:
        return None
    first, second = folder_names([folder.path for folder in dict.fromkeys(one.folder for one in series)])
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
    which = reported_model(each.second for each in found)
    figure: Figure = {"id": f"difference{suffix}", "kind": "distribution", "title": f"Difference in the test {metric}"}
    figure |= {"x_label": f"difference in test {metric}", "note": f"One mark per seed: the mean over the nodes, of {which}."}
    alike = len({each.seeds for each in found}) == 1
    figure |= {"labels": [f"seed {seed}" for seed in found[0].seeds]} if alike else {}
    return figure | {"of": "seed", "zero": True, "runs": runs, "unfiltered": True}


def _of_nodes(suffix: str, metric: str, found: Sequence[Comparison]) -> list[Figure]:
    """Return a figure of the difference of each node with one seed; [] if the folders have other nodes."""
    values = {}
    for each in found:
        first, second = each.first.shown, each.second.shown
        if first.seed == second.seed and len(first.test.nodes) == len(second.test.nodes):
            values[each.second.name] = second.node_values - first.node_values
    which = reported_model(each.second for each in found)
    note = f"One mark per node, seed {found[0].second.shown.seed}: {which}; the tenth that loses most is highlighted."
    figure = distribution(
        [each.second for each in found if each.second.name in values],
        values,
        found[0].second.shown.higher_is_better,
        id=f"difference-nodes{suffix}",
        title=f"Difference in the test {metric} of each node",
        x_label=f"difference in test {metric}",
        note=note,
        zero=True,
        unfiltered=True,
    )
    return [figure] if figure["runs"] else []


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
    tables = {table.get("name"): table for table in folder.runs}
    found = {name: flat(tables.get(name, {})) for name in names}
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
