"""One TOML file for one table of a paper: a base, and `[[run]]` entries that vary it.

name = "my-study"
seeds = [0, 1, 2]      # every run is repeated with each
against = "alone"      # the table compares each run with this one, in its metric and in the bytes sent
target = 0.8           # of the metric: the table has the cost of each run until its nodes' mean reaches it
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
paper = 0.9            # a figure to print next to this row

[[run]]                # one run for each preference; the table has one row for all of them
name = "fronts"
each = { "task.preference" = [[0.2, 0.8], [0.8, 0.2]] }
pool = { of = "means" }

[[claim]]              # a check of `p2pfl-sim reproduce --short`; see p2pfl.sim.scenario.claims
run = "with peers"
above = "alone"
by = 0.1

[forms.short]          # --set form=short
rounds = 3
seeds = [0]
runs = { "with peers" = { policy = { neighbours = 2 } } }    # its runs, with changes; all if not given
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from difflib import get_close_matches
from math import inf, isfinite
from pathlib import Path
from typing import Any, Literal

import msgspec

from p2pfl.config import table_changes
from p2pfl.config.binding import bind, split_name
from p2pfl.config.object_name import ObjectName
from p2pfl.errors import ConfigurationError, unknown
from p2pfl.node.folder.settings import DEFAULT_POLICY, DEFAULT_TASK, Settings
from p2pfl.sim.formatting import some
from p2pfl.sim.scenario.attacks import AttackPlan, plan_attack
from p2pfl.sim.scenario.budgets import Budgets
from p2pfl.sim.scenario.claims import MEAN, Claim, among, claims_of, printed_of
from p2pfl.sim.scenario.file_keys import Changes, FileKeys, select_form
from p2pfl.sim.scenario.imports import KINDS, given_names, module_folders
from p2pfl.sim.scenario.named_tables import named_changes, with_tables
from p2pfl.sim.scenario.network import Network, Range, check_number, check_range
from p2pfl.sim.scenario.run_tables import change_runs, run_tables, select_entries, varied_values
from p2pfl.sim.scenario.search import Search
from p2pfl.sim.scenario.topology import (
    FILE,
    GRAPH,
    changes_with_files,
    options_of,
    with_absolute_file,
    with_files,
)
from p2pfl.system import toml_reader
from p2pfl.topologies import BUILDERS

SHIPPED = Path(__file__).parent.parent / "scenarios"
MOST_NEAR = 3  # names in the error for an unknown scenario
DEFAULTS = {"task": {"name": DEFAULT_TASK}, "policy": {"name": DEFAULT_POLICY}, "topology": {"name": "complete"}}


class Compute(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Compute times of the nodes.

    Attributes:
        seconds: virtual seconds that one epoch of training takes.
        slowdown: factor by which a node is slower; a pair [low, high] draws one value for each node.
    """

    seconds: float = 1.0
    slowdown: float | Range = 1.0


class Pool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Runs whose solutions form one front, and one row of the table.

    Attributes:
        name: of the row; by default that of the `[[run]]` entry.
        of: the solutions that a run of several objectives contributes: the models of its `nodes`, or one solution, the
            `means` of their objectives. With `fronts` each node has its own front, with one model from each run of a
            task that reports error and disparity (PraFFL's); the row shows their mean hypervolume over the nodes next
            to its mean.
    """

    name: str = ""
    of: Literal["nodes", "means", "fronts"] = "nodes"


class Scenario(Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One run: a base with the changes of its `[[run]]` entry applied.

    Attributes:
        name: name of the run, and of its row in the table unless the run is in a pool.
        paper: the figure in a paper for this row.
        pool: the pool of runs that share its row.
        varied: in a sweep, the varied keys with the values of this run.
        nodes: number of nodes.
        task: the learning problem: a table with a `name`, and options; by default `digits`.
        policy: the rule by which nodes choose peers and average: a table with a `name`, and options; by default
            `dac`.
        topology: the graph of the nodes that may communicate: a table with a `name`, and options, or a `file` or
            the name of a shipped graph, which set `nodes`; by default `complete`.
        policy_by_group: changes to the policy's options for the nodes of a group, by the group that their task assigns.
        budget: limits on what each node may receive; a policy that requests more ends the run.
        attack: the attack of some nodes: a table with a `name`, the `share` of the nodes that attack (0.2 by default) or
            their numbers in `nodes`, and options of the attack; without it all nodes are honest.
        mean_model: whether to evaluate the mean of the honest nodes' models as well, and the mean of each group's models.
        late_rounds: number of last evaluated rounds of each node whose mean is reported as well, for metrics that vary
            from round to round; 0 reports none.
        fidelity: `modelled` computes arrival times of models; `wire` creates, signs and verifies every message.
        trainer: `stacked` trains many nodes as one tensor program where the module allows it; `one-by-one` never does.
        search: options of `p2pfl-sim pareto` for its search for a front; other commands run a single training with the
            task's preference.
        deadline: virtual seconds to wait for a peer before continuing without it; inf is no limit, and needs links
            without loss.
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
    attack: dict[str, Any] | None = None
    mean_model: bool = False
    late_rounds: int = 0
    fidelity: Literal["modelled", "wire"] = "modelled"
    trainer: Literal["stacked", "one-by-one"] = "stacked"
    search: Search | None = None

    def check(self) -> None:
        super().check()
        if self.nodes < 1:
            raise ConfigurationError(f"nodes must be 1 or more, got {self.nodes}")
        for key in ("task", "policy", "topology"):
            split_name(key, getattr(self, key))
        for group, changes in self.policy_by_group.items():
            if "name" in changes:
                raise ConfigurationError(
                    f"policy_by_group.{group} may change options only; all nodes have the policy {self.policy['name']}"
                )
        self.network.check()
        if self.network.loss and self.deadline == inf:
            raise ConfigurationError(
                f"with deadline = inf a node waits for ever for a message that network.loss = {self.network.loss:g} loses;"
                " set a finite deadline, such as deadline = 30, or network.loss = 0"
            )
        self.budget.check()
        if self.adaptive and self.fidelity == "modelled":
            raise ConfigurationError('adaptive = true needs fidelity = "wire"')
        if self.paper is not None and not isfinite(self.paper):
            raise ConfigurationError(f"paper must be a finite number, got {self.paper}")
        if self.late_rounds < 0:
            raise ConfigurationError(f"late_rounds must be 0 or more, got {self.late_rounds}")
        check_number("compute.seconds", self.compute.seconds)
        check_range("compute.slowdown", self.compute.slowdown)
        if self.search is not None:
            self.search.check()
        found = self.attack_plan()
        if found is not None and found.attack.targeted and self.fidelity == "wire":
            raise ConfigurationError('an attack that sends each victim another model needs fidelity = "modelled"')

    def attack_plan(self) -> AttackPlan | None:
        """Return the attack of this run, and its attackers; None if all nodes are honest."""
        return plan_attack(self.attack, self.nodes, self.seed)

    @property
    def row(self) -> str:
        """Return the name of its row in the table."""
        return self.name if self.pool is None else self.pool.name

    def policy_of(self, group: Any) -> dict[str, Any]:
        """Return the table of the policy for a node in a group; None is no group."""
        return self.policy | ({} if group is None else self.policy_by_group.get(str(group), {}))


class ScenarioFile(msgspec.Struct, frozen=True):
    """A scenario with all of its runs, resolved.

    Attributes:
        seeds: seeds with which every run is repeated.
        folder: folder of the modules that it names: the folder of the file, unless its key `modules` names another one.
        title: what it shows, in about ten words.
        needs: data set, extra or file that the user provides; "" is none.
        duration: rough run time of the selected form in seconds on two cores; None if unknown.
        differences: differences from the paper.
        path: folders to search for its modules, after all others; () if it names none.
        notes: notes for the user about its resolution.
        against: the row with which the table compares the others; "" is none.
        target: value of the test metric; for each run, the table shows the cost of reaching it.
        varied: for a sweep, the varied keys with all their values.
        source: the paper whose figures the table shows next to the rows; "" is none.
        table: the table or section of the paper, such as "table 3".
        figure: the figure of a row that is compared with the paper's, such as "mean" or "objectives.hypervolume".
        printed: further printed figures, by figure and row.
        claims: claims about the rows of the short form or, without one, of the whole scenario.
        forms: the names of the file's other forms, in order.
        graph: NetworkX graph that a Python program gives as the topology of all runs; None for those of the runs.
    """

    name: str
    description: str
    runs: tuple[Scenario, ...]
    seeds: tuple[int, ...]
    folder: str
    title: str = ""
    needs: str = ""
    duration: float | None = None
    differences: tuple[str, ...] = ()
    path: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    against: str = ""
    target: float | None = None
    varied: Mapping[str, list[Any]] = msgspec.field(default_factory=dict)
    source: str = ""
    table: str = ""
    figure: str = MEAN
    printed: Mapping[str, Mapping[str, float]] = msgspec.field(default_factory=dict)
    claims: tuple[Claim, ...] = ()
    forms: tuple[str, ...] = ()
    graph: Any = None

    def rows(self) -> dict[str, list[Scenario]]:
        """Return the runs of each row of the table: one, or those of a pool."""
        found: dict[str, list[Scenario]] = {}
        for run in self.runs:
            found.setdefault(run.row, []).append(run)
        return found

    def raw(self) -> dict[str, Any]:
        """Return TOML tables that resolve to the same runs, with the claims about them; the duration is not part of them."""
        plain = [msgspec.to_builtins(run, enc_hook=str) for run in self.runs]  # of an ObjectName only the text remains
        runs = [{key: value for key, value in table.items() if value is not None} for table in plain]
        for run in runs:
            if not run["varied"]:
                del run["varied"]
            if self.graph is not None:
                run["topology"] = {"name": FILE, "file": GRAPH}
        table: dict[str, Any] = {"name": self.name, "description": self.description, "seeds": list(self.seeds), "run": runs}
        if any(":" in str(named["name"]) for run in self.runs for named in (run.task, run.policy)):
            table["modules"] = self.folder
        for key in ("title", "needs", "against", "source", "table"):
            if value := getattr(self, key):
                table[key] = value
        if self.differences:
            table["differences"] = list(self.differences)
        if self.figure != MEAN:
            table["figure"] = self.figure
        if self.target is not None:
            table["target"] = self.target
        mine = self.rows()
        printed = {figure: {row: of[row] for row in of if row in mine} for figure, of in self.printed.items()}
        table |= {key: value for key, value in (("varied", dict(self.varied)), ("printed", printed)) if value}
        if claims := among(self.claims, mine):
            table["claim"] = msgspec.to_builtins(claims)
        return table

    def only(self, *texts: str) -> ScenarioFile:
        """Return the scenario with only the runs whose name contains one of the texts; without texts, with all runs.

        Raises:
            ConfigurationError: a text is in no name.
        """
        for text in texts:
            if not any(text in run.name for run in self.runs):
                names = some((f'"{run.name}"' for run in self.runs), most=8)
                raise ConfigurationError(f"no run of {self.name} has {text!r} in its name; its runs: {names}")
        return self.part([run.name for run in self.runs if not texts or any(t in run.name for t in texts)], self.seeds)

    def part(self, names: Container[str], seeds: Sequence[int]) -> ScenarioFile:
        """Return the scenario with only the named runs and these seeds."""
        kept = tuple(run for run in self.runs if run.name in names)
        against = self.against if any(run.row == self.against for run in kept) else ""
        return msgspec.structs.replace(self, runs=kept, seeds=tuple(seeds), against=against)

    def only_run(self, name: str, seed: int) -> ScenarioFile:
        """Return the scenario with one run and one seed only."""
        runs = tuple(msgspec.structs.replace(run, seed=seed, varied={}) for run in self.runs if run.name == name)
        return msgspec.structs.replace(
            self, runs=runs, seeds=(seed,), against="", varied={}, printed={}, claims=(), forms=()
        )

    def with_given(self, changes: Changes) -> ScenarioFile:
        """Return the scenario with the module folders that the user names in these changes."""
        if not given_names(changes):
            return self
        return msgspec.structs.replace(self, path=tuple(dict.fromkeys((*self.path, self.folder, str(Path.cwd())))))


def jobs_of(file: ScenarioFile) -> list[Scenario]:
    """Return each run with each seed, in the order of the file."""
    return [msgspec.structs.replace(scenario, seed=seed) for scenario in file.runs for seed in file.seeds]


def shipped_scenarios() -> dict[str, Path]:
    """Return the scenarios that come with p2pfl-sim, by name."""
    return {path.stem: path for path in sorted(SHIPPED.glob("*.toml"))}


def unknown_scenario(name: str) -> ConfigurationError:
    """Return the error for a name that no shipped scenario has, with the names that are close to it."""
    near = get_close_matches(name, shipped_scenarios(), n=MOST_NEAR)
    if near:
        *others, last = map(repr, near)
        return ConfigurationError(
            f"unknown scenario {name!r}; did you mean {', '.join(others)}{' or ' * bool(others)}{last}?"
        )
    return ConfigurationError(f"unknown scenario {name!r}; `p2pfl-sim list` prints all names, and a file must end in .toml")


def load(name: str, changes: Sequence[str] = (), trust: bool = False, only: Sequence[str] = ()) -> ScenarioFile:
    """Read a scenario by its name or its file, with `key=value` changes applied to all of its runs.

    Args:
        only: texts that select runs by their names, before or after the changes; see `ScenarioFile.only`.
        trust: import every module that it names; see p2pfl.sim.scenario.imports.

    Raises:
        ConfigurationError: no such scenario, broken TOML, an unknown key, a value of the wrong type or out of range, or
            a module that is not imported without `trust`.
    """
    known = shipped_scenarios()
    path = known.get(name) or Path(name)
    if path.suffix != ".toml" or not path.is_file():
        if path.suffix == ".toml":
            raise ConfigurationError(f"the scenario file {name} does not exist")
        if (path / "scenario.toml").is_file():
            raise ConfigurationError(f"{name} is a folder; name its file {path / 'scenario.toml'}")
        raise unknown_scenario(name)
    folder = str(path.resolve().parent)
    return resolve(toml_reader.read(path), changes, name=path.stem, folder=folder, trust=trust, only=only)


def resolve(
    raw: Mapping[str, Any],
    changes: Sequence[str],
    name: str,
    folder: str,
    *,
    trust: bool = True,
    only: Sequence[str] = (),
) -> ScenarioFile:
    """Resolve parsed TOML, or a dict of the caller, into a scenario; see `load`."""
    base = DEFAULTS | with_files(with_tables(raw), folder)
    keys = FileKeys(**{key: base.pop(key) for key in FileKeys.__struct_fields__ if key in base})
    keys.check(name)
    _check_keys(name, base)
    called = name if keys.name is None else keys.name
    given = changes_with_files(named_changes([table_changes.parse_change(change) for change in changes]), folder)
    _check_not_varied(name, keys, given)
    form = select_form(name, keys, given, folder)
    of_all = {"name": called} | table_changes.merge(base, form.base)
    rows = [str(row.get("name", called)) for row in keys.run or [{}]]
    rows += [str(run["name"]) for run in run_tables(name, of_all, keys.run, folder)]
    if keys.against and keys.against not in rows:
        raise ConfigurationError(f"{name}: against: {unknown('run', keys.against, rows)}")
    entries = run_tables(name, of_all, select_entries(name, keys.run, form.runs), folder)
    if all(any(text in str(entry["name"]) for entry in entries) for text in only):
        entries = [entry for entry in entries if not only or any(text in str(entry["name"]) for text in only)]
        only = ()  # changes of the policy change names
    kept, notes = change_runs(name, entries, [change for change in given if change[0] not in ("form", "target")])
    runs = tuple(parse_run(name, run) for run in kept)
    _check_pools(name, runs, form.target)
    seeds = None if any(key == "seed" for key, _ in given) else form.seeds
    modules = str(Path(folder, keys.modules).resolve())
    names = {(kind, getattr(run, kind)["name"]) for run in runs for kind in KINDS}
    used = {(kind, name) for kind, name in names if not isinstance(name, ObjectName)}
    path = module_folders(
        name, used, home=str(Path(folder).resolve()), modules=modules, given=given_names(given), trust=trust
    )
    file = ScenarioFile(
        name=called,
        description=form.describe(keys.description),
        runs=runs,
        seeds=tuple(seeds or [runs[0].seed]),
        folder=path[0] if path else modules,
        title=keys.title,
        needs=keys.needs,
        duration=form.duration,
        differences=tuple(keys.differences),
        path=path,
        notes=notes,
        against=keys.against if keys.against in {run.row for run in runs} else "",
        target=form.target,
        varied={**varied_values(run.varied for run in runs), **keys.varied},
        source=keys.source,
        table=keys.table,
        figure=keys.figure,
        printed=printed_of(name, keys.printed, rows),
        claims=claims_of(name, keys.claim, rows),
        forms=tuple(keys.forms),
    )
    return file.only(*only)


def restore(raw: Mapping[str, Any], folder: Path) -> ScenarioFile:
    """Return the scenario whose method `raw` has returned these tables. Nothing is imported, and no name is resolved.

    Args:
        folder: the folder of its file.

    Raises:
        ConfigurationError: a key is unknown, or a value is invalid.
    """
    where = str(folder)
    keys = FileKeys(**{key: raw[key] for key in FileKeys.__struct_fields__ if key in raw})
    keys.check(where)
    runs = tuple(parse_run(where, with_absolute_file(run, folder)) for run in keys.run)
    return ScenarioFile(
        name=str(keys.name),
        description=keys.description,
        runs=runs,
        seeds=tuple(keys.seeds or ()),
        folder=str(folder / keys.modules),
        title=keys.title,
        needs=keys.needs,
        differences=tuple(keys.differences),
        against=keys.against,
        target=keys.target,
        varied=keys.varied,
        source=keys.source,
        table=keys.table,
        figure=keys.figure,
        printed=keys.printed,
        claims=claims_of(where, keys.claim, [run.row for run in runs]),
    )


def _check_keys(where: str, base: Mapping[str, Any]) -> None:
    known = {"each", *Scenario.__struct_encode_fields__}
    if wrong := next((key for key in base if key not in known), None):
        raise ConfigurationError(f"{where}: {unknown('key', wrong, known | {*FileKeys.__struct_fields__})}")


def _check_not_varied(where: str, keys: FileKeys, changes: Changes) -> None:
    for key, _ in changes:
        if key == "seeds":
            raise ConfigurationError(f"{where}: seeds cannot be changed with --set; use --seeds 0:3 (in Python: seeds=3)")
        if key in keys.varied:
            raise ConfigurationError(f"{where}: this sweep varies {key}; it cannot be changed for all runs")


def _check_pools(where: str, runs: Sequence[Scenario], target: float | None) -> None:
    """Raise ConfigurationError if runs of a pool have different pool settings, or if another run has its row."""
    pools: dict[str, Pool] = {}
    for pool in (run.pool for run in runs if run.pool is not None):
        if pools.setdefault(pool.name, pool) != pool:
            raise ConfigurationError(
                f"{where}: all runs of the pool {pool.name!r} must have the same `of`: nodes, means or fronts"
            )
    for name in pools.keys() & {run.name for run in runs if run.pool is None}:
        raise ConfigurationError(f"{where}: a run and a pool have the name {name!r}; names must be unique")
    if pools and target is not None:
        raise ConfigurationError(f"{where}: target cannot be combined with pools; remove one of them")


def parse_run(where: str, table: Mapping[str, Any]) -> Scenario:
    """Return the run that a table of a scenario describes.

    Raises:
        ConfigurationError: an unknown key, or an invalid value.
    """
    for key in table.keys() - {*Scenario.__struct_encode_fields__}:
        if owners := [name for name in BUILDERS if key in options_of(name)]:
            names = ", ".join(owners)
            raise ConfigurationError(f"{where}: unknown key {key!r}; topology.{key} is an option of the topologies {names}")
    scenario = bind(where, table, Scenario)
    try:
        scenario.check()
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from error
    return scenario
