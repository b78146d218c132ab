"""Interface of trackers, and their table."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from p2pfl.config.registry import resolve
from p2pfl.errors import MissingRequirementError

Figures = Mapping[str, float]

TRACKERS = {
    "mlflow": "p2pfl.tracking.mlflow:MLflow",
    "tensorboard": "p2pfl.tracking.tensorboard:TensorBoard",
    "trackio": "p2pfl.tracking.wandb:Trackio",
    "wandb": "p2pfl.tracking.wandb:WeightsAndBiases",
}

GROUP = "p2pfl.trackers"  # of entry points


class TrackedRun(msgspec.Struct, frozen=True):
    """Run that a tracker shows.

    Attributes:
        name: its name, such as "alice", or "dac/seed-0".
        group: runs that belong together: a federation, or a row of a scenario.
        project: the project of the tracker in which the run appears.
        config: settings by name: numbers, bools and strings.
    """

    name: str
    group: str
    project: str = "p2pfl"
    config: Mapping[str, Any] = msgspec.field(default_factory=dict)


class Tracker(Protocol):
    """Receiver of the figures of one run. Its methods are called from one thread; any error ends the tracking.

    A tracker is made by a factory that is called with the TrackedRun and a folder for its files, which may not exist.
    """

    def log(self, step: int, figures: Figures) -> None:
        """Record figures of a round; further figures of the same round may follow later."""

    def finish(self, figures: Figures) -> None:
        """Record the figures of the result, and end the run. It is called once."""


Factory = Callable[[TrackedRun, Path], Tracker]


class NamedFactory(NamedTuple):
    """Factory of trackers, with its name for folders and messages."""

    name: str
    make: Factory


def factories(given: str | Factory | Sequence[str | Factory]) -> list[NamedFactory]:
    """Return the factories of one or several trackers.

    Args:
        given: names: "tensorboard", "mlflow", "wandb", "trackio", an entry point of `p2pfl.trackers`, or
            "package.module:factory"; or factories.

    Raises:
        ConfigurationError: a name is unknown.
        MissingRequirementError: the package of a tracker is not installed.
    """
    found = []
    for each in [given] if isinstance(given, str) or callable(given) else given:
        if callable(each):
            found.append(NamedFactory(getattr(each, "__name__", type(each).__name__), each))
            continue
        if each in TRACKERS and find_spec(each) is None:
            package = each if each == "trackio" else f"'p2pfl-node[{each}]'"
            raise MissingRequirementError(f"the tracker {each} is not installed: pip install {package}")
        found.append(NamedFactory(each, resolve("tracker", each, TRACKERS, GROUP, ("log", "finish"))))
    return found


def file_name(name: str) -> str:
    """Return the name of a run as a relative path: other characters than letters, digits and ".=,+-" become "_"."""
    parts = [re.sub(r"[^\w.=,+-]", "_", part) for part in name.split("/")]
    return "/".join(part for part in parts if part.strip("."))


def plain_settings(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested tables as one dict with keys such as "policy.name"; other values than plain ones become text."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            found |= plain_settings(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value if isinstance(value, bool | int | float | str) else str(value)
    return found
