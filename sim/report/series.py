"""Series of a report: the runs of one or several folders under unique names, with their tables as arrays."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from p2pfl.errors import ConfigurationError
from p2pfl.sim.report.folder import MORE, Columns, Folder
from p2pfl.sim.report.summary import Entry, Objectives

MOST_RUNS = 16  # runs shown in all figures at first
TRAINING = ("lr", "optimizer", "model", "batch_size")  # keys of a task that configure the training and not the problem
Figure = dict[str, Any]  # data of a figure: id, kind, title, note, and the keys of its kind (see assets/report.js)
Section = dict[str, Any]  # id, title, text (sentences), figures


class Front(NamedTuple):
    """Solutions of a run, or of a pool, with one seed.

    Attributes:
        of: kind of the solutions: the "nodes", or the "means" of runs.
        labels: labels of the solutions, if they have any.
    """

    seed: int
    of: str
    objectives: Objectives
    labels: list[str]


@dataclass
class Series:
    """One run with all of its seeds, or the runs of a pool.

    Attributes:
        name: unique name in the report.
        row: name in the table of its folder.
        entries: entries of summary.json, one for each seed; for a pool, one for each of its runs and seeds.
        shown: the entry for figures that show a single seed; for a pool, its first run.
        settings: its table in the resolved scenario; {} if unknown.
    """

    name: str
    row: str
    folder: Folder
    entries: list[Entry]
    shown: Entry
    settings: dict[str, Any]
    _rounds: dict[tuple[str, int], Columns] = field(default_factory=dict)  # several figures use them

    @property
    def metric(self) -> str:
        return self.shown.metric

    @property
    def problem(self) -> str:
        """Return the learning problem without the settings of training.

        Results for different problems are not comparable.
        """
        task = self.settings.get("task")
        known = {key: value for key, value in task.items() if key not in TRAINING} if isinstance(task, Mapping) else {}
        return json.dumps(known, sort_keys=True, default=str)

    @property
    def seeds(self) -> list[int]:
        return list(dict.fromkeys(entry.seed for entry in self.entries))

    def means(self) -> list[float]:
        """Return the mean test metric of each seed that has one, over nodes and, in a pool, over runs."""
        return list(self.means_by_seed().values())

    def means_by_seed(self) -> dict[int, float]:
        """Return the same by seed."""
        found = {seed: [each.test.mean for each in self.entries if each.seed == seed] for seed in self.seeds}
        there = {seed: [mean for mean in means if mean is not None] for seed, means in found.items()}
        return {seed: float(np.mean(means)) for seed, means in there.items() if means}

    def fronts(self) -> list[Front]:
        """Return the solutions of the run, or of the pool, for each seed; none if it has only one objective."""
        if self.shown.pool:
            pools = [pool for pool in self.folder.summary.pools if pool.name == self.row]
            return [Front(pool.seed, pool.of, pool.objectives, pool.labels) for pool in pools]
        pairs = [(entry, entry.objectives) for entry in self.entries]
        return [
            Front(entry.seed, "nodes", objectives, entry.labels) for entry, objectives in pairs if objectives is not None
        ]

    def stage(self) -> str:
        """Return the judged snapshot, or else the evaluated one; older summaries lack it."""
        there = self.metrics()
        if self.shown.reported_stage == "auto" and f"merged_test_{self.metric}" in there:
            return "auto"
        names = (self.shown.reported_stage, "trained", "merged")
        return next(
            (stage for stage in names if f"{stage}_test_{self.metric}" in there), self.shown.reported_stage or "merged"
        )

    def metrics(self) -> list[str]:
        """Return the names of the metric columns in which this run has a number."""
        rounds = self.rounds(self.shown)
        return [name for name, column in rounds.items() if "_test_" in name or "_validation_" in name if _any(column)]

    def rounds(self, entry: Entry) -> Columns:
        """Return the columns of rounds.parquet that a report uses."""
        if (entry.name, entry.seed) not in self._rounds:
            ends = f"_test_{self.metric}", "_validation_loss"
            metrics = [name for name in self.folder.columns("rounds") if name.endswith(ends)]
            columns = ["round", "node", "virtual_time", "bytes_out", "models_in", *metrics]
            found = self.folder.read("rounds", columns, entry.name, entry.seed)
            _fits(self.folder, entry, found, "rounds", ("node",))
            self._rounds[entry.name, entry.seed] = found
        return self._rounds[entry.name, entry.seed]

    def done(self, links: Columns) -> int:
        """Return the last round that a node of `shown` did, from its links; the scenario's last round may be later."""
        return max(int(table["round"].max(initial=1)) for table in (self.rounds(self.shown), links))

    def links(self, entry: Entry) -> Columns:
        """Return the links: round, src and dst, each link of a round once."""
        columns = ("round", "src", "dst")
        found = self.folder.read("edges", columns, entry.name, entry.seed, distinct=True)
        _fits(self.folder, entry, found, "edges", ("src", "dst"))
        return found

    def weights(self, entry: Entry) -> Columns:
        """Return the merged models: round, src, dst, and the weight of the model in the merge."""
        found = self.folder.read("edges", ("round", "src", "dst", "weight"), entry.name, entry.seed)
        _fits(self.folder, entry, found, "edges", ("src", "dst"))
        return found

    def more(self, table: str, entry: Entry) -> Columns | None:
        """Return an optional table (see p2pfl.sim.report.folder.MORE); None if it does not exist."""
        if not self.folder.has(table):
            return None
        found = self.folder.read(table, MORE[table], entry.name, entry.seed)
        _fits(self.folder, entry, found, table, [name for name in ("node", "other") if name in found])
        return found

    def mean(self, values: Iterable[float | None]) -> float | None:
        """Return the mean over the seeds that have a number."""
        numbers = [value for value in values if value is not None and np.isfinite(value)]
        return float(np.mean(numbers)) if numbers else None


def _any(column: np.ndarray) -> bool:
    return bool(np.isfinite(column).any())


def _fits(folder: Folder, entry: Entry, table: Columns, name: str, nodes: Sequence[str]) -> None:
    """Raise ConfigurationError if a table has rounds or nodes that the run in the summary does not have."""
    ranges = [("round", 1, entry.rounds), ("coordinator", -1, entry.nodes - 1)]
    ranges += [(column, 0, entry.nodes - 1) for column in nodes]
    for column, least, most in (each for each in ranges if each[0] in table):
        values = table[column]
        if values.dtype.kind not in "iu" or (len(values) and not least <= values.min() <= values.max() <= most):
            file = folder.path / f"{name}.parquet"
            raise ConfigurationError(f"{file} does not match the summary: {column} must be from {least} to {most}")


def gather(folders: Sequence[Folder], seed: int | None = None) -> list[Series]:
    """Return the runs of all folders.

    Args:
        seed: seed for figures that show a single seed; by default the first of each run.

    Raises:
        ConfigurationError: a run has no such seed.
    """
    found = [(folder, list(dict.fromkeys(entry.pool or entry.name for entry in folder.summary.runs))) for folder in folders]
    times = Counter(name for _, names in found for name in names)
    called = folder_names([folder.path for folder in folders])
    series = []
    for (folder, names), where in zip(found, called, strict=True):
        for name in names:
            entries = [entry for entry in folder.summary.runs if (entry.pool or entry.name) == name]
            shown = entries[0] if seed is None else next((entry for entry in entries if entry.seed == seed), None)
            if shown is None:
                there = ", ".join(dict.fromkeys(str(entry.seed) for entry in entries))
                raise ConfigurationError(f"{folder.path}: run {name!r} has no seed {seed}; its seeds are {there}")
            shown_name = name if times[name] == 1 else f"{where}: {name}"
            series.append(Series(shown_name, name, folder, entries, shown, folder.settings(shown.name)))
    order = list(times)  # runs of the same name next to each other
    return sorted(series, key=lambda one: order.index(one.row))


def folder_names(paths: Sequence[Path]) -> list[str]:
    """Return the shortest unique ends of paths."""
    parts = [path.resolve().parts for path in paths]
    for count in range(1, max(map(len, parts)) + 1):
        names = [str(Path(*each[-count:])) for each in parts]
        if len(set(names)) == len(names):
            break
    return names


def by_key(series: Iterable[Series], key: Any) -> dict[Any, list[Series]]:
    """Return runs grouped by the value of a function, in the order of the first run of each group."""
    found: dict[Any, list[Series]] = {}
    for one in series:
        found.setdefault(key(one), []).append(one)
    return found
