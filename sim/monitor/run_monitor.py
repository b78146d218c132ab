"""State of the runs of a scenario in progress, and the page that shows it."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from p2pfl.sim.execution.snapshots import Snapshot, of_result
from p2pfl.sim.results.results import Result
from p2pfl.sim.scenario.scenario import Scenario, ScenarioFile, jobs_of
from p2pfl.web.http_server import ASSETS, PageServer, Resource, asset

LOOKING = 5.0  # seconds for which a page counts as open after its last request


@dataclass
class Row:
    """State of a job.

    Attributes:
        state: "waiting", "running", "finished", "kept" if an earlier attempt finished it, or "stopped" if it will never
            finish.
        result: the mean over nodes of the test metric of its result.
    """

    job: Scenario
    state: str = "waiting"
    seen: Snapshot | None = None
    result: float | None = None

    @property
    def node_rounds(self) -> int:
        if self.state in ("finished", "kept"):
            return self.all_node_rounds
        return 0 if self.seen is None else self.seen.node_rounds

    @property
    def all_node_rounds(self) -> int:
        return self.job.nodes * self.job.rounds

    @property
    def speed(self) -> float:
        """Return the node-rounds per second of wall time."""
        return 0.0 if self.seen is None or not self.seen.wall_s else self.seen.node_rounds / self.seen.wall_s


class RunMonitor:
    """State of all jobs of a scenario; other threads may read it.

    Args:
        done: existing results, by the number of their job.
    """

    def __init__(self, file: ScenarioFile, done: Mapping[int, Result] = {}) -> None:
        self.rows = [Row(job) for job in jobs_of(file)]
        self.end_received = threading.Event()  # a page has received the end
        self.asked = -LOOKING  # time of a page's last request
        self._about = {"scenario": file.name, "description": " ".join(file.description.split())}
        self._lock = threading.Lock()
        self._begun = time.monotonic()
        self._moved = 0.0  # time of the first snapshot; it excludes the start-up, which happens only once
        self._end = ""
        for number, result in done.items():
            self.finished(number, result, "kept")

    def saw(self, number: int, snapshot: Snapshot | None) -> None:
        """Record a snapshot of a job; None means that the job begins."""
        with self._lock:
            row = self.rows[number]
            row.state = "running"
            if snapshot is not None and not self._moved:
                self._moved = time.monotonic() - snapshot.wall_s
            row.seen = snapshot or row.seen

    def finished(self, number: int, result: Result, state: str = "finished") -> None:
        """Record the result of a job."""
        seen = of_result(result)
        with self._lock:
            row = self.rows[number]
            row.state, row.seen, row.result = state, seen, result.summary["test"]["mean"]

    def diverged(self, number: int) -> None:
        """Record that a job will never finish."""
        with self._lock:
            self.rows[number].state = "stopped"

    def ended(self, words: str) -> None:
        """Record the end of all runs, with `words` about it."""
        with self._lock:
            self._end = words
            for row in self.rows:
                row.state = "stopped" if row.state == "running" else row.state

    def open(self) -> bool:
        """Return whether a page has sent a request lately."""
        return time.monotonic() - self.asked < LOOKING

    def pace(self) -> tuple[float, float | None]:
        """Return the node-rounds per second so far, and the estimated seconds for the rest."""
        own = [row for row in self.rows if row.state != "kept"]
        done = sum(row.node_rounds for row in own)
        all_of_them = sum(row.node_rounds if row.state == "stopped" else row.all_node_rounds for row in own)
        if not done or not self._moved:
            return 0.0, None
        rate = done / max(time.monotonic() - self._moved, 1e-9)
        return rate, (all_of_them - done) / rate

    def state(self, number: int | None = None) -> bytes:
        """Return the contents of a page as JSON: all runs, and the known links between the nodes of one run.

        Args:
            number: number of that run; by default the first in progress, or else the one most recently in progress.
        """
        with self._lock:
            self.asked = time.monotonic()
            if self._end:
                self.end_received.set()
            rate, left = self.pace()
            about = {"elapsed": self.asked - self._begun, "left": left, "node_rounds_per_s": rate, "end": self._end}
            matrix = self._matrix(self._newest() if number is None else number)
            return msgspec.json.encode(
                self._about | about | {"runs": [_row_dict(row) for row in self.rows], "matrix": matrix}
            )

    def _newest(self) -> int:
        seen = [number for number, row in enumerate(self.rows) if row.seen is not None]
        going = [number for number in seen if self.rows[number].state == "running"]
        return (going or seen[-1:] or [0])[0]

    def _matrix(self, number: int) -> dict[str, Any]:
        row = self.rows[number]
        if row.seen is None:
            return {"run": number, "cells": 0}
        packed = base64.b64encode(row.seen.weights.astype("<f4").tobytes()).decode()
        cells = len(row.seen.weights)
        return {"run": number, "cells": cells, "nodes": row.job.nodes, "groups": row.seen.groups, "weights": packed}


def _row_dict(row: Row) -> dict[str, Any]:
    job, seen = row.job, row.seen
    shown = {
        "name": job.name,
        "seed": job.seed,
        "nodes": job.nodes,
        "rounds": job.rounds,
        "evaluate_every": job.evaluate_every,
        "state": row.state,
        "round": row.node_rounds // job.nodes,
        "result": row.result,
        "speed": row.speed,
    }
    if seen is None:
        return shown
    names = ("metric", "higher_is_better", "values", "bytes", "virtual_s", "wall_s", "models", "most_models", "limit")
    return shown | {name: getattr(seen, name) for name in names} | {"x": seen.rounds}


def page_of(status_observer: RunMonitor, port: int) -> PageServer:
    """Return the page of a monitor, not yet started; port 0 takes a free port."""
    here = Path(__file__).parent / "web"
    shown = {"/": asset(here / "watch.html")}
    shown |= {f"/{name}": asset(here / name) for name in ("watch.js", "watch.css")}
    shown |= {f"/{name}": asset(ASSETS / name) for name in ("live.js", "charts.js", "style.css", "status.css", "icon.svg")}
    shown["/runs.json"] = Resource("application/json", status_observer.state)
    for number in range(len(status_observer.rows)):
        shown[f"/runs.json?{number}"] = Resource("application/json", partial(status_observer.state, number))
    return PageServer(shown, "127.0.0.1", port)
