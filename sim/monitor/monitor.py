"""Display of the runs of a scenario in progress, in the terminal and on a local page."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from p2pfl.errors import ConfigurationError
from p2pfl.sim.execution.snapshots import Snapshot
from p2pfl.sim.monitor.run_monitor import RunMonitor, page_of
from p2pfl.sim.monitor.terminal import View, view
from p2pfl.sim.results.results import Result
from p2pfl.sim.scenario.scenario import ScenarioFile
from p2pfl.web.http_server import in_thread

FAREWELL = 3.0  # maximum seconds for an open page to fetch the final state


class Watch:
    """Receiver of events from runs; it updates a monitor, and its views show the monitor."""

    def __init__(self, status_observer: RunMonitor, views: Sequence[View]) -> None:
        self._status_observer = status_observer
        self._views = views

    def saw(self, number: int, snapshot: Snapshot | None) -> None:
        """Show a snapshot of a job; None means that the job begins."""
        self._status_observer.saw(number, snapshot)
        for each in self._views:
            each.show(number)

    def finished(self, number: int, result: Result) -> None:
        """Show the result of a job."""
        self._status_observer.finished(number, result)
        for each in self._views:
            each.show(number)

    def diverged(self, number: int) -> None:
        """Show that a job will never finish."""
        self._status_observer.diverged(number)
        for each in self._views:
            each.show(number)

    def ended(self, words: str) -> None:
        """Show the end, with `words` about it; wait until an open page has received it."""
        self._status_observer.ended(words)
        if self._status_observer.open():
            self._status_observer.end_received.wait(FAREWELL)


@contextmanager
def watching(file: ScenarioFile, done: Mapping[int, Result], port: int, quiet: bool) -> Iterator[Watch]:
    """Show the runs of a scenario on a page at 127.0.0.1 and in the terminal.

    The address of the page is printed on standard error.

    Args:
        done: existing results, by the number of their job.
        port: TCP port of the page; 0 takes a free one.
        quiet: show only the address in the terminal.

    Raises:
        ConfigurationError: the port cannot be opened, or a required package is not installed.
    """
    if not 0 <= port < 65536:
        raise ConfigurationError(f"--watch-port must be from 0 to 65535, got {port}")
    status_observer = RunMonitor(file, done)
    with ExitStack() as stack:
        address = stack.enter_context(in_thread(page_of(status_observer, port)))
        print(f"watch the runs at {address}", file=sys.stderr, flush=True)
        watch = Watch(status_observer, [] if quiet else [stack.enter_context(view(status_observer))])
        try:
            yield watch
        except KeyboardInterrupt:
            watch.ended("interrupted")
            raise
        except BaseException as error:
            watch.ended(f"failed: {error}")
            raise
