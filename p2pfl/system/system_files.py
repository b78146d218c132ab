"""Files in which the system reports its resources: /proc, and the control groups of this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

ROOT = Path("/")  # root of the system's files
GROUPS = "/sys/fs/cgroup"


class ControlGroup(NamedTuple):
    """Control group of this process, or one that contains it.

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
