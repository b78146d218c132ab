"""Memory that is still available on this machine, as far as the system reports it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress

from p2pfl.errors import ConfigurationError
from p2pfl.system.system_files import control_groups, lines, numbers

VERSIONS = {  # of control groups: the names of the limit, the usage, and the reclaimable caches
    2: ("memory.max", "memory.current", "inactive_file "),
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "),
}


def free_memory() -> int | None:
    """Return the bytes that this process and its children may still allocate; None if the system does not report it.

    It is the minimum of the machine's free memory, the rest of each control group's limit, and the rest of `ulimit -v`.
    """
    import psutil

    found = [*_cgroup_headroom(), *_ulimit_headroom()]
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
