"""Export of a model as an ONNX file, which runs without torch and p2pfl. It needs the extra `onnx`."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib.util import find_spec
from io import StringIO

import torch
from torch import Tensor, nn

from p2pfl.errors import ConfigurationError, MissingRequirementError
from p2pfl.learning.torch_problem import TorchProblem
from p2pfl.parameters import Parameters
from p2pfl.task import Task

NEEDED = ("onnx", "onnxscript")
INPUT, OUTPUT, BATCH = "input", "output", "batch"
MOST_BYTES = 2**31 - 2**20  # limit of a protocol buffer, minus room for the graph


def to_onnx(task: Task, params: Parameters, about: Mapping[str, str], seed: int = 0) -> bytes:
    """Return the module of a TorchTask with these parameters, in evaluation mode, as the bytes of an ONNX file.

    Its input `input` is [batch, ...] like the task's samples; its output `output` is the module's output.

    Args:
        about: metadata of the file.
        seed: the federation's; a module may draw constants from it.

    Raises:
        MissingRequirementError: the extra is not installed.
        ConfigurationError: the task has no torch module, or the module cannot be exported.
    """
    if not isinstance(task, TorchProblem):
        raise ConfigurationError(
            f"the task {type(task).__name__} has no torch module to export to ONNX; export a .safetensors file"
        )
    if 4 * task.layout.size > MOST_BYTES:
        raise ConfigurationError(f"a model of {task.layout.size:,} values is too large for ONNX; export a .safetensors file")
    return to_onnx_bytes(task.loaded(params, seed), task.data["train"].x[:1], about)


def to_onnx_bytes(module: nn.Module, sample: Tensor, about: Mapping[str, str]) -> bytes:
    """Return a module as the bytes of an ONNX file.

    Args:
        sample: an input, [1, ...].
        about: metadata of the file.

    Raises: see `to_onnx`.
    """
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise MissingRequirementError(f"ONNX needs {', '.join(missing)}: pip install 'p2pfl-node[onnx]'")
    from onnx.helper import set_model_props

    inputs = (sample.repeat(2, *[1] * (sample.dim() - 1)),)  # the exporter would make a batch size of 1 a constant
    try:
        with _silence(), torch.no_grad():
            program = torch.onnx.export(
                module,
                inputs,
                dynamo=True,
                input_names=[INPUT],
                output_names=[OUTPUT],
                dynamic_shapes=({0: torch.export.Dim(BATCH)},),
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        raise ConfigurationError(
            f"the module {type(module).__name__} cannot be exported to ONNX: {_first(error)}"
        ) from error
    assert program is not None  # only the older exporter returns None
    model = program.model_proto
    set_model_props(model, dict(about))
    content: bytes = model.SerializeToString()
    return content


@contextmanager
def _silence() -> Iterator[None]:
    """Suppress the exporter's output: warnings about its code, missing packages, and graphs after an error."""
    disabled, nobody = logging.root.manager.disable, StringIO()
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stdout(nobody), redirect_stderr(nobody):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


def _first(error: BaseException) -> str:
    """Return the first line of an error's root cause."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
