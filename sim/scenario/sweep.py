"""Grid of a sweep: every run of a scenario with every combination of the values of some keys.

If a run does not take a key, such as policy.tau for the policy `local`, the key is left out for that run. The run then
occurs once, not once for each value. Any other key counts as taken, even if it has no effect, such as budget.models for
`local`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from msgspec.structs import replace

from p2pfl._util import toml_tables
from p2pfl._util.binding import option_names, takes
from p2pfl._util.registry import resolve
from p2pfl.compression.codecs import CODECS
from p2pfl.errors import COMMAND_LINE, CommandLineError, ConfigurationError, name_source, unknown
from p2pfl.policies import POLICIES
from p2pfl.sim.scenario.questions import split
from p2pfl.sim.scenario.scenario import FILE_KEYS, LABELS, Scenario, ScenarioFile, Table, against_of, parse_run, settings_of
from p2pfl.sim.scenario.topology import FACTORIES as TOPOLOGIES
from p2pfl.sim.scenario.topology import FILE, full_changes
from p2pfl.task_specs import FACTORIES
from p2pfl.topologies import read

NOT_VARIED = dict.fromkeys((*FILE_KEYS, *LABELS, "each"), "")  # and the option that changes the key instead
NOT_VARIED |= {"seed": "--seeds", "seeds": "--seeds", "form": "--set", "target": "--set"}
MODELS = "budget.models"
MOST, MOST_WITH_SEEDS = 10_000, 100_000  # runs of a grid; more are probably a mistake


@dataclass(frozen=True)
class Axis:
    """A key and its values, each with its text in the names of runs."""

    key: str
    values: tuple[Any, ...]
    texts: tuple[str, ...]


def parse(vary: Sequence[str]) -> list[Axis]:
    """Read `policy.tau=1,10,100`: each value is a TOML value, such as the pair [2, 10], or a word without quotes.

    Raises:
        ConfigurationError: the format is wrong, a value or a key occurs twice, or the key cannot be varied.
    """
    axes = [_axis(text) for text in vary]
    for key, count in Counter(axis.key for axis in axes).items():
        if count > 1:
            raise ConfigurationError(f"--vary {key} is given {count} times; list all values in one --vary")
    return axes


def _axis(text: str) -> Axis:
    key, equals, listed = text.partition("=")
    key = key.strip()
    texts = tuple(split(listed))
    if not key or not equals or not all(texts):
        raise ConfigurationError(f"--vary must have the form KEY=VALUE,VALUE, such as policy.tau=1,10,100, got {text!r}")
    if (first := key.partition(".")[0]) in NOT_VARIED:
        other = f"; use {NOT_VARIED[first]}" if NOT_VARIED[first] else ""
        raise ConfigurationError(f"--vary {key}: a sweep cannot vary this key{other}")
    values = tuple(toml_tables.parse_change(f"{key}={one}")[1] for one in texts)
    for k, value in enumerate(values):
        if _same(value) in map(_same, values[:k]):
            raise ConfigurationError(f"--vary {key}: the value {texts[k]} is given twice")
    return Axis(key, values, texts)


def sweep(file: ScenarioFile, axes: Sequence[Axis]) -> ScenarioFile:
    """Return a scenario with every combination of the axes' values for each of its runs.

    Runs have names like "NAME, policy.tau=10", without NAME if there is only one run. Of equal runs in the grid only
    one is kept. If they come from different runs of the scenario, a note names those that are left out.

    Raises:
        ConfigurationError: there are too many, no run takes one of the keys, or a run is invalid with a value.
    """
    rows = file.to_toml()["run"]
    if (count := len(rows) * prod(len(axis.values) for axis in axes)) > MOST:
        raise ConfigurationError(f"the sweep has {count:,} runs; the maximum is {MOST:,}")
    if (count := count * len(file.seeds)) > MOST_WITH_SEEDS:
        raise ConfigurationError(f"the sweep has {count:,} runs with all seeds; the maximum is {MOST_WITH_SEEDS:,}")
    for axis in axes:
        if axis.key in file.varied:
            raise ConfigurationError(f"--vary {axis.key}: the scenario is a sweep that already varies this key")
        first, _, rest = axis.key.partition(".")
        if first in OPTIONS and rest in ("", "name", FILE) and len({_same(row[first]) for row in rows}) > 1:
            raise ConfigurationError(
                f"--vary {axis.key}: the {len(rows)} runs already differ in their {first}; select one with --only"
            )
    grid: dict[str, Table] = {}
    left_out = []
    for row in rows:
        mine = set()
        for places in product(*(range(len(axis.values)) for axis in axes)):
            table = _apply_axes(row, axes, places, file.folder)
            words = [
                f"{axis.key}={axis.texts[k]}" for axis, k in zip(axes, places, strict=True) if axis.key in table["varied"]
            ]
            table["name"] = ", ".join(words if len(rows) == 1 and words else [row["name"], *words])
            if "pool" in row:
                table["pool"] = row["pool"] | {"name": ", ".join([row["pool"]["name"], *words])}
            settings = _same(settings_of(table))
            if settings in grid and settings not in mine:
                left_out.append(table["name"])
            mine.add(settings)
            grid.setdefault(settings, table)
    _all_taken(axes, list(grid.values()))
    runs = []
    for table in grid.values():
        with name_source(f"{file.name}: {table['name']}"):
            runs.append(parse_run(table))
    notes = (f"left out, because they equal other runs: {', '.join(left_out)}",) if left_out else ()
    return replace(
        file,
        runs=tuple(runs),
        notes=(*file.notes, *notes),
        against=against_of(file.against, runs),
        varied={**file.varied, **{axis.key: list(axis.values) for axis in axes}},
    )


def _apply_axes(run: Table, axes: Sequence[Axis], places: Sequence[int], folder: str) -> Table:
    """Return a run with one combination of values; names are applied first, because options depend on them."""
    given = [(axis.key, axis.values[k]) for axis, k in zip(axes, places, strict=True)]
    names = [(key, value) for key, value in given if "." not in key or key.endswith((".name", f".{FILE}"))]
    options = [(key, value) for key, value in given if (key, value) not in names]
    table = deepcopy(run)
    toml_tables.apply_all(table, full_changes(names, folder))
    taken = [(key, value) for key, value in options if takes_option(table, key)]
    toml_tables.apply_all(table, full_changes(taken, folder))
    kept = {key for key, _ in (*names, *taken)}
    table["varied"] = {**run.get("varied", {}), **{key: value for key, value in given if key in kept}}
    return table


def _all_taken(axes: Sequence[Axis], grid: Sequence[Table]) -> None:
    for axis in axes:
        if not any(axis.key in run["varied"] for run in grid):
            first, _, option = axis.key.partition(".")
            named = ", ".join(sorted({str(run[first]["name"]) for run in grid}))
            raise ConfigurationError(
                f"--vary {axis.key}: no run has a {first} with the option {option}; the runs have {named}"
            )


def _same(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


# Options of the objects that a run names, such as policy.tau

# Objects with options, by their key in a scenario: a function that finds the factory for a name, and the factory's
# arguments that are not options.
OPTIONS: dict[str, tuple[Callable[[str], Callable[..., Any]], tuple[str, ...]]] = {
    "policy": (lambda name: resolve("policy", name, POLICIES, "p2pfl.policies"), ()),
    "task": (lambda name: resolve("task", name, FACTORIES, "p2pfl.tasks"), ("part", "seed")),
    "topology": (lambda name: read if name == FILE else TOPOLOGIES[name], ("n", "seed")),
    "codec": (lambda name: CODECS[name], ()),
}


def takes_option(run: Mapping[str, Any], key: str) -> bool:
    """Return whether the object that a run names takes an option; keys that are not options count as taken."""
    first, _, rest = key.partition(".")
    factory = _factory(run, first)
    return factory is None or takes(factory, rest.partition(".")[0], OPTIONS[first][1])


def check_changes(runs: Sequence[Scenario], changes: Sequence[str]) -> None:
    """Check that all runs take the options that "key=value" changes have set in them.

    Raises:
        ConfigurationError: a run does not take one; the error tells how to select the runs that do.
    """
    for change in changes:
        key = toml_tables.parse_change(change)[0]
        first, _, option = key.partition(".")
        if first not in OPTIONS or option in ("", "name", FILE):
            continue
        tables = {run.name: {first: getattr(run, first)} for run in runs}
        without = [name for name, table in tables.items() if not takes_option(table, key)]
        if not without:
            continue
        if with_it := [name for name in tables if name not in without]:
            raise CommandLineError(
                f"{COMMAND_LINE}: --set changes all runs, but the run {without[0]!r} does not take {key}; select runs that"
                f" take it with --only, such as --only {with_it[0]!r}"
            )
        known = [{f"{first}.{each}" for each in _options(table, first)} for table in tables.values()]
        hint = "" if all(each == known[0] for each in known) else " (--set changes all runs; --only RUN selects some)"
        raise CommandLineError(f"{COMMAND_LINE}: {unknown('key', key, set().union(*known))}{hint}")


def _factory(run: Mapping[str, Any], kind: str) -> Callable[..., Any] | None:
    """Return the factory of the object of a kind that a run names; None for no object with options."""
    named = run.get(kind)
    if kind not in OPTIONS or not isinstance(named, dict) or not isinstance(named.get("name"), str):
        return None
    try:
        return OPTIONS[kind][0](named["name"])
    except KeyError:  # an unknown name is reported elsewhere
        return None


def _options(run: Mapping[str, Any], kind: str) -> list[str]:
    factory = _factory(run, kind)
    return [] if factory is None else option_names(factory, OPTIONS[kind][1])
