"""Atomic file replacement, checksummed ("sealed") files, locks between processes, and disk-error reporting.

A sealed file is a magic line, the SHA-256 of that line and the content, and the content.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import IO

from p2pfl.errors import ConfigurationError, P2pflError
from p2pfl.system.event_log import EventLogger

PRIVATE, PRIVATE_FOLDER = 0o600, 0o700  # modes of what only its owner can read
LOCK = "lock"  # the file in a folder that is locked
LOCK_PATIENCE = 5.0  # seconds to wait for a lock that another process holds
_POLLING = 0.02  # seconds between attempts
_DIGEST_SIZE = 32


class DamagedFileError(P2pflError):
    """Sealed file that is not as it was written; the text names it."""


def replace_file(
    path: Path,
    parts: Iterable[bytes],
    durable: bool = True,
    before: Callable[[], None] = lambda: None,
    mode: int = 0o666,
) -> None:
    """Replace a file by new content, so that at every moment it holds the old or the new one, whole.

    Args:
        durable: also after a power cut (costs the time of a flush to the disk).
        before: called when the new content is on the disk, before it takes its place.
        mode: who may read it, less what the process's umask denies.

    Raises:
        OSError: it could not be written; the old file is as it was, and what was written of the new one is removed.
    """
    temporary = path.with_name(path.name + ".new")
    try:
        temporary.unlink(missing_ok=True)  # one that a crash left behind may be of another mode
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, mode), "wb") as file:
            for part in parts:
                file.write(part)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        before()
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make files that were created, renamed or removed in a folder survive a power cut."""
    if os.name != "posix":  # elsewhere a folder cannot be opened
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_sealed(
    path: Path, magic: bytes, content: bytes, mode: int = PRIVATE, before: Callable[[], None] = lambda: None
) -> None:
    """Replace a sealed file; when this returns it is on the disk.

    Args:
        magic: says what the file is and in which version; it is the same when the file is read.
        before, mode: as of `replace_file`.

    Raises:
        OSError: as of `replace_file`.
    """
    replace_file(path, [magic, _digest(magic, content), content], before=before, mode=mode)


def read_sealed(path: Path, magic: bytes) -> bytes:
    """Return the content of a sealed file.

    Raises:
        DamagedFileError: it is not what `write_sealed` wrote with this magic.
        OSError: it cannot be read; FileNotFoundError if there is none.
    """
    data = path.read_bytes()
    head = len(magic) + _DIGEST_SIZE
    content = data[head:]
    if data[:head] != magic + _digest(magic, content):
        raise DamagedFileError(f"{path} is damaged: it is not as it was written")
    return content


def open_lock(path: Path) -> IO[bytes]:
    """Open a file to be locked; it is made where there is none, for its owner only.

    Raises:
        OSError: it cannot be opened.
    """
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | _BINARY, PRIVATE), "ab")


@contextmanager
def exclusive(path: Path, patience: float = LOCK_PATIENCE) -> Iterator[None]:
    """Keep other processes that lock the same file out of this block.

    Args:
        path: of the file that is locked; it holds nothing.
        patience: seconds to wait for another process.

    Raises:
        OSError: the file cannot be opened, or another process holds the lock for longer than that.
    """
    with open_lock(path) as file:
        if os.name == "posix":
            import fcntl

            deadline = time.monotonic() + patience
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        held = f"another process has held its lock for {patience:g} s"
                        raise OSError(errno.EAGAIN, held, str(path)) from None
                time.sleep(_POLLING)
        yield


def lock_folder(folder: Path, use: str = "runs this node") -> IO[bytes]:
    """Keep a second process out of a folder for as long as the returned file is open.

    Args:
        use: what a process does that has it; the error says so.

    Raises:
        ConfigurationError: another process has it, or its lock file cannot be written.
    """
    try:
        file = open_lock(folder / LOCK)
    except OSError as error:
        raise ConfigurationError(f"cannot write {folder / LOCK}: {reason(error)}") from error
    if os.name == "posix":
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            raise ConfigurationError(f"{folder} is in use: another process {use}") from error
    return file


def is_folder_locked(folder: Path) -> bool:
    """Return whether a process holds the lock of a folder; always True on systems without file locks."""
    if os.name != "posix":
        return True
    import fcntl

    try:
        with (folder / LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: another process that looks does not count
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


class DiskErrorReporter:
    """Tolerates a disk that is full, read-only or gone: reports it once, and once more when writing works again.

    Args:
        path: what is written.
        what: it in a word or two.
        log: receives these reports.

    Attributes:
        problem: why the last try failed; "" if it did not.
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
            before, self.problem = self.problem, reason(error)
            if not before:
                self._log.warning(f"cannot write {self._path}: {self.problem}; going on from memory", path=str(self._path))
            return
        before, self.problem = self.problem, ""
        if before:
            self._log.info(f"writes {self._what} again", path=str(self._path))


def reason(error: OSError) -> str:
    """Return the system's text of an error, without file names."""
    return error.strerror or str(error) or type(error).__name__


def _digest(magic: bytes, content: bytes) -> bytes:
    digest = sha256(magic)
    digest.update(content)
    return digest.digest()


_BINARY = getattr(os, "O_BINARY", 0)  # Windows would translate line ends
