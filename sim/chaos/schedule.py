"""Schedules of faults, drawn from a seed."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Literal, get_args

import msgspec

Kind = Literal[
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
KINDS: tuple[Kind, ...] = get_args(Kind)

ANYWHERE = ("loss", "delay", "duplicate", "reorder")  # kinds that may concern all links

FEWEST, MOST = 3, 14  # faults in a schedule
CALM = 1  # deadlines before the first fault
LENGTH = 8  # deadlines that have faults


class Fault(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One fault.

    Attributes:
        at: virtual seconds since the start.
        kind: see docs/how-to/test-under-faults.md.
        node: the node that has the fault; the newcomer of `admit`, the member that `revoke` removes; "" for all links.
        others: the nodes on the other side of a partition, or that `one-way` does not reach.
        seconds: duration; for a crash, until the node starts again.
        amount: for `restore` the age of the copy in seconds; for `power-failure-on-write` the number of the operation on
            the disk that does not end; for `loss`, `duplicate` and `reorder` a probability; for `delay` and `clock-jump`
            seconds; for `slow` a factor.
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


def span(deadline: float) -> float:
    """Return the time at which all faults end, in virtual seconds."""
    return (CALM + LENGTH) * deadline


def draw_schedule(seed: int, members: Sequence[str], newcomers: Sequence[str], deadline: float) -> tuple[Fault, ...]:
    """Return the faults of a seed in the order of their times.

    Args:
        members: names of the members at the start, at least 2.
        newcomers: names of nodes that may become members.
        deadline: deadline of a round in seconds; durations are multiples of it.
    """
    draws = Random(f"p2pfl chaos {seed}")
    kinds = draws.sample(KINDS, draws.randint(3, len(KINDS)))  # a part of them, so that rare combinations occur
    drawn = _Draws(draws, members, list(newcomers), deadline)
    faults = [drawn.fault(draws.choice(kinds)) for _ in range(draws.randint(FEWEST, MOST))]
    return tuple(sorted((fault for fault in faults if fault is not None), key=lambda fault: fault.at))


class _Draws:
    def __init__(self, draws: Random, members: Sequence[str], newcomers: list[str], deadline: float) -> None:
        self._draws = draws
        self._members = list(members)
        self._newcomers = newcomers
        self._deadline = deadline
        self._removable = len(members) - 3  # the others are a federation that can elect a coordinator

    def fault(self, kind: Kind) -> Fault | None:
        """Return a fault of a kind; None if there is no node for it any more."""
        draws, deadline = self._draws, self._deadline
        at = round(deadline * draws.uniform(CALM, CALM + LENGTH - 1), 3)
        longest = span(deadline) - at
        seconds = round(min(longest, deadline * draws.choice([0.05, 0.2, 0.5, 1.0, 2.0, 4.0]) * draws.uniform(0.5, 1.5)), 3)
        node = draws.choice(self._members)
        if kind in ("admit", "revoke"):
            return self._change(at, kind, node)
        amount, others = self._amount(kind), self._others(kind, node)
        if kind == "partition" or (kind in ANYWHERE and draws.random() < 0.5):
            node = ""
        return Fault(at=at, kind=kind, node=node, others=others, seconds=seconds * (kind != "clock-jump"), amount=amount)

    def _amount(self, kind: Kind) -> float:
        """Return the amount of a fault; see Fault."""
        draws, deadline = self._draws, self._deadline
        match kind:
            case "power-failure-on-write":
                return draws.randint(1, 30)
            case "restore":
                return round(deadline * draws.uniform(0.2, 5), 3)
            case "loss" | "duplicate" | "reorder":
                return draws.choice([0.02, 0.1, 0.3])
            case "delay":
                return round(deadline * draws.choice([0.02, 0.1, 0.6]), 3)
            case "slow":
                return draws.choice([2.0, 5.0, 10.0])  # a training that has begun goes on after the last fault
            case "clock-jump":
                return draws.choice([1.0, 10.0, 3600.0, 1e8])
        return 0.0

    def _others(self, kind: Kind, node: str) -> tuple[str, ...]:
        """Return the other nodes of a fault; see Fault."""
        if kind not in ("partition", "one-way"):
            return ()
        rest = [name for name in self._members if name != node]
        return tuple(sorted(self._draws.sample(rest, self._draws.randint(1, len(rest)))))

    def _change(self, at: float, kind: Kind, node: str) -> Fault | None:
        """Return a change of the membership; None if no node is left for it."""
        if kind == "admit":
            return Fault(at=at, kind=kind, node=self._newcomers.pop()) if self._newcomers else None
        if self._removable < 1:
            return None
        self._removable -= 1
        return Fault(at=at, kind=kind, node=node, others=(self._draws.choice(self._members),))
