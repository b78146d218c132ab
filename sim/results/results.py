"""Results of runs, and their files: a summary as JSON, tables as Parquet, and the scenario to reproduce them."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from math import nan
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, overload

import msgspec
import numpy as np

from p2pfl._util.atomic_files import reason, replace_file
from p2pfl._util.printable import to_json
from p2pfl._version import __version__
from p2pfl.data_facts import distinct
from p2pfl.errors import ConfigurationError, unknown
from p2pfl.learning.task_stack import each as each_fact
from p2pfl.learning.task_stack import groups_of
from p2pfl.node.settings import End
from p2pfl.policy import ReportedStage
from p2pfl.queries import Split
from p2pfl.sim import formatting
from p2pfl.sim.columns import Table
from p2pfl.sim.formatting import STAGES, count, number, setting, size
from p2pfl.sim.results import costs, learning_curves, objectives, privacy, summary_metrics
from p2pfl.sim.results.learning_curves import draw_curves, total_sent
from p2pfl.sim.results.objectives import on_front
from p2pfl.sim.results.tables import (
    CANDIDATES,
    PARTS,
    SCENARIO,
    SUMMARY,
    Library,
    data_frame,
    stack_tables,
    write_models,
    write_parquet,
)
from p2pfl.sim.scenario.claims import MEAN, figure_of, figures_in, has_figure
from p2pfl.sim.scenario.questions import base_of, counterpart, label, problem_of, surroundings
from p2pfl.sim.scenario.scenario import Scenario, ScenarioFile, selects
from p2pfl.sim.scenario.topology import GRAPH
from p2pfl.sim.simulation.simulation import Run
from p2pfl.topologies.graphml import to_graphml

if TYPE_CHECKING:
    import pandas
    import polars
    from matplotlib.axes import Axes

WORST_TENTH = "extra_metrics.worst_tenth"  # in a row: the mean over the seeds of test.worst_decile
EXCHANGE = ("network", "budget", "codec", "topology", "deadline")  # keys that only change what nodes exchange
Runs = Sequence[Mapping[str, Any]]  # entries of `runs`, or of `pools`, in summary.json


class Views:
    """Tables and curves of one or several results."""

    def _each(self) -> Sequence[Result]:
        raise NotImplementedError

    @overload
    def frame(self, library: Literal["pandas"] = "pandas", *, table: str = "rounds") -> pandas.DataFrame: ...

    @overload
    def frame(self, library: Literal["polars"], *, table: str = "rounds") -> polars.DataFrame: ...

    def frame(self, library: Library = "pandas", *, table: str = "rounds") -> pandas.DataFrame | polars.DataFrame:
        """Return a table as a data frame, with the run's name, seed and varied keys as the first columns.

        In a sweep, each varied key has a column, such as `policy.tau`; runs that do not take the key have no value in it.

        Args:
            library: "pandas" or "polars", which must be installed.
            table: "rounds" (a row for each round of each node), "edges" (a row for each aggregated model), "nodes" (the
                test metric of each node's result), or another table that the runs have, such as "clusters".

        Raises:
            ConfigurationError: there is no such table, or the library is not installed.
        """
        there = [(result, columns) for result in self._each() if (columns := result.table(table)) is not None]
        keys = list(dict.fromkeys(key for result, _ in there for key in result.varied))
        found = [(result.summary, _varied_columns(result, keys, columns) | columns) for result, columns in there]
        if not found:
            known = {name for result in self._each() for name in ("rounds", "edges", "nodes", *result.more)}
            raise unknown("table", table, known)
        return data_frame(stack_tables(found), library)

    def plot(self, metric: str = "", *, split: Split = "test", ax: Axes | None = None) -> Axes:
        """Draw the mean of a metric over the nodes against the round, with a line for each run.

        A band shows the standard deviation over the seeds or, for a single seed, over the nodes. Asynchronous nodes do not
        end a round together: each counts with its model of the round. The curves of a report are over time.

        Args:
            metric: such as "loss"; by default the metric of the task.
            split: data on which it was computed.
            ax: axes of matplotlib to draw on; by default those of a new figure.

        Raises:
            ConfigurationError: the metric was not computed, or matplotlib is not installed.
        """
        runs: dict[str, list[np.ndarray]] = {}
        metric = metric or next((str(result.summary["metric"]) for result in self._each()), "")
        for result in self._each():
            values = learning_curves.of_nodes(result.rounds, result.summary["reported_stage"], f"{split}_{metric}")
            if np.isfinite(values).any():
                runs.setdefault(label(result.summary["name"], result.varied), []).append(values)
        if not runs:
            ending = f"_{split}_"
            known = {name.partition(ending)[2] for result in self._each() for name in result.rounds if ending in name}
            raise ConfigurationError(
                f"no run has evaluated the metric {metric!r} on {split} data in its rounds;"
                f" known: {', '.join(sorted(known)) or 'none'}"
            )
        return draw_curves(runs, f"{split} {metric}", ax)


@dataclass(repr=False)
class Result(Views):
    """A run as plain values, which can be sent between processes.

    Attributes:
        summary: an entry of `runs` in summary.json.
        rounds, edges: columns; see p2pfl.sim.simulation.recorder.
        notes: notes for the user about the computation.
        more: optional tables by name; see p2pfl.sim.simulation.recorder.
        models: the tensors of each node's resulting model by name, float32; None unless they were requested.
        file: the scenario with this run and seed only; None in a worker process.
        varied: in a sweep, the varied keys with the values of this run.
    """

    summary: dict[str, Any]
    rounds: Table
    edges: Table
    notes: list[str]
    more: dict[str, Table] = field(default_factory=dict)
    models: list[dict[str, np.ndarray]] | None = None
    file: ScenarioFile | None = None
    varied: dict[str, Any] = field(default_factory=dict)

    def table(self, name: str) -> Table | None:
        """Return the columns of a table; None if the run has none of this name. See `frame`."""
        if name == "nodes":
            run = self.summary
            columns: Table = {"node": np.arange(run["nodes"])}
            columns[run["metric"]] = np.array(run["test"]["nodes"], float)
            return columns | ({"group": np.array(run["groups"], object)} if "groups" in run else {})
        return {"rounds": self.rounds, "edges": self.edges, **self.more}.get(name)

    def to_dir(self, path: str | PathLike[str]) -> None:
        """Write the folder of this run; see `Results.to_dir`."""
        if self.file is None:
            raise ConfigurationError("this result does not know its scenario; use one of p2pfl.simulate or p2pfl.load")
        Results([self], self.file).to_dir(path)

    def _each(self) -> Sequence[Result]:
        return [self]

    def __repr__(self) -> str:
        run = self.summary
        return f"Result({run['name']!r}, seed {run['seed']}: {summary_metrics.describe_test(run)})"

    def _repr_html_(self) -> str:
        """Return the facts of the run as a table, for notebooks."""
        run, test = self.summary, self.summary["test"]
        rows = {
            "nodes, rounds": f"{run['nodes']}, {run['rounds']}",
            "topology": run["topology"],
            f"test {run['metric']}": f"{number(test['mean'])} ± {number(test['std'])} over nodes",
            **{f"test {name.replace('_', ' ')}": number(of["mean"]) for name, of in run.get("extra_metrics", {}).items()},
            "worst tenth": number(test["worst_decile"]),
            "sent": size(total_sent(run["traffic"])),
            **_costs({kind: of["total"] for kind, of in run.get("cost", {}).items() if kind in costs.COSTS}),
            "virtual time": f"{run['time']['virtual_s']:,.1f} s",
        }
        return formatting.table([run["name"], f"seed {run['seed']}"], list(rows.items()))


class Results(list[Result], Views):
    """Results of a scenario: one for each run and seed, in the order of the file.

    Args:
        summary: contents of summary.json; by default they are computed.
    """

    def __init__(self, results: Iterable[Result], file: ScenarioFile, summary: dict[str, Any] | None = None) -> None:
        super().__init__(results)
        self.file = file
        self._summary = summary
        varied = {run.name: run.varied for run in file.runs}
        for result in self:
            result.varied = varied.get(result.summary["name"], {})
            result.file = file.only_run(result.summary["name"], result.summary["seed"])

    @property
    def summary(self) -> dict[str, Any]:
        """Return the contents of summary.json; its `table` has a row for each run over all seeds."""
        if self._summary is None:
            self._summary = summarise(self.file, self)
        return self._summary

    @overload
    def __getitem__(self, index: SupportsIndex, /) -> Result: ...

    @overload
    def __getitem__(self, index: slice, /) -> Results: ...

    def __getitem__(self, index: SupportsIndex | slice, /) -> Result | Results:
        """Return a result, or the results of a slice."""
        if not isinstance(index, slice):
            return super().__getitem__(index)
        chosen = super().__getitem__(index)
        names, seeds = ([*dict.fromkeys(result.summary[key] for result in chosen)] for key in ("name", "seed"))
        return Results(chosen, self.file.part(names, seeds))

    def only(self, text: str) -> Results:
        """Return the results of the runs whose name contains `text`, or is NAME if `text` is "=NAME".

        Raises:
            ConfigurationError: there are none.
        """
        return Results([result for result in self if selects(text, result.summary["name"])], self.file.only(text))

    def to_dir(self, path: str | PathLike[str]) -> None:
        """Write the folder of the runs, as `p2pfl-sim run` does; `p2pfl.load` and `p2pfl-sim report` read it.

        Args:
            path: the folder; it must not hold a run.

        Raises:
            ConfigurationError: the folder holds a run, or cannot be written.
        """
        folder = new_folder(path)
        try:
            write(folder, self.file, self, self.summary)
        except OSError as error:
            raise ConfigurationError(f"cannot write {folder}: {reason(error)}") from error

    def _each(self) -> Sequence[Result]:
        return self

    def __repr__(self) -> str:
        runs, seeds = ({result.summary[key] for result in self} for key in ("name", "seed"))
        return f"Results({self.file.name!r}: {count(len(runs), 'run')}, {count(len(seeds), 'seed')})"

    def __str__(self) -> str:
        """Return the table of the runs as text, for scripts."""
        heads, rows = self._table()
        widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
        lines = (zip(cells, widths, strict=True) for cells in (heads, *rows))
        table = ["  ".join(f"{cell:{'>' if k else '<'}{width}}" for k, (cell, width) in enumerate(line)) for line in lines]
        return "\n".join([*table, *self._not_computed()])

    def _repr_html_(self) -> str:
        """Return the table of the runs, for notebooks."""
        return formatting.table(*self._table()) + formatting.paragraphs(self._not_computed())

    def _not_computed(self) -> list[str]:
        """Return the reason for each test metric that was not computed."""
        return list(dict.fromkeys(note for result in self for note in _missing(result.summary)))

    def _table(self) -> tuple[list[str], list[list[str]]]:
        """Return the heads and the rows of the table of the runs."""
        if not self:
            return ["run"], []
        rows, metric = self.summary["table"], self.summary["runs"][0]["metric"]
        stages = [stage for stage in STAGES if any(stage in row.get("stages", {}) for row in rows)]
        several = any(row["seeds"] > 1 for row in rows)
        also = list(dict.fromkeys(name for row in rows for name in row.get("extra_metrics", {})))
        heads = ["run", f"test {metric}", *(["± over seeds"] if several else []), "seeds", *stages]
        of_rows = [_costs(row.get("cost", {})) for row in rows]
        paid = next(filter(None, of_rows), {})
        heads += [*(name.replace("_", " ") for name in also), *paid]
        return heads, [
            [row["name"], number(row["mean"])]
            + ([number(row["std"] if row["seeds"] > 1 else None)] if several else [])
            + [str(row["seeds"])]
            + [number(row["stages"].get(stage)) for stage in stages]
            + [number(row.get("extra_metrics", {}).get(name)) for name in also]
            + [own.get(head, "") for head in paid]
            for row, own in zip(rows, of_rows, strict=True)
        ]


def _costs(cost: Mapping[str, float]) -> dict[str, str]:
    """Return the trainings of all nodes, their seconds and the joules, in words; none where no device has watts."""
    if not cost.get("joules"):
        return {}
    return {
        "trainings": f"{cost['trainings']:,.0f}",
        "computing": f"{cost['train_s']:,.1f} s",
        "energy": f"{number(cost['joules'])} J",
    }


def _varied_columns(result: Result, keys: Sequence[str], table: Table) -> Table:
    """Return a column for each varied key: NaN if the run does not take it; values that are not numbers are texts."""
    rows = len(next(iter(table.values())))
    values = {key: result.varied.get(key, nan) for key in keys}
    return {key: np.full(rows, v if isinstance(v, int | float) else setting(key, v)) for key, v in values.items()}


def new_folder(path: str | PathLike[str]) -> Path:
    """Make a folder for a run, and return its path.

    Raises:
        ConfigurationError: it already holds a run, or cannot be made.
    """
    folder = Path(path)
    if any((folder / name).exists() for name in (SUMMARY, SCENARIO, PARTS, CANDIDATES)):
        raise ConfigurationError(f"{folder} already holds a run; name another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"cannot create the folder {folder}: {reason(error)}") from error
    return folder


def result_of(run: Run, models: bool = False) -> Result:
    """Summarise a finished run.

    Args:
        models: whether the result holds the models of the nodes.
    """
    rounds, edges, scenario = costs.with_joules(run, run.recorder.rounds_table()), run.recorder.edges_table(), run.scenario
    task, groups = run.tasks[0], groups_of(run.tasks)
    metric, attack = task.metric, scenario.attack_plan()
    complete = not learning_curves.incomplete(rounds, scenario.nodes, () if attack is None else attack.nodes)
    summary: dict[str, Any] = {
        "name": scenario.name,
        "seed": scenario.seed,
        "nodes": scenario.nodes,
        "rounds": scenario.rounds,
        **({} if scenario.mode == "synchronous" else {"mode": scenario.mode}),
        "topology": run.plan.topology.name,
        "codec": scenario.codec,
        "topology_properties": run.plan.topology.properties,
        "metric": metric,
        "higher_is_better": task.higher_is_better,
        "reported_stage": _reported_stage(run, rounds, metric),
        "selected_by": _selected_by(run, metric),
        "test": _test(run, metric, groups) | _last_round(rounds, _reported_stage(run, rounds, metric), metric, complete),
        "test_by_snapshot": summary_metrics.by_snapshot(rounds, metric, scenario.best_by, task.higher_is_better),
        "traffic": summary_metrics.traffic(run),
        "cost": costs.of_run(run, rounds),
        **({"privacy": spent} if (spent := privacy.of_run(run)) else {}),
        "collaboration": summary_metrics.collaboration(edges, rounds, groups),
        "time": {
            "wall_s": round(run.wall_s, 4),
            "virtual_s": run.virtual_s,
            "node_rounds_per_s": round(run.recorder.rounds_done / run.wall_s, 1),
        },
        "computed": run.computed,
        "deadlines_expired": run.expired,
        **({"waits": run.recorder.waits()} if run.expired else {}),
        "batches": {
            kind: {"count": count, "mean_jobs": jobs / max(count, 1)} for kind, (count, jobs) in run.batches.items()
        },
        "trace": run.recorder.trace.digest(),
    }
    also = {name: _over_nodes(run, name) for name in task.extra_metrics}
    also |= summary_metrics.pooled_r2(run) if "r2" in also and metric == "mse" else {}
    also |= summary_metrics.of_mean_model(run, metric) if scenario.mean_model else {}
    also |= summary_metrics.late_figures(rounds, metric, scenario.late_rounds) if scenario.late_rounds else {}
    if also:
        summary["extra_metrics"] = also
    if attack is not None:
        summary["attackers"] = list(attack.nodes)
    if scenario.pool is not None:
        summary["pool"] = scenario.pool.name
    if answers := objectives.solution_measures(run):
        summary["answers"] = answers
    if run.plan.topology.labels:
        summary["labels"] = run.plan.topology.labels
    if chosen := summary_metrics.preselections(run):
        summary["chosen_before"] = chosen
    if any(group is not None for group in groups):
        summary["groups"] = [None if group is None else str(group) for group in groups]
    if goals := task.goals:
        summary["objectives"] = objectives.objective_measures(run, goals)
    more = run.recorder.clusters.tables() | run.recorder.elections()
    if "clusters" in more:
        summary["clusters"] = summary_metrics.clusters_by_round(more["clusters"], groups)
    summary |= _facts(run)
    tensors = None
    if models:
        pairs = zip(run.tasks, run.state.models, strict=True)
        tensors = [task.tensors(params, scenario.seed) for task, params in pairs]
    return Result(summary, rounds, edges, _notes(run, summary), more, tensors)


def _facts(run: Run) -> dict[str, Any]:
    """Return what the readers of graphs and of data understood."""
    data = distinct(each for facts in each_fact(run.tasks, "data_facts") for each in facts)
    return {
        kind: [each.to_json() for each in facts]
        for kind, facts in (("graph", run.plan.topology.facts), ("data", data))
        if facts
    }


def _notes(run: Run, summary: Mapping[str, Any]) -> list[str]:
    """Return the notes of a run and on its data, with the reason if its test metric was not computed."""
    return [*run.notes, *(note for facts in summary.get("data", ()) for note in facts["notes"]), *_missing(summary)]


def _missing(summary: Mapping[str, Any]) -> list[str]:
    """Return the reason if the test metric of a run was not computed."""
    return [f"{summary['name']}: {summary_metrics.describe_test(summary)}"] if "without_data" in summary["test"] else []


def _reported_stage(run: Run, rounds: Table, metric: str) -> ReportedStage:
    """Return the snapshot that drives early stopping and is reported: the choice of most nodes' policies."""
    (stage, _), *_ = Counter(policy.reported_stage for policy in run.state.policies).most_common()
    if f"trained_test_{metric}" in rounds:
        return stage
    evaluated = any(name.endswith(f"_test_{metric}") for name in rounds)
    return "trained" if stage == "trained" and not evaluated else "merged"


def _selected_by(run: Run, metric: str) -> str:
    """Return what selects the round of each node's result: a figure on its validation data, or "last round" without any."""
    if not run.state.judged:
        return "last round"
    by = run.scenario.best_by
    return f"validation {metric if by == 'metric' else by}"


def _test(run: Run, metric: str, groups: Sequence[Any]) -> dict[str, Any]:
    """Return the test metric of each node's result and statistics over the honest nodes."""
    found = run.recorder.result(f"test_{metric}")
    every = found.filled(nan)
    attackers = run.recorder.view.attackers if run.recorder.view is not None else ()
    honest_nodes = np.array([name not in attackers for name in run.plan.names])
    without_data = np.flatnonzero(honest_nodes & np.ma.getmaskarray(found)).tolist()
    values = every[honest_nodes]
    worst_first = np.sort(values) if run.tasks[0].higher_is_better else -np.sort(-values)
    by_group: dict[str, float] = {}
    for group in sorted({group for group in groups if group is not None}, key=lambda g: (type(g).__name__, g)):
        mine = [value for value, of in zip(every, groups, strict=True) if of == group]
        honest = [value for value in mine if not np.isnan(value)] if run.recorder.view is not None else mine
        by_group[str(group)] = float(np.mean(honest)) if honest else nan
    return {
        "mean": float(values.mean()),
        "std": float(values.std()),
        "variance": float(values.var()),
        "worst_decile": nan if np.isnan(values).any() else float(worst_first[: max(1, len(values) // 10)].mean()),
        "nodes": every.tolist(),
        "per_group": by_group,
        **({"without_data": without_data} if without_data else {}),
    }


def _last_round(rounds: Table, stage: str, metric: str, complete: bool) -> dict[str, float]:
    """Return the mean of the test metric of each node's model in the last round: the end of the curve; {} without any."""
    curve = learning_curves.mean(learning_curves.of_nodes(rounds, stage, f"test_{metric}"))
    there = curve[np.isfinite(curve)]
    return {"last_round": float(there[-1])} if len(there) and complete else {}


def _over_nodes(run: Run, name: str) -> dict[str, Any]:
    """Return an additional test metric of each node's result; see p2pfl.task.Task.

    Nodes for which it is undefined, for example the AUC of samples of one class, do not count in the mean.
    """
    values = run.recorder.result(f"test_{name}").filled(nan)
    known = values[~np.isnan(values)]
    return {"mean": float(known.mean()) if len(known) else nan, "nodes": values.tolist()}


def summarise(file: ScenarioFile, results: Sequence[Result], measures: Mapping[str, float] | None = None) -> dict[str, Any]:
    """Return the contents of summary.json.

    Args:
        measures: at which rows are compared; by default what all runs have spent. See summary_metrics.equal_measures.
    """
    runs = [result.summary for result in results]
    pools = [
        each
        for name, scenarios in file.rows().items()
        if (pool := scenarios[0].pool) is not None and pool.of != "fronts"
        for each in objectives.pool_results(name, pool.of, [run for run in runs if run.get("pool") == name])
    ]
    levels = {name: surroundings(run.varied) for run in file.runs for name in (run.name, run.row)}
    found = objectives.with_distances([*runs, *pools], levels)
    runs, pools = found[: len(runs)], found[len(runs) :]
    if file.target is not None:
        runs = [
            run | {"reached": summary_metrics.time_to_target(result.rounds, run, file.target)}
            for run, result in zip(runs, results, strict=True)
        ]
    if file.varied:
        varied = {run.name: {key: _to_json(value) for key, value in run.varied.items()} for run in file.runs}
        runs = [run | {"varied": varied[run["name"]]} for run in runs]
    compared = bool(file.against or file.varied or "bytes" in file.printed) or len({str(run.codec) for run in file.runs}) > 1
    table = [_row(name, scenarios[0], runs, pools, compared) for name, scenarios in file.rows().items()]
    if any("attackers" in run for run in runs) or WORST_TENTH in file.printed:
        table = [_with_worst_tenth(row, runs) for row in table]
    for row, (scenario, *_) in zip(table, file.rows().values(), strict=True):
        if file.target is not None:
            row["reached"] = summary_metrics.mean_reached([run["reached"] for run in runs if run["name"] == row["name"]])
        if scenario.paper is not None:
            row["paper"] = scenario.paper
        if file.varied:
            row["varied"] = varied[scenario.name]
    if file.varied:
        _mark_front(table, file, runs)
    measures = _measures(file, results) if measures is None else measures
    _compare_at(table, measures, results)
    _compare_within(table, file, results)
    if file.against:
        _compare(table, file.against, runs)
    if file.claims or file.printed or file.answers:
        _add_seeds(table, file, results, measures)
    warnings = [*objectives.collapses(table), *objectives.died(runs), *summary_metrics.waits(runs)]
    warnings += _notes_on_silent(table) if file.varied else []
    warnings += [
        f"printed.{figure}: no row has this figure, so it is not recorded"
        for figure in file.printed
        if not any(has_figure(row, figure) for row in table)
    ]
    return {
        "scenario": file.name,
        "version": __version__,
        "versions": versions(),
        **({} if file.target is None else {"target": file.target}),
        **({"equal": dict(measures)} if measures else {}),
        **({} if file.figure == MEAN else {"figure": file.figure}),
        **asked(file),
        **(
            {"varied": {key: [_to_json(value) for value in values] for key, values in file.varied.items()}}
            if file.varied
            else {}
        ),
        "seeds": sorted({run["seed"] for run in runs}),
        "runs": runs,
        **({"pools": pools} if pools else {}),
        "table": table,
        "notes": list(
            dict.fromkeys(
                [
                    *file.notes,
                    *warnings,
                    *(note for result in results for note in result.notes),
                ]
            )
        ),
    }


def asked(file: ScenarioFile) -> dict[str, Any]:
    """Return the keys of summary.json on the question of a scenario: what findings need to answer it."""
    found = {
        "question": file.question,
        "unanswered": file.unanswered,
        "answers": msgspec.to_builtins(file.answers),
        "references": [*file.references],
    }
    return {key: value for key, value in found.items() if value}


def _measures(file: ScenarioFile, results: Sequence[Result]) -> dict[str, float]:
    """Return the measures at which the rows of a scenario are compared: only if some run does not go by rounds."""
    apart = any(run.mode == "asynchronous" or run.end != End() for run in file.runs)
    if not apart or len(file.rows()) < 2 or any(run.pool is not None for run in file.runs):
        return {}
    return summary_metrics.equal_measures([(result.rounds, result.summary) for result in results])


def _compare_at(table: Sequence[dict[str, Any]], measures: Mapping[str, float], results: Sequence[Result]) -> None:
    """Add to each row `equal`: by measure, the mean over the seeds of its metric there; None if some seed has none."""
    for row in table if measures else ():
        found = [
            summary_metrics.at_equal_measures(result.rounds, result.summary, measures)
            for result in results
            if result.summary["name"] == row["name"]
        ]
        means = {axis: float(np.mean([each[axis] for each in found])) for axis in measures}
        row["equal"] = {axis: None if np.isnan(value) else value for axis, value in means.items()}


def _compare_within(table: Sequence[dict[str, Any]], file: ScenarioFile, results: Sequence[Result]) -> None:
    """Add to each row `within`: by kind and budget, the mean over the seeds of its metric there; None if a seed has none."""
    budgets: dict[str, dict[int, None]] = {}
    for answer in file.answers:
        for kind, limits in answer.within.items():
            budgets.setdefault(kind, {}).update(dict.fromkeys(limits))
    for row in table if budgets else ():
        found = [
            summary_metrics.within_budgets(result.rounds, result.summary, budgets)
            for result in results
            if result.summary["name"] == row["name"]
        ]
        means = {
            kind: {str(most): float(np.mean([each[kind][str(most)] for each in found])) for most in limits}
            for kind, limits in budgets.items()
        }
        row["within"] = {
            kind: {most: None if np.isnan(value) else value for most, value in of.items()} for kind, of in means.items()
        }


def _add_seeds(
    table: Sequence[dict[str, Any]], file: ScenarioFile, results: Sequence[Result], measures: Mapping[str, float]
) -> None:
    """Add to each row the figures that claims and answers compare or the paper prints, for each seed: `by_seed`."""
    seeds = sorted({result.summary["seed"] for result in results})
    tables: Sequence[Sequence[Mapping[str, Any]]] = [table]
    if len(seeds) > 1:
        tables = [
            summarise(file, [result for result in results if result.summary["seed"] == seed], measures)["table"]
            for seed in seeds
        ]
    for row, *of_seeds in zip(table, *tables, strict=True):
        row["by_seed"] = {
            figure: [figure_of(each, figure) for each in of_seeds]
            for figure in figures_in(file.figure, file.printed, [*file.claims, *file.answers])
            if all(has_figure(each, figure) for each in of_seeds)
        }


def _row(name: str, scenario: Scenario, runs: Runs, pools: Runs, compared: bool) -> dict[str, Any]:
    """Return a row of the table: means over the seeds of a run, or of the runs of a pool.

    Args:
        scenario: the run, or one of the pool.
        compared: whether rows include the bytes sent.
    """
    mine = [run for run in runs if run.get("pool", run["name"]) == name]
    tests = [run["test"] for run in mine]
    means = list(_by_seed(mine).values())
    row: dict[str, Any] = {
        "name": name,
        "mean": float(np.mean(means)),
        "std": float(np.std(means, ddof=1)) if len(means) > 1 else 0.0,
        "seeds": len(means),
    }
    if compared:
        row["bytes"] = float(np.mean([total_sent(run["traffic"]) for run in mine]))
    if cost := costs.over_seeds(mine):
        row["cost"] = cost
    if (spent := privacy.over_seeds(mine)) is not None:
        row["epsilon"] = spent
    shares = [run.get("collaboration", {}).get("weight_within_group") for run in mine]
    if all(share is not None for share in shares):
        row["weight_within_group"] = float(np.mean(shares))
    per_group = _per_group(tests)
    if len(per_group) > 1:
        row["per_group"] = per_group
    each = [run.get("extra_metrics", {}) for run in mine]
    if also := {of for metrics in each for of in metrics if all(of in others for others in each)}:  # see pooled_r2
        row["extra_metrics"] = {
            of: float(np.mean([run["extra_metrics"][of]["mean"] for run in mine])) for of in sorted(also)
        }
    if scenario.pool is not None:
        row["pool"] = {"runs": len({run["name"] for run in mine}), "of": scenario.pool.of}
        if scenario.pool.of == "fronts":
            row["extra_metrics"] = {"own_fronts": float(np.mean(objectives.own_fronts(mine)))} | row["extra_metrics"]
        mine = [pool for pool in pools if pool["name"] == name]
    elif (found := summary_metrics.clusters_over_seeds(mine)) is not None:
        row["clusters"] = found
    if any(run.get("reported_stage") == "auto" for run in runs):
        row["stages"] = _stages(mine)
        row["reported_stage"] = mine[0].get("reported_stage", "")
    if (measures := objectives.over_seeds(mine)) is not None:
        row["objectives"] = measures
    return row


def _by_seed(runs: Runs) -> dict[int, float]:
    """Return the mean of the test metric over the runs of each seed; a pool has several."""
    found: dict[int, list[float]] = {}
    for run in runs:
        found.setdefault(run["seed"], []).append(run["test"]["mean"])
    return {seed: float(np.mean(means)) for seed, means in found.items()}


def _with_worst_tenth(row: dict[str, Any], runs: Runs) -> dict[str, Any]:
    """Return a row with the mean over the seeds of the worst tenth of the honest nodes."""
    worst = [run["test"]["worst_decile"] for run in runs if run.get("pool", run["name"]) == row["name"]]
    return row | {"extra_metrics": {"worst_tenth": float(np.mean(worst))} | row.get("extra_metrics", {})}


def _stages(runs: Runs) -> dict[str, float]:
    """Return the mean over runs of each stage that all of them have. Nodes that send nothing only train their models."""
    snapshots = [run["test_by_snapshot"] for run in runs]
    stages = [stage for stage in STAGES if all(stage in each for each in snapshots)]
    means = {stage: float(np.mean([each[stage] for each in snapshots])) for stage in stages}
    if stages == ["merged"] and not any(total_sent(run["traffic"]) for run in runs):
        return {"trained": means["merged"]}
    return means


def _to_json(value: Any) -> Any:
    """Return a varied value for JSON: inf, which would become null, becomes a word."""
    return str(value) if isinstance(value, float) and not np.isfinite(value) else value


def versions() -> dict[str, str]:
    """Return the versions of the software that can change the last bits of results."""
    found = {"p2pfl": __version__, "Python": platform.python_version(), "system": platform.platform(terse=True)}
    for name in ("torch", "numpy", "networkx"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _mark_front(table: Sequence[dict[str, Any]], file: ScenarioFile, runs: Runs) -> None:
    """Mark the rows of a sweep that are Pareto-optimal in mean and bytes, among those of the same learning problem.

    A row whose problem no other row has is not marked, because it is compared with none.
    """
    settings = {each["name"]: each for each in file.to_toml()["run"]}
    measured = {run["name"]: (run["metric"], run["higher_is_better"]) for run in runs}
    problems: dict[Any, list[dict[str, Any]]] = {}
    for row, scenarios in zip(table, file.rows().values(), strict=True):
        each = {to_json(problem_of(settings[one.name], one.varied)) for one in scenarios}
        problems.setdefault((measured[scenarios[0].name], *sorted(each)), []).append(row)
    for ((_, higher_is_better), *_), rows in problems.items():
        if len(rows) == 1:
            continue
        front = on_front([row["bytes"] for row in rows], [row["mean"] for row in rows], higher_is_better)
        for row, chosen in zip(rows, front, strict=True):
            row["front"] = chosen


def _per_group(tests: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the mean of each group over the seeds that have it, because a task may draw the groups."""
    found: dict[str, list[float]] = {}
    for test in tests:
        for group, mean in test["per_group"].items():
            found.setdefault(group, []).append(mean)
    return {group: float(np.mean(means)) for group, means in found.items()}


def _notes_on_silent(table: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a note for each row before a sweep that sends nothing, and so is the same at all levels of the exchange."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in table:
        if not row["bytes"]:
            others = {key: value for key, value in row["varied"].items() if key.partition(".")[0] not in EXCHANGE}
            groups.setdefault(to_json([base_of(row["name"], row["varied"]), others]), []).append(row)
    found: dict[str, dict[str, None]] = {}
    for rows in groups.values():
        keys = [key for key in rows[0]["varied"] if len({to_json(row["varied"].get(key)) for row in rows}) > 1]
        if keys and len({row["mean"] for row in rows}) == 1:
            found.setdefault(base_of(rows[0]["name"], rows[0]["varied"]) or "this run", {}).update(dict.fromkeys(keys))
    return [
        f"{name} exchanges nothing: its rows are the same at all values of {', '.join(keys)}" for name, keys in found.items()
    ]


def _compare(table: Sequence[dict[str, Any]], against: str, runs: Runs) -> None:
    """Add to each row the difference of its metric from the reference, its spread, and the ratio of the bytes sent.

    The spread is the standard deviation over the seeds of the differences with each; the reference itself, and a single
    seed, have none. In a sweep, the reference of a row has the same values of the keys that both vary; if there is not
    exactly one such row, the row has no difference.
    """
    means = {row["name"]: _by_seed([run for run in runs if run.get("pool", run["name"]) == row["name"]]) for row in table}
    rows = {row["name"]: row.get("varied", {}) for row in table}
    for row in table:
        other = counterpart(against, rows, row.get("varied", {}))
        reference = next((each for each in table if each["name"] == other), None)
        row["against"] = {"name": against, "difference": None, "std": None, "times_bytes": None}
        if reference is not None:
            times = row["bytes"] / reference["bytes"] if reference["bytes"] else None
            row["against"] |= {"difference": row["mean"] - reference["mean"], "times_bytes": times}
            own, theirs = means[row["name"]], means[reference["name"]]
            margins = [mean - theirs[seed] for seed, mean in own.items() if seed in theirs]
            if reference is not row and len(margins) > 1:
                row["against"]["std"] = float(np.std(margins, ddof=1))


def write(path: Path, file: ScenarioFile, results: Sequence[Result], summary: Mapping[str, Any]) -> None:
    """Write all files of a run; summary.json comes last, so a folder with a summary.json is complete."""
    (path / SCENARIO).write_bytes(msgspec.toml.encode(file.to_toml()))
    if file.graph is not None:
        (path / GRAPH).write_bytes(to_graphml(file.graph))
    write_parquet(path / "rounds.parquet", [(result.summary, result.rounds) for result in results])
    write_parquet(path / "edges.parquet", [(result.summary, result.edges) for result in results])
    for name in sorted({name for result in results for name in result.more}):
        tables = [(result.summary, result.more[name]) for result in results if name in result.more]
        write_parquet(path / f"{name}.parquet", tables)
    for result in results:
        write_models(path, result.summary, result.models or ())
    replace_file(path / SUMMARY, [to_json(summary, indent=1).encode() + b"\n"])
