"""Trackers of experiments: their interface and table, and the thread in which they work.

Trackers belong to other packages, which may be slow, print, or fail. `Tracking` calls them in a thread of its own, so
that no round waits for them, and leaves one out that fails. Only the end of a program waits, for some seconds, or until
Ctrl-C.
"""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from queue import SimpleQueue
from textwrap import shorten
from threading import Thread
from typing import Any, NamedTuple, Protocol

import msgspec

from p2pfl._util.printable import printable
from p2pfl._util.registry import resolve
from p2pfl.errors import MissingRequirementError

Figures = Mapping[str, float]
TRACKERS = {
    "mlflow": "p2pfl.tracking.trackers:MLflow",
    "tensorboard": "p2pfl.tracking.trackers:TensorBoard",
    "trackio": "p2pfl.tracking.trackers:Trackio",
    "wandb": "p2pfl.tracking.trackers:WeightsAndBiases",
}
GROUP = "p2pfl.trackers"  # of entry points
CLOSING = 30.0  # seconds that the end of a program waits for its trackers
SILENT = 1.0  # seconds of them without a message
MOST_WAITING = 10_000  # calls that may wait for a slow tracker
LONGEST_REASON = 200  # characters of an error in a warning
STOPPING = (signal.SIGINT, signal.SIGTERM)


class TrackedRun(msgspec.Struct, frozen=True):
    """Description of a run, which a tracker gets before its figures.

    Attributes:
        name: its name, such as "alice", or "dac/seed-0".
        group: runs that belong together: a federation, or a row of a scenario.
        project: the project of the tracker in which the run appears.
        config: settings by name: numbers, bools and strings.
    """

    name: str
    group: str
    project: str = "p2pfl"
    config: Mapping[str, Any] = msgspec.field(default_factory=dict)


class Tracker(Protocol):
    """Receiver of the figures of one run. Its methods are called from one thread; any error ends the tracking.

    A tracker is made by a factory that is called with the TrackedRun and a folder for its files, which may not exist.
    """

    def log(self, step: int, figures: Figures) -> None:
        """Record figures of a round; further figures of the same round may follow later."""

    def finish(self, figures: Figures) -> None:
        """Record the figures of the result, and end the run. It is called once."""


Factory = Callable[[TrackedRun, Path], Tracker]


class NamedFactory(NamedTuple):
    """How a tracker is made, and the name of its folder and in messages."""

    name: str
    make: Factory


def factories(given: str | Factory | Sequence[str | Factory]) -> list[NamedFactory]:
    """Return the factories of one or several trackers.

    Args:
        given: names: "tensorboard", "mlflow", "wandb", "trackio", an entry point of `p2pfl.trackers`, or
            "package.module:factory"; or factories.

    Raises:
        ConfigurationError: a name is unknown.
        MissingRequirementError: the package of a tracker is not installed.
    """
    found = []
    for each in [given] if isinstance(given, str) or callable(given) else given:
        if callable(each):
            found.append(NamedFactory(getattr(each, "__name__", type(each).__name__), each))
            continue
        if each in TRACKERS and find_spec(each) is None:
            package = each if each == "trackio" else f"'p2pfl-node[{each}]'"
            raise MissingRequirementError(f"the tracker {each} is not installed: pip install {package}")
        found.append(NamedFactory(each, resolve("tracker", each, TRACKERS, GROUP, ("log", "finish"))))
    return found


def file_name(name: str) -> str:
    """Return the name of a run as a relative path: other characters than letters, digits and ".=,+-" become "_"."""
    parts = [re.sub(r"[^\w.=,+-]", "_", part) for part in name.split("/")]
    return "/".join(part for part in parts if part.strip("."))


def plain_settings(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested tables as one dict with keys such as "policy.name"; other values than plain ones become text."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            found |= plain_settings(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value if isinstance(value, bool | int | float | str) else str(value)
    return found


class RunLog(Protocol):
    """Receiver of the figures of one run; its methods return at once and raise nothing."""

    def log(self, step: int, figures: Figures) -> None:
        """Record figures of a round. Figures that are not finite are left out."""

    def finish(self, figures: Figures) -> None:
        """Record the figures of the result, and end the run."""


class Tracking:
    """Trackers of a program, which work in a thread of their own, one call after another.

    A tracker that fails is left out from then on, and a slow one loses figures.

    Args:
        trackers: their factories; see p2pfl.tracking.tracker.factories.
        folder: parent of the folders of their files.
        warn: receives a line for each tracker that fails or delays the end, also in that thread.
    """

    def __init__(self, trackers: Sequence[NamedFactory], folder: Path, warn: Callable[[str], object]) -> None:
        self._trackers = trackers
        self._folder = folder
        self._warn = warn
        self._left_out: set[str] = set()
        self._running: list[_QueuedRun] = []
        self._busy = ""  # the tracker of the last call
        self._slow = self._closed = False
        self._calls: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._thread = Thread(target=self._work, name="tracking", daemon=True)
        self._thread.start()

    def begin(self, run: TrackedRun) -> RunLog:
        """Begin a run."""
        begun = _QueuedRun(self)
        self.post(partial(self._open, begun, run))
        return begun

    def close(self, seconds: float = CLOSING) -> None:
        """End all runs, and wait until everything is recorded, for some seconds at most, or until Ctrl-C.

        After a second, a line says which tracker is waited for.
        """
        self._calls.put(None)
        reason = f"has not finished {seconds:g} s after the end"
        try:
            with interruptible():
                self._wait(seconds)
        except KeyboardInterrupt:
            reason = "was interrupted"
        if self._thread.is_alive():
            self._warn(f"the tracker {self._busy} {reason}; its last figures may be missing")
        self._closed = True

    def _wait(self, seconds: float) -> None:
        self._thread.join(min(SILENT, seconds))
        if self._thread.is_alive() and seconds > SILENT:
            self._warn(f"waiting for the tracker {self._busy}, at most {seconds:g} s; press Ctrl-C to end at once")
            self._thread.join(seconds - SILENT)

    def post(self, call: Callable[[], object]) -> None:
        """Have a call made in the thread, unless too many wait already."""
        if self._calls.qsize() < MOST_WAITING:
            self._calls.put(call)
        elif not self._slow:
            self._slow = True
            self._warn(f"the tracker {self._busy} is too slow; it does not get all figures")

    def attempt(self, name: str, call: Callable[[], object]) -> None:
        """Make a call of a tracker, unless it has failed before."""
        if name in self._left_out or self._closed:
            return
        self._busy = name
        try:
            call()
        except (Exception, SystemExit) as error:  # of any package; no tracker may end the run
            self._left_out.add(name)
            reason = shorten((str(error).strip() or type(error).__name__).splitlines()[0], LONGEST_REASON)
            if not self._closed:
                self._warn(f"the tracker {name} has failed: {printable(reason)}; the run continues without it")

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
        for run in self._running:
            run.end({})

    def _open(self, begun: _QueuedRun, run: TrackedRun) -> None:
        self._running.append(begun)
        for name, make in self._trackers:
            self.attempt(name, partial(begun.open, name, partial(make, run, self._folder / name)))


class _QueuedRun:
    """Queue in front of the thread of a tracking, so that a slow tracker never holds up a run."""

    def __init__(self, tracking: Tracking) -> None:
        self._tracking = tracking
        self._trackers: dict[str, Tracker] = {}

    def log(self, step: int, figures: Figures) -> None:
        if kept := _finite(figures):
            self._tracking.post(lambda: self._each(lambda tracker: tracker.log(step, kept)))

    def finish(self, figures: Figures) -> None:
        kept = _finite(figures)
        self._tracking.post(lambda: self.end(kept))

    def open(self, name: str, make: Callable[[], Tracker]) -> None:
        self._trackers[name] = make()

    def end(self, figures: Figures) -> None:
        self._each(lambda tracker: tracker.finish(figures))
        self._trackers.clear()

    def _each(self, call: Callable[[Tracker], object]) -> None:
        for name, tracker in self._trackers.items():
            self._tracking.attempt(name, partial(call, tracker))


def _finite(figures: Figures) -> dict[str, float]:
    return {name: float(value) for name, value in figures.items() if isfinite(value)}


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM raise KeyboardInterrupt in this block, although an event loop handles them before and after.

    In another thread than the main one nothing changes, because signals do not arrive there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.default_int_handler) for number in STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
