"""Tasks made of a torch module, a loss, an optimiser and samples: the usual case."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import partial
from typing import Any

import torch
from torch import nn

from p2pfl._util.shared_work import once
from p2pfl.data.partition.partitioner import Partition
from p2pfl.errors import ConfigurationError, unknown
from p2pfl.learning.losses import CLASSIFICATION, REGRESSION, Metric, cross_entropy, metrics_of, squared_error
from p2pfl.learning.modules import seeded
from p2pfl.learning.private_training import check_private
from p2pfl.learning.samples.datasets import Columns
from p2pfl.learning.samples.node_samples import Division, NodeData, NodeSamples, node_samples, without_extra_dimension
from p2pfl.learning.samples.numeric import Label, Labels
from p2pfl.learning.torch_learner import TorchLearner
from p2pfl.learning.torch_problem import Samples, TorchProblem
from p2pfl.multiobjective.preferences import Preference
from p2pfl.multiobjective.scalarisation import Objectives
from p2pfl.queries import Split
from p2pfl.random_streams import RandomStreams
from p2pfl.task import Part, Task


@dataclass
class TorchTask(TorchProblem):
    """A task from a torch module and arrays; for its attributes see TorchProblem."""

    def learner(self, streams: RandomStreams, device: str = "cpu") -> TorchLearner:
        return TorchLearner(self, streams, device)

    def check_private(self) -> None:
        own = type(self)
        if own.learner is not TorchTask.learner or own.stacked is not Task.stacked:  # a class that computes otherwise
            return super().check_private()
        return check_private(self)


def classification(
    module: Callable[[], nn.Module],
    train: Any,
    validation: Any = None,
    test: Any = None,
    *,
    columns: Columns | None = None,
    labels: Sequence[Label] = (),
    partition: Partition | None = None,
    part: Part | None = None,
    seed: int = 0,
    metric: str | Metric = "accuracy",
    metrics: str | Metric | Sequence[str | Metric] = (),
    **options: Any,
) -> TorchTask:
    """Make a classification task with cross-entropy of logits.

    Samples are a pair (inputs, class numbers) of arrays, tensors or lists; a torch `Dataset`; a Hugging Face dataset; or
    a list of pairs. See p2pfl.learning.samples.datasets.read_samples.

    Args:
        module: makes a torch module from inputs [n, ...] to logits [n, classes].
        train: samples to train on.
        validation, test: samples, or a number: so many of this node's training samples, or a fraction of them, are held
            out. A node with several samples holds out at least one, and at most half of the rest.
        columns: names of the columns of inputs and targets, for datasets whose samples are dicts.
        labels: label of each class in the data, such as ["cat", "dog"]; by default the labels are the classes 0 to K - 1.
            All nodes need the same list.
        partition: rule that divides the samples among the nodes, from `p2pfl.partition`; by default they are this
            node's own. Test samples are divided too, validation samples are not.
        part, seed: the node and the seed that a task function receives, for `partition` and for samples to hold out.
        metric: reported metric: "accuracy", "balanced_accuracy", "f1", "auc", or a Metric.
        metrics: further metrics to report.
        options: further attributes of TorchTask, for example `optimizer`, `batch_size`, `public_info`.

    Raises:
        ConfigurationError: the samples are invalid, do not fit the module, or have a label that is not a class; or an
            option is unknown.
    """
    _check_options(options)
    known = Labels(labels) if len(labels) else None
    found = node_samples(train, validation, test, torch.int64, Division(partition, part, seed, columns, known))
    (main,), more = metrics_of(metric, CLASSIFICATION), metrics_of(metrics, CLASSIFICATION)
    how = cross_entropy, main.name, main.measure, main.higher_is_better
    task = TorchTask(module, _data(found), *how, metrics=more, **options | _about(found))
    _check_inputs(task)
    _check_classes(task, found.samples)
    return task


def regression(
    module: Callable[[], nn.Module],
    train: Any,
    validation: Any = None,
    test: Any = None,
    *,
    columns: Columns | None = None,
    partition: Partition | None = None,
    part: Part | None = None,
    seed: int = 0,
    metric: str | Metric = "mse",
    metrics: str | Metric | Sequence[str | Metric] = (),
    **options: Any,
) -> TorchTask:
    """Make a regression task with mean squared error. Targets have the shape of the module's outputs, [n, ...].

    For the arguments see `classification`. The metrics are "mse", "mae" and "r2"; the partition is `iid` or `quantity`.
    """
    _check_options(options)
    found = node_samples(train, validation, test, torch.float32, Division(partition, part, seed, columns))
    (main,), more = metrics_of(metric, REGRESSION), metrics_of(metrics, REGRESSION)
    how = squared_error, main.name, main.measure, main.higher_is_better
    task = TorchTask(module, _data(found), *how, metrics=more, **options | _about(found))
    _check_inputs(task)
    _check_numbers(task)
    return task


def multi_objective(
    module: Callable[[], nn.Module],
    train: tuple[Any, Any],
    validation: tuple[Any, Any] | None = None,
    test: tuple[Any, Any] | None = None,
    *,
    objectives: Objectives,
    preference: Preference,
    **options: Any,
) -> TorchTask:
    """Make a task with several objectives; the metric is the reward, minus the scalarised loss.

    Args:
        module: makes a torch module.
        train, validation, test: samples; see `classification`.
        objectives: names, losses and scalarisation of the objectives.
        preference: the node's weights, [m].
        options: further attributes of TorchTask.
    """
    _check_options(options, ("metric", "higher_is_better"))
    found = node_samples(train, validation, test, torch.float32, Division())
    options |= {"metric": "reward", "higher_is_better": True} | _about(found)
    task = TorchTask(module, _data(found), objectives=objectives, preference=preference, **options)
    _check_inputs(task)
    return task


def _check_options(
    options: Mapping[str, Any], given: Sequence[str] = ("loss", "metric", "measure", "higher_is_better")
) -> None:
    """Raise ConfigurationError for a name that is not an optional attribute of TorchTask, or is `given` already."""
    optional = [each for each in fields(TorchTask) if not each.default is each.default_factory is MISSING]
    known = {each.name for each in optional} - {*given, "data_facts", "data_notes", "data_label", "row_encoding", "held_out"}
    for name in options:
        if name not in known:
            raise unknown("option", name, known)


def _data(found: NodeData) -> Mapping[Split, Samples]:
    return {split: Samples(each.x, each.y) for split, each in found.samples.items()}


def _about(found: NodeData) -> dict[str, Any]:
    """Return the attributes of a task that describe its samples."""
    return {"data_facts": found.facts, "data_notes": found.notes, "held_out": found.held_out}


def _check_inputs(task: TorchTask) -> None:
    """Raise ConfigurationError if the module does not take inputs of another form than those of the training data."""
    trained = task.data["train"].x
    for split, (x, _) in task.data.items():
        if len(x) and (x.shape[1:], x.dtype) != (trained.shape[1:], trained.dtype):
            try:
                _outputs(task, x)
            except ConfigurationError as error:
                what, own, other = "shape", _shape(x.shape), _shape(trained.shape)
                if own == other:
                    what, own, other = "type", *(str(each.dtype).removeprefix("torch.") for each in (x, trained))
                raise ConfigurationError(
                    f"{split} data: inputs have the {what} {own}, but those of the training data {other}; {error}"
                ) from error


def _check_numbers(task: TorchTask) -> None:
    """Raise ConfigurationError if the targets do not have the shape of the module's outputs."""
    outputs = _output_shape(task)
    for split, (_, y) in task.data.items():
        if y.shape[1:] != outputs[1:]:
            raise ConfigurationError(
                f"{split} data: targets have the shape {_shape(y.shape)}, but the module's outputs {_shape(outputs)};"
                " reshape the targets, for example y.reshape(-1, 1)"
            )


def _check_classes(task: TorchTask, samples: Mapping[Split, NodeSamples]) -> None:
    """Raise ConfigurationError if a label is not a class of the module's outputs."""
    shape, name = _output_shape(task), type(task.template).__name__
    if len(shape) < 2:
        raise ConfigurationError(f"module {name} returns outputs of shape [n]; classification needs logits [n, classes]")
    for split, (_, y) in task.data.items():
        if y.shape[1:] != shape[2:]:
            raise ConfigurationError(
                f"{split} data: targets have the shape {_shape(y.shape)}, expected class numbers {_shape((0, *shape[2:]))}"
                f"{without_extra_dimension(y.shape) if len(shape) == 2 else ''}"
            )
        if wrong := once((_first_outside, shape[1]), partial(_first_outside, y, shape[1]), y):
            raise ConfigurationError(
                f"{samples[split].name('target', wrong[0])} is {int(y[wrong])}, but module {name} has"
                f" {shape[1]} outputs; labels must be from 0 to {shape[1] - 1}"
            )


def _first_outside(y: torch.Tensor, classes: int) -> tuple[int, ...]:
    """Return the index of the first target that is not a class from 0 to `classes` - 1; () if there is none."""
    wrong = ((y < 0) | (y >= classes)).nonzero()
    return tuple(wrong[0].tolist()) if len(wrong) else ()


def _output_shape(task: TorchTask) -> torch.Size:
    """Return the shape of the module's outputs for two training samples, [2, ...].

    Raises:
        ConfigurationError: the module does not take the sample.
    """
    x = task.data["train"].x
    if not x.is_floating_point():  # a module may not take some whole numbers, for example as places in an embedding
        return _outputs(task, x).shape
    return once((_outputs, task.template, x.shape[1:], x.dtype), lambda: _outputs(task, x).shape)


def _outputs(task: TorchTask, x: torch.Tensor) -> torch.Tensor:
    """Return the outputs for two samples, because batch norm without running statistics does not take one."""
    module, name = task.make(0) if task.conduct.changed else task.template, type(task.template).__name__
    x = x[:2] if len(x) > 1 else x.repeat(2, *[1] * (x.ndim - 1))
    try:
        with torch.no_grad(), seeded(0):
            outputs = module.eval()(x)
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        kind = str(x.dtype).removeprefix("torch.")
        hint = "" if x.is_floating_point() else "; most modules need float32 inputs, such as pixels / 255"
        if x.ndim == 4 and x.shape[3] in (1, 3, 4) and x.shape[1] not in (1, 3, 4):
            hint += "; torch needs images with the channels first: x.transpose(0, 3, 1, 2)"
        raise ConfigurationError(
            f"module {name} does not take inputs {_shape(x.shape)} of {kind}: {reason}{hint}"
        ) from error
    if not isinstance(outputs, torch.Tensor) or outputs.shape[:1] != x.shape[:1]:
        raise ConfigurationError(f"module {name} must return a tensor with a row for each sample")
    return outputs


def _shape(shape: Sequence[int]) -> str:
    """Return the shape of n samples as text, for example "[n, 3]"."""
    return f"[{', '.join(['n', *map(str, shape[1:])])}]"
