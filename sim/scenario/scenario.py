"""Scenario: one TOML file for one table of a paper, a base and `[[run]]` entries that vary it.

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

[[answer]]             # what answers the `question` of the file; see p2pfl.sim.scenario.questions
run = "with peers"
against = "alone"

[[claim]]              # a check of `p2pfl-sim reproduce --short`; see p2pfl.sim.scenario.claims
run = "with peers"
above = "alone"
by = 0.1

[forms.short]          # --set form=short
rounds = 3
seeds = [0]
runs = { "with peers" = { policy = { neighbours = 2 } } }    # its runs, with changes; all if not given

How a file becomes runs, in the order of `resolve`:

1. `load` finds the file: a path, or the name of a shipped scenario.
2. Names and Python objects become tables with a `name` (p2pfl.sim.scenario.names), and files get full paths
   (p2pfl.sim.scenario.topology).
3. The keys are separated. `FileKeys` has those of the file; all others are the base, keys of every run.
4. A form is selected. It changes keys of the file, of the base, and of the entries, of which it may drop some.
5. Each entry is merged into the base. The key `each` makes several runs of an entry.
6. Changes of the user, such as --set nodes=20, are applied to every run. Runs that they make equal are left out.
7. Each table is bound to a `Scenario` and checked.

`ScenarioFile` is the result. `ScenarioFile.to_toml` writes it into the folder of a run, without forms and with every run in
full, and `restore` reads it from there. A sweep (p2pfl.sim.scenario.sweep) changes a `ScenarioFile` further.

An error names the keys that it is about, and `resolve` adds the source of their values: the file, or the changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from difflib import get_close_matches
from functools import lru_cache
from itertools import product
from math import inf, isfinite, prod
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import asdict, replace

from p2pfl._util import toml_tables
from p2pfl._util.binding import bind, convert, split_name
from p2pfl._util.registry import ObjectName
from p2pfl.attacks.attack import Attack
from p2pfl.attacks.registry import make_attack
from p2pfl.errors import ConfigurationError, RunError, about, must_be, name_source, unknown
from p2pfl.multiobjective.annealing import Schedule
from p2pfl.node.settings import DEFAULT_POLICY, DEFAULT_TASK, End, Settings
from p2pfl.random_streams import federation_streams
from p2pfl.sim.formatting import setting, some
from p2pfl.sim.scenario.availability import Availability
from p2pfl.sim.scenario.claims import MEAN, Claim, among, check_claims
from p2pfl.sim.scenario.devices import SHIPPED as SHIPPED_DEVICES
from p2pfl.sim.scenario.devices import Device, NodeFacts, Speed, assign, check_devices
from p2pfl.sim.scenario.names import KINDS, given_names, module_folders, with_tables
from p2pfl.sim.scenario.network import Budgets, Network, Range, check_number, check_range
from p2pfl.sim.scenario.privacy import Privacies
from p2pfl.sim.scenario.questions import Answer, base_of, check_answers
from p2pfl.sim.scenario.topology import (
    FACTORIES,
    FILE,
    GRAPH,
    full_changes,
    options_of,
    with_absolute_file,
    with_data,
    with_files,
)

SHIPPED = Path(__file__).parent.parent / "scenarios"
MOST_NEAR = 3  # names in the error for an unknown scenario
MOST_OF_EACH = 10_000  # runs from one entry; more are probably a mistake
DEFAULTS = {"task": {"name": DEFAULT_TASK}, "policy": {"name": DEFAULT_POLICY}, "topology": {"name": "complete"}}
IN_FORMS = ("duration", "seeds", "target")  # keys of the file that a form can have
ALWAYS = ("name", "description", "seeds", "run")  # keys of the file that the folder of a run always has
FULL = "full"  # form that is the file as it stands
LABELS = ("name", "paper", "pool", "varied")  # keys of a run without an effect on its results

Changes = Sequence[tuple[str, Any]]  # keys such as "policy.tau", and their values
Table = dict[str, Any]

# Tables of a run


class Compute(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Speed of the nodes, and the energy that they use.

    Attributes:
        seconds: virtual seconds that one epoch of training takes on a node without a device.
        slowdown: factor by which a node is slower; a pair [low, high] draws one value for each node.
        device: class of the nodes' devices, from which the seconds and joules of their trainings follow: one name, a list
            from which node k has the k-th (from the start again), or a table of shares of the nodes. See
            p2pfl.sim.scenario.devices.
        by_group: name of the device by the group of a node's task, in place of `device`.
        devices: own devices by name, such as { my-board = { watts = 4.0, samples = 120 } }.
        radio: joules for each byte that a node sends or receives in its rounds.
    """

    seconds: float = 1.0
    slowdown: float | Range = 1.0
    device: str | tuple[str, ...] | dict[str, float] = ""
    by_group: dict[str, str] = msgspec.field(default_factory=dict)
    devices: dict[str, Device] = msgspec.field(default_factory=dict)
    radio: float = 0.0

    @property
    def measured(self) -> bool:
        """Whether nodes have devices, so that their trainings have joules."""
        return bool(self.device or self.by_group)

    def check(self) -> None:
        """Raise ConfigurationError for an invalid value."""
        check_number("compute.seconds", self.seconds)
        check_range("compute.slowdown", self.slowdown)
        check_number("compute.radio", self.radio)
        check_devices(self.device, self.by_group, self.devices)

    def speeds(self, nodes: Sequence[NodeFacts], slowdowns: Sequence[float], seed: int) -> list[Speed]:
        """Return the speed of each node.

        Args:
            slowdowns: factor of each node; see `slowdown`.
        """
        found = []
        for (group, values, n_samples, batch_size), name, slowdown in zip(
            nodes, assign(self.device, len(nodes), seed), slowdowns, strict=True
        ):
            name = self.by_group.get(str(group), name)
            device = self.devices.get(name, SHIPPED_DEVICES.get(name))
            if device is None:
                found.append(Speed(self.seconds * slowdown))
                continue
            each = (values / device.values if device.values else 1.0) / device.samples * slowdown
            found.append(Speed(n_samples * each, each, device.watts, device.idle, name, n_samples, batch_size))
        return found


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


class Search(Schedule, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of `p2pfl-sim pareto` for its search for a front (MOFL/D).

    Attributes:
        warm_start: each training starts from the model of the nearest preference that an earlier iteration has solved,
            and not from the initial model.
    """

    warm_start: bool = False


class AttackPlan(NamedTuple):
    """Attack of a run, and the numbers of the attackers, sorted."""

    attack: Attack
    nodes: tuple[int, ...]


def plan_attack(table: Mapping[str, Any] | None, nodes: int, seed: int) -> AttackPlan | None:
    """Return the attack that a table such as { name = "alie", share = 0.2 } describes; None without a table.

    The keys of the table:

    - `name`: of the attack;
    - `share`: share of the nodes that attack, drawn from the seed; 0.2 by default, rounded;
    - `nodes`: the numbers of the attackers, in place of the share;
    - options of the attack.

    Raises:
        ConfigurationError: a key is invalid, or no node would be honest.
    """
    if table is None:
        return None
    with about("attack"):
        return _plan(msgspec.json.encode(table), nodes, seed)


@lru_cache(maxsize=16)
def _plan(table: bytes, nodes: int, seed: int) -> AttackPlan:
    name, options = split_name("attack", msgspec.json.decode(table))
    share = convert("attack.share", options.pop("share", 0.2), float)
    chosen = convert("attack.nodes", options.pop("nodes", []), list[int])
    attack = make_attack(name, options)
    if chosen:
        if not all(0 <= k < nodes for k in chosen):
            raise ConfigurationError(
                f"attack.nodes must be numbers from 0 to {nodes - 1}, got {chosen}", "attack.nodes", "nodes"
            )
        picked = sorted(set(chosen))
    else:
        if not 0 <= share < 1:
            raise must_be("attack.share", "at least 0 and less than 1", share)
        order = federation_streams(seed).generator(0, "attackers").permutation(nodes)
        picked = np.sort(order[: int(share * nodes + 0.5)]).tolist()
    if len(picked) >= nodes:
        raise ConfigurationError(f"attack: at least one of the {nodes} nodes must be honest", "attack", "nodes")
    return AttackPlan(attack, tuple(picked))


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
        end: virtual seconds, or bytes of a node, after which the run ends before all of its `rounds`. What a node has not
            finished by the end of the seconds is dropped: its last model is that of the last round that it had ended.
        availability: when nodes are present, from a file or drawn; by default always. See
            p2pfl.sim.scenario.availability.
        budget: limits on what each node may receive, and on its trainings; a policy that requests more models ends the
            run, and a node whose trainings are used up goes on without them.
        privacy: differential privacy of what nodes release: epsilon, delta and the clip, for all nodes, by group or by node;
            see p2pfl.sim.scenario.privacy. By default none.
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
    availability: Availability = Availability()
    end: End = End()
    budget: Budgets = Budgets()
    privacy: Privacies = Privacies()
    attack: dict[str, Any] | None = None
    mean_model: bool = False
    late_rounds: int = 0
    fidelity: Literal["modelled", "wire"] = "modelled"
    trainer: Literal["stacked", "one-by-one"] = "stacked"
    search: Search | None = None

    def check(self) -> None:
        super().check()
        if self.nodes < 1:
            raise must_be("nodes", "1 or more", self.nodes)
        for key in ("task", "policy", "topology"):
            split_name(key, getattr(self, key))
        for group, changes in self.policy_by_group.items():
            if "name" in changes:
                raise ConfigurationError(
                    f"policy_by_group.{group} may change options only; all nodes have the policy {self.policy['name']}",
                    "policy_by_group",
                )
        self.network.check()
        if self.network.loses and self.deadline == inf:
            loss = self.network.loss
            cause, key = (
                (f"network.loss = {setting('', loss)}", "network.loss") if loss else ("network.links", "network.links")
            )
            raise ConfigurationError(
                f"with deadline = inf a node waits for ever for a message that {cause} loses;"
                f" set a finite deadline, such as deadline = 30, or {'network.loss = 0' if loss else 'no loss'}",
                "deadline",
                key,
            )
        self.budget.check()
        self._check_privacy()
        if self.adaptive and self.fidelity == "modelled":
            raise ConfigurationError('adaptive = true needs fidelity = "wire"', "adaptive", "fidelity")
        if self.paper is not None and not isfinite(self.paper):
            raise must_be("paper", "a finite number", self.paper)
        if self.late_rounds < 0:
            raise must_be("late_rounds", "0 or more", self.late_rounds)
        self.end.check()
        self.compute.check()
        self.availability.check(self.deadline)
        if self.budget.joules and not self.compute.measured:
            raise ConfigurationError(
                'budget.joules needs devices whose joules are known, such as compute.device = "raspberry-pi-4"',
                "budget.joules",
                "compute.device",
            )
        if self.search is not None:
            self.search.check()
        found = self.attack_plan()
        if found is not None and found.attack.targeted and self.fidelity == "wire":
            raise ConfigurationError(
                'an attack that sends each victim another model needs fidelity = "modelled"', "attack", "fidelity"
            )

    def _check_privacy(self) -> None:
        self.privacy.check_all(self.nodes)
        if self.privacy.wanted and self.search is not None:
            raise ConfigurationError(
                "a search trains on the same data again and again, which no privacy budget covers; remove one of them",
                "privacy",
                "search",
            )

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


# The file


class FileKeys(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Keys that a scenario file has in addition to those of a run.

    Attributes:
        name: name of the scenario; by default the name of the file.
        title: what the scenario shows, in about ten words; `p2pfl-sim list` prints it.
        question: the question that the scenario asks, in one sentence; see p2pfl.sim.scenario.questions.
        unanswered: what these runs lack to answer it, and how to get it, in one sentence; "" if they have all.
        description: the setting and the paper, in a few sentences.
        needs: data set, extra or file that the user provides, such as "CIFAR-10"; by default nothing.
        duration: rough run time in seconds on two cores; a form can have its own.
        differences: differences from the paper, one sentence or more each.
        modules: the folder of the modules that the scenario names, relative to the file; without `--trust` it must be
            the file's own folder, or inside it.
        against: the run with which the table compares the others; in a sweep, each with the run of the same values of the
            keys that both vary.
        target: a value of the test metric; for each run, the table shows the cost until the mean over the nodes after a
            round reached it.
        seeds: seeds with which every run is repeated.
        form: the form to use if no `--set form=NAME` is given; `full` is the file as it stands.
        forms: by name, changes that make a shorter or different version: keys of a run, `seeds`, and `runs`, which
            names the runs of the form, each with changes.
        varied: the varied keys of a sweep with their values; a sweep writes this key itself.
        source: the paper with the figures in `paper` of the rows.
        table: the table or section of the paper, such as "table 3".
        figure: the figure of a row in summary.json that is compared with the paper's, such as `objectives.hypervolume`.
        printed: further figures in summary.json that are recorded, each with the printed values of rows, if any.
        claims: claims about the rows that `p2pfl-sim reproduce --short` checks.
        answers: comparisons of rows that answer the question; findings begin with them.
        references: rows, or patterns of their names, that findings never name as the best, as they do for the policies
            local and oracle.
        entries: the rows of the table; each overrides keys of the base for itself.
    """

    name: str = ""
    title: str = ""
    question: str = ""
    unanswered: str = ""
    description: str = ""
    needs: str = ""
    duration: int | float | None = None
    differences: tuple[str, ...] = ()
    modules: str = "."
    against: str = ""
    target: int | float | None = None
    varied: dict[str, list[Any]] = {}
    source: str = ""
    table: str = ""
    figure: str = MEAN
    printed: dict[str, dict[str, int | float]] = {}
    claims: tuple[Claim, ...] = msgspec.field(default=(), name="claim")
    answers: tuple[Answer, ...] = msgspec.field(default=(), name="answer")
    references: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    form: str = FULL
    forms: dict[str, dict[str, Any]] = {}
    entries: tuple[dict[str, Any], ...] = msgspec.field(default=(), name="run")

    @classmethod
    def bound(cls, table: Mapping[str, Any]) -> FileKeys:
        """Return the keys in a table.

        Raises:
            ConfigurationError: a key is unknown, or its value has the wrong type.
        """
        if "seeds" in table:
            check_seeds("seeds", table["seeds"])
        return bind(table, cls)

    def check(self) -> None:
        """Raise ConfigurationError for an invalid value."""
        if self.duration is not None and not 0 < self.duration < inf:
            raise must_be("duration", "a positive number of seconds", self.duration)
        if self.target is not None and not isfinite(self.target):
            raise must_be("target", "a number", self.target)
        check_answers(self.answers)


FILE_KEYS = FileKeys.__struct_encode_fields__


class ScenarioFile(FileKeys, frozen=True, kw_only=True):
    """A scenario with all of its runs, resolved.

    Of the keys of the file, `name` and `seeds` are always set, `duration` and `target` are those of the selected form,
    `against` names a row of the runs or none, and `entries` is empty.

    Attributes:
        runs: the runs, with the changes of the form and of the user.
        folder: folder of the modules that it names: the folder of the file, unless its key `modules` names another one.
        path: folders to search for its modules, after all others; () if it names none.
        notes: notes for the user about its resolution.
        overridden: what the user has changed of a file with a description, in words; the description says it, too.
        graph: NetworkX graph that a Python program gives as the topology of all runs; None for those of the runs.
    """

    runs: tuple[Scenario, ...]
    folder: str
    path: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    overridden: str = ""
    graph: Any = None

    def rows(self) -> dict[str, list[Scenario]]:
        """Return the runs of each row of the table: one, or those of a pool."""
        found: dict[str, list[Scenario]] = {}
        for run in self.runs:
            found.setdefault(run.row, []).append(run)
        return found

    def to_toml(self) -> Table:
        """Return TOML tables that resolve to the same runs, with the claims about them; without forms and the duration."""
        mine = self.rows()
        own_modules = any(":" in str(named["name"]) for run in self.runs for named in (run.task, run.policy))
        resolved = {
            "duration": None,
            "modules": self.folder if own_modules else ".",
            "printed": {figure: {row: of[row] for row in of if row in mine} for figure, of in self.printed.items()},
            "claims": tuple(among(self.claims, mine)),
            "form": FULL,
            "forms": {},
            "entries": tuple(map(self._entry, self.runs)),
        }
        keys = FileKeys(**{key: getattr(self, key) for key in FileKeys.__struct_fields__} | resolved)
        table, defaults = msgspec.to_builtins(keys, enc_hook=str), msgspec.to_builtins(FileKeys())
        kept = {key: value for key, value in table.items() if key in ALWAYS or value != defaults[key]}
        return {key: list(value) if isinstance(value, tuple) else value for key, value in kept.items()}

    def _entry(self, run: Scenario) -> Table:
        table = msgspec.to_builtins(run, enc_hook=str)  # of an ObjectName only the text remains
        if self.graph is not None:
            table["topology"] = {"name": FILE, "file": GRAPH}
        if not run.varied:
            del table["varied"]
        if not run.network.links:
            del table["network"]["links"]
        for key in ("end", "availability", "privacy"):
            if getattr(run, key) == type(getattr(run, key))():
                del table[key]
        for key in ("device", "by_group", "devices", "radio"):
            if not getattr(run.compute, key):
                del table["compute"][key]
        for key in ("trainings", "joules"):
            if not getattr(run.budget, key):
                del table["budget"][key]
        return {key: value for key, value in table.items() if value is not None}

    def only(self, *texts: str) -> ScenarioFile:
        """Return the scenario with only the runs that one of the texts selects (see `selects`); without texts, with all.

        Raises:
            ConfigurationError: a text selects no run.
        """
        for text in texts:
            if not any(selects(text, run.name) for run in self.runs):
                names = some((f'"{run.name}"' for run in self.runs), most=8)
                missing = f"is named {text[1:]!r}" if text.startswith("=") else f"has {text!r} in its name"
                raise ConfigurationError(f"no run of {self.name} {missing}; its runs: {names}", "--only")
        kept = [run.name for run in self.runs if not texts or any(selects(text, run.name) for text in texts)]
        return self.part(kept, self.seeds)

    def part(self, names: Container[str], seeds: Sequence[int]) -> ScenarioFile:
        """Return the scenario with only the named runs and these seeds."""
        kept = tuple(run for run in self.runs if run.name in names)
        against = against_of(self.against, kept)
        return replace(self, runs=kept, seeds=tuple(seeds), against=against)

    def only_run(self, name: str, seed: int) -> ScenarioFile:
        """Return the scenario with one run and one seed only."""
        runs = tuple(replace(run, seed=seed, varied={}) for run in self.runs if run.name == name)
        none: Table = {"varied": {}, "printed": {}, "claims": (), "answers": (), "forms": {}}
        return replace(self, runs=runs, seeds=(seed,), against="", **none)

    def with_given(self, changes: Changes) -> ScenarioFile:
        """Return the scenario with the module folders that the user names in these changes."""
        if not given_names(changes):
            return self
        return replace(self, path=tuple(dict.fromkeys((*self.path, self.folder, str(Path.cwd())))))


def selects(text: str, name: str) -> bool:
    """Return whether a text of `--only` selects the run of this name: a part of the name, or all of it after "="."""
    return name == text[1:] if text.startswith("=") else text in name


def jobs_of(file: ScenarioFile) -> list[Scenario]:
    """Return each run with each seed, in the order of the file."""
    return [replace(scenario, seed=seed) for scenario in file.runs for seed in file.seeds]


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


def load(
    name: str, changes: Sequence[str] = (), trust: bool = False, only: Sequence[str] = (), *, changer: str = ""
) -> ScenarioFile:
    """Read a scenario by its name or its file, with `key=value` changes applied to all of its runs.

    Args:
        only: texts that select runs by their names, before or after the changes; see `ScenarioFile.only`.
        trust: import every module that it names; see p2pfl.sim.scenario.names.
        changer: source of `changes` and `only`, for errors; by default they name the scenario only.

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
    return resolve(toml_tables.read(path), changes, path.stem, folder, trust=trust, only=only, changer=changer)


def resolve(
    raw: Mapping[str, Any],
    changes: Sequence[str],
    name: str,
    folder: str,
    *,
    trust: bool = True,
    only: Sequence[str] = (),
    changer: str = "",
) -> ScenarioFile:
    """Resolve parsed TOML, or a dict of the caller, into a scenario; see `load`."""
    with name_source(changer or name):
        given = full_changes(map(toml_tables.parse_change, changes), folder)
    with name_source(name, ("--only", *(key for key, _ in given)), changer or name):
        return _resolve(raw, given, name, folder, trust=trust, only=only)


def _resolve(
    raw: Mapping[str, Any], given: Changes, name: str, folder: str, *, trust: bool, only: Sequence[str]
) -> ScenarioFile:
    base = DEFAULTS | with_files(with_tables(raw), folder)
    table = {key: base.pop(key) for key in FILE_KEYS if key in base}
    target = {key: value for key, value in given if key == "target"}
    keys = FileKeys.bound(table | target)
    _check_keys(base)
    _check_not_varied(keys, given)
    form, of_form = _select_form(keys, given, folder)
    table |= {} if form == FULL else {"duration": None}
    table |= {key: of_form.pop(key) for key in IN_FORMS if key in of_form}
    keys, picked = FileKeys.bound(table | target), of_form.pop("runs", None)
    keys.check()
    called = keys.name or name
    base = {"name": called} | toml_tables.merge(base, of_form)
    rows = [str(row.get("name", called)) for row in keys.entries or [{}]]
    for run in run_tables(base, keys.entries, folder):
        rows += [str(run["name"]), base_of(str(run["name"]), run.get("varied", {}))]
    _check_rows(keys, rows)
    found = [with_data(run, folder) for run in run_tables(base, _of_form(keys.entries, picked), folder)]
    tables, of_data = [run for run, _ in found], dict.fromkeys(note for _, note in found if note)
    if all(any(text in str(run["name"]) for run in tables) for text in only):
        tables = [run for run in tables if not only or any(text in str(run["name"]) for text in only)]
        only = ()  # changes of the policy change names
    tables, notes = _change_runs(tables, [change for change in given if change[0] not in ("form", "target")])
    overridden = f"overridden: {', '.join(f'{key} = {setting(key, value)}' for key, value in given if key != 'form')}"
    overridden = overridden if keys.description and any(key != "form" for key, _ in given) else ""
    runs = tuple(map(parse_run, tables))
    _check_pools(runs, keys.target)
    seeds = () if any(key == "seed" for key, _ in given) else keys.seeds
    modules, home = str(Path(folder, keys.modules).resolve()), str(Path(folder).resolve())
    names = {(kind, getattr(run, kind)["name"]) for run in runs for kind in KINDS}
    used = {(kind, path) for kind, path in names if not isinstance(path, ObjectName)}
    path = module_folders(used, home=home, modules=modules, given=given_names(given), trust=trust)
    file = _scenario_file(
        keys,
        name=called,
        description=_described(keys.description, form, overridden),
        seeds=seeds or (runs[0].seed,),
        against=against_of(keys.against, runs),
        varied={**_varied_values(runs), **keys.varied},
        runs=runs,
        folder=path[0] if path else modules,
        path=path,
        notes=(*of_data, *notes),
        overridden=overridden,
    )
    return file.only(*only)


def restore(raw: Mapping[str, Any], folder: Path) -> ScenarioFile:
    """Return the scenario whose method `to_toml` has returned these tables. Nothing is imported, and no name is resolved.

    Args:
        folder: the folder of its file.

    Raises:
        ConfigurationError: a key is unknown, or a value is invalid.
    """
    with name_source(str(folder)):
        keys = FileKeys.bound({key: raw[key] for key in FILE_KEYS if key in raw})
        runs = tuple(parse_run(with_absolute_file(run, folder)) for run in keys.entries)
        check_claims(keys.claims, [run.row for run in runs])
        return _scenario_file(keys, runs=runs, folder=str(folder / keys.modules))


def against_of(against: str, runs: Iterable[Scenario]) -> str:
    """Return the row that a table compares with, if these runs have it by its name or its name before a sweep; else ""."""
    return against if any(against in (run.row, base_of(run.row, run.varied)) for run in runs) else ""


def _scenario_file(keys: FileKeys, **resolved: Any) -> ScenarioFile:
    return ScenarioFile(**asdict(keys) | {"entries": ()} | resolved)


def _described(description: str, form: str, overridden: str) -> str:
    """Return the description of the scenario, with a sentence if its settings are not those of the form and the changes."""
    if form != FULL and description:
        text = f"This is the form `{form}`: its settings differ from those of the description."
        description = f"{description.rstrip()}\n{text}"
    if overridden:
        description = f"{description.rstrip()}\n{overridden[0].upper()}{overridden[1:]}."
    return description


def _check_keys(base: Mapping[str, Any]) -> None:
    known = {"each", *Scenario.__struct_encode_fields__}
    if wrong := next((key for key in base if key not in known), None):
        raise unknown("key", wrong, known | {*FILE_KEYS})


def _check_not_varied(keys: FileKeys, changes: Changes) -> None:
    for key, _ in changes:
        if key == "seeds":
            raise ConfigurationError("seeds cannot be changed with --set; use --seeds 0:3 (in Python: seeds=3)", key)
        if key.partition(".")[0] == "varied":
            raise ConfigurationError("varied is written by a sweep; use p2pfl-sim sweep --vary", key)
        if key in keys.varied:
            raise ConfigurationError(f"this sweep varies {key}; it cannot be changed for all runs", key)


def _check_rows(keys: FileKeys, rows: Sequence[str]) -> None:
    """Raise ConfigurationError if a key of the file names a row that does not exist."""
    if keys.against and keys.against not in rows:
        raise ConfigurationError(f"against: {unknown('run', keys.against, rows)}")
    for figure, values in keys.printed.items():
        for name in values:
            if name not in rows:
                raise ConfigurationError(f"printed.{figure}: {unknown('run', name, rows)}")
    check_claims(keys.claims, rows)


def _check_pools(runs: Sequence[Scenario], target: float | None) -> None:
    """Raise ConfigurationError if runs of a pool have different pool settings, or if another run has its row."""
    pools: dict[str, Pool] = {}
    for pool in (run.pool for run in runs if run.pool is not None):
        if pools.setdefault(pool.name, pool) != pool:
            raise ConfigurationError(
                f"all runs of the pool {pool.name!r} must have the same `of`: nodes, means or fronts", "pool"
            )
    for name in pools.keys() & {run.name for run in runs if run.pool is None}:
        raise ConfigurationError(f"a run and a pool have the name {name!r}; names must be unique", "pool", "name")
    if pools and target is not None:
        raise ConfigurationError("target cannot be combined with pools; remove one of them", "target", "pool")


def parse_run(table: Mapping[str, Any]) -> Scenario:
    """Return the run that a table of a scenario describes.

    Raises:
        ConfigurationError: an unknown key, or an invalid value.
    """
    for key in table.keys() - {*Scenario.__struct_encode_fields__}:
        if owners := [name for name in FACTORIES if key in options_of(name)]:
            names = ", ".join(owners)
            raise ConfigurationError(f"unknown key {key!r}; topology.{key} is an option of the topologies {names}", key)
    scenario = bind(table, Scenario)
    scenario.check()
    return scenario


# Forms


def _select_form(keys: FileKeys, changes: Changes, folder: str) -> tuple[str, Table]:
    """Return the name of the form that the changes name, or else of the one that the file names, and its table."""
    name = last(changes, "form", keys.form)
    if name != FULL and name not in list(keys.forms):
        with about("form"):
            raise unknown("form", str(name), {FULL, *keys.forms})
    return name, with_files(keys.forms.get(name, {}), folder)


def _of_form(entries: Sequence[Table], picked: Any) -> Sequence[Table]:
    """Return the `[[run]]` entries that a form has, with its changes to them.

    Args:
        picked: changes by the name of an entry; None keeps all entries unchanged.
    """
    if picked is None:
        return entries
    if not isinstance(picked, dict) or not picked or not all(isinstance(change, dict) for change in picked.values()):
        raise ConfigurationError(f"runs of a form must be one or more tables named like runs, got {picked!r}")
    known = {str(row.get("name")): row for row in entries}
    for key in picked:
        if key not in known:
            raise ConfigurationError(f"runs of a form: {unknown('run', key, known)}")
    return [toml_tables.merge(row, picked[key]) for key, row in known.items() if key in picked]


def last(changes: Changes, key: str, default: Any) -> Any:
    """Return the last value that the changes give a key."""
    return next((value for name, value in reversed(changes) if name == key), default)


def check_seeds(where: str, seeds: Any) -> None:
    """Raise ConfigurationError unless the value is a list of different integers from 0."""
    if not isinstance(seeds, list) or not all(type(seed) is int and seed >= 0 for seed in seeds):
        raise must_be(where, "a list of whole numbers of 0 or more", seeds)
    if twice := sorted(seed for seed, count in Counter(seeds).items() if count > 1):
        raise ConfigurationError(f"{where} must not repeat a seed, got {', '.join(map(str, twice))} more than once", where)


# Tables of the runs


def run_tables(base: Table, entries: Sequence[Table], folder: str) -> list[Table]:
    """Return the runs of `[[run]]` entries or, without entries, the base as the only run.

    Args:
        base: keys of all runs; its `name` is that of a run whose entry has none.
        folder: see p2pfl.sim.scenario.topology.with_files.
    """
    merged = [toml_tables.merge(base, with_files(entry, folder)) for entry in entries or [{}]]
    return [run for one in merged for run in _each(one, folder)]


def _each(entry: Table, folder: str) -> list[Table]:
    """Return the runs of a `[[run]]` entry: one for every combination of the values in its key `each`.

    Their names are like "NAME, task.lr=0.1". If the entry has a pool, they are in it; else they are runs of a sweep.
    """
    each, pool = entry.pop("each", {}), entry.get("pool")
    if not isinstance(each, dict) or not all(isinstance(values, list) and values for values in each.values()):
        raise must_be("each", 'a table of lists, such as { "task.lr" = [0.1, 1.0] }', each)
    if prod(map(len, each.values())) > MOST_OF_EACH:
        raise ConfigurationError(f"each has more than {MOST_OF_EACH:,} combinations, the maximum")
    if isinstance(pool, dict):
        entry["pool"] = {"name": entry["name"]} | pool
    runs = []
    for values in product(*each.values()):
        given = list(zip(each, values, strict=True))
        run = deepcopy(entry)
        toml_tables.apply_all(run, full_changes(given, folder))
        if given:
            run["name"] = ", ".join([str(entry["name"]), *map(_word, given)])
        if given and pool is None:
            run["varied"] = {**run.get("varied", {}), **dict(given)}
        runs.append(run)
    return runs


def _word(given: tuple[str, Any]) -> str:
    key, value = given
    return f"{key}={setting('', value)}"


def _varied_values(runs: Iterable[Scenario]) -> dict[str, list[Any]]:
    """Return the varied keys of runs with all their values, in the order of the runs."""
    found: dict[str, list[Any]] = {}
    for run in runs:
        for key, value in run.varied.items():
            if value not in found.setdefault(key, []):
                found[key].append(value)
    return found


def _change_runs(runs: Sequence[Table], changes: Changes) -> tuple[list[Table], tuple[str, ...]]:
    """Return runs with changes applied to all, and notes.

    A run that the changes have made equal to an earlier one is dropped, with a note. If the changes set `policy.name`,
    every run gets the name of the policy, because names of other policies would be wrong.
    """
    changed = deepcopy(list(runs))
    for run in changed:
        toml_tables.apply_all(run, changes)
        for key, _ in changes:
            _fix_key(run, key)
    kept = _distinct(runs, changed) if changes else range(len(runs))
    dropped = [str(run["name"]) for k, run in enumerate(runs) if k not in kept]
    named = _with_names([changed[k] for k in kept], last(changes, "policy.name", None))
    left_out = f"left out, because the changes make them equal to other runs: {some(dropped)}" if dropped else ""
    return named, tuple(filter(None, (left_out, _note_on_names(runs, changes))))


def _note_on_names(runs: Sequence[Table], changes: Changes) -> str:
    """Return a note if changes override keys in which the runs of a file differ, because their names may tell the values."""
    if any(key == "policy.name" for key, _ in changes):
        return ""  # the runs get other names
    said = []
    for key, value in changes:
        varied = any(f"{each}.".startswith(f"{key}.") for run in runs for each in run.get("varied", {}))  # see _fix_key
        if not varied and any(_value(run, key) != _value(runs[0], key) for run in runs):
            said.append(f"{key} = {setting(key, value)}")
    return f"rows keep their names of the file, although all have {', '.join(said)} now" if said else ""


def _value(run: Table, key: str) -> Any:
    """Return the value of a dotted key; None without one."""
    found: Any = run
    for part in key.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _fix_key(run: Table, key: str) -> None:
    """Remove a key that has the same value in all runs from the varied keys of a run, and from its name."""
    varied = run.get("varied", {})
    for gone in [each for each in varied if f"{each}.".startswith(f"{key}.")]:
        run["name"] = str(run["name"]).replace(f", {_word((gone, varied.pop(gone)))}", "")


def _distinct(before: Sequence[Table], changed: Sequence[Table]) -> list[int]:
    """Return the indices of changed runs that equal no earlier one, or that did so before the changes."""
    kept: list[int] = []
    for k, run in enumerate(changed):
        alike = [j for j in kept if settings_of(changed[j]) == settings_of(run)]
        if all(settings_of(before[j]) == settings_of(before[k]) for j in alike):
            kept.append(k)
    return kept


def _with_names(runs: Sequence[Table], policy: Any) -> list[Table]:
    """Return runs with unique names: their own or, if `policy` is not None, that policy's name with a number."""
    result = list(runs) if policy is None else [{**settings_of(run), "name": str(policy)} for run in runs]
    names: dict[str, int] = {}
    for run in result:
        name = str(run["name"])
        names[name] = names.get(name, 0) + 1
        if names[name] > 1:
            if policy is None:
                raise ConfigurationError(f"two runs have the name {name!r}; names must be unique", "name")
            run["name"] = f"{name} ({names[name]})"
    return result


def settings_of(run: Mapping[str, Any]) -> Table:
    """Return the keys of a run's table that have an effect on its results."""
    return {key: value for key, value in run.items() if key not in LABELS}


@contextmanager
def name_errors(job: Scenario) -> Iterator[None]:
    """Add the name of the run to every error that is raised in this block."""
    try:
        yield
    except Exception as error:
        run = f"run {job.name!r}, seed {job.seed}"
        if isinstance(error, ConfigurationError):
            raise ConfigurationError(f"{run}: {error}") from error
        if isinstance(error, RunError):
            error.run = run
        else:
            error.add_note(f"in {run}")
        raise
