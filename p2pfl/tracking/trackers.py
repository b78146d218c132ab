"""Trackers for MLflow, for TensorBoard, for Weights & Biases, and for Trackio, which has the interface of the latter."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

from p2pfl.tracking.tracker import Figures, TrackedRun, file_name

URI = "MLFLOW_TRACKING_URI"  # environment variable with the address of a server
DEFAULTS = {  # MLflow alone would try to reach a server for minutes, and send statistics of its use
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
LONGEST_VALUE, MOST_PARAMS = 500, 100  # MLflow's limits of a parameter, and of those in one call
ROUND = "round"  # the axis of the figures
WAITING = 15.0  # seconds for an answer of the server at the beginning


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


class TensorBoard:
    """Event files in a folder for each run; `tensorboard --logdir FOLDER` shows them.

    A node that runs again continues its curves.
    """

    def __init__(self, run: TrackedRun, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(folder / file_name(run.name))
        self._last = 0
        lines = [f"| {key} | {value} |" for key, value in run.config.items()]
        self._writer.add_text("settings", "\n".join(["| setting | value |", "| --- | --- |", *lines]))  # a Markdown table
        self._writer.flush()

    def log(self, step: int, figures: Figures) -> None:
        self._last = max(self._last, step)
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def finish(self, figures: Figures) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, self._last)
        self._writer.close()


class WeightsAndBiases:
    """A run of W&B, in the mode of the environment variable WANDB_MODE.

    Without this variable the mode is `online` if an API key is configured, otherwise `offline`: files in the folder,
    which `wandb sync` uploads. Neither code, nor printed text, nor the command line is recorded. W&B's error reports are
    off, unless its environment variable WANDB_ERROR_REPORTING is set otherwise.
    """

    def __init__(self, run: TrackedRun, folder: Path) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        os.environ.setdefault("WANDB_SILENT", "true")
        import wandb

        folder.mkdir(parents=True, exist_ok=True)
        mode: Any = os.environ.get("WANDB_MODE") or ("online" if wandb.login(prompt=False, verify=False) else "offline")
        settings = wandb.Settings(
            console="off",
            disable_code=True,
            disable_git=True,
            init_timeout=WAITING,
            x_disable_meta=True,  # this has the arguments of the program, which may hold a password
            x_disable_machine_info=True,
        )
        self._run = wandb.init(
            project=run.project,
            name=run.name,
            group=run.group,
            config=dict(run.config),
            dir=folder.parent,  # in which wandb makes the folder `wandb`
            mode=mode,
            settings=settings,
            reinit="create_new",
        )
        self._run.define_metric("*", step_metric=ROUND)

    def log(self, step: int, figures: Figures) -> None:
        self._run.log({ROUND: step, **figures})  # as an own axis, because a round's evaluation follows later

    def finish(self, figures: Figures) -> None:
        self._run.summary.update(dict(figures))
        self._run.finish()


class Trackio:
    """A run of Trackio, in a local database of the folder, or of the environment variable TRACKIO_DIR."""

    def __init__(self, run: TrackedRun, folder: Path) -> None:
        os.environ.setdefault("TRACKIO_DIR", str(folder))  # read when the package is imported
        import trackio

        self._run = trackio.init(project=run.project, name=run.name, group=run.group, config=dict(run.config))
        self._last = 0

    def log(self, step: int, figures: Figures) -> None:
        self._last = max(self._last, step)
        self._run.log(dict(figures), step=step)

    def finish(self, figures: Figures) -> None:
        if figures:
            self._run.log(dict(figures), step=self._last)
        self._run.finish()
