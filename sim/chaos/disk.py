"""Disk in memory that loses in a power failure what was not flushed, and that can be full."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from random import Random
from typing import NoReturn

from p2pfl.sim.chaos.clock import Life, ProcessEnd
from p2pfl.system.disk import NO_FILE, Stamp

BLOCK = 512  # bytes that a disk writes as a whole


class _File:
    """Content of a file: as a process reads it, and as it is on the disk (None before the first flush)."""

    def __init__(self, number: int, content: bytes) -> None:
        self.number = number
        self.content = content
        self.flushed: bytes | None = None


_Changes = list[tuple[Path, _File | None]]  # names with their new files, None for a removed name


class SimulatedDisk:
    """The disk of one machine.

    Names follow a journal: a power failure keeps the first part of the changes since the last flush of the folder, of any
    length. The content of a file that was not flushed may be lost, or cut at any block.

    Args:
        draws: decides what a power failure leaves.

    Attributes:
        full: whether there is no room for new files.
        operations: number of changes so far.
        failed_writes: number of changes that the full disk has refused.
        fails_at: number of the change during which the power fails; 0 for none.
        on_failure: called then.
    """

    def __init__(self, draws: Random) -> None:
        self.full = False
        self.operations = self.failed_writes = self.fails_at = 0
        self.on_failure: Callable[[], None] = lambda: None
        self._draws = draws
        self._count = 0
        self._names: dict[Path, _File] = {}
        self._flushed: dict[Path, _File] = {}
        self._journal: list[_Changes] = []

    def copy(self) -> dict[Path, bytes]:
        """Return the files, as a backup does."""
        return {path: file.content for path, file in self._names.items()}

    def restore(self, files: dict[Path, bytes]) -> None:
        """Replace all files by those of a backup."""
        self._names = {}
        for path, content in files.items():
            self._count += 1
            self._names[path] = _File(self._count, content)
            self._names[path].flushed = content
        self._flushed, self._journal = dict(self._names), []

    def lose_power(self) -> None:
        """Lose what was not flushed."""
        for changes in self._journal[: self._draws.randint(0, len(self._journal))]:
            _apply(changes, self._flushed)
        for file in self._flushed.values():
            if file.flushed is None:
                file.flushed = file.content = self._torn(file.content)
        self._names, self._journal = dict(self._flushed), []

    def _torn(self, content: bytes) -> bytes:
        """Return a part of a content: its first blocks, and zeros in place of the rest or nothing."""
        kept = BLOCK * self._draws.randint(0, len(content) // BLOCK)
        return content[:kept] + (bytes(len(content) - kept) if self._draws.random() < 0.5 else b"")

    # Operations (see p2pfl.system.disk.Disk)

    def read(self, path: Path) -> bytes:
        return self._find(path).content

    def exists(self, path: Path) -> bool:
        return path in self._names

    def stamp(self, path: Path) -> Stamp:
        file = self._names.get(path)
        return NO_FILE if file is None else (file.number, file.number, len(file.content))

    def create(self, path: Path, parts: Iterable[bytes], durable: bool, mode: int) -> None:
        fails = self._begin()
        content = b"".join(parts)
        self._count += 1
        file = _File(self._count, content)
        if self.full:
            file.content = content[: len(content) // 2]
        self._note([(path, file)])
        if fails:
            self._fail()
        if self.full:
            self.failed_writes += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        if durable:
            file.flushed = content

    def rename(self, source: Path, target: Path) -> None:
        file = self._find(source)
        self._change([(target, file), (source, None)])

    def link(self, source: Path, target: Path) -> None:
        if target in self._names:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
        self._change([(target, self._find(source))])

    def remove(self, path: Path) -> None:
        if path in self._names:
            self._change([(path, None)])

    def sync(self, folder: Path) -> None:
        if self._begin():
            self._fail()
        self._flushed, self._journal = dict(self._names), []

    def _find(self, path: Path) -> _File:
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return self._names[path]

    def _begin(self) -> bool:
        """Count a change; return whether the power fails during it."""
        self.operations += 1
        return self.operations == self.fails_at

    def _fail(self) -> NoReturn:
        self.on_failure()
        raise ProcessEnd

    def _change(self, changes: _Changes) -> None:
        fails = self._begin()
        self._note(changes)
        if fails:
            self._fail()

    def _note(self, changes: _Changes) -> None:
        self._journal.append(changes)
        _apply(changes, self._names)


def _apply(changes: _Changes, names: dict[Path, _File]) -> None:
    for path, file in changes:
        if file is None:
            names.pop(path, None)
        else:
            names[path] = file


class Mount:
    """Disk of a machine as one process sees it, until the process is killed; see p2pfl.system.disk.Disk."""

    def __init__(self, disk: SimulatedDisk, life: Life) -> None:
        self._disk = disk
        self._life = life

    @property
    def disk(self) -> SimulatedDisk:
        """The disk.

        Raises:
            ProcessEnd: the process was killed.
        """
        if self._life.over:
            raise ProcessEnd
        return self._disk

    def read(self, path: Path) -> bytes:
        return self.disk.read(path)

    def exists(self, path: Path) -> bool:
        return self.disk.exists(path)

    def stamp(self, path: Path) -> Stamp:
        return self.disk.stamp(path)

    def create(self, path: Path, parts: Iterable[bytes], durable: bool, mode: int) -> None:
        self.disk.create(path, parts, durable, mode)

    def rename(self, source: Path, target: Path) -> None:
        self.disk.rename(source, target)

    def link(self, source: Path, target: Path) -> None:
        self.disk.link(source, target)

    def remove(self, path: Path) -> None:
        self.disk.remove(path)

    def sync(self, folder: Path) -> None:
        self.disk.sync(folder)

    def exclusive(self, path: Path, patience: float) -> AbstractContextManager[None]:
        return nullcontext()
