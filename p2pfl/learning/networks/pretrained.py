"""Reader of initial models from safetensors files."""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from pathlib import Path

import numpy as np

from p2pfl.content.digests import digest_file
from p2pfl.errors import ConfigurationError
from p2pfl.parameters import Layout, Parameters
from p2pfl.system.shared_work import once

MOST_LISTED = 20  # names in an error


def load(file: str, layout: Layout, without: tuple[str, ...] = ()) -> Parameters:
    """Return the tensors of a file as one vector. It is read again only after a change, and must not be modified.

    Args:
        file: its tensors must be float32 with the layout's names and shapes, as `p2pfl-node export` writes them. Batch
            norm's integer counters, which files of other programs contain, are ignored.
        layout: the layout of the model.
        without: names of tensors that are set to 0 and never taken from the file.

    Raises:
        ConfigurationError: it cannot be read, or its tensors differ; the text names the first one that differs.
    """
    path = Path(file).expanduser()
    try:
        content = once(("initial model", path), lambda: digest_file(path))
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from error
    return _load(path, content, layout, without)


@lru_cache(maxsize=2)
def _load(path: Path, content: bytes, layout: Layout, without: tuple[str, ...]) -> Parameters:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            names = {name for name in file.keys() if not name.endswith(".num_batches_tracked")} - set(without)  # noqa: SIM118
            needed = {name: shape for name, shape in layout.shapes if name not in without}
            for name, shape in needed.items():
                if name not in names:
                    raise ConfigurationError(f"{path} lacks the tensor {name}; it has {_format_names(names)}")
                found = file.get_slice(name)
                if found.get_dtype() != "F32" or tuple(found.get_shape()) != shape:
                    raise ConfigurationError(
                        f"{path}: {name} is {found.get_dtype()} {found.get_shape()}, but the model has F32 {list(shape)}"
                    )
            others = sorted(names - needed.keys())
            if others:
                raise ConfigurationError(f"{path} has the tensor {others[0]}, but the model has not")
            zeros = {name: np.zeros(shape, np.float32) for name, shape in layout.shapes if name in without}
            params = layout.flatten(zeros | {name: file.get_tensor(name) for name in needed})
    except (SafetensorError, OSError) as error:
        raise ConfigurationError(f"{path} is damaged, or not a safetensors file: {error}") from error
    if not np.isfinite(params).all():
        raise ConfigurationError(f"{path}: some values are not finite")
    return params


def _format_names(names: Collection[str]) -> str:
    """Return names as a list in text; if there are many, only the first."""
    shown = sorted(names)[:MOST_LISTED]
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return ", ".join(shown) + more if names else "none"
