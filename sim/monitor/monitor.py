"""Shows the runs of a scenario while they go on, in the terminal and on a page of this machine."""

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

FAREWELL = 3.0  # seconds at most in which an open page gets the end


class Watch:
    """Receiver of what happens in runs: keeps a board up to date, and has views show it."""

    def __init__(self, board: RunMonitor, views: Sequence[View]) -> None:
        self._board = board
        self._views = views

    def saw(self, number: int, snapshot: Snapshot | None) -> None:
        """Show a snapshot of a job; or, with None, that it begins."""
        self._board.saw(number, snapshot)
        for each in self._views:
            each.show(number)

    def finished(self, number: int, result: Result) -> None:
        """Show the result of a job."""
        self._board.finished(number, result)
        for each in self._views:
            each.show(number)

    def ended(self, words: str) -> None:
        """Show the end, with `words` about it; wait until an open page has it."""
        self._board.ended(words)
        if self._board.open():
            self._board.told.wait(FAREWELL)


@contextmanager
def watching(file: ScenarioFile, done: Mapping[int, Result], port: int, quiet: bool) -> Iterator[Watch]:
    """Show the runs of a scenario at 127.0.0.1, whose address is printed on standard error, and there in the terminal.

    Args:
        done: the results that are there already, by the number of their job.
        port: 0 takes a free one.
        quiet: show nothing in the terminal but the address.

    Raises:
        ConfigurationError: the port cannot be listened on, or what it takes is not installed.
    """
    if not 0 <= port < 65536:
        raise ConfigurationError(f"--watch-port must be from 0 to 65535, got {port}")
    board = RunMonitor(file, done)
    with ExitStack() as stack:
        address = stack.enter_context(in_thread(page_of(board, port)))
        print(f"to watch: {address}", file=sys.stderr, flush=True)
        watch = Watch(board, [] if quiet else [stack.enter_context(view(board))])
        try:
            yield watch
        except KeyboardInterrupt:
            watch.ended("interrupted")
            raise
        except BaseException as error:
            watch.ended(f"failed: {error}")
            raise
