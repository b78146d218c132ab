"""Tables of the runs that the `[[run]]` entries of a scenario file expand to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from itertools import product
from math import prod
from typing import Any

from p2pfl.config import table_changes
from p2pfl.errors import ConfigurationError, unknown
from p2pfl.sim.formatting import setting
from p2pfl.sim.scenario.file_keys import Changes, last
from p2pfl.sim.scenario.named_tables import named_changes
from p2pfl.sim.scenario.topology import changes_with_files, with_files

MOST_OF_EACH = 10_000  # runs from one entry; more are probably a mistake

Table = dict[str, Any]


def run_tables(where: str, base: Table, entries: Sequence[Table], folder: str) -> list[Table]:
    """Return the runs of `[[run]]` entries or, without entries, the base as the only run.

    Args:
        where: name of the file, for errors.
        base: keys of all runs; its `name` is that of a run whose entry has none.
        folder: see p2pfl.sim.scenario.topology.with_files.
    """
    merged = [table_changes.merge(base, with_files(entry, folder)) for entry in entries or [{}]]
    return [run for one in merged for run in _each(where, one, folder)]


def select_entries(where: str, rows: Sequence[dict[str, Any]], picked: Any) -> list[dict[str, Any]]:
    """Return the `[[run]]` entries that a form has, with its changes to them.

    Args:
        picked: changes by the name of an entry; None keeps all entries unchanged.
    """
    if picked is None:
        return list(rows)
    if not isinstance(picked, dict) or not picked or not all(isinstance(change, dict) for change in picked.values()):
        raise ConfigurationError(f"{where}: runs of a form must be one or more tables named like runs, got {picked!r}")
    known = {str(row.get("name")): row for row in rows}
    for key in picked:
        if key not in known:
            raise ConfigurationError(f"{where}: runs of a form: {unknown('run', key, known)}")
    return [table_changes.merge(row, picked[key]) for key, row in known.items() if key in picked]


def _each(where: str, entry: dict[str, Any], folder: str) -> list[dict[str, Any]]:
    """Return the runs of a `[[run]]` entry: one for every combination of the values in its key `each`.

    Their names are like "NAME, task.lr=0.1". If the entry has a pool, they are in it; else they are runs of a sweep.
    """
    each, pool = entry.pop("each", {}), entry.get("pool")
    if not isinstance(each, dict) or not all(isinstance(values, list) and values for values in each.values()):
        raise ConfigurationError(
            f'{where}: each must be a table of lists, such as {{ "task.lr" = [0.1, 1.0] }}, got {each!r}'
        )
    if prod(map(len, each.values())) > MOST_OF_EACH:
        raise ConfigurationError(f"{where}: each has more than {MOST_OF_EACH:,} combinations, the maximum")
    if isinstance(pool, dict):
        entry["pool"] = {"name": entry["name"]} | pool
    runs = []
    for values in product(*each.values()):
        given = list(zip(each, values, strict=True))
        run = deepcopy(entry)
        for key, value in changes_with_files(named_changes(given), folder):
            table_changes.apply(run, key, value)
        if given:
            run["name"] = ", ".join([str(entry["name"]), *map(_word, given)])
        if given and pool is None:
            run["varied"] = {**run.get("varied", {}), **dict(given)}
        runs.append(run)
    return runs


def _word(given: tuple[str, Any]) -> str:
    key, value = given
    return f"{key}={setting('', value)}"


def varied_values(runs: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the varied keys of runs with all their values, in the order of the runs."""
    found: dict[str, list[Any]] = {}
    for varied in runs:
        for key, value in varied.items():
            if value not in found.setdefault(key, []):
                found[key].append(value)
    return found


def change_runs(where: str, runs: Sequence[Table], changes: Changes) -> tuple[list[Table], tuple[str, ...]]:
    """Return runs with changes applied to all, and notes.

    A run that the changes have made equal to an earlier one is dropped, with a note. If the changes set `policy.name`,
    every run gets the name of the policy, because names of other policies would be wrong.

    Args:
        where: name of the file, for errors.
    """
    changed = deepcopy(list(runs))
    for run in changed:
        for key, value in changes:
            table_changes.apply(run, key, value)
            _fix_key(run, key)
    kept = _distinct(runs, changed) if changes else range(len(runs))
    dropped = [str(run["name"]) for k, run in enumerate(runs) if k not in kept]
    named = _with_names(where, [changed[k] for k in kept], last(changes, "policy.name", None))
    notes = (f"left out, because the changes make them equal to other runs: {', '.join(dropped)}",) if dropped else ()
    return named, notes


def _fix_key(run: Table, key: str) -> None:
    """Remove a key that has the same value in all runs from the varied keys of a run, and from its name."""
    varied = run.get("varied", {})
    for gone in [each for each in varied if f"{each}.".startswith(f"{key}.")]:
        run["name"] = str(run["name"]).replace(f", {_word((gone, varied.pop(gone)))}", "")


def _distinct(before: Sequence[Table], changed: Sequence[Table]) -> list[int]:
    """Return the indices of changed runs that equal no earlier one, or that did so before the changes."""
    kept: list[int] = []
    for k, run in enumerate(changed):
        alike = [j for j in kept if _settings(changed[j]) == _settings(run)]
        if all(_settings(before[j]) == _settings(before[k]) for j in alike):
            kept.append(k)
    return kept


def _with_names(where: str, runs: Sequence[Table], policy: Any) -> list[Table]:
    """Return runs with unique names: their own or, if `policy` is not None, that policy's name with a number."""
    result = list(runs) if policy is None else [{**_settings(run), "name": str(policy)} for run in runs]
    names: dict[str, int] = {}
    for run in result:
        name = str(run["name"])
        names[name] = names.get(name, 0) + 1
        if names[name] > 1:
            if policy is None:
                raise ConfigurationError(f"{where}: two runs have the name {name!r}; names must be unique")
            run["name"] = f"{name} ({names[name]})"
    return result


def _settings(run: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in run.items() if key not in ("name", "paper", "pool", "varied")}
