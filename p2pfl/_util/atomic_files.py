"""Atomic file replacement, checksummed ("sealed") files, locked folders, and disk-error reporting.

A sealed file consists of a magic line, the SHA-256 of that line and the content, and the content.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import IO

from p2pfl._util.disk import PRIVATE, SYSTEM, Disk, is_locked, lock
from p2pfl._util.event_log import EventLogger
from p2pfl.errors import ConfigurationError, P2pflError

PRIVATE_FOLDER = 0o700  # mode of a folder for its owner only
LOCK = "lock"  # the lock file in a folder
_DIGEST_SIZE = 32
_NEW = ".new"  # suffix of a file that is being written


class DamagedFileError(P2pflError):
    """Sealed file whose content was changed after it was written; the text names it."""


def replace_file(
    path: Path,
    parts: Iterable[bytes],
    durable: bool = True,
    before: Callable[[], None] = lambda: None,
    mode: int = 0o666,
    *,
    disk: Disk = SYSTEM,
) -> None:
    """Replace a file atomically: at every moment it has either the complete old or the complete new content.

    Args:
        parts: the new content.
        durable: keep this guarantee after a power failure, at the cost of a flush to the disk.
        before: called when the new content is on the disk, before it replaces the old one.
        mode: permissions of the file, reduced by the process's umask.
        disk: the disk of the file.

    Raises:
        OSError: the file could not be written; the old file is unchanged, and the partial new one is removed.
    """
    temporary = path.with_name(path.name + _NEW)
    try:
        disk.remove(temporary)  # a file left by a crash may have another mode
        disk.create(temporary, parts, durable, mode)
        before()
        disk.rename(temporary, path)
    except BaseException:
        with suppress(OSError):
            disk.remove(temporary)
        raise
    if durable:
        disk.sync(path.parent)


def write_sealed(
    path: Path,
    magic: bytes,
    content: bytes | Callable[[], Iterable[bytes]],
    mode: int = PRIVATE,
    before: Callable[[], None] = lambda: None,
    *,
    disk: Disk = SYSTEM,
) -> None:
    """Replace a sealed file. The content is on the disk when this returns.

    Args:
        magic: identifies the type and version of the file; the reader must use the same.
        content: the content, or a function that yields it in parts; it is called twice.
        before, mode, disk: see `replace_file`.

    Raises:
        OSError: see `replace_file`.
    """
    parts = content if callable(content) else lambda: [content]
    replace_file(path, chain([magic, _digest(magic, parts())], parts()), before=before, mode=mode, disk=disk)


def read_sealed(path: Path, magic: bytes, disk: Disk = SYSTEM) -> bytes:
    """Return the content of a sealed file.

    Raises:
        DamagedFileError: the file is not one that `write_sealed` wrote with this magic.
        OSError: it cannot be read; FileNotFoundError if it does not exist.
    """
    data = disk.read(path)
    head = len(magic) + _DIGEST_SIZE
    content = data[head:]
    if data[:head] != magic + _digest(magic, [content]):
        raise DamagedFileError(f"{path} is damaged: its checksum is wrong")
    return content


def lock_folder(folder: Path, use: str = "runs this node") -> IO[bytes]:
    """Lock a folder against other processes for as long as the returned file is open.

    Args:
        use: the activity of the process that holds the lock, for the error.

    Raises:
        ConfigurationError: another process holds the lock, or the lock file cannot be written or locked.
    """
    try:
        return lock(folder / LOCK)
    except BlockingIOError as error:
        raise ConfigurationError(f"{folder} is in use: another process {use}") from error
    except OSError as error:
        raise ConfigurationError(f"cannot write {folder / LOCK}: {explain(error)}") from error


def is_folder_locked(folder: Path) -> bool:
    """Return whether a process holds the lock of a folder; True if its lock file cannot be read."""
    try:
        return is_locked(folder / LOCK)
    except OSError:
        return True


class DiskErrorReporter:
    """Reports a full, read-only or missing disk: once when it fails, and once more when writing works again.

    Args:
        path: the file that is written.
        what: a short name of its content.
        log: receives the reports.

    Attributes:
        problem: the reason of the last failure; "" if the last write succeeded.
    """

    def __init__(self, path: Path, what: str, log: EventLogger) -> None:
        self.problem = ""
        self._path = path
        self._what = what
        self._log = log

    @contextmanager
    def tolerate(self) -> Iterator[None]:
        """Report OSErrors of this block instead of raising them."""
        try:
            yield
        except OSError as error:
            path = file_of(error, self._path)
            before, self.problem = self.problem, reason(error) if path == self._path else f"{path.name}: {reason(error)}"
            if not before:
                self._log.warning(
                    f"cannot write {path}: {reason(error)}; continuing in memory", kind="disk-failed", path=str(path)
                )
            return
        before, self.problem = self.problem, ""
        if before:
            self._log.info(f"can write {self._what} again", kind="disk-works", path=str(self._path))


def reason(error: OSError) -> str:
    """Return the system's error text, without file names."""
    return error.strerror or str(error) or type(error).__name__


def file_of(error: OSError, otherwise: Path) -> Path:
    """Return the file that a failed write should have changed, or `otherwise` if the error does not name it."""
    # A folder cannot take the place of a file, nor a file that of a folder: the culprit is the folder.
    named = error.filename if isinstance(error, NotADirectoryError) else error.filename2 or error.filename
    if not isinstance(named, str) or Path(named).parent != otherwise.parent:
        return otherwise
    return Path(named).with_name(Path(named).name.removesuffix(_NEW))


def explain(error: OSError) -> str:
    """Return the system's error text, and the remedy after a semicolon."""
    return f"{reason(error)}; {_REMEDIES.get(error.errno or 0, 'move it away, or restore it from a backup')}"


_REMEDIES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space, or ask for a larger quota",
    errno.EFBIG: "permit larger files",
    errno.EROFS: "make the file system writable",
    errno.EACCES: "give this user access to it, such as with chown and chmod",
    errno.EPERM: "give this user access to it, such as with chown and chmod",
    errno.EIO: "check the disk, and restore the folder from a backup",
    errno.ENOLCK: "move the folder to a file system with locks",
    errno.EAGAIN: "try again",
    errno.EMFILE: "permit more open files",
    errno.ENFILE: "permit more open files",
}


def _digest(magic: bytes, content: Iterable[bytes]) -> bytes:
    digest = sha256(magic)
    for part in content:
        digest.update(part)
    return digest.digest()
