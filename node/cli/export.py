"""Export of a node's result: the best model on validation data, as safetensors or ONNX."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from p2pfl._util.atomic_files import reason, replace_file
from p2pfl._util.machine import READING
from p2pfl.errors import ConfigurationError, needs_extra
from p2pfl.node.checkpoint import Checkpoint, FileStore, same_rows, unpack
from p2pfl.node.federation import loading
from p2pfl.node.folder import config as folders
from p2pfl.parameters import Layout, Parameters
from p2pfl.task import PreferenceConditioned, Task

FORMATS = {".safetensors": "safetensors", ".onnx": "onnx", "": "safetensors"}  # by extension
Encode = Callable[[Parameters, Mapping[str, str]], bytes]
"""Function of parameters and metadata that returns the content of a file."""


class Exported(NamedTuple):
    """Model that was written to a file.

    Attributes:
        stage: the point of the round at which the node had it, trained or merged; "" if it was not evaluated.
        by_stage: by stage, the lowest validation loss and its round.
    """

    round: int
    stage: str
    by_stage: Mapping[str, tuple[float, int]]

    def describe(self) -> str:
        """Return the model in words, with the losses of both stages if the node has two."""
        if len(set(self.by_stage.values())) < 2:
            return f"the model of round {self.round}"
        losses = (f"{stage} {loss:.4g} in round {round}" for stage, (loss, round) in self.by_stage.items())
        least = min(self.by_stage, key=lambda stage: self.by_stage[stage][0])
        policy = "" if self.stage == least else f"the policy reports {self.stage} models; "
        return f"the {self.stage} model of round {self.round} ({policy}lowest validation loss: {', '.join(losses)})"


def export(folder: Path, target: Path, force: bool = False, format: str = "", preference: Sequence[float] = ()) -> Exported:
    """Write the best model of a node, running or not, and return a description of it; no file of the node is changed.

    Args:
        folder: the node's folder.
        target: the file to write.
        force: whether to overwrite it.
        format: "safetensors" or "onnx"; by default the format of the file's extension.
        preference: for a task with a model for each preference (see p2pfl.task.PreferenceConditioned), the preference
            whose model to write; without it, all parameters are written.

    Raises:
        ConfigurationError: the node has no checkpoint yet; its checkpoint does not fit the task's model; the file
            exists or cannot be written, or its extension names another format; or the task has no model that ONNX
            supports, or none for this preference.
    """
    onnx = format_of(target, format) == "onnx"
    ready = loading.load(folder)
    checkpoint, membership = newest(folder), ready.membership
    federation = "" if membership is None else f"{membership.file.name} ({membership.federation.hex()})"
    task = loading.task_of(ready, copies=READING)
    same_rows(checkpoint, task)
    encode = encoder_for(task, onnx, preference, checkpoint.seed)
    initial = partial(task.initial, checkpoint.seed)
    prepared = {"row_encoding": json.dumps(task.row_encoding)} if task.row_encoding else {}
    return write(target, checkpoint, task.layout, federation, prepared, force=force, encode=encode, initial=initial)


def format_of(target: Path, given: str = "") -> str:
    """Return the format of a file: the given one, or that of its extension; safetensors without both.

    Raises:
        ConfigurationError: the extension names another format than the given one or, without a given one, a format that
            is not written.
    """
    extension = target.suffix.lower()
    named = FORMATS.get(extension, "")
    if given and named and extension and given != named:
        raise ConfigurationError(f"{target} has the extension of {named}, but --format is {given}; change one of them")
    if not (given or named):
        raise ConfigurationError(
            f"cannot write {target}: p2pfl-node exports .safetensors and .onnx, not {extension}; use one of these"
            " extensions, or set --format"
        )
    return given or named


def encoder_for(task: Task, onnx: bool, preference: Sequence[float], seed: int = 0) -> Encode:
    """Return the function that encodes a model as a file.

    Args:
        seed: the federation's.
    """
    if preference:
        if not isinstance(task, PreferenceConditioned):
            raise ConfigurationError("the node's task has no model for each preference; leave out --preference")
        return partial(_answer, task, preference, onnx)
    if not onnx:
        return partial(_state_dict, task, seed)
    if isinstance(task, PreferenceConditioned):
        raise ConfigurationError("the task has a model for each preference; choose one with --preference, such as 0.3,0.7")
    with needs_extra("a model as ONNX", "onnx"):
        from p2pfl.learning.onnx_export import to_onnx

    return partial(to_onnx, task, seed=seed)


def _state_dict(task: Task, seed: int, params: Parameters, about: Mapping[str, str]) -> bytes:
    """Return the tensors of a model as a file: those of its module's `state_dict` if the task has a torch module."""
    from safetensors.numpy import save

    return save(task.tensors(params, seed), dict(about))


def _answer(
    task: PreferenceConditioned, preference: Sequence[float], onnx: bool, params: Parameters, about: Mapping[str, str]
) -> bytes:
    """Return the module for a preference as a file; the metadata contains the `preference` as well."""
    from safetensors.numpy import save

    module = task.model_for(params, preference)
    metadata = {**about, "preference": ",".join(map(str, preference))}
    if onnx:
        from p2pfl.learning.onnx_export import to_onnx_bytes

        return to_onnx_bytes(module, task.data["train"][0][:1], metadata)
    return save({name: tensor.numpy() for name, tensor in module.state_dict().items()}, metadata)


def newest(folder: Path) -> Checkpoint:
    """Return a node's newest intact checkpoint; its files stay as they are.

    Raises:
        ConfigurationError: there is none.
    """
    checkpoint = FileStore(folder / folders.CHECKPOINT).peek()
    if checkpoint is None:
        raise ConfigurationError(f"{folder} has no checkpoint: the node has not finished a round yet")
    return checkpoint


class Best(NamedTuple):
    """The best model in a checkpoint: its parameters [P], its round, and its stage, "" if it was not evaluated."""

    params: Parameters
    round: int
    stage: str


def best_model(checkpoint: Checkpoint, layout: Layout, initial: Callable[[], Parameters] | None = None) -> Best:
    """Return the best model on validation data, or the last one before the first evaluation.

    Args:
        initial: returns the initial model, for a checkpoint of an earlier version; see
            p2pfl.parameters.Layout.with_local.

    Raises:
        ConfigurationError: the checkpoint does not fit the layout.
    """
    if checkpoint.layout != layout.fingerprint:
        raise ConfigurationError(
            f"the task was changed since the checkpoint of {checkpoint.name} was written: the checkpoint has the layout"
            f" {checkpoint.layout.hex()}, the task has {layout.fingerprint.hex()}; restore the task's options in node.toml"
        )
    stopping = checkpoint.early_stopping
    best = stopping["best"]  # none before the first evaluation
    params, round = (best, stopping["round"]) if best else (checkpoint.params, checkpoint.round)
    vector = unpack(params) if initial is None else layout.with_local(unpack(params), initial)
    return Best(vector, int(round), stopping.get("stage", ""))  # a checkpoint of an earlier version lacks the stage


def write(
    target: Path,
    checkpoint: Checkpoint,
    layout: Layout,
    federation: str,
    more: Mapping[str, str] = MappingProxyType({}),
    *,
    force: bool = False,
    encode: Encode | None = None,
    initial: Callable[[], Parameters] | None = None,
) -> Exported:
    """Write the best model of a checkpoint, and return a description of it.

    The metadata contains the `name` of the node, the `round`, the `stage`, the `federation` (none for a node without
    peers) and the layout's `fingerprint` in hexadecimal.

    Args:
        more: further metadata, such as the `row_encoding` of the task as JSON; see p2pfl.task.Task.row_encoding.
        encode: makes the content from parameters and metadata; by default, the layout's tensors.
        initial: see `best_model`.

    Raises:
        ConfigurationError: see `export`.
    """
    from safetensors.numpy import save

    vector, round, stage = best_model(checkpoint, layout, initial)
    about = {
        "name": checkpoint.name,
        "round": str(round),
        "stage": stage,
        "federation": federation,
        "fingerprint": layout.fingerprint.hex(),
        **more,
    }
    check_target(target, force)
    content = save(layout.unflatten(vector), about) if encode is None else encode(vector, about)
    write_target(target, content)
    by_stage = checkpoint.early_stopping.get("by_stage", {})
    return Exported(round, stage, {key: (loss, at) for key, (loss, at) in by_stage.items()})


def check_target(target: Path, force: bool) -> None:
    """Raise ConfigurationError if a file to write is a folder, or exists and may not be overwritten."""
    if target.is_dir():
        raise ConfigurationError(f"{target} is a folder; name a file")
    if target.exists() and not force:
        raise ConfigurationError(f"{target} exists; use --force to overwrite it")


def write_target(target: Path, content: bytes) -> None:
    """Write a file as a whole; raise ConfigurationError if that fails."""
    try:
        replace_file(target, [content])
    except OSError as error:
        raise ConfigurationError(f"cannot write {target}: {reason(error)}") from error
