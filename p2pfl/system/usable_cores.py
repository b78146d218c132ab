"""CPU cores that this process may use, which may be fewer than the machine has."""

from __future__ import annotations

import os
from collections.abc import Iterator
from math import ceil

from p2pfl.system.system_files import control_groups, lines


def usable_cores() -> int:
    """Return the number of CPU cores that this process and its children may use; at least 1.

    It is the minimum of the process' CPU affinity, which job schedulers, `taskset` and cpusets set, and of the CPU quota
    of each control group, which containers and services have. Part of a core counts as one.
    """
    return max(1, min([_affinity(), *map(ceil, _quotas())]))


def _affinity() -> int:
    """Return the number of cores on which this process may run; without such a limit, that of the machine."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _quotas() -> Iterator[float]:
    """Yield the CPU seconds per second that each control group of this process may use."""
    for group in control_groups("cpu"):
        if group.version == 2:
            quota, _, period = "".join(lines(f"{group.folder}/cpu.max")).partition(" ")
        else:
            quota, period = ("".join(lines(f"{group.folder}/cpu.cfs_{name}_us")) for name in ("quota", "period"))
        if quota.isdecimal() and period.isdecimal() and int(period):  # otherwise "max" or -1, or the group has no limit
            yield int(quota) / int(period)
