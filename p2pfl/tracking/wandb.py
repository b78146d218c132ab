"""Trackers for Weights & Biases, and for Trackio, which has its interface."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from p2pfl.tracking.tracker import Figures, TrackedRun

ROUND = "round"  # the axis of the figures
WAITING = 15.0  # seconds for an answer of the server at the beginning


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
