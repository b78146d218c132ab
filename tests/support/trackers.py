"""Trackers for tests: one that remembers its calls, and ones that fail."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from p2pfl.tracking.tracker import Figures, TrackedRun


class MemoryTracker:
    """Tracker that remembers all calls of the process in `MemoryTracker.made`."""

    made: ClassVar[list[MemoryTracker]] = []

    def __init__(self, run: TrackedRun, folder: Path) -> None:
        self.run, self.folder = run, folder
        self.steps: list[tuple[int, Figures]] = []
        self.result: Figures | None = None
        MemoryTracker.made.append(self)

    def log(self, step: int, figures: Figures) -> None:
        self.steps.append((step, figures))

    def finish(self, figures: Figures) -> None:
        assert self.result is None
        self.result = figures

    def curve(self, name: str) -> dict[int, float]:
        """Return the values of a figure by round."""
        return {step: figures[name] for step, figures in self.steps if name in figures}


class FailingTracker(MemoryTracker):
    """Tracker whose server refuses every figure."""

    def log(self, step: int, figures: Figures) -> None:
        raise ConnectionError("server refuses\nfurther lines")


def broken(run: TrackedRun, folder: Path) -> MemoryTracker:
    """End the program, as a package does that cannot log in."""
    raise SystemExit("no API key")
