"""Access to a disk, and locks between processes.

The parts of a node that must survive a crash use the disk through `Disk`, so that a simulation can replace it by one that
fills up, and that loses in a power failure what was not flushed.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, Protocol

if sys.platform == "win32":
    import portalocker
else:
    import fcntl  # what portalocker calls; its import would take 2 MiB of each node, for modules of e-mail

PRIVATE = 0o600  # mode of a file for its owner only
LOCK_PATIENCE = 5.0  # seconds to wait for a lock that another process holds
NO_FILE = 0, 0, 0
_POLLING = 0.02  # seconds between attempts
_BINARY = getattr(os, "O_BINARY", 0)  # without it, Windows translates line ends
_AT_ONCE = getattr(os, "O_NONBLOCK", 0)  # opening a pipe would otherwise wait for its other end
Stamp = tuple[int, int, int]
"""Number, time of the last change in ns, and size of a file; it changes whenever the file does."""


class Disk(Protocol):
    """Operations on files. All raise OSError if the disk fails, and FileNotFoundError for a missing file."""

    def read(self, path: Path, most: int = -1) -> bytes:
        """Return the content of a regular file, or its first `most` bytes. A pipe or a device is an OSError."""

    def exists(self, path: Path) -> bool:
        """Return whether there is a file of any kind, such as a link to a file that is missing."""

    def stamp(self, path: Path) -> Stamp:
        """Return the stamp of a file; NO_FILE if there is none."""

    def create(self, path: Path, parts: Iterable[bytes], durable: bool, mode: int) -> None:
        """Create a file that does not exist yet; with `durable`, its content is on the disk when this returns."""

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file atomically, in place of another one."""

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name, which must not exist."""

    def remove(self, path: Path) -> None:
        """Remove a name of a file; do nothing if there is none."""

    def sync(self, folder: Path) -> None:
        """Flush a folder, so that created, renamed or removed files in it survive a power failure."""

    def exclusive(self, path: Path, patience: float) -> AbstractContextManager[None]:
        """Exclude other processes that lock the same file; see `exclusive`."""


class SystemDisk:
    """The files of the operating system; see Disk."""

    def read(self, path: Path, most: int = -1) -> bytes:
        with os.fdopen(_open_regular(path, os.O_RDONLY), "rb") as file:
            return file.read(most)

    def exists(self, path: Path) -> bool:
        return os.path.lexists(path)

    def stamp(self, path: Path) -> Stamp:
        try:
            found = path.stat()
        except OSError:
            return NO_FILE
        return found.st_ino, found.st_mtime_ns, found.st_size

    def create(self, path: Path, parts: Iterable[bytes], durable: bool, mode: int) -> None:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, mode), "wb") as file:
            for part in parts:
                file.write(part)
            if durable:
                file.flush()
                os.fsync(file.fileno())

    def rename(self, source: Path, target: Path) -> None:
        source.replace(target)

    def link(self, source: Path, target: Path) -> None:
        os.link(source, target)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def sync(self, folder: Path) -> None:
        if os.name != "posix":  # other systems cannot open a folder
            return
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def exclusive(self, path: Path, patience: float) -> AbstractContextManager[None]:
        return exclusive(path, patience)


SYSTEM: Disk = SystemDisk()


def lock(path: Path, patience: float = 0.0) -> IO[bytes]:
    """Lock a file against other processes for as long as the returned file is open.

    Args:
        path: the lock file, which stays empty. If it does not exist, it is created with access for its owner only.
        patience: seconds to wait for another process that holds the lock.

    Raises:
        BlockingIOError: another process holds the lock for longer than `patience`.
        OSError: the file cannot be opened or locked.
    """
    file = os.fdopen(_open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab")
    deadline = time.monotonic() + patience
    try:
        while not _try_lock(file, path):
            if time.monotonic() >= deadline:
                raise BlockingIOError(errno.EAGAIN, f"another process has locked it for {patience:g} s", str(path))
            time.sleep(_POLLING)
    except BaseException:
        file.close()
        raise
    return file


def is_locked(path: Path) -> bool:
    """Return whether a process holds the lock of a file; False if there is no file.

    Raises:
        OSError: the file cannot be opened.
    """
    try:
        with os.fdopen(_open_regular(path, os.O_RDONLY), "rb") as file:
            return not _try_lock(file, path, shared=True)  # other processes that only check do not count
    except FileNotFoundError:
        return False


@contextmanager
def exclusive(path: Path, patience: float = LOCK_PATIENCE) -> Iterator[None]:
    """Exclude other processes that lock the same file from this block; see `lock`."""
    with lock(path, patience):
        yield


def _open_regular(path: Path, flags: int) -> int:
    """Open a regular file, and return its descriptor.

    Raises:
        OSError: it cannot be opened, or it is a folder, a pipe or a device, which could block the caller.
    """
    handle = os.open(path, flags | _BINARY | _AT_ONCE, PRIVATE)
    try:
        mode = os.fstat(handle).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "Not a regular file", str(path))
    except OSError:
        os.close(handle)
        raise
    return handle


def _try_lock(file: IO[bytes], path: Path, shared: bool = False) -> bool:
    """Return whether a file could be locked; raise OSError if locks do not work there."""
    if sys.platform == "win32":
        flags = portalocker.LockFlags.SHARED if shared else portalocker.LockFlags.EXCLUSIVE
        try:
            portalocker.lock(file, flags | portalocker.LockFlags.NON_BLOCKING)
        except portalocker.AlreadyLocked:
            return False
        except portalocker.LockException as error:
            raise OSError(errno.ENOLCK, error.strerror or str(error), str(path)) from error
    else:
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise OSError(errno.ENOLCK, error.strerror or str(error), str(path)) from error
    return True
