"""Tracker that writes files for TensorBoard."""

from __future__ import annotations

from pathlib import Path

from p2pfl.tracking.tracker import Figures, TrackedRun, file_name


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
