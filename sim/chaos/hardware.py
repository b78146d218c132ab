"""Simulated hardware: the virtual time on which processes are killed and machines are frozen, and their disks.

All machines share one event loop. What belongs to a process runs in contexts in which `LIFE` is the life of this process:
its tasks, its timers, and the callbacks of frames that reach it. To kill a process is to end its life and to cancel its
main task. In the same instant of virtual time its tasks may still end, as their `finally` blocks do; nothing of it runs at
a later time, and its `Mount` refuses every operation on the disk from the kill on. A task that touches the disk of a dead
process is ended by `ProcessEnd`, which no handler of errors may catch. A frozen machine keeps its callbacks in their order
until it thaws; a kill thaws it, because a cancelled task ends in one of its own callbacks.

A disk keeps two views: what processes read, and what a power failure leaves. Names follow a journal: a power failure
keeps the first part of the changes since the last flush of the folder, of any length. The content of a file that was not
flushed may be lost, or cut at any block. The power can also fail during a chosen operation, so that every order of writes
in p2pfl.node is interrupted at each of its points.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from contextvars import Context, ContextVar
from math import inf
from pathlib import Path
from random import Random
from typing import Any

from p2pfl._util.disk import NO_FILE, Stamp
from p2pfl.sim.simulation.clock import Handle, VirtualLoop

BLOCK = 512  # bytes that a disk writes as a whole


class ProcessEnd(BaseException):
    """End of a process in the middle of an operation on its disk; no handler of errors may catch it."""


class Life:
    """Mark of all that belongs to one process, so that a kill ends it at one time.

    Attributes:
        end: the time at which it was killed. At that time its tasks are cancelled, and nothing of it runs later.
    """

    def __init__(self, machine: str) -> None:
        self.machine = machine
        self.end = inf

    @property
    def over(self) -> bool:
        """Return whether the process was killed."""
        return self.end < inf


LIFE: ContextVar[Life] = ContextVar("life", default=Life(""))  # noqa: B039 (the default is never changed)


class MachineLoop(VirtualLoop):
    """Event loop of several machines.

    Attributes:
        on_error: receives each error that no task handles, and the name of its machine.
    """

    def __init__(self) -> None:
        super().__init__()
        self._frozen: dict[str, float] = {}  # until which time a machine does nothing, by name
        self._postponed: dict[str, list[Handle]] = {}  # callbacks of frozen machines
        self.on_error: Callable[[str, str], None] = lambda machine, text: None

    def freeze(self, machine: str, until: float) -> None:
        """Let a machine do nothing until a time."""
        self._frozen[machine] = max(until, self._frozen.get(machine, 0.0))
        self.call_at(until, self._end_of_freeze, machine, context=Context())

    def is_frozen(self, machine: str) -> bool:
        """Return whether a machine does nothing now."""
        return self._frozen.get(machine, 0.0) > self.now

    def thaw(self, machine: str) -> None:
        """Let a machine continue now, with the callbacks that it has missed.

        A killed machine needs this, too: a task that is cancelled ends in one of its own callbacks.
        """
        self._frozen.pop(machine, None)
        self._ready.extend(self._postponed.pop(machine, ()))

    def _end_of_freeze(self, machine: str) -> None:
        if not self.is_frozen(machine):
            self.thaw(machine)

    def run_ready(self, ready: deque[Handle]) -> None:
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle.stopped:
                continue
            life = handle.context.get(LIFE)
            if life is not None and life.end < self.now:
                continue
            if self._frozen and life is not None and self.is_frozen(life.machine):
                self._postponed.setdefault(life.machine, []).append(handle)
                continue
            try:
                handle.context.run(handle.callback, *handle.args)
            except BaseException as error:  # as the loops of real processes: it ends no other callback
                if not isinstance(error, Exception | ProcessEnd):
                    raise
                self._report(life, error)

    def _report(self, life: Life | None, error: BaseException | None, text: str = "") -> None:
        if (life is None or not life.over) and not isinstance(error, ProcessEnd):
            words = text if error is None else f"{type(error).__name__}: {error}"
            self.on_error("" if life is None else life.machine, words)

    def call_exception_handler(self, context: Mapping[str, Any]) -> None:
        self._report(LIFE.get(), context.get("exception"), context["message"])


class _File:
    """Content of a file: as a process reads it, and as it is on the disk (None before the first flush)."""

    def __init__(self, number: int, content: bytes) -> None:
        self.number = number
        self.content = content
        self.flushed: bytes | None = None


_Changes = list[tuple[Path, _File | None]]  # names with their new files, None for a removed name


class SimulatedDisk:
    """The disk of one machine. Processes use it through a `Mount`.

    Args:
        draws: decides what a power failure leaves.

    Attributes:
        names: the files by name, as processes see them.
        is_full: returns whether there is no room for new files.
        operations: number of changes so far.
        fails_at: number of the change during which the power fails; 0 for none.
        on_failure: called then.
    """

    def __init__(self, draws: Random) -> None:
        self.names: dict[Path, _File] = {}
        self.is_full: Callable[[], bool] = lambda: False
        self.operations = self.fails_at = 0
        self.on_failure: Callable[[], None] = lambda: None
        self._draws = draws
        self._count = 0
        self._flushed: dict[Path, _File] = {}
        self._journal: list[_Changes] = []

    def copy(self) -> dict[Path, bytes]:
        """Return the files, as a backup does."""
        return {path: file.content for path, file in self.names.items()}

    def restore(self, files: dict[Path, bytes]) -> None:
        """Replace all files by those of a backup."""
        self.names = {path: self._new_file(content) for path, content in files.items()}
        for file in self.names.values():
            file.flushed = file.content
        self._flushed, self._journal = dict(self.names), []

    def lose_power(self) -> None:
        """Lose what was not flushed."""
        for changes in self._journal[: self._draws.randint(0, len(self._journal))]:
            _apply(changes, self._flushed)
        for file in self._flushed.values():
            if file.flushed is None:
                file.flushed = file.content = self._torn(file.content)
        self.names, self._journal = dict(self._flushed), []

    def _torn(self, content: bytes) -> bytes:
        """Return a part of a content: its first blocks, and zeros in place of the rest or nothing."""
        kept = BLOCK * self._draws.randint(0, len(content) // BLOCK)
        return content[:kept] + (bytes(len(content) - kept) if self._draws.random() < 0.5 else b"")

    def find(self, path: Path) -> _File:
        if path not in self.names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return self.names[path]

    def create(self, path: Path, content: bytes, durable: bool) -> None:
        """Create a file; one that finds no room is left with a half of its content."""
        full = self.is_full()
        file = self._new_file(content[: len(content) // 2] if full else content)
        self.change([(path, file)])
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        if durable:
            file.flushed = content

    def change(self, changes: _Changes) -> None:
        """Change names; the power may fail when they are in the journal."""
        self.operations += 1
        self._journal.append(changes)
        _apply(changes, self.names)
        self._fail_if_due()

    def sync(self) -> None:
        """Flush the names."""
        self.operations += 1
        self._fail_if_due()
        self._flushed, self._journal = dict(self.names), []

    def _new_file(self, content: bytes) -> _File:
        self._count += 1
        return _File(self._count, content)

    def _fail_if_due(self) -> None:
        if self.operations == self.fails_at:
            self.on_failure()
            raise ProcessEnd


def _apply(changes: _Changes, names: dict[Path, _File]) -> None:
    for path, file in changes:
        if file is None:
            names.pop(path, None)
        else:
            names[path] = file


class Mount:
    """Disk of a machine as one process sees it, until the process is killed; see p2pfl._util.disk.Disk."""

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

    def read(self, path: Path, most: int = -1) -> bytes:
        return self.disk.find(path).content if most < 0 else self.disk.find(path).content[:most]

    def exists(self, path: Path) -> bool:
        return path in self.disk.names

    def stamp(self, path: Path) -> Stamp:
        file = self.disk.names.get(path)
        return NO_FILE if file is None else (file.number, file.number, len(file.content))

    def create(self, path: Path, parts: Iterable[bytes], durable: bool, mode: int) -> None:
        self.disk.create(path, b"".join(parts), durable)

    def rename(self, source: Path, target: Path) -> None:
        self.disk.change([(target, self.disk.find(source)), (source, None)])

    def link(self, source: Path, target: Path) -> None:
        if self.exists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
        self.disk.change([(target, self.disk.find(source))])

    def remove(self, path: Path) -> None:
        if self.exists(path):
            self.disk.change([(path, None)])

    def sync(self, folder: Path) -> None:
        self.disk.sync()

    def exclusive(self, path: Path, patience: float) -> AbstractContextManager[None]:
        return nullcontext()
