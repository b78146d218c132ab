"""Search for a short schedule with the same violation, by delta debugging.

The search is that of Zeller and Hildebrandt, Simplifying and isolating failure-inducing input (IEEE TSE 28(2), 2002):
leave out ever smaller parts of the schedule, and keep what still breaks the invariant. Then it shortens the durations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from p2pfl.sim.chaos.schedule import Fault

Breaks = Callable[[Sequence[Fault]], bool]
SHORTER = (0.1, 0.5)  # of a duration


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
