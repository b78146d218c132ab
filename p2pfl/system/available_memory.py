"""Memory that this machine can still give, as far as the system says it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from p2pfl.errors import ConfigurationError

ROOT = Path("/")  # of the system's files
GROUPS = "/sys/fs/cgroup"
VERSIONS = {  # of control groups: where they are, and the names of the limit, of what is used, and of caches that give way
    2: ("", "memory.max", "memory.current", "inactive_file "),
    1: ("/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "),
}


def free_memory() -> int | None:
    """Return how many bytes this process and others that it starts may still take; None where the system does not say it.

    It is the least of what the machine has, of what each control group leaves, and of the limit of `ulimit -v`.
    """
    found = [number * 1024 for number in _numbers("/proc/meminfo", "MemAvailable:")]
    found += [*_cgroup_headroom(), *_ulimit_headroom()]
    return min(found, default=None)


def check_memory(what: str, size: int) -> None:
    """Raise ConfigurationError if so many bytes are not free; `what` is what takes them."""
    free = free_memory()
    if free is not None and size > free:
        raise ConfigurationError(f"{what} takes {amount(size)} of memory, and {amount(free)} are free")


def amount(size: float) -> str:
    """ "0.4 GiB", "1,200.0 GiB"; less than that in MiB."""
    return f"{size / 2**30:,.1f} GiB" if size >= 2**30 / 10 else f"{size / 2**20:.1f} MiB"


def status(key: str) -> int:
    """Return a figure of this process in bytes, such as "VmRSS:"; 0 where the system does not say it."""
    return next((number * 1024 for number in _numbers("/proc/self/status", key)), 0)


def _cgroup_headroom() -> Iterator[int]:
    """Yield what each control group that this process is in leaves of its limit."""
    for line in _lines("/proc/self/cgroup"):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0":
            version = 2
        elif "memory" in controllers.split(","):
            version = 1
        else:
            continue
        root, limit, used, cached = VERSIONS[version]
        for group in (PurePosixPath(path), *PurePosixPath(path).parents):  # a container sees but the last of them
            folder = f"{GROUPS}{root}{group}".rstrip("/")
            most, taken = (_lines(f"{folder}/{name}") for name in (limit, used))
            if most and taken and most[0].isdecimal():
                gives_way = next(iter(_numbers(f"{folder}/memory.stat", cached)), 0)
                yield max(0, int(most[0]) - int(taken[0]) + gives_way)


def _ulimit_headroom() -> Iterator[int]:
    try:
        from resource import RLIM_INFINITY, RLIMIT_AS, getrlimit
    except ImportError:  # not on Windows
        return
    limit = getrlimit(RLIMIT_AS)[0]
    if limit != RLIM_INFINITY:
        yield max(0, limit - status("VmSize:"))


def _numbers(path: str, key: str) -> list[int]:
    return [int(line[len(key) :].split()[0]) for line in _lines(path) if line.startswith(key)]


def _lines(path: str) -> list[str]:
    try:
        return (ROOT / path.lstrip("/")).read_text().splitlines()
    except OSError:
        return []
