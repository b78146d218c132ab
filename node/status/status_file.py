"""Status file of a node, replaced atomically, and at a limited rate."""

from __future__ import annotations

import asyncio
import os
import time
from asyncio import TimerHandle
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from p2pfl.errors import ConfigurationError
from p2pfl.node.status.reader import read
from p2pfl.system.atomic_files import DiskErrorReporter, replace_file
from p2pfl.system.disk import PRIVATE
from p2pfl.system.event_log import EventLogger

EMPTY: Mapping[str, Any] = {"round": 0, "peers": [], "history": []}  # status of a node before its first round
KEPT = ("name", "federation", "federation_id", "round", "rounds", "metric", "best", "history")  # from the last run
SHOWN = 200  # rounds in the file, which is rewritten often; the node's page shows more


class StatusFile:
    """Status file of a node.

    Args:
        log: receives an event when the file cannot be written, and when it can be written again.
        clock: returns seconds of a monotonic clock.
        make: returns the current status.
    """

    def __init__(
        self, path: Path, log: EventLogger, clock: Callable[[], float], make: Callable[[], Mapping[str, Any]]
    ) -> None:
        self._path = path
        self._tries = DiskErrorReporter(path, "the status", log)
        self._clock = clock
        self._make = make
        self._written = float("-inf")
        self._timer: TimerHandle | None = None
        self._due = float("inf")  # time at which the timer ends

    @property
    def problem(self) -> str:
        """The reason why the last write failed; "" if it succeeded."""
        return self._tries.problem

    def write(self, apart: float = 0.0) -> None:
        """Write the status now, or once `apart` seconds have passed since the last write."""
        now = self._clock()
        due = max(now, self._written + apart)
        loop = _running_loop() if due > now else None
        if loop is None:
            self._write()
        elif due < self._due:
            self._cancel()
            self._due, self._timer = due, loop.call_later(due - now, self._write)

    def _write(self) -> None:
        self._cancel()
        self._written = self._clock()
        state = self._make()
        with self._tries.tolerate():
            shown = {**state, "history": state["history"][-SHOWN:]}
            replace_file(self._path, [encode(shown)], durable=False, mode=PRIVATE)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._due = None, float("inf")


def encode(state: Mapping[str, Any]) -> bytes:
    """Return a status as JSON.

    A value that is not finite becomes null, because JSON has no text for it. A task of the user's own may report its
    metrics as numbers of NumPy.
    """
    return msgspec.json.encode(state, enc_hook=float)


def write_state(
    path: Path,
    state: str,
    reason: str = "",
    *,
    facts: Mapping[str, Any] = MappingProxyType({}),
    wall: Callable[[], float] = time.time,
) -> None:
    """Write the state of a node that has no observer yet; keep the rounds of its last run.

    Nothing is written if the disk is full: this state is for display only.

    Args:
        reason: why the node is in this state.
        facts: further entries of the status, by key.
        wall: returns seconds since 1970.
    """
    try:
        earlier = read(path) or {}
    except ConfigurationError:  # damaged
        earlier = {}
    kept = {key: earlier[key] for key in KEPT if key in earlier}
    status = {**EMPTY, **kept, **facts, "state": state, "reason": reason, "pid": os.getpid(), "updated": wall()}
    with suppress(OSError):
        replace_file(path, [encode(status)], durable=False, mode=PRIVATE)


@contextmanager
def keep_state(path: Path, error: type[Exception]) -> Iterator[None]:
    """Write the earlier status again if the block ends with an error of a type, after which the node has not started."""
    try:
        earlier = path.read_bytes()
    except OSError:
        earlier = None
    try:
        yield
    except error:
        with suppress(OSError):
            if earlier is None:
                path.unlink()
            else:
                replace_file(path, [earlier], durable=False, mode=PRIVATE)
        raise


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
