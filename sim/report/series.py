"""Runs of a report: each with all of its seeds and a unique name, and the settings in which the runs differ.

A `Series` is what a figure calls a run: one row of a folder's table, or the runs of a pool. It reads its tables as arrays
and checks that they match the summary. Runs of several folders with equal names have the folder's name before their own.

A `Factor` is a setting in which the runs differ, such as topology and budget, with its levels. Factors determine the heat
maps, and the colours and the short labels of runs.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from p2pfl.errors import ConfigurationError
from p2pfl.sim.formatting import LIMITS, decimals, setting
from p2pfl.sim.report.folder import MORE, Columns, Entry, Folder, Objectives, Summary
from p2pfl.sim.results.learning_curves import Timeline, incomplete
from p2pfl.sim.scenario.names import NAMED
from p2pfl.sim.scenario.questions import base_of, label, problem_of
from p2pfl.sim.scenario.scenario import LABELS

T = TypeVar("T")
MOST_RUNS = 16  # runs shown in all figures at first
MOST_MOMENTS = 200  # in the curves of an asynchronous run
ALONE = "local"  # policy of nodes that learn alone
REFERENCES = (ALONE, "oracle")  # policies that other policies are compared with, and that are never the best
Figure = dict[str, Any]  # data of a figure: id, kind, title, note, and the keys of its kind (see assets/report.js)
Section = dict[str, Any]  # id, title, text (sentences), figures
WORDS = {
    "budget.models": "budget (models a round)",
    "budget.held": "budget (models held)",
    "budget.bytes": "budget (bytes a round)",
    "budget.trainings": "budget (trainings of a run)",
    "budget.joules": "budget (joules of a run)",
}
MOST_HUES, TINTS, MOST_DASHES = 8, 7, 4  # of the drawings; see p2pfl/_util/assets/style.css


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
class Run:
    """One run with all of its seeds, or the runs of a pool, from a summary alone.

    Attributes:
        name: unique name in the report.
        row: name in the table of its folder.
        entries: entries of summary.json, one for each seed; for a pool, one for each of its runs and seeds.
        shown: the entry for figures that show a single seed; for a pool, its first run.
        settings: its table in the resolved scenario; {} if unknown.
    """

    name: str
    row: str
    entries: list[Entry]
    shown: Entry
    settings: Mapping[str, Any]

    @property
    def metric(self) -> str:
        return self.shown.metric

    @property
    def words(self) -> str:
        """Return the label, such as "topo: ring, models=none" for the row "ring, budget.models=0" of the folder topo."""
        return self.words_without(())

    def words_without(self, keys: Collection[str]) -> str:
        """Return the label without some of the varied keys."""
        return self.name.removesuffix(self.row) + label(self.row, self.shown.varied, keys)

    @property
    def base(self) -> str:
        """Return the name of the row before a sweep, with its folder, if there is one."""
        return self.name.removesuffix(self.row) + base_of(self.row, self.shown.varied)

    @property
    def problem(self) -> str:
        """Return the learning problem; see p2pfl.sim.scenario.questions.problem_of."""
        return json.dumps(self.given(), sort_keys=True, default=str)

    def given(self) -> dict[str, Any]:
        """Return the settings of the learning problem."""
        return problem_of(self.settings, self.shown.varied)

    @property
    def reference(self) -> bool:
        """Return whether the policy is one that others are compared with, such as local learning."""
        return _name(self.settings.get("policy")) in REFERENCES

    @property
    def alone(self) -> bool:
        """Return whether each node learns alone."""
        return _name(self.settings.get("policy")) == ALONE

    @property
    def seeds(self) -> list[int]:
        return list(dict.fromkeys(entry.seed for entry in self.entries))

    def means(self) -> list[float]:
        """Return the mean test metric of each seed that has one, over nodes and, in a pool, over runs."""
        return list(self.means_by_seed().values())

    def means_by_seed(self) -> dict[int, float]:
        """Return the same by seed."""
        found = {seed: [each.test.mean for each in self.entries if each.seed == seed] for seed in self.seeds}
        there = {seed: [mean for mean in means if mean is not None and np.isfinite(mean)] for seed, means in found.items()}
        return {seed: float(np.mean(means)) for seed, means in there.items() if means}

    def mean(self, values: Iterable[float | None]) -> float | None:
        """Return the mean over the seeds that have a number."""
        numbers = [value for value in values if value is not None and np.isfinite(value)]
        return float(np.mean(numbers)) if numbers else None


@dataclass
class Series(Run):
    """A run with the tables of its folder, as arrays."""

    folder: Folder
    _rounds: dict[tuple[str, int], Columns] = field(default_factory=dict)  # several figures use them

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
        """Return the reported snapshot, or else the evaluated one."""
        there, reported = self.metrics(), self.shown.reported_stage
        if reported == "auto" and f"merged_test_{self.metric}" in there:
            return "auto"
        return next((each for each in (reported, "trained", "merged") if f"{each}_test_{self.metric}" in there), reported)

    def metrics(self) -> list[str]:
        """Return the names of the metric columns in which this run has a number."""
        rounds = self.rounds(self.shown)
        names = [name for name in rounds if "_test_" in name or "_validation_" in name]
        return [name for name in names if np.isfinite(rounds[name]).any()]

    def rounds(self, entry: Entry) -> Columns:
        """Return the columns of rounds.parquet that a report uses."""
        if (entry.name, entry.seed) not in self._rounds:
            ends = f"_test_{self.metric}", "_validation_loss"
            metrics = [name for name in self.folder.columns("rounds") if name.endswith(ends)]
            columns = ["round", "node", "virtual_time", "bytes_out", "models_in", *metrics]
            columns += ["trainings"] if "trainings" in self.folder.columns("rounds") else []
            found = self.folder.read("rounds", columns, entry.name, entry.seed)
            _fits(self.folder, entry, found, "rounds", ("node",))
            self._rounds[entry.name, entry.seed] = found
        return self._rounds[entry.name, entry.seed]

    @property
    def asynchronous(self) -> bool:
        """Return whether nodes do not wait for each other."""
        return (self.shown.mode or self.settings.get("mode")) == "asynchronous"  # earlier versions wrote no mode

    def timeline(self, entry: Entry) -> Timeline:
        """Return the moments of a run: the ends of its rounds or, without rounds in common, the same for all seeds."""
        rounds = self.rounds(entry)
        lacking = incomplete(rounds, entry.nodes, entry.attackers)
        return Timeline(rounds, self.asynchronous, entry.traffic.preparation.bytes, self._moments, lacking)

    @cached_property
    def _moments(self) -> np.ndarray | None:
        if not self.asynchronous:
            return None
        ends = [float(self.rounds(entry)["virtual_time"].max(initial=0.0)) for entry in self.entries]
        return np.linspace(0.0, min(ends), MOST_MOMENTS + 1)[1:]

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


def _fits(folder: Folder, entry: Entry, table: Columns, name: str, nodes: Sequence[str]) -> None:
    """Raise ConfigurationError if a table has rounds or nodes that the run in the summary does not have."""
    ranges = [("round", 1, entry.rounds), ("coordinator", -1, entry.nodes - 1)]
    ranges += [(column, 0, entry.nodes - 1) for column in nodes]
    for column, least, most in (each for each in ranges if each[0] in table):
        values = table[column]
        if values.dtype.kind not in "iu" or (len(values) and not least <= values.min() <= values.max() <= most):
            file = folder.path / f"{name}.parquet"
            raise ConfigurationError(f"{file} does not match the summary: {column} must be from {least} to {most}")


def runs_of(summary: Summary, tables: Iterable[Mapping[str, Any]]) -> list[Run]:
    """Return the runs of a summary.

    Args:
        tables: the tables [[run]] of the resolved scenario.
    """
    settings = {str(table.get("name")): table for table in tables}
    found = by_key(summary.runs, lambda entry: entry.pool or entry.name)
    return [Run(name, name, entries, entries[0], settings.get(entries[0].name, {})) for name, entries in found.items()]


def places_of(runs: Iterable[Run]) -> dict[str, int]:
    """Return the decimals of each test metric, in all tables, drawings and sentences on these runs."""
    found = {}
    for metric, alike in by_key(runs, lambda run: run.metric).items():
        means = [each for run in alike if (each := run.means())]
        spreads = [float(np.std(each, ddof=1)) for each in means if len(each) > 1]
        found[metric] = decimals(map(float, map(np.mean, means)), spreads)
    return found


LAST_MODEL = "each node's model of the last round"


def reported_model(runs: Iterable[Run]) -> str:
    """Return which model of a node the table and the figures by node show; see p2pfl.node.early_stopping."""
    by = {run.shown.selected_by for run in runs}
    if by == {"last round"}:
        return LAST_MODEL
    figures = sorted(each for each in by if each not in ("last round", ""))
    best = f"each node's model of its best round by {' or '.join(figures) or 'validation'}"
    return f"{best}; of the last round in runs without validation" if "last round" in by else best


def gather(folders: Sequence[Folder], seed: int | None = None) -> list[Series]:
    """Return the runs of all folders.

    Args:
        seed: seed for figures that show a single seed; by default the first of each run.

    Raises:
        ConfigurationError: a run has no such seed.
    """
    found = [(folder, runs_of(folder.summary, folder.runs)) for folder in folders]
    times = Counter(run.row for _, runs in found for run in runs)
    series = []
    for (folder, runs), where in zip(found, folder_names([folder.path for folder in folders]), strict=True):
        for run in runs:
            shown = next((entry for entry in run.entries if seed in (None, entry.seed)), None)
            if shown is None:
                there = ", ".join(map(str, run.seeds))
                raise ConfigurationError(f"{folder.path}: run {run.row!r} has no seed {seed}; its seeds are {there}")
            name = run.row if times[run.row] == 1 else f"{where}: {run.row}"
            series.append(Series(name, run.row, run.entries, shown, run.settings, folder))
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


def shown_seeds(runs: Iterable[Run], each: str = "run") -> str:
    """Return words for the seeds that are shown, such as "seed 3"."""
    seeds = {run.shown.seed for run in runs}
    return f"seed {min(seeds)}" if len(seeds) == 1 else f"one seed of each {each}"


def by_key(things: Iterable[T], key: Callable[[T], Any]) -> dict[Any, list[T]]:
    """Return things, such as runs, by the value of a function, in the order of the first of each group."""
    found: dict[Any, list[T]] = {}
    for one in things:
        found.setdefault(key(one), []).append(one)
    return found


@dataclass(frozen=True)
class Factor:
    """A setting in which runs differ.

    Attributes:
        key: dotted key such as "policy.tau"; "topology" if the names of the topologies differ; "folder".
        texts: text of each level, in the order in which the levels are drawn.
        level: number of the level of each run, by the name of the run in the report.
    """

    key: str
    texts: tuple[str, ...]
    level: Mapping[str, int]

    @property
    def title(self) -> str:
        return title_of(self.key)


def title_of(key: str) -> str:
    """Return the words for a varied key, such as "topology" for "topology.name"."""
    return WORDS.get(key, key.removesuffix(".name"))


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a table's values by dotted keys such as "policy.tau"."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        if not prefix and key in LABELS:
            continue
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found


def factors(series: Sequence[Series]) -> list[Factor]:
    """Return the factors of runs: tables with a name, other settings, the varied keys of a sweep, and the folder.

    A setting that another one determines, such as the number of nodes by the topology, is no factor.
    """
    if len(series) < 2 or not all(one.settings for one in series):
        return []
    names = folder_names(list(dict.fromkeys(one.folder.path for one in series)))
    folders = dict(zip(dict.fromkeys(one.folder.path for one in series), names, strict=True))
    values = _settings(series)
    for key in dict.fromkeys(key for one in series for key in one.shown.varied):
        values[key] = {one.name: one.shown.varied.get(key) for one in series}
    values["folder"] = {one.name: folders[one.folder.path] for one in series}
    found = [factor for key, each in values.items() if len((factor := _factor(key, each)).texts) > 1]
    return [each for k, each in enumerate(found) if not any(_determined(each, found[j], j < k) for j in range(len(found)))]


def _settings(series: Sequence[Series]) -> dict[str, dict[str, Any]]:
    """Return the settings of runs except the varied ones, by key and run."""
    tables = {one.name: {key: value for key, value in one.settings.items() if key != "seed"} for one in series}
    whole = {kind for kind in NAMED if len({_name(table.get(kind)) for table in tables.values()}) > 1}
    found: dict[str, dict[str, Any]] = {}
    for one in series:
        varied = one.shown.varied
        for key, value in tables[one.name].items():
            named = {key, f"{key}.name", f"{key}.file"} & {*varied}
            given = {key: value} if key in whole else flat({key: value})
            for each, own in ({} if named else given).items():
                if each not in varied:
                    found.setdefault(each, {})[one.name] = own
    order = sorted(found, key=lambda key: key not in NAMED)
    return {key: {one.name: found[key].get(one.name) for one in series} for key in order}


def _name(table: Any) -> str:
    """Return the name of a task, policy, topology or codec; for a file, its name without the suffix."""
    if not isinstance(table, Mapping):
        return ""
    return Path(str(table["file"])).stem if "file" in table else str(table.get("name", ""))


def _factor(key: str, values: Mapping[str, Any]) -> Factor:
    written = {run: json.dumps(value, sort_keys=True, default=str) for run, value in values.items()}
    levels = {written[run]: value for run, value in values.items()}
    order = list(levels)
    if all(isinstance(value, int | float) for value in levels.values()):
        last = {level for level, value in levels.items() if key in LIMITS and value == 0}
        order = sorted(levels, key=lambda level: (level in last, levels[level]))
    return Factor(key, tuple(_texts(key, [levels[each] for each in order])), {r: order.index(w) for r, w in written.items()})


def _texts(key: str, values: Sequence[Any]) -> list[str]:
    """Return a unique text for each level: the name of a table, with the options in which equal names differ."""
    texts = ["not set" if value is None else setting(key, value) for value in values]
    if key not in NAMED:
        return texts
    tables = [value if isinstance(value, Mapping) else {} for value in values]
    names = [_name(table) or "not set" for table in tables]
    for k, name in enumerate(names):
        alike = [flat(table) for table, other in zip(tables, names, strict=True) if other == name]
        options = [option for option, value in flat(tables[k]).items() if any(each.get(option) != value for each in alike)]
        texts[k] = ", ".join([name, *(setting(option, flat(tables[k])[option]) for option in options)])
    return texts


def _determined(factor: Factor, other: Factor, before: bool) -> bool:
    """Return whether each level of another factor has one level of this one; of two equal factors, `before` decides."""
    if factor is other:
        return False
    pairs = {(other.level[run], level) for run, level in factor.level.items()}
    return len(pairs) == len(other.texts) and (len(other.texts) > len(factor.texts) or before)


def grid(found: Sequence[Factor]) -> tuple[Factor, Factor] | None:
    """Return the two factors whose levels the runs combine; None if there are more or fewer, or if a third is missing."""
    if len(found) != 2 or not _combined(*found):
        return None
    rows, columns = found
    return (rows, columns) if len(set(_cells(rows, columns))) == len(rows.level) else None


def _cells(rows: Factor, columns: Factor) -> list[tuple[int, int]]:
    return [(level, columns.level[run]) for run, level in rows.level.items()]


def _combined(rows: Factor, columns: Factor) -> bool:
    """Return whether runs have more than two thirds of the combinations of two factors' levels."""
    sizes, cells = (len(rows.texts), len(columns.texts)), len(set(_cells(rows, columns)))
    return cells > max(sizes) and 3 * cells > 2 * sizes[0] * sizes[1]


def styles(series: Sequence[Series], found: Sequence[Factor]) -> list[tuple[int, int, int, int]] | None:
    """Return the hue, the tint, the dash and the mark of each run, by its levels of the first factors.

    Tints of many levels look alike; without a third factor, which has the dashes, these differ with the tints.

    Returns:
        None if there are fewer than two factors, if the runs do not combine the first two, or if these have more levels
        than the drawings have colours.
    """
    if len(found) < 2 or not _combined(found[0], found[1]):
        return None
    first, second, *others = found
    if len(first.texts) > MOST_HUES >= len(second.texts):
        first, second = second, first
    rest = {one.name: tuple(other.level[one.name] for other in others) for one in series}
    dashes = sorted(set(rest.values()))
    if len(first.texts) > MOST_HUES or len(second.texts) > TINTS or len(dashes) > MOST_DASHES:
        return None
    tints = [round(k * (TINTS - 1) / (len(second.texts) - 1)) for k in range(len(second.texts))]
    return [
        (first.level[one.name], tints[level], dashes.index(rest[one.name]) if others else level % MOST_DASHES, level)
        for one in series
        for level in [second.level[one.name]]
    ]


def labels(series: Sequence[Series]) -> dict[str, str]:
    """Return the labels of the runs; {} if they are their names."""
    return {one.name: one.words for one in series} if any(one.words != one.name for one in series) else {}
