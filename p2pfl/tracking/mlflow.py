"""Tracker for MLflow."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from p2pfl.tracking.tracker import Figures, TrackedRun

URI = "MLFLOW_TRACKING_URI"  # environment variable with the address of a server
DEFAULTS = {  # MLflow alone would try to reach a server for minutes, and send statistics of its use
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
LONGEST_VALUE, MOST_PARAMS = 500, 100  # MLflow's limits of a parameter, and of those in one call


class MLflow:
    """Runs in an experiment of the run's project, on the server of MLFLOW_TRACKING_URI, or else in files of the folder.

    `mlflow ui --backend-store-uri FOLDER` shows the files. MLflow's telemetry is off, unless its environment variable
    MLFLOW_DISABLE_TELEMETRY is set otherwise. A server that does not answer is given up after some seconds.
    """

    def __init__(self, run: TrackedRun, folder: Path) -> None:
        for key, value in DEFAULTS.items():
            os.environ.setdefault(key, value)
        uri = os.environ.get(URI)
        if not uri:
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # newer versions ask for consent
            folder.mkdir(parents=True, exist_ok=True)
            uri = folder.resolve().as_uri()
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient(uri)
        found = self._client.get_experiment_by_name(run.project)
        experiment = found.experiment_id if found else self._client.create_experiment(run.project)
        begun = self._client.create_run(experiment, run_name=run.name, tags={"group": run.group})
        self._id, self._last = begun.info.run_id, 0
        params = [Param(_key(key), str(value)[:LONGEST_VALUE]) for key, value in run.config.items()]
        for k in range(0, len(params), MOST_PARAMS):
            self._client.log_batch(self._id, params=params[k : k + MOST_PARAMS])

    def log(self, step: int, figures: Figures) -> None:
        from mlflow.entities import Metric

        self._last, now = max(self._last, step), int(time.time() * 1000)
        self._client.log_batch(self._id, [Metric(_key(name), value, now, step) for name, value in figures.items()])

    def finish(self, figures: Figures) -> None:
        self.log(self._last, figures)
        self._client.set_terminated(self._id)


def _key(name: str) -> str:
    """Return a name with the characters that MLflow allows."""
    return re.sub(r"[^\w\-. /]", "_", name, flags=re.ASCII)
