"""One TOML file for one table of a paper: a base, and `[[run]]` entries that vary it.

name = "my-study"
seeds = [0, 1, 2]      # every run is repeated with each
against = "alone"      # the table says how much better each run is than this one, and what it sends compared to it
target = 0.8           # of the metric: what each run takes until its nodes have it on average
nodes = 20
rounds = 10
task = { name = "digits", labels = 3 }
topology = { name = "small-world", degree = 6 }

[[run]]
name = "alone"
policy = { name = "local" }

[[run]]
name = "with peers"
policy = { name = "dac", neighbours = 3 }
paper = 0.9            # a figure to print beside this row

[[run]]                # one run for each preference; the table has one row for all of them
name = "fronts"
each = { "task.preference" = [[0.2, 0.8], [0.8, 0.2]] }
pool = { of = "means" }

[[claim]]              # what `p2pfl-sim reproduce --short` shows; see sim.claims
run = "with peers"
above = "alone"
by = 0.1

[forms.short]          # --set form=short
rounds = 3
seeds = [0]
runs = { "with peers" = { policy = { neighbours = 2 } } }    # which runs it has, with changes; all if not given
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import deepcopy
from itertools import product
from math import isfinite, prod
from pathlib import Path
from typing import Any, Literal

import msgspec

from node import tables
from node.settings import Settings
from p2pfl.errors import ConfigurationError, unknown
from sim.budgets import Budgets
from sim.claims import MEAN, Claim, claims_of
from sim.imports import given_names, module_folders
from sim.network import Network, Range, check_number, check_range
from sim.search import Search
from sim.topology import changes_with_files, with_files

SHIPPED = Path(__file__).parent / "scenarios"
MOST_OF_EACH = 10_000  # runs that one entry makes; a mistake makes more


class Compute(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    Attributes:
        seconds: virtual seconds that one epoch of training takes.
        slowdown: how many times longer a node takes; a pair [low, high] draws one value for each node.
    """

    seconds: float = 1.0
    slowdown: float | Range = 1.0


class Pool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Runs whose solutions make one front, and one row of the table.

    Attributes:
        name: of the row; by default that of the `[[run]]` entry.
        of: what a run of several objectives gives: the models of its `nodes`, or one solution, the `means` of their
            objectives. With `fronts` each node has a front of its own, of one model from each run of a task that reports
            error and disparity (PraFFL's); of these the mean hypervolume over the nodes is shown beside the row's mean.
    """

    name: str = ""
    of: Literal["nodes", "means", "fronts"] = "nodes"


class Scenario(Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One run: a base with the changes of its `[[run]]` entry applied.

    Attributes:
        name: of the run; it is the name of its row in the table, if it is in no pool.
        paper: the figure that a paper gives for this row.
        pool: with which other runs it has a row together.
        varied: of a run of a sweep, the keys that were varied and its values of them.
        nodes: how many there are.
        task: what the nodes learn: a table with a `name`, and options; by default `digits`.
        policy: how they choose peers and average: a table with a `name`, and options; by default `random`.
        topology: who may fetch from whom: a table with a `name`, and options, or a `file`, which sets `nodes`; by default
            `complete`.
        policy_by_group: changes to the policy's options for the nodes of a group, by the group that their task says.
        budget: what each node may receive; a policy that asks for more ends the run.
        fidelity: `modelled` computes when models arrive; `wire` makes, signs and verifies every message.
        trainer: `stacked` trains many nodes as one tensor program where the module allows it; `one-by-one` never does.
        search: how `p2pfl-sim pareto` looks for a front; other commands run a single training with the task's preference.
        deadline: virtual seconds to wait for a peer before going on without it; inf waits for ever.
    """

    name: str
    paper: float | None = None
    pool: Pool | None = None
    varied: dict[str, Any] = msgspec.field(default_factory=dict)
    nodes: int = 10
    task: dict[str, Any]
    policy: dict[str, Any]
    policy_by_group: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)
    topology: dict[str, Any]
    network: Network = Network()
    compute: Compute = Compute()
    budget: Budgets = Budgets()
    fidelity: Literal["modelled", "wire"] = "modelled"
    trainer: Literal["stacked", "one-by-one"] = "stacked"
    search: Search | None = None

    def check(self) -> None:
        super().check()
        if self.nodes < 1:
            raise ConfigurationError(f"nodes must be 1 or more, got {self.nodes}")
        for key in ("task", "policy", "topology"):
            tables.named(key, getattr(self, key))
        for group, changes in self.policy_by_group.items():
            if "name" in changes:
                raise ConfigurationError(
                    f"policy_by_group.{group} changes options; all nodes have the policy {self.policy['name']}"
                )
        self.network.check()
        self.budget.check()
        if self.adaptive and self.fidelity == "modelled":
            raise ConfigurationError('adaptive deadlines are not modelled; set fidelity = "wire"')
        if self.paper is not None and not isfinite(self.paper):
            raise ConfigurationError(f"paper must be a finite number, got {self.paper}")
        check_number("compute.seconds", self.compute.seconds)
        check_range("compute.slowdown", self.compute.slowdown)
        if self.search is not None:
            self.search.check()

    @property
    def row(self) -> str:
        """The name of its row in the table."""
        return self.name if self.pool is None else self.pool.name

    def policy_of(self, group: Any) -> dict[str, Any]:
        """Return the table of the policy of a node that is of a group; None is none."""
        return self.policy | ({} if group is None else self.policy_by_group.get(str(group), {}))


class ScenarioFile(msgspec.Struct, frozen=True):
    """A scenario with all of its runs, resolved.

    Attributes:
        seeds: what every run is repeated with.
        folder: where modules that it names may lie: beside the file, unless its key `modules` names another folder.
        path: folders that its modules are looked for in, after all others; () if it names none.
        notes: what the user should know about how it was resolved.
        against: the row that the others are compared with in the table; "" is none.
        target: of the test metric; of each run it is said what it took to reach it.
        varied: of a sweep, the keys that its runs differ in, with all their values.
        source: the paper whose figures stand beside the rows; "" is none.
        table: which of its tables they are of.
        figure: of a row, what is compared with the paper's, such as "mean" or "objectives.hypervolume".
        claims: what is claimed of the rows of the short form, or where there is none of the whole.
        forms: the names of the forms that the file has beside the whole, in its order.
    """

    name: str
    description: str
    runs: tuple[Scenario, ...]
    seeds: tuple[int, ...]
    folder: str
    path: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    against: str = ""
    target: float | None = None
    varied: Mapping[str, list[Any]] = msgspec.field(default_factory=dict)
    source: str = ""
    table: str = ""
    figure: str = MEAN
    claims: tuple[Claim, ...] = ()
    forms: tuple[str, ...] = ()

    def rows(self) -> dict[str, list[Scenario]]:
        """Return the runs of each row of the table: one, or those of a pool."""
        found: dict[str, list[Scenario]] = {}
        for run in self.runs:
            found.setdefault(run.row, []).append(run)
        return found

    def raw(self) -> dict[str, Any]:
        """Return the TOML tables that give the same scenario again; claims are of the file that it was made from."""
        runs = [{k: v for k, v in msgspec.to_builtins(run).items() if v is not None} for run in self.runs]
        for run in runs:
            if not run["varied"]:
                del run["varied"]
        table: dict[str, Any] = {"name": self.name, "description": self.description, "seeds": list(self.seeds), "run": runs}
        if any(":" in str(named["name"]) for run in self.runs for named in (run.task, run.policy)):
            table["modules"] = self.folder
        for key in ("against", "source", "table"):
            if value := getattr(self, key):
                table[key] = value
        if self.figure != MEAN:
            table["figure"] = self.figure
        if self.target is not None:
            table["target"] = self.target
        if self.varied:
            table["varied"] = dict(self.varied)
        return table

    def only(self, text: str) -> ScenarioFile:
        """Return the scenario with those runs whose name contains `text`.

        Raises:
            ConfigurationError: there are none.
        """
        kept = tuple(run for run in self.runs if text in run.name)
        if not kept:
            raise ConfigurationError(
                f"no run of {self.name} has {text!r} in its name: {', '.join(r.name for r in self.runs)}"
            )
        against = self.against if any(run.row == self.against for run in kept) else ""
        return msgspec.structs.replace(self, runs=kept, against=against)


def jobs_of(file: ScenarioFile) -> list[Scenario]:
    """Return each run with each seed, in the order of the file."""
    return [msgspec.structs.replace(scenario, seed=seed) for scenario in file.runs for seed in file.seeds]


def shipped() -> dict[str, Path]:
    """Return the scenarios that come with p2pfl-sim, by name."""
    return {path.stem: path for path in sorted(SHIPPED.glob("*.toml"))}


def load(name: str, changes: Sequence[str] = (), trust: bool = False) -> ScenarioFile:
    """Read a scenario by its name or its file, with `key=value` changes applied to all of its runs.

    Args:
        trust: import whatever it names; see sim.imports.

    Raises:
        ConfigurationError: no such scenario, broken TOML, an unknown key, a value of the wrong type or out of range, or a
            module that is not imported without `trust`.
    """
    known = shipped()
    path = known.get(name) or Path(name)
    if path.suffix != ".toml" or not path.is_file():
        if path.suffix == ".toml":
            raise ConfigurationError(f"there is no scenario file {name}")
        raise unknown("scenario", name, known)
    return resolve(tables.read(path), changes, name=path.stem, folder=str(path.resolve().parent), trust=trust)


def resolve(raw: Mapping[str, Any], changes: Sequence[str], name: str, folder: str, trust: bool = True) -> ScenarioFile:
    """Make a scenario of parsed TOML, or of a dict of the caller's own; see `load`."""
    base: dict[str, Any] = {"task": {"name": "digits"}, "policy": {"name": "random"}, "topology": {"name": "complete"}}
    base |= with_files(raw, folder)
    top = _FileKeys(**{key: base.pop(key) for key in _FileKeys.__struct_fields__ if key in base})
    top.check(name)
    base_name = name if top.name is None else top.name
    parsed = changes_with_files([tables.parse_change(change) for change in changes], folder)
    for key, _ in parsed:
        if key in top.varied:
            raise ConfigurationError(f"{name}: {key} is what this sweep varies; it cannot be changed for all runs")
    form = next((value for key, value in reversed(parsed) if key == "form"), top.form)
    if form != "full" and form not in list(top.forms):
        raise ConfigurationError(f"{name}: {unknown('form', str(form), {'full', *top.forms})}")
    of_form = with_files(top.forms.get(form, {}), folder)
    seeds = of_form.pop("seeds", top.seeds)
    target = next((value for key, value in reversed(parsed) if key == "target"), of_form.pop("target", top.target))
    if seeds is not None:
        check_seeds(f"{name}: seeds", seeds)
    if target is not None and (type(target) not in (int, float) or not isfinite(target)):
        raise ConfigurationError(f"{name}: target must be a number, got {target!r}")
    if top.against and top.against not in (known := [str(row.get("name", base_name)) for row in top.run or [{}]]):
        raise ConfigurationError(f"{name}: {unknown('run in against', top.against, known)}")
    rows = _rows(name, top.run, of_form.pop("runs", None))
    base = tables.merged(base, of_form)
    merged = [tables.merged(base, with_files(row, folder)) for row in rows or [{}]]
    entries = [entry for one in merged for entry in _each(name, {"name": base_name} | one, folder)]
    runs = deepcopy(entries)
    for run in runs:
        for key, value in parsed:
            if key not in ("form", "target"):
                tables.apply(run, key, value)
    kept, notes = _distinct(name, entries, runs, parsed)
    scenarios = tuple(checked(name, run) for run in kept)
    _check_pools(name, scenarios, target)
    if any(key == "seed" for key, _ in parsed):
        seeds = None
    modules = str(Path(folder, top.modules).resolve())
    path = module_folders(name, scenarios, str(Path(folder).resolve()), modules, given_names(parsed), trust)
    against = top.against if top.against in {run.row for run in scenarios} else ""
    return ScenarioFile(
        base_name,
        top.description,
        scenarios,
        tuple(seeds or [scenarios[0].seed]),
        path[0] if path else modules,
        path,
        notes,
        against,
        target,
        top.varied,
        top.source,
        top.table,
        top.figure,
        claims_of(name, top.claim, [str(row.get("name", base_name)) for row in top.run or [{}]]),
        tuple(top.forms),
    )


def _rows(where: str, rows: Sequence[dict[str, Any]], picked: Any) -> list[dict[str, Any]]:
    """Return the `[[run]]` entries that a form has, with its changes to them.

    Args:
        picked: changes by the name of an entry; None keeps all entries as they are.
    """
    if picked is None:
        return list(rows)
    if not isinstance(picked, dict) or not picked or not all(isinstance(change, dict) for change in picked.values()):
        raise ConfigurationError(f"{where}: runs of a form must be tables by the runs' names, one at least, got {picked!r}")
    known = {str(row.get("name")): row for row in rows}
    for key in picked:
        if key not in known:
            raise ConfigurationError(f"{where}: a form has an {unknown('run', key, known)}")
    return [tables.merged(row, picked[key]) for key, row in known.items() if key in picked]


def _each(where: str, entry: dict[str, Any], folder: str) -> list[dict[str, Any]]:
    """Return the runs that a `[[run]]` entry stands for: one for every combination of what its key `each` lists.

    They are called "NAME, task.lr=0.1". If the entry has a pool, they are in it.
    """
    each, pool = entry.pop("each", {}), entry.get("pool")
    if not isinstance(each, dict) or not all(isinstance(values, list) and values for values in each.values()):
        raise ConfigurationError(
            f'{where}: each must be a table of lists, such as {{ "task.lr" = [0.1, 1.0] }}, got {each!r}'
        )
    if prod(map(len, each.values())) > MOST_OF_EACH:
        raise ConfigurationError(f"{where}: each lists more than {MOST_OF_EACH:,} combinations")
    if isinstance(pool, dict):
        entry["pool"] = {"name": entry["name"]} | pool
    runs = []
    for values in product(*each.values()):
        given = list(zip(each, values, strict=True))
        run = deepcopy(entry)
        for key, value in changes_with_files(given, folder):
            tables.apply(run, key, value)
        words = [f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in given]
        run["name"] = ", ".join([str(entry["name"]), *words]) if words else entry["name"]
        runs.append(run)
    return runs


def _check_pools(where: str, runs: Sequence[Scenario], target: float | None) -> None:
    """Raise ConfigurationError where runs of a pool differ in what they give it, or its row is that of another run."""
    pools: dict[str, Pool] = {}
    for pool in (run.pool for run in runs if run.pool is not None):
        if pools.setdefault(pool.name, pool) != pool:
            raise ConfigurationError(
                f"{where}: the runs of the pool {pool.name!r} must all give it the same: nodes, means or fronts"
            )
    for name in pools.keys() & {run.name for run in runs if run.pool is None}:
        raise ConfigurationError(f"{where}: a run and a pool are called {name!r}")
    if pools and target is not None:
        raise ConfigurationError(f"{where}: what it takes to reach a target is said of runs, and not of pools")


class _FileKeys(msgspec.Struct):
    """The keys that a scenario file has beside those of a run, as they were found: `check` looks at their types.

    Attributes:
        name: of the scenario; without it, that of the file.
        description: one or two sentences.
        modules: the folder of modules that it names, relative to the file; without `--trust` it must be the file's own
            folder, or within it.
        against: the run that the others are compared with in the table.
        target: a value of the test metric; of each run it is said what it took until the mean over the nodes after a round
            was as good.
        seeds: what every run is repeated with.
        form: which of the forms is meant where `--set form=NAME` names none; `full` is the file as it stands.
        forms: by name, changes for a quicker or another run of the same: keys of a run, `seeds`, and `runs`, which names the
            runs that the form has, each with changes.
        varied: what a sweep has varied, each key with its values; it says so itself in the scenario that it leaves.
        source: the paper that `paper` of the rows is of.
        table: which of its tables.
        figure: what of a row of the table in summary.json is compared with the paper's figure, such as
            `objectives.hypervolume`.
        claim: what `p2pfl-sim reproduce --short` is to show of the rows.
        run: the rows of the table: each changes keys of all others for itself.
    """

    name: str | None = None
    description: str = ""
    modules: str = "."
    against: str = ""
    target: float | None = None
    varied: dict[str, list[Any]] = {}
    source: str = ""
    table: str = ""
    figure: str = MEAN
    claim: list[dict[str, Any]] = []
    seeds: list[int] | None = None
    form: str = "full"
    forms: dict[str, dict[str, Any]] = {}
    run: list[dict[str, Any]] = []

    def check(self, where: str) -> None:
        """Raise ConfigurationError for a value of another type."""
        for key in ("name", "description", "modules", "against", "form", "source", "table", "figure"):
            value = getattr(self, key)
            if value is not None and not isinstance(value, str):
                raise ConfigurationError(f"{where}: {key} must be a string, got {value!r}")
        if not isinstance(self.varied, dict) or not all(isinstance(values, list) for values in self.varied.values()):
            raise ConfigurationError(f"{where}: varied must be a table of lists, got {self.varied!r}")
        if not isinstance(self.forms, dict) or not all(isinstance(form, dict) for form in self.forms.values()):
            raise ConfigurationError(f"{where}: forms must be tables such as [forms.smoke], got {self.forms!r}")
        for key in ("run", "claim"):
            entries = getattr(self, key)
            if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
                raise ConfigurationError(f"{where}: [[{key}]] must be a list of tables, got {entries!r}")


def check_seeds(where: str, seeds: Any) -> None:
    """Raise ConfigurationError for what is no list, a seed that is no number from 0, or one that occurs twice."""
    if not isinstance(seeds, list):
        raise ConfigurationError(f"{where} must be a list of numbers from 0, got {seeds!r}")
    if not all(type(seed) is int and seed >= 0 for seed in seeds):
        raise ConfigurationError(f"{where} must be a list of numbers from 0, got {seeds}")
    twice = sorted(seed for seed, count in Counter(seeds).items() if count > 1)
    if twice:
        raise ConfigurationError(f"{where} must be different, got {', '.join(map(str, twice))} more than once")


def _distinct(
    where: str, entries: Sequence[dict[str, Any]], runs: Sequence[dict[str, Any]], changes: Sequence[tuple[str, Any]]
) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Drop runs that the changes have made equal to an earlier one, with a note, and give the rest names that fit.

    With `policy.name` changed, the names of rows that stand for policies would be wrong.

    Args:
        entries: the runs as they were before the changes.
    """
    renamed = next((str(value) for key, value in reversed(changes) if key == "policy.name"), None)
    kept: list[int] = [] if changes else [*range(len(runs))]
    for k, run in enumerate(runs if changes else ()):
        alike = [j for j in kept if _settings(runs[j]) == _settings(run)]
        if all(_settings(entries[j]) == _settings(entries[k]) for j in alike):
            kept.append(k)
    dropped = [str(run["name"]) for k, run in enumerate(runs) if k not in kept]
    result = [runs[k] if renamed is None else {**_settings(runs[k]), "name": renamed} for k in kept]
    names: dict[str, int] = {}
    for run in result:
        name = str(run["name"])
        names[name] = names.get(name, 0) + 1
        if names[name] > 1:
            if renamed is None:
                raise ConfigurationError(f"{where}: two runs are called {name!r}")
            run["name"] = f"{name} ({names[name]})"
    return result, (f"left out, as the changes have made them equal to others: {', '.join(dropped)}",) if dropped else ()


def _settings(run: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in run.items() if key not in ("name", "paper", "pool", "varied")}


def checked(where: str, table: Mapping[str, Any]) -> Scenario:
    """Return the run that a table of a scenario is.

    Raises:
        ConfigurationError: a key that is not known, or a value that makes no sense.
    """
    scenario = tables.typed(where, table, Scenario)
    try:
        scenario.check()
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from error
    return scenario
