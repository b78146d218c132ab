"""Files and folders that the built-in tasks read, from their options; see p2pfl.content."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from p2pfl.content import Declared
from p2pfl.data import image_sets
from p2pfl.data.tabular import fairness_datasets, table
from p2pfl.errors import ConfigurationError


def _classification(options: Mapping[str, Any]) -> Iterator[Path]:
    if data := options.get("data"):
        yield Path(data)


def _digits(options: Mapping[str, Any]) -> Iterator[Path]:
    if (path := image_sets.file()) is not None:
        yield path


def _images(options: Mapping[str, Any]) -> Iterator[Path]:
    data = options.get("data", "digits")
    for name in [data] if isinstance(data, str) else data:
        yield from _digits(options) if name == "digits" else _of_root(image_sets.folders_of, name, options)
    if initial := options.get("initial"):
        yield Path(initial)


def _tables(options: Mapping[str, Any]) -> Iterator[Path]:
    data = options.get("data", "")
    if data != fairness_datasets.SYNTHETIC:
        yield from _of_root(table.files_of, data, options)


def _of_root(find: Any, name: str, options: Mapping[str, Any]) -> list[Path]:
    """Return the files of a data set; [] if there is none, which its task reports."""
    try:
        found: list[Path] = find(name, options.get("root", ""))
        return found
    except (ConfigurationError, OSError):
        return []


TASK_INPUTS: Mapping[str, Declared] = {
    "classification": _classification,
    "concept-shift": lambda options: (),
    "deep-sea-treasure": lambda options: (),
    "digits": _digits,
    "fairness": _tables,
    "images": _images,
    "morl": lambda options: (),
    "praffl": _tables,
    "teachers": lambda options: (),
}
"""By task: the function from its options to the paths that it reads."""

LIBRARIES: Mapping[str, tuple[str, ...]] = {"morl": ("gymnasium", "mo-gymnasium", "stable-baselines3")}
"""By task: the distributions besides NumPy and torch whose version can change its figures."""
