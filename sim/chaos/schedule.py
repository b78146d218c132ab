"""Schedules of faults: their kinds, their draw from a seed, their files, and the search for a short one.

A schedule is a list of faults, each with a time, a kind and a duration. It has no reference to what it is applied to: the
same schedule can be drawn for simulated machines or for processes, written to a TOML file, changed by hand, and replayed.
A fault of a node that is not there, or not yet, does nothing; this lets a shorter schedule remain valid when an earlier
fault is left out.

Schedules drawn from a seed last nine deadlines: one of calm, and eight with faults. Then all faults end, and the
federation must heal. A schedule has faults of some kinds only, so that rare combinations occur.

The search for a short schedule is delta debugging, after Zeller and Hildebrandt, Simplifying and isolating
failure-inducing input (IEEE TSE 28(2), 2002): leave out ever smaller parts of the schedule, keep what still breaks the
invariant, and then shorten the durations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Literal, get_args

import msgspec
import tomli_w
from msgspec.structs import replace

from p2pfl._util import toml_tables
from p2pfl._util.atomic_files import reason, replace_file
from p2pfl._util.binding import bind
from p2pfl.errors import ConfigurationError, RunError, name_source, none_of

Simulated = Literal[
    "crash",
    "power-failure",
    "power-failure-on-write",
    "restore",
    "partition",
    "one-way",
    "loss",
    "delay",
    "duplicate",
    "reorder",
    "slow",
    "freeze",
    "disk-full",
    "clock-jump",
    "admit",
    "revoke",
]
# What only processes have, in tests/chaos: files and clocks of an operating system, a broker, and an admission key.
OfProcesses = Literal[
    "restart",
    "flap",
    "damaged-file",
    "wall-clock",
    "broker-restart",
    "broker-halt",
    "guest",
    "readmission",
    "new-admission-key",
]
Kind = Literal[Simulated, OfProcesses]
KINDS: tuple[Simulated, ...] = get_args(Simulated)

ANYWHERE = ("loss", "delay", "duplicate", "reorder")  # kinds that may concern all links
LINKS = ("partition", "one-way", *ANYWHERE, "flap")  # kinds of faults of links
NO_NODE = ("partition", "broker-restart", "broker-halt")

FEWEST, MOST = 3, 14  # faults in a schedule
CALM = 1  # deadlines before the first fault
LENGTH = 8  # deadlines that have faults
SHORTER = (0.1, 0.5)  # of a duration, tried by the search for a short schedule

# Amounts to draw from; a delay and the age of a copy are multiples of the deadline.
AMOUNTS: Mapping[Kind, tuple[float, ...]] = {
    "loss": (0.02, 0.1, 0.3),
    "duplicate": (0.02, 0.1, 0.3),
    "reorder": (0.02, 0.1, 0.3),
    "delay": (0.02, 0.1, 0.6),
    "slow": (2.0, 5.0, 10.0),  # a training that has begun goes on after the last fault
    "clock-jump": (1.0, 10.0, 3600.0, 1e8),
    "wall-clock": (86400.0, -7200.0, 3.2e8, -1.7e9),
}


class Fault(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Disturbance of a run: its kind, time, place, duration and amount.

    Attributes:
        at: seconds since the start.
        kind: see docs/how-to/test-under-faults.md.
        node: the node that has the fault; the newcomer of `admit`, the member that `revoke` removes; "" for all links.
        others: the nodes on the other side of a partition, or that `one-way` does not reach.
        seconds: duration; for a crash, until the node starts again.
        amount: for `restore` the age of the copy in seconds; for `power-failure-on-write` the number of the operation on
            the disk that does not end; for `loss`, `duplicate` and `reorder` a probability; for `delay`, `clock-jump` and
            `wall-clock` seconds; for `slow` a factor; for `damaged-file` the place of the bit, from 0 to 1.
    """

    at: float
    kind: Kind
    node: str = ""
    others: tuple[str, ...] = ()
    seconds: float = 0.0
    amount: float = 0.0

    @property
    def end(self) -> float:
        return self.at + self.seconds

    def __str__(self) -> str:
        parts: list[str] = [self.kind]
        if self.node:
            parts.append(self.node)
        if self.others:
            parts.append(f"({', '.join(self.others)})")
        if self.amount:
            parts.append(f"of {self.amount:g}")
        if self.seconds:
            parts.append(f"for {self.seconds:g} s")
        return " ".join(parts)


# Drawing


def span(deadline: float) -> float:
    """Return the time at which all faults end, in seconds."""
    return (CALM + LENGTH) * deadline


def draw_schedule(
    seed: int | str,
    members: Sequence[str],
    newcomers: Sequence[str],
    deadline: float,
    *,
    kinds: Sequence[Kind] = KINDS,
    count: tuple[int, int] = (FEWEST, MOST),
) -> tuple[Fault, ...]:
    """Return the faults of a seed in the order of their times.

    Args:
        members: names of the members at the start, at least 2.
        newcomers: names of nodes that may become members.
        deadline: deadline of a round in seconds; durations are multiples of it.
        kinds: to draw from; a schedule has at least 3 of them.
        count: smallest and largest number of faults.
    """
    draws = Random(f"p2pfl chaos {seed}")
    chosen = draws.sample(kinds, draws.randint(3, len(kinds)))
    drawn = _Draws(draws, members, newcomers, deadline)
    faults = [drawn.fault(draws.choice(chosen)) for _ in range(draws.randint(*count))]
    return tuple(sorted((fault for fault in faults if fault is not None), key=lambda fault: fault.at))


class _Draws:
    """Draws of single faults; an equal seed must give equal faults for ever, so the order of the draws matters."""

    def __init__(self, draws: Random, members: Sequence[str], newcomers: Sequence[str], deadline: float) -> None:
        self._draws = draws
        self._members = list(members)
        self._newcomers = list(newcomers)
        self._deadline = deadline
        self._removable = len(members) - 3  # the others are a federation that can elect a coordinator

    def fault(self, kind: Kind) -> Fault | None:
        """Return a fault of a kind; None if there is no node for it any more."""
        draws, deadline = self._draws, self._deadline
        at = round(deadline * draws.uniform(CALM, CALM + LENGTH - 1), 3)
        longest = span(deadline) - at
        seconds = round(min(longest, deadline * draws.choice([0.05, 0.2, 0.5, 1.0, 2.0, 4.0]) * draws.uniform(0.5, 1.5)), 3)
        node = draws.choice(self._members)
        if kind in ("admit", "guest"):
            if not self._newcomers:
                return None
            return Fault(at=at, kind=kind, node=self._newcomers.pop(), seconds=seconds * (kind == "guest"))
        if kind == "revoke":
            if self._removable < 1:
                return None
            self._removable -= 1
            return Fault(at=at, kind=kind, node=node, others=(draws.choice(self._members),))
        amount, others = self._amount(kind), self._others(kind, node)
        if kind in NO_NODE or (kind in ANYWHERE and draws.random() < 0.5):
            node = ""
        return Fault(at=at, kind=kind, node=node, others=others, seconds=seconds * (kind != "clock-jump"), amount=amount)

    def _amount(self, kind: Kind) -> float:
        """Return the amount of a fault; see Fault."""
        draws = self._draws
        match kind:
            case "power-failure-on-write":
                return draws.randint(1, 30)
            case "restore":
                return round(self._deadline * draws.uniform(0.2, 5), 3)
            case "damaged-file":
                return draws.random()
            case "delay":
                return round(self._deadline * draws.choice(AMOUNTS[kind]), 3)
        return draws.choice(AMOUNTS[kind]) if kind in AMOUNTS else 0.0

    def _others(self, kind: Kind, node: str) -> tuple[str, ...]:
        """Return the other nodes of a fault; see Fault."""
        if kind not in ("partition", "one-way"):
            return ()
        rest = [name for name in self._members if name != node]
        return tuple(sorted(self._draws.sample(rest, self._draws.randint(1, len(rest)))))


# Files


class Schedule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All faults of a run with its seed, as in the file that repeats the run exactly.

    Attributes:
        run: name of the run of a scenario.
        fault: the faults, in the order of their times; a table [[fault]] each.
        violation: the violation that it led to; "" if unknown.
    """

    run: str
    seed: int
    fault: tuple[Fault, ...] = ()
    violation: str = ""


def write_schedule(path: Path, schedule: Schedule, command: str) -> None:
    """Write a schedule.

    Args:
        command: runs the schedule again, except for the name of the file.

    Raises:
        RunError: the file cannot be written.
    """
    head = f"# A schedule of faults. Run it again with: {command} {path.name}\n\n"
    table = {"run": schedule.run, "seed": schedule.seed, "violation": schedule.violation}
    faults = [msgspec.to_builtins(fault) for fault in schedule.fault]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, [(head + tomli_w.dumps({**table, "fault": faults})).encode()])
    except OSError as error:
        raise RunError(f"cannot write {path}: {reason(error)}") from error


def read_schedule(path: Path, kinds: Sequence[Kind] = KINDS) -> Schedule:
    """Read a schedule.

    Args:
        kinds: that a fault may have.

    Raises:
        ConfigurationError: the file cannot be read, or an entry is unknown or invalid.
    """
    if not path.is_file():
        raise ConfigurationError(f"the schedule {path} does not exist")
    table = toml_tables.read(path)
    faults = table.get("fault")
    for number, fault in enumerate(faults if isinstance(faults, list) else (), 1):
        if isinstance(fault, dict) and "kind" in fault and fault["kind"] not in kinds:
            raise none_of(f"{path}: fault {number}: kind", fault["kind"], kinds)
    with name_source(str(path)):
        read = bind(table, Schedule)
    return replace(read, fault=tuple(sorted(read.fault, key=lambda fault: fault.at)))


# Shrinking

Breaks = Callable[[Sequence[Fault]], bool]


def shrink(faults: Sequence[Fault], breaks: Breaks, most: int = 200) -> tuple[Fault, ...]:
    """Return a part of a schedule that still breaks the invariant, and of which no single fault can be left out.

    Args:
        breaks: runs a schedule, and returns whether it breaks the invariant. It does so for `faults`.
        most: maximum number of runs; after them the shortest schedule so far is returned.
    """
    left = most

    def tries(candidate: Sequence[Fault]) -> bool:
        nonlocal left
        left -= 1
        return left >= 0 and breaks(candidate)

    return tuple(_shorten(_reduce(list(faults), tries), tries))


def _reduce(faults: list[Fault], breaks: Breaks) -> list[Fault]:
    if breaks([]):
        return []
    parts = 2
    while len(faults) > 1:
        size = -(-len(faults) // parts)
        for start in range(0, len(faults), size):
            rest = faults[:start] + faults[start + size :]
            if breaks(rest):
                faults, parts = rest, max(2, parts - 1)
                break
        else:
            if size == 1:
                break
            parts = min(len(faults), 2 * parts)
    return faults


def _shorten(faults: list[Fault], breaks: Breaks) -> list[Fault]:
    for k, fault in enumerate(faults):
        for share in SHORTER:
            shorter = replace(fault, seconds=round(share * fault.seconds, 3))
            if fault.seconds and breaks([*faults[:k], shorter, *faults[k + 1 :]]):
                faults[k] = shorter
                break
    return faults
