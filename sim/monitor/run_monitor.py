"""State of the runs of a scenario in progress: the page that shows it, and the figures for trackers (p2pfl.tracking)."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from p2pfl._util.http_server import ASSETS, PageServer, Resource, asset
from p2pfl.sim.execution.snapshots import Snapshot, of_result
from p2pfl.sim.results.learning_curves import total_sent
from p2pfl.sim.results.results import Result
from p2pfl.sim.scenario.scenario import Scenario, ScenarioFile, jobs_of
from p2pfl.tracking.tracker import Factory, RunLog, TrackedRun, Tracking, factories, plain_settings

LOOKING = 5.0  # seconds for which a page counts as open after its last request
FOLDER = "track"  # in the folder of the run


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
        self._about = {"scenario": file.name, "description": " ".join(f"{file.question} {file.description}".split())}
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


class RunTracking:
    """Receiver of the runs of a scenario for trackers."""

    def __init__(self, file: ScenarioFile, tracking: Tracking) -> None:
        self._tracking = tracking
        self._project = file.name
        self._jobs = jobs_of(file)
        self._settings = {run["name"]: plain_settings(run) for run in file.to_toml()["run"]}
        self._logs: dict[int, RunLog] = {}
        self._seen: dict[int, int] = {}  # the newest round of a run in progress

    def saw(self, number: int, snapshot: Snapshot | None) -> None:
        """Log the new rounds of a job in progress; None means that the job begins."""
        log, last = self._log(number), self._seen.get(number, 0)
        if snapshot is None or not snapshot.rounds:
            return
        for round, value in zip(snapshot.rounds, snapshot.values, strict=True):
            if round > last:
                log.log(round, {f"live/test_{snapshot.metric}": value})
        self._seen[number] = max(last, snapshot.rounds[-1])

    def diverged(self, number: int) -> None:
        """Do nothing: the log of the job keeps what it has received, and is closed with the others."""

    def finished(self, number: int, result: Result) -> None:
        """Log all figures of a finished job."""
        log = self._log(number)
        for round, figures in figures_by_round(result):
            log.log(round, figures)
        log.finish(result_figures(result))
        del self._logs[number]

    def _log(self, number: int) -> RunLog:
        if number not in self._logs:
            job = self._jobs[number]
            config = self._settings[job.name] | {"seed": job.seed}
            self._logs[number] = self._tracking.begin(
                TrackedRun(f"{job.name}/seed-{job.seed}", job.name, self._project, config)
            )
        return self._logs[number]


@contextmanager
def tracking(
    file: ScenarioFile, trackers: str | Factory | Sequence[str | Factory], folder: Path, warn: Callable[[str], object]
) -> Iterator[RunTracking | None]:
    """Yield the receiver of a scenario's runs, None without trackers; at the end, wait until they have recorded all.

    Args:
        trackers: see p2pfl.tracking.tracker.factories.
        folder: parent of the folder of their files.
        warn: receives a line for each tracker that fails.

    Raises:
        ConfigurationError: a tracker is unknown, or not installed.
    """
    found = factories(trackers)
    if not found:
        yield None
        return
    tracked = Tracking(found, folder / FOLDER, warn)
    try:
        yield RunTracking(file, tracked)
    finally:
        tracked.close()


def figures_by_round(result: Result) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield the figures of each round: means over the nodes that have evaluated it, and the bytes of all nodes."""
    table = result.rounds
    rounds, place = np.unique(table["round"], return_inverse=True)
    columns = {"time/virtual_s": table["virtual_time"], "traffic/models_per_node": table["models_in"]}
    for name in table:
        stage, _, figure = name.partition("_")
        if stage in ("trained", "merged"):
            columns[f"{stage}/{figure}"] = table[name]
    curves = {name: _means(place, values, len(rounds)) for name, values in columns.items()}
    curves["traffic/bytes"] = np.bincount(place, table["bytes_out"], len(rounds))
    for k, round in enumerate(rounds.tolist()):
        yield round, {name: float(values[k]) for name, values in curves.items()}


def result_figures(result: Result) -> dict[str, float]:
    """Return the figures of a run in the table that `p2pfl-sim run` prints."""
    run = result.summary
    found = {f"result/test_{run['metric']}": run["test"]["mean"], f"result/test_{run['metric']}_std": run["test"]["std"]}
    more = {f"result/test_{name}": figures["mean"] for name, figures in run.get("extra_metrics", {}).items()}
    return found | more | {"result/bytes": total_sent(run["traffic"])}


def _means(place: np.ndarray, values: np.ndarray, count: int) -> np.ndarray:
    """Return the mean of the values at each place, [count]; NaN where there is none."""
    known = ~np.isnan(values)
    sums = np.bincount(place[known], values[known], count)
    n = np.bincount(place[known], minlength=count)
    return np.where(n > 0, sums / np.maximum(n, 1), np.nan)
