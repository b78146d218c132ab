"""Progress of runs: a bar on a terminal or in a notebook, lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from typing import Any, TypeVar

from p2pfl.sim.formatting import number
from p2pfl.sim.results.results import Result
from p2pfl.sim.scenario.scenario import ScenarioFile
from p2pfl.sim.scenario.sweep import label

EVERY = 0.2  # seconds between updates in a notebook

T = TypeVar("T")
Progress = tuple[Callable[[int], None], Callable[[T], None]]
"""A function that counts node-rounds, and one that shows a result."""


@contextmanager
def progress_bar(total: int, quiet: bool, line: Callable[[T], str], *, lines: bool = True) -> Iterator[Progress[T]]:
    """Show progress: a bar in a notebook, or on standard error if it is a terminal; nothing with `quiet`.

    Args:
        total: number of node-rounds.
        line: returns the words for a result.
        lines: whether to print a line for each result where there is no bar.
    """
    if quiet:
        yield lambda rounds: None, lambda result: None
        return
    if _is_notebook():
        with _notebook_bar(total, line) as bar:
            yield bar
    elif sys.stderr.isatty():
        with _terminal_bar(total, line) as bar:
            yield bar
    else:
        yield lambda rounds: None, lambda result: print(line(result), file=sys.stderr, flush=True) if lines else None


def _is_notebook() -> bool:
    if "IPython" not in sys.modules:
        return False
    from rich.console import Console

    return Console().is_jupyter


@contextmanager
def _terminal_bar(total: int, line: Callable[[T], str]) -> Iterator[Progress[T]]:
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
        task = bar.add_task("simulating", total=total)
        yield lambda rounds: bar.advance(task, rounds), lambda result: bar.update(task, description=line(result))


@contextmanager
def _notebook_bar(total: int, line: Callable[[T], str]) -> Iterator[Progress[T]]:
    """Show a bar below the cell, and remove it at the end. (In a notebook rich needs ipywidgets, which p2pfl does not.)"""
    from IPython import display as notebook

    display: Callable[..., Any] = notebook.display

    done, words, shown = 0, "simulating", time.monotonic()

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
