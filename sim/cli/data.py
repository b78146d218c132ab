"""p2pfl-sim data check: list the data sets on this machine, and each node's share of them in a scenario."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from p2pfl._util.console import FAILED, add_command, add_output
from p2pfl._util.printable import to_json
from p2pfl.data.partition.splits import SAME
from p2pfl.data_facts import distinct
from p2pfl.errors import ConfigurationError, MissingRequirementError
from p2pfl.sim.cli.options import add_selection, load_changed

if TYPE_CHECKING:
    from torch import Tensor

    from p2pfl.sim.scenario.scenario import Scenario, ScenarioFile
    from p2pfl.task import Task

SPLITS = ("train", "validation", "test")


def add_commands(commands: Any) -> None:
    """Add `data check` to the commands of p2pfl-sim."""
    data = add_command(
        commands,
        "data",
        "inspect data sets and their division among the nodes of a scenario",
        "p2pfl-sim data check",
    )
    checking = add_command(
        data.add_subparsers(),
        "check",
        "list the data sets on this machine, or the samples and labels of each node of a scenario",
        "p2pfl-sim data check --root ~/datasets",
        "p2pfl-sim data check digits-gossip --set nodes=12 --only dac",
    )
    checking.add_argument(
        "scenario",
        nargs="?",
        metavar="SCENARIO",
        help="name of a shipped scenario, or a TOML file (default: list the data sets)",
    )
    runs = checking.add_argument_group("runs")
    add_selection(runs, "change a key of all runs, such as nodes=20")
    add_output(checking)
    checking.set_defaults(do=_check)


def _check(options: argparse.Namespace) -> int:
    if options.scenario is None:
        if options.changes or options.only:
            raise ConfigurationError("--set and --only need a scenario: p2pfl-sim data check SCENARIO")
        return _show_sets(options.root, options.json)
    divisions = divisions_of(load_changed(options))
    if options.json:
        print(to_json({"scenario": options.scenario, "divisions": divisions}))
        return 0
    for division in divisions:
        _show_division(division)
    return 0


def sets_of(root: str) -> list[dict[str, Any]]:
    """Return the state of each named data set: "complete", "part", "missing" or "wrong", with the reason."""
    from p2pfl.data import image_sets as sets
    from p2pfl.data.tabular import table as tables

    found = []
    for name in (*sets.NAMES, *tables.names()):
        try:
            about = _table(name, root) if name in tables.names() else _images(name, root)
        except MissingRequirementError as error:
            about = {"state": "missing", "reason": str(error)}
        except ConfigurationError as error:
            about = {"state": "wrong", "reason": str(error)}
        found.append({"name": name, **about})
    return found


def divisions_of(file: ScenarioFile) -> list[dict[str, Any]]:
    """Return each different division of the data of a scenario: its runs, and each node's label, group and splits.

    A split has its number of samples, for class targets the number of samples of each class, and for sensitive
    attributes that of each group. `data` has what the readers of the data understood; see p2pfl.data_facts. `notes` are on
    the division: small splits, and test samples that are also training samples.
    """
    from p2pfl.sim.execution.memory_estimate import check_runs
    from p2pfl.sim.simulation.plan import data_labels, names
    from p2pfl.sim.simulation.workers import prepare_process

    prepare_process(file.path)
    check_runs(file.runs, 1, 1)
    runs: dict[str, list[Scenario]] = {}
    for run in file.runs:
        runs.setdefault(json.dumps([run.task, run.nodes, run.seed], sort_keys=True, default=str), []).append(run)
    found: dict[str, dict[str, Any]] = {}
    for alike in runs.values():
        first = alike[0]
        tasks = _tasks(first)
        called = data_labels(tasks) or [""] * first.nodes
        nodes = [_node(*each) for each in zip(names(first.nodes), called, tasks, strict=True)]
        facts = [each.to_json() for each in distinct(each for task in tasks for each in task.data_facts)]
        note = same_rows_note(first)
        notes = [each for each in _notes(first, tasks) if each != note]
        division = {"task": first.task, "seed": first.seed, "data": facts, "nodes": nodes, "note": note, "notes": notes}
        key = json.dumps([first.task["name"], first.task.get("data"), first.seed, nodes, note, notes], default=str)
        found.setdefault(key, {"runs": [], **division})["runs"] += [run.name for run in alike]
    return [*found.values()]


def same_rows_note(scenario: Scenario) -> str:
    """Return a note if the task gives all nodes the rows of one file; "" if not."""
    from p2pfl.sim.simulation.plan import READS_ROWS

    name, partition = scenario.task["name"], scenario.task.get("partition")
    if name not in READS_ROWS or partition is not None or scenario.nodes < 2:
        return ""
    return SAME


def _notes(scenario: Scenario, tasks: Sequence[Task]) -> list[str]:
    from p2pfl.sim.simulation.plan import data_labels, data_notes, names

    try:
        return data_notes(scenario, tasks, data_labels(tasks) or names(scenario.nodes))
    except ConfigurationError as error:
        raise ConfigurationError(f"run {scenario.name!r}: {error}") from error


def _tasks(scenario: Scenario) -> list[Task]:
    from p2pfl._util.binding import split_name
    from p2pfl._util.shared_work import sharing
    from p2pfl.task import Part, make_task

    name, options = split_name("task", scenario.task)
    try:
        with sharing():
            return [make_task(name, options, Part(k, scenario.nodes), scenario.seed) for k in range(scenario.nodes)]
    except ConfigurationError as error:
        raise ConfigurationError(f"run {scenario.name!r}: {error}") from error


def _node(name: str, label: str, task: Task) -> dict[str, Any]:
    return {"node": name, **({"label": label} if label else {}), "group": task.public_info.get("group"), **_splits(task)}


def _splits(task: Task) -> dict[str, Any]:
    """Return the size and the labels of each split.

    For a task that is not a TorchTask, return only the number of training samples.
    """
    data = task.data
    if not data:
        return {"train": {"samples": task.n_samples}}
    splits: dict[str, Any] = {}
    for split in SPLITS:
        if split in data:
            targets, groups = data[split][1], _groups(task, data[split])
            splits[split] = {"samples": len(targets)}
            if groups:
                targets = (targets if targets.ndim == 1 else targets[:, 0]).long()
                splits[split]["groups"] = {name: numbers.long().bincount().tolist() for name, numbers in groups.items()}
            if targets.ndim == 1 and not targets.is_floating_point():
                splits[split]["labels"] = targets.bincount().tolist()
    return splits


def _groups(task: Task, samples: Any) -> dict[str, Tensor]:
    """Return the group of each sample by the name of each sensitive attribute; {} if the task has none."""
    from p2pfl.fairness.fair_task import FairClassifier, FairTask
    from p2pfl.fairness.praffl import PrafflProblem

    if isinstance(task, FairTask):
        return {name: samples[1][:, 1 + k] for k, name in enumerate(task.attributes)}
    if isinstance(task, PrafflProblem):
        return {"": samples.groups}
    return {"": samples[1][:, 1]} if isinstance(task, FairClassifier) else {}


def _images(name: str, root: str) -> dict[str, Any]:
    from p2pfl.data import image_sets as sets
    from p2pfl.data.image_sets import KNOWN

    data, known = sets.load(name, root), KNOWN.get(name)
    counts = [len(data.train.y), len(data.test.y)]
    complete = known is None or counts == [known.train, known.test]
    return {
        "state": "complete" if complete else "part",
        "train": counts[0],
        "test": counts[1],
        "shape": list(data.train.x.shape[1:]),
        "classes": data.classes,
        **({} if data.train.writers is None else {"writers": len(set(data.train.writers.tolist()))}),
    }


def _table(name: str, root: str) -> dict[str, Any]:
    from p2pfl.data.tabular import table as tables

    table = tables.load(name, root)
    features = len(tables.Encoder(table.train).names)
    test = 0 if table.test is None else len(table.test)
    return {"state": "complete", "train": len(table.train), "test": test, "shape": [features], "classes": 2}


def _show_sets(root: str, as_json: bool) -> int:
    from p2pfl.data import image_sets as sets

    if not root and not os.environ.get(sets.ROOT):
        raise ConfigurationError(
            f"no folder for data sets: name one with --root DIR or the environment variable {sets.ROOT}; the command then"
            " lists the missing data sets and their sources"
        )
    folder = str(sets.data_root(root, "a check of the data sets"))
    found = sets_of(root)
    if as_json:
        print(to_json({"root": folder, "sets": found}))
    else:
        print(f"data sets in {folder}:")
        for about in found:
            print(f"  {about['name']:<14} {about['state']:<9} {_figures(about)}")
    return FAILED if any(about["state"] == "wrong" for about in found) else 0


def _figures(about: dict[str, Any]) -> str:
    if "reason" in about:
        return str(about["reason"])
    shape = " x ".join(map(str, about["shape"])) if len(about["shape"]) > 1 else f"{about['shape'][0]} features"
    writers = f", {about['writers']} writers" if "writers" in about else ""
    return f"{about['train']:,} + {about['test']:,} samples of {shape}, {about['classes']} classes{writers}"


def _show_division(division: dict[str, Any]) -> None:
    task, nodes = division["task"], division["nodes"]
    size = f"{len(nodes)} node{'s' * (len(nodes) != 1)}"
    print(f"{', '.join(division['runs'])}: task {task['name']}, {size}, seed {division['seed']}")
    for facts in division["data"]:
        _show_facts(facts)
    splits = [split for split in SPLITS if any(split in node for node in nodes)]
    attributes = list(nodes[0]["train"].get("groups", ())) if nodes else []
    rows = [["node", "label", "group", *splits, "training samples per label", *map(_of_groups, attributes)]]
    for node in nodes:
        group = "" if node["group"] is None else str(node["group"])
        counts = [node["train"].get("labels", ()), *(node["train"]["groups"][name] for name in attributes)]
        sizes = (str(node.get(split, {}).get("samples", "")) for split in splits)
        rows.append([node["node"], node.get("label", ""), group, *sizes, *map(_counts, counts)])
    kept = [k for k in range(len(rows[0])) if any(row[k] for row in rows[1:])]
    _print_aligned([[row[k] for k in kept] for row in rows])
    of_data = [note for facts in division["data"] for note in facts["notes"]]
    for note in filter(None, [*of_data, *division["notes"], division["note"]]):
        print(f"note: {note}")


def _show_facts(facts: dict[str, Any]) -> None:
    print(f"data: {facts['line']}")
    rows = [["column", "kind", "role", "values", "missing", "range"]]
    for column in facts["columns"]:
        least, greatest = column.get("range", (None, None))
        values = f"{column['values']:,}" if "values" in column else ""
        spread = "" if least is None else f"{least:.10g} to {greatest:.10g}"
        name = column["name"] or "(no name)"
        rows.append([name, column["kind"], column["role"], values, f"{column['missing']:,}", spread])
    if facts["columns"]:
        _print_aligned(rows)
    if left_out := facts.get("columns_not_listed"):
        print(f"... and {left_out:,} more columns")


def _of_groups(attribute: str) -> str:
    return f"per group of {attribute}" if attribute else "per group"


def _counts(counts: Sequence[int]) -> str:
    return " ".join(map(str, counts))


def _print_aligned(rows: Sequence[Sequence[str]]) -> None:
    """Print aligned columns: the first and the last to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *middle, last in rows:
        cells = [text.rjust(width) for text, width in zip(middle, widths[1:-1], strict=True)]
        print("  ".join([first.ljust(widths[0]), *cells, last]).rstrip())
