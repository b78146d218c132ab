"""Figures of the runs of a scenario for trackers; see p2pfl.tracking."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from p2pfl.sim.execution.snapshots import Snapshot
from p2pfl.sim.results.learning_curves import total_sent
from p2pfl.sim.results.results import Result
from p2pfl.sim.scenario.scenario import ScenarioFile, jobs_of
from p2pfl.tracking.background import RunLog, Tracking
from p2pfl.tracking.tracker import Factory, TrackedRun, factories, plain_settings

FOLDER = "track"  # in the folder of the run


class RunTracking:
    """Receiver of the runs of a scenario for trackers.

    Args:
        tracking: the trackers.
    """

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
