"""Files with a schedule of faults: TOML, to be read, changed and replayed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import tomli_w

from p2pfl.config.binding import bind
from p2pfl.errors import ConfigurationError, RunError, none_of
from p2pfl.sim.chaos.invariants import Violation
from p2pfl.sim.chaos.schedule import KINDS, Fault
from p2pfl.system import toml_reader
from p2pfl.system.atomic_files import reason, replace_file


class _Contents(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    run: str
    seed: int
    violation: str = ""
    fault: list[Fault] = []


class Schedule(NamedTuple):
    """Schedule of a run of a scenario.

    Attributes:
        run: name of the run.
        violation: the violation that it led to; "" if unknown.
    """

    run: str
    seed: int
    faults: Sequence[Fault]
    violation: str = ""


def write_schedule(path: Path, schedule: Schedule, scenario: str) -> None:
    """Write a schedule.

    Raises:
        RunError: the file cannot be written.
    """
    head = f"# A schedule of faults. Run it again with: p2pfl-sim chaos {scenario} --replay {path.name}\n\n"
    table = {"run": schedule.run, "seed": schedule.seed, "violation": schedule.violation}
    faults = [msgspec.to_builtins(fault) for fault in schedule.faults]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, [(head + tomli_w.dumps({**table, "fault": faults})).encode()])
    except OSError as error:
        raise RunError(f"cannot write {path}: {reason(error)}") from error


def read_schedule(path: Path) -> Schedule:
    """Read a schedule.

    Raises:
        ConfigurationError: the file cannot be read, or an entry is unknown or invalid.
    """
    if not path.is_file():
        raise ConfigurationError(f"the schedule {path} does not exist")
    table = toml_reader.read(path)
    if isinstance(faults := table.get("fault"), list):
        _check_kinds(path, faults)
    read = bind(str(path), table, _Contents)
    return Schedule(read.run, read.seed, sorted(read.fault, key=lambda fault: fault.at), read.violation)


def _check_kinds(path: Path, faults: Sequence[Any]) -> None:
    """Raise ConfigurationError for a kind that does not exist; the text lists those that do."""
    for number, fault in enumerate(faults, 1):
        if isinstance(fault, dict) and "kind" in fault and fault["kind"] not in KINDS:
            raise none_of(f"{path}: fault {number}: kind", fault["kind"], KINDS)


def schedule_of(run: str, seed: int, faults: Sequence[Fault], violation: Violation | None) -> Schedule:
    """Return a schedule with the violation that it led to."""
    return Schedule(run, seed, faults, "" if violation is None else str(violation))
