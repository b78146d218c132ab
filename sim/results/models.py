"""Files of the nodes' models in the folder of a run: models/RUN/seed-SEED/node-NODE.safetensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from p2pfl.errors import ConfigurationError
from p2pfl.sim.results.artifacts import MODELS
from p2pfl.system.atomic_files import reason

Tensors = dict[str, np.ndarray]


def write_models(path: Path, run: Mapping[str, Any], models: Sequence[Tensors]) -> None:
    """Write the tensors of each node's model; `run` is the summary of the run."""
    from safetensors.numpy import save_file

    folder = _folder(path, run)
    for node, tensors in enumerate(models):
        folder.mkdir(parents=True, exist_ok=True)
        about = {"run": str(run["name"]), "seed": str(run["seed"]), "node": str(node)}
        save_file(tensors, folder / f"node-{node}.safetensors", about)


def read_models(path: Path, run: Mapping[str, Any]) -> list[Tensors] | None:
    """Return the tensors of each node's model; None if the folder has none of this run.

    Raises:
        ConfigurationError: a file is missing or damaged.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    folder = _folder(path, run)
    if not folder.is_dir():
        return None
    models = []
    for node in range(run["nodes"]):
        file = folder / f"node-{node}.safetensors"
        try:
            models.append(load_file(file))
        except (OSError, SafetensorError) as error:
            why = reason(error) if isinstance(error, OSError) else error
            raise ConfigurationError(f"cannot read {file}: {why}") from error
    return models


def _folder(path: Path, run: Mapping[str, Any]) -> Path:
    name = quote(str(run["name"]), safe="").replace(".", "%2E")  # so that no name leads to another folder
    return path / MODELS / name / f"seed-{run['seed']}"
