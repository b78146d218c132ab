"""Resources of this machine for the process: available memory, CPU cores that it may use, and a clock since the start.

A container or a service may have less memory and fewer cores than its machine. Therefore the control groups of the process
are read as well as /proc.

The memory limits the size of a node's own model (`within`, `check_size`): it is checked when a task makes its first model,
before the model's memory is allocated. The size of a received model is limited by the length of the own one; see
p2pfl.protocols.wire.envelope.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from math import ceil
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from p2pfl.errors import ConfigurationError

VERSIONS = {  # of control groups: the names of the limit, the usage, and the reclaimable caches
    2: ("memory.max", "memory.current", "inactive_file "),
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "),
}
ROOT = Path("/")  # root of the system's files
GROUPS = "/sys/fs/cgroup"
# Copies of all values. A node in training holds parameters, gradients, two moments, the round's two models, a
# checkpoint and one incoming model. A command that only reads a model holds the parameters and one more.
TRAINING, READING = 8, 2
_limit: ContextVar[tuple[int, int] | None] = ContextVar("memory, and copies of a model's values", default=None)


def free_memory() -> int | None:
    """Return the bytes that this process and its children may still allocate; None if the system does not report it.

    It is the minimum of the machine's free memory, the rest of each control group's limit, and the rest of `ulimit -v`.
    """
    found = [*_cgroup_headroom(), *_ulimit_headroom()]
    if available := numbers("/proc/meminfo", "MemAvailable:"):
        found.append(available[0] * 1024)
    else:
        import psutil  # 1 MiB, which a node on Linux does not need

        with suppress(OSError, KeyError):  # Linux without /proc
            found.append(psutil.virtual_memory().available)
    return min(found, default=None)


def check_memory(what: str, size: int) -> None:
    """Raise ConfigurationError if `size` bytes are not free; `what` names their use."""
    free = free_memory()
    if free is not None and size > free:
        raise ConfigurationError(f"{what} needs {amount(size)} of memory, but only {amount(free)} is free")


def amount(size: float) -> str:
    """Format a size, for example "0.4 GiB" or "1,200.0 GiB"; smaller sizes are in MiB."""
    return f"{size / 2**30:,.1f} GiB" if size >= 2**30 / 10 else f"{size / 2**20:.1f} MiB"


def status(key: str) -> int:
    """Return a figure of this process in bytes, for example "VmRSS:"; 0 if the system does not report it."""
    return next((number * 1024 for number in numbers("/proc/self/status", key)), 0)


def _cgroup_headroom() -> Iterator[int]:
    """Yield the unused part of the limit of each control group of this process."""
    for version, folder in control_groups("memory"):
        limit, used, cached = VERSIONS[version]
        most, taken = (lines(f"{folder}/{name}") for name in (limit, used))
        if most and taken and most[0].isdecimal():
            gives_way = next(iter(numbers(f"{folder}/memory.stat", cached)), 0)
            yield max(0, int(most[0]) - int(taken[0]) + gives_way)


def _ulimit_headroom() -> list[int]:
    if sys.platform != "win32":
        from resource import RLIM_INFINITY, RLIMIT_AS, getrlimit

        limit = getrlimit(RLIMIT_AS)[0]
        return [] if limit == RLIM_INFINITY else [max(0, limit - status("VmSize:"))]
    return []


class ControlGroup(NamedTuple):
    """Where the system keeps the limits of this process, or of a group that contains it.

    Attributes:
        version: version of the interface, 1 or 2.
        folder: folder of its files.
    """

    version: int
    folder: str


def control_groups(controller: str) -> Iterator[ControlGroup]:
    """Yield the groups of this process, the innermost first.

    Args:
        controller: the resource that the groups control in version 1, such as "memory". In version 2 one group controls
            all resources.
    """
    for line in lines("/proc/self/cgroup"):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0":
            version, root = 2, GROUPS
        elif controller in controllers.split(","):
            version, root = 1, f"{GROUPS}/{controller}"
        else:
            continue
        for group in (PurePosixPath(path), *PurePosixPath(path).parents):  # a container sees only the last of them
            yield ControlGroup(version, f"{root}{group}".rstrip("/"))


def numbers(path: str, key: str) -> list[int]:
    """Return the number after `key` in each line of a file that begins with it."""
    return [int(line[len(key) :].split()[0]) for line in lines(path) if line.startswith(key)]


def lines(path: str) -> list[str]:
    """Return the lines of a file; none if it cannot be read."""
    try:
        return (ROOT / path.lstrip("/")).read_text().splitlines()
    except OSError:
        return []


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


def raise_open_files() -> int | None:
    """Raise the limit on open files of this process as far as the system permits; return it, or None without one.

    The usual limit of 1,024 is one that the process may raise itself, for programs that use select().
    """
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):  # macOS refuses a limit above kern.maxfilesperproc
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return None if soft == resource.RLIM_INFINITY else soft


def boot_clock() -> float:
    """Return seconds since this machine was started, with the time of sleep where the system counts it (Linux).

    Users cannot set this clock, and it never goes back.
    """
    if sys.platform == "linux":
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


def check_size(what: str, values: int, memory: int | None, copies: int = TRAINING) -> None:
    """Raise ConfigurationError if a model of `values` float32 values does not fit into `memory` bytes.

    Args:
        what: name of the model, for the error.
        memory: None if unknown; every size is then accepted.
        copies: number of copies of the values in memory.
    """
    needed = 4 * copies * values
    if memory is not None and needed > memory:
        raise ConfigurationError(
            f"{what} has {values:,} values: a node needs about {amount(needed)} of memory for it, but"
            f" only {amount(memory)} is free"
        )


@contextmanager
def within(memory: int | None, copies: int = TRAINING) -> Iterator[None]:
    """Make `check_module_size` refuse models in this block that do not fit into `memory` bytes."""
    token = _limit.set(None if memory is None else (memory, copies))
    try:
        yield
    finally:
        _limit.reset(token)


def is_limited() -> bool:
    """Return whether a limit applies, so that the size of a model must be known before it is made."""
    return _limit.get() is not None


def check_module_size(values: int) -> None:
    """Raise ConfigurationError if a task's model is larger than `within` allows."""
    if (limit := _limit.get()) is not None:
        check_size("the task's model", values, *limit)
