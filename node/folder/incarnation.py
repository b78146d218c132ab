"""Number of a node's starts, so that the numbers of its messages are never used twice.

A sealed file holds the count, a second file the previous count, and the facts of the folder hold the newest one again (see
p2pfl.node.folder.facts). If the newest is damaged or older than these, the node continues with a number far beyond them.
"""

from __future__ import annotations

from pathlib import Path

from p2pfl._util.atomic_files import DamagedFileError, explain, file_of, read_sealed, write_sealed
from p2pfl._util.disk import SYSTEM, Disk
from p2pfl._util.event_log import EventLogger
from p2pfl._util.failpoints import failpoint
from p2pfl.errors import ConfigurationError
from p2pfl.node.folder.facts import read_facts, update_facts
from p2pfl.node.log import LOG

MAGIC = b"p2pfl boot 1\n"
PUBLISHED_MAGIC = b"p2pfl published 1\n"
EARLIER = "boot"  # name of the file in earlier versions
JUMP = 2**20  # maximum starts that a damaged file may have counted since the previous one


def count_start(path: Path, log: EventLogger = LOG, disk: Disk = SYSTEM) -> int:
    """Count a start and return the number of starts, this one included. The count is on disk when this returns.

    Args:
        path: path of the newest count; the previous one is in the same folder.
        log: receives an event when a damaged count was replaced.
        disk: the disk of the files.

    Raises:
        ConfigurationError: no count is intact, a file cannot be read or written, or it has the name of earlier
            versions.
    """
    before, earlier = path.with_name(f"{path.name}.1"), path.with_name(EARLIER)
    if disk.exists(earlier) and not disk.exists(path):
        raise ConfigurationError(f"{earlier} was written by an earlier version of p2pfl; rename it to {path.name}")
    try:
        last = _last(path, before, log, disk)
        _write(before, last, disk)
        _write(path, last + 1, disk)
        update_facts(path.parent, disk, starts=last + 1)
    except OSError as error:
        raise ConfigurationError(f"cannot write the number of starts to {file_of(error, path)}: {explain(error)}") from error
    failpoint("incarnation-counted")
    return last + 1


def count_past(path: Path, known: int, disk: Disk = SYSTEM) -> None:
    """Let the next start count far more than `known`, which another process with this node's key has counted.

    Raises:
        ConfigurationError: the file cannot be written.
    """
    try:
        _write(path, known + JUMP, disk)
    except OSError as error:
        raise ConfigurationError(f"cannot write {path}: {explain(error)}") from error


def note_published(path: Path, round: int, disk: Disk = SYSTEM) -> None:
    """Write the newest round whose model of this node a peer holds; write nothing if it is 0.

    Raises:
        ConfigurationError: the file cannot be written.
    """
    if not round:
        return
    try:
        write_sealed(path, PUBLISHED_MAGIC, str(round).encode(), disk=disk)
    except OSError as error:
        raise ConfigurationError(f"cannot write {path}: {explain(error)}") from error


def last_published(path: Path, disk: Disk = SYSTEM, log: EventLogger = LOG) -> int:
    """Return the round that `note_published` has written; 0 if there is none, or if the file is damaged.

    Args:
        log: receives an event if the file is damaged.

    Raises:
        ConfigurationError: the file cannot be read.
    """
    try:
        return _read(path, disk, PUBLISHED_MAGIC)
    except FileNotFoundError:
        return 0
    except DamagedFileError:
        log.warning(
            f"{path} is damaged: this node may repeat rounds whose models peers hold", kind="file-damaged", path=str(path)
        )
        return 0
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {explain(error)}") from error


def _last(path: Path, before: Path, log: EventLogger, disk: Disk) -> int:
    """Return a number that is not less than any earlier count; 0 if there was none."""
    newest, previous = _read_or_none(path, disk), _read_or_none(before, disk)
    kept = read_facts(path.parent, disk, log).starts
    known = max(kept, -1 if previous is None else previous)
    if newest is None and not (kept or disk.exists(path) or disk.exists(before)):
        return 0
    if newest is None and previous is None and not kept:
        raise ConfigurationError(
            f"{path} and {before.name} are damaged or missing, so the numbers of this node's earlier messages are"
            " unknown; create a new node with p2pfl-node init"
        )
    # Each start writes the previous count first. Equal ones are from a start that was interrupted between the two, or the
    # newest is an older copy.
    if newest is not None and newest >= kept and (previous is None or newest > previous):
        return newest
    last = max(known, -1 if newest is None else newest) + JUMP
    what = "damaged or missing" if newest is None else f"older than {before.name} or the last start"
    log.warning(
        f"{path} is {what}: continuing from {last}, a number that was never used", kind="file-damaged", path=str(path)
    )
    return last


def _read_or_none(path: Path, disk: Disk) -> int | None:
    """Return the number in a file; None if it is damaged or missing."""
    try:
        return _read(path, disk)
    except (FileNotFoundError, DamagedFileError):
        return None


def _read(path: Path, disk: Disk, magic: bytes = MAGIC) -> int:
    content = read_sealed(path, magic, disk)
    if not content.isdigit():
        raise DamagedFileError(f"{path} is damaged: it has no number")
    return int(content)


def _write(path: Path, count: int, disk: Disk) -> None:
    write_sealed(path, MAGIC, str(count).encode(), disk=disk)
