"""Display of the runs of a scenario in progress: a bar, or with `--watch` a table and a local page.

The bar appears on a terminal or in a notebook. Without a terminal, both print lines.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from html import escape
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from p2pfl._util.http_server import in_thread
from p2pfl.errors import ConfigurationError
from p2pfl.sim.execution.forecast import duration
from p2pfl.sim.execution.snapshots import Snapshot
from p2pfl.sim.formatting import number, size
from p2pfl.sim.monitor.run_monitor import Row, RunMonitor, page_of
from p2pfl.sim.results.results import Result
from p2pfl.sim.scenario.questions import label
from p2pfl.sim.scenario.scenario import ScenarioFile

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


FAREWELL = 3.0  # maximum seconds for an open page to fetch the final state
PAUSE = 10.0  # seconds between plain lines of one run
NAME = 16  # minimum width of the names of runs, in characters, if columns can be left out for them
FEWEST = 4  # columns: the name and the progress of the run
HEADINGS = ("run", "seed", "state", "round", "metric", "sent", "models", "virtual time", "node-rounds/s")
EVERY = 0.2  # seconds between updates in a notebook
T = TypeVar("T")
Progress = tuple[Callable[[int], None], Callable[[T], None]]
"""A function that counts node-rounds, and one that shows a result."""


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


class View:
    """Display of a monitor, which reads the monitor repeatedly on its own."""

    def show(self, number: int) -> None:
        """Show the new state of a job."""


@contextmanager
def view(status_observer: RunMonitor, stream: TextIO | None = None) -> Iterator[View]:
    """View a monitor on standard error."""
    stream = stream or sys.stderr
    if not stream.isatty():
        yield Lines(status_observer, stream)
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(file=stream, highlight=False, markup=False)
    with Live(console=console, transient=True, get_renderable=lambda: table(status_observer, console)):
        yield View()


class Lines(View):
    """Printer of periodic lines for each run in progress; other code prints the lines of finished runs."""

    def __init__(self, status_observer: RunMonitor, stream: TextIO) -> None:
        self._status_observer = status_observer
        self._stream = stream
        self._said: dict[int, float] = {}

    def show(self, number: int) -> None:
        row, now = self._status_observer.rows[number], time.monotonic()
        if row.state != "running" or now - self._said.setdefault(number, now) < PAUSE:
            return
        self._said[number] = now
        print(line(self._status_observer, row), file=self._stream, flush=True)


def line(status_observer: RunMonitor, row: Row) -> str:
    """Return the progress of a run in words."""
    cells = dict(zip(HEADINGS, _cells(row), strict=True))
    parts = [f"{cells['run']}, seed {cells['seed']}: round {cells['round']}"]
    if row.seen is not None and row.seen.values:
        parts.append(f"{row.seen.metric} {cells['metric']}")
    parts += [f"{cells['sent']} sent", f"{cells['virtual time']} virtual", f"{cells['node-rounds/s']} node-rounds/s"]
    return ", ".join(parts) + f"; {rest(status_observer)}"


def rest(status_observer: RunMonitor) -> str:
    """Return the progress of all runs in words."""
    finished = sum(row.state in ("finished", "kept") for row in status_observer.rows)
    _, left = status_observer.pace()
    words = "" if left is None or finished == len(status_observer.rows) else f", about {duration(left)} left"
    return f"{finished} of {len(status_observer.rows)} runs finished{words}"


def table(status_observer: RunMonitor, console: Console) -> Table:
    """Return a table of the runs that fit: runs in progress, then those that ended last, then waiting ones.

    A narrow console also gets fewer columns.
    """
    room = max(3, console.size.height - 4)
    while True:
        shown = _table(status_observer, room, console.size.width)
        lines = len(console.render_lines(shown))  # long names take several lines
        if lines < console.size.height or room == 1:
            return shown
        room = max(1, room - max(1, (lines - console.size.height) // 2))


def _table(status_observer: RunMonitor, room: int, width: int) -> Table:
    from rich.table import Table
    from rich.text import Text

    rows = status_observer.rows
    metrics = {row.seen.metric for row in rows if row.seen is not None}
    headings = ["/".join(sorted(metrics)) or "metric" if name == "metric" else name for name in HEADINGS]
    order = {"running": 0, "stopped": 0, "finished": 1, "waiting": 2, "kept": 3}
    first = sorted(range(len(rows)), key=lambda k: (order[rows[k].state], -k if rows[k].state == "finished" else k))
    cells = {k: _cells(rows[k]) for k in sorted(first[:room])}
    widths = [max(map(len, column)) + 2 for column in zip(headings, *cells.values(), strict=True)]
    columns = len(headings)
    while columns > FEWEST and NAME + sum(widths[1:columns]) > width:
        columns -= 1
    shown = Table(caption=rest(status_observer), caption_justify="left", box=None, header_style="bold", expand=False)
    for name, heading in zip(HEADINGS, headings[:columns], strict=False):
        shown.add_column(heading, justify="left" if name in ("run", "state") else "right", no_wrap=name != "run")
    for k, row in cells.items():
        style = "bold" if rows[k].state == "running" else "dim" if rows[k].state == "waiting" else ""
        shown.add_row(*(Text(cell) for cell in row[:columns]), style=style)
    if len(rows) > room:
        shown.add_row(Text(f"and {len(rows) - room} more", style="dim"))
    return shown


def _cells(row: Row) -> list[str]:
    job, seen = row.job, row.seen
    cells = [label(job.name, job.varied), str(job.seed), row.state, f"{row.node_rounds // job.nodes} of {job.rounds}"]
    if seen is None:
        return [*cells, *[""] * 5]
    value = row.result if row.result is not None else seen.values[-1] if seen.values else None
    limit = "" if seen.limit is None else f" of {'-'.join(map(str, dict.fromkeys(seen.limit)))}"
    cells += [number(value), size(seen.bytes), f"{seen.most_models}{limit}"]
    virtual = f"{seen.virtual_s:,.0f} s" if seen.virtual_s >= 1000 else f"{seen.virtual_s:.3g} s"
    return [*cells, virtual, f"{row.speed:,.0f}"]


@contextmanager
def progress_bar(
    total: int, quiet: bool, line: Callable[[T], str], *, lines: bool = True, done: int = 0
) -> Iterator[Progress[T]]:
    """Show progress: a bar in a notebook, or on standard error if it is a terminal; nothing with `quiet`.

    Args:
        total: number of node-rounds.
        line: returns the words for a result.
        lines: whether to print a line for each result where there is no bar.
        done: number of node-rounds that are done already.
    """
    if quiet:
        yield lambda rounds: None, lambda result: None
        return
    if _is_notebook():
        with _notebook_bar(total, line, done) as bar:
            yield bar
    elif sys.stderr.isatty():
        with _terminal_bar(total, line, done) as bar:
            yield bar
    else:
        yield lambda rounds: None, lambda result: print(line(result), file=sys.stderr, flush=True) if lines else None


def _is_notebook() -> bool:
    if "IPython" not in sys.modules:
        return False
    from rich.console import Console

    return Console().is_jupyter


@contextmanager
def _terminal_bar(total: int, line: Callable[[T], str], done: int) -> Iterator[Progress[T]]:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("simulating", total=total, completed=done)
        yield lambda rounds: bar.advance(task, rounds), lambda result: bar.update(task, description=line(result))


@contextmanager
def _notebook_bar(total: int, line: Callable[[T], str], done: int) -> Iterator[Progress[T]]:
    """Show a bar below the cell, and remove it at the end. (In a notebook rich needs ipywidgets, which p2pfl does not.)"""
    from IPython import display as notebook

    display: Callable[..., Any] = notebook.display

    words, shown = "simulating", time.monotonic()

    def page() -> dict[str, str]:
        bar = f'<progress max="{max(total, 1)}" value="{done}"></progress>'
        return {"text/html": f"{bar} {escape(words)}", "text/plain": f"{done} of {total} node-rounds, {words}"}

    def advance(rounds: int) -> None:
        nonlocal done, shown
        done += rounds
        if (now := time.monotonic()) - shown >= EVERY:
            shown = now
            handle.update(page(), raw=True)

    def show(result: T) -> None:
        nonlocal words
        words = line(result)
        handle.update(page(), raw=True)

    handle: Any = display(page(), raw=True, display_id=True)
    try:
        yield advance, show
    finally:
        handle.update({"text/html": "", "text/plain": ""}, raw=True)


def line_of(file: ScenarioFile) -> Callable[[Result], str]:
    """Return a function that describes the result of a run of a scenario in one line."""
    varied = {run.name: run.varied for run in file.runs}

    def line(result: Result) -> str:
        run = result.summary
        name, value = label(run["name"], varied.get(run["name"], {})), number(run["test"]["mean"]) or "not computed"
        return f"{name}, seed {run['seed']}: {value} ({run['time']['wall_s']:.1f} s)"

    return line
