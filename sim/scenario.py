"""One TOML file for one table of a paper: a base, and `[[run]]` entries that vary it.

name = "my-study"
seeds = [0, 1, 2]      # every run is repeated with each
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
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, Literal

import msgspec

from node import tables
from node.settings import Settings
from p2pfl.errors import ConfigurationError, unknown
from sim.network import Network, Range, check_range

SHIPPED = Path(__file__).parent / "scenarios"


class Compute(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    Attributes:
        seconds: virtual seconds that one epoch of training takes.
        slowdown: how many times longer a node takes; a pair [low, high] draws one value for each node.
    """

    seconds: float = 1.0
    slowdown: float | Range = 1.0


class Scenario(Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One run: a base with the changes of its `[[run]]` entry applied.

    Attributes:
        name: of the run; it is the name of its row in the table.
        paper: the figure that a paper gives for this row.
        nodes: how many there are.
        task, policy, topology: each a table with a `name`, and options.
        fidelity: `modelled` computes when models arrive; `wire` makes, signs and verifies every message.
        trainer: `stacked` trains many nodes as one tensor program where the module allows it; `one-by-one` never does.
        deadline: virtual seconds.
    """

    name: str
    paper: float | None = None
    nodes: int = 10
    task: dict[str, Any]
    policy: dict[str, Any]
    topology: dict[str, Any]
    network: Network = Network()
    compute: Compute = Compute()
    fidelity: Literal["modelled", "wire"] = "modelled"
    trainer: Literal["stacked", "one-by-one"] = "stacked"

    def check(self) -> None:
        super().check()
        if self.nodes < 1:
            raise ConfigurationError(f"nodes must be 1 or more, got {self.nodes}")
        for key in ("task", "policy", "topology"):
            tables.named(key, getattr(self, key))
        self.network.check()
        if self.compute.seconds < 0:
            raise ConfigurationError(f"compute.seconds must be 0 or more, got {self.compute.seconds}")
        check_range("compute.slowdown", self.compute.slowdown)


class ScenarioFile(msgspec.Struct, frozen=True):
    """A scenario with all of its runs, resolved.

    Attributes:
        seeds: what every run is repeated with.
        folder: where modules that it names may lie: beside the file, unless its key `modules` names another folder.
    """

    name: str
    description: str
    runs: tuple[Scenario, ...]
    seeds: tuple[int, ...]
    folder: str

    def raw(self) -> dict[str, Any]:
        """Return the TOML tables that give the same scenario again."""
        runs = [{k: v for k, v in msgspec.to_builtins(run).items() if v is not None} for run in self.runs]
        table = {"name": self.name, "description": self.description, "seeds": list(self.seeds), "run": runs}
        if any(":" in str(named["name"]) for run in self.runs for named in (run.task, run.policy)):
            table["modules"] = str(Path(self.folder).resolve())
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
        return msgspec.structs.replace(self, runs=kept)


def shipped() -> dict[str, Path]:
    """Return the scenarios that come with p2pfl-sim, by name."""
    return {path.stem: path for path in sorted(SHIPPED.glob("*.toml"))}


def load(name: str, changes: Sequence[str] = ()) -> ScenarioFile:
    """Read a scenario by its name or its file, with `key=value` changes applied to all of its runs.

    Raises:
        ConfigurationError: no such scenario, broken TOML, an unknown key, a value of the wrong type or out of range.
    """
    known = shipped()
    path = known.get(name) or Path(name)
    if path.suffix != ".toml" or not path.is_file():
        if path.suffix == ".toml":
            raise ConfigurationError(f"there is no scenario file {name}")
        raise unknown("scenario", name, known)
    return resolve(tables.read(path), changes, name=path.stem, folder=str(path.resolve().parent))


def resolve(raw: Mapping[str, Any], changes: Sequence[str], name: str, folder: str) -> ScenarioFile:
    """Make a scenario of parsed TOML; see `load`."""
    base: dict[str, Any] = {"task": {"name": "digits"}, "policy": {"name": "random"}, "topology": {"name": "complete"}}
    base |= deepcopy(dict(raw))
    entries = base.pop("run", None) or [{}]
    forms = base.pop("forms", {})
    base_name, description = str(base.pop("name", name)), str(base.pop("description", ""))
    folder = str(Path(folder, str(base.pop("modules", "."))))
    seeds = base.pop("seeds", None)
    if seeds is not None and not (isinstance(seeds, list) and all(type(seed) is int and seed >= 0 for seed in seeds)):
        raise ConfigurationError(f"{name}: seeds must be a list of numbers from 0, got {seeds}")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ConfigurationError(f"{name}: [[run]] must be a list of tables")
    parsed = [tables.parse_change(change) for change in changes]
    form = next((value for key, value in reversed(parsed) if key == "form"), base.pop("form", "full"))
    base.pop("form", None)
    if form != "full" and form not in forms:
        raise unknown("form", str(form), {"full", *forms})
    runs: list[dict[str, Any]] = []
    for entry in entries:
        run = tables.merged(tables.merged(base, forms.get(form, {})), entry)
        for key, value in parsed:
            if key != "form":
                tables.apply(run, key, value)
        runs.append({"name": base_name} | run)
    scenarios = tuple(_scenario(name, run) for run in _distinct(runs, parsed))
    if any(key == "seed" for key, _ in parsed):
        seeds = None
    return ScenarioFile(base_name, description, scenarios, tuple(seeds or [scenarios[0].seed]), folder)


def _distinct(runs: Sequence[dict[str, Any]], changes: Sequence[tuple[str, Any]]) -> list[dict[str, Any]]:
    """Drop runs that the changes have made equal to an earlier one, and give the rest names that fit.

    With `policy.name` changed, the names of rows that stand for policies would be wrong.
    """
    renamed = next((str(value) for key, value in reversed(changes) if key == "policy.name"), None)
    kept: list[dict[str, Any]] = []
    for run in runs:
        settings = {key: value for key, value in run.items() if key not in ("name", "paper")}
        if any(settings == {k: v for k, v in other.items() if k not in ("name", "paper")} for other in kept):
            continue
        kept.append(run if renamed is None else {**settings, "name": renamed})
    names: dict[str, int] = {}
    for run in kept:
        name = str(run["name"])
        names[name] = names.get(name, 0) + 1
        if names[name] > 1:
            if renamed is None:
                raise ConfigurationError(f"two runs are called {name!r}")
            run["name"] = f"{name} ({names[name]})"
    return kept


def _scenario(where: str, table: Mapping[str, Any]) -> Scenario:
    scenario = tables.typed(where, table, Scenario)
    try:
        scenario.check()
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from error
    return scenario
