"""Options of the objects that a run names, such as policy.tau."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from p2pfl.compression.codecs import CODECS
from p2pfl.config.binding import option_names, takes
from p2pfl.config.registry import resolve
from p2pfl.config.table_changes import parse_change
from p2pfl.errors import ConfigurationError, unknown
from p2pfl.policies import POLICIES
from p2pfl.sim.scenario.scenario import Scenario
from p2pfl.sim.scenario.topology import FILE
from p2pfl.task import TASKS
from p2pfl.topologies.builders import BUILDERS
from p2pfl.topologies.files import read

# Objects with options, by their key in a scenario: a function that finds the factory for a name, and the factory's
# arguments that are not options.
OPTIONS: dict[str, tuple[Callable[[str], Callable[..., Any]], tuple[str, ...]]] = {
    "policy": (lambda name: resolve("policy", name, POLICIES, "p2pfl.policies"), ()),
    "task": (lambda name: resolve("task", name, TASKS, "p2pfl.tasks"), ("part", "seed")),
    "topology": (lambda name: read if name == FILE else BUILDERS[name], ("n", "seed")),
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
        key = parse_change(change)[0]
        first, _, option = key.partition(".")
        if first not in OPTIONS or option in ("", "name", FILE):
            continue
        tables = {run.name: {first: getattr(run, first)} for run in runs}
        without = [name for name, table in tables.items() if not takes_option(table, key)]
        if not without:
            continue
        if with_it := [name for name in tables if name not in without]:
            raise ConfigurationError(
                f"command line: --set changes all runs, but the run {without[0]!r} does not take {key}; select runs that"
                f" take it with --only, such as --only {with_it[0]!r}"
            )
        known = [{f"{first}.{each}" for each in _options(table, first)} for table in tables.values()]
        hint = "" if all(each == known[0] for each in known) else " (--set changes all runs; --only RUN selects some)"
        raise ConfigurationError(f"command line: {unknown('key', key, set().union(*known))}{hint}")


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
