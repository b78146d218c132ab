"""Interface of tasks: data, model and learner of one node.

A user's own task is named "package.module:factory" in the configuration. The factory is called as
`factory(part, seed, **options)` and returns a Task, usually a TorchTask.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from p2pfl._util.binding import build, takes
from p2pfl._util.registry import resolve
from p2pfl.data_facts import DataFacts
from p2pfl.errors import ConfigurationError, needs_extra
from p2pfl.learner import Learner
from p2pfl.parameters import Layout, Parameters
from p2pfl.pareto_metrics import Solutions, to_maximisation
from p2pfl.random_streams import RandomStreams

TASKS = {
    "classification": "p2pfl.tasks.table:table",
    "concept-shift": "p2pfl.tasks.concept_shift:concept_shift",
    "deep-sea-treasure": "p2pfl.tasks.deep_sea_treasure:deep_sea_treasure",
    "digits": "p2pfl.tasks.digits:digits",
    "fairness": "p2pfl.tasks.fairness:fairness",
    "images": "p2pfl.tasks.images:images",
    "morl": "p2pfl.tasks.morl:morl",
    "praffl": "p2pfl.tasks.praffl:praffl",
    "teachers": "p2pfl.tasks.teachers:teachers",
}

DERIVED_OPTIONS: Mapping[str, Collection[str]] = {"classification": ("classes", "features", "columns")}
"""By task, the options that it takes from the node's data if they are not set; a federation sets them for all."""

POINT = {
    "smallest_error",
    "smallest_disparity",
}  # in `extra_metrics` of tasks that report, for one model, the figures that PraFFL reports for many

# Limits of the public facts that a node sends to a peer. They match p2pfl.protocols.wire.messages.HelloParameters,
# which adds n_samples.
MOST_FACTS, LONGEST_KEY, LONGEST_TEXT, GREATEST_INT = 31, 64, 256, 2**53


@dataclass(frozen=True)
class Part:
    """One node's part of the data: number `index` of `count`, counted from 0."""

    index: int
    count: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            last = (
                f"the last of {self.count} is {self.count - 1}/{self.count}" if self.count > 0 else "the first of 3 is 0/3"
            )
            raise ConfigurationError(f"part {self.index}/{self.count} does not exist; {last}")

    @classmethod
    def parse(cls, text: str) -> Part:
        """Parse text of the form "0/3"."""
        index, slash, count = text.partition("/")
        if not (slash and index.isdecimal() and count.isdecimal()):
            raise ConfigurationError(f"part {text!r} is not of the form 0/3")
        return cls(int(index), int(count))


@runtime_checkable
class StatefulLearner(Protocol):
    """A learner that keeps state (transitions, moments) from one training to the next.

    The state stays on the node and is part of its checkpoint.
    """

    def state(self) -> Mapping[str, np.ndarray]:
        """Return a copy of the state."""

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue from a state that `state` returned.

        Raises:
            ConfigurationError: the state belongs to another task.
        """


@runtime_checkable
class PreferenceConditioned(Protocol):
    """A task whose parameters contain a model for every preference between its objectives.

    Attributes:
        data: samples by split; their first fields are the inputs of the model.
    """

    data: Mapping[Any, Any]

    def model_for(self, params: Parameters, preference: Sequence[float]) -> Any:
        """Return the model for a preference: a torch.nn.Module in evaluation mode.

        Raises:
            ConfigurationError: the preference is not valid for the task's objectives.
        """


class Task(Protocol):
    """Data and model of one node.

    Attributes:
        layout: the names and shapes of a model's tensors, and which of them are private. The learner and `initial` have
            all values; peers and policies see only the shared ones.
        n_samples: number of training samples.
        metric: the name of the reported metric, for example "accuracy".
        higher_is_better: whether a higher metric is better.
        public_info: public facts that are sent to peers (`group` for the oracle); never preferences. At most 31 plain
            numbers, bools and short strings.

    A task with several objectives also has `goals`, which maps each objective's name to whether higher is better. Its
    learner trains a combination of the objectives that follows the node's preference. `evaluate` reports that
    combination as loss and metric, and each objective as "<split>_<name>". Optional members of a task with several
    objectives:

    - `reference`: the worst value of interest of each objective, for the hypervolume of a run.
    - `front`: all optimal values, for the distance to them (IGD).
    - `counts_for_front`: a function that selects the rows of float64 [n, m] (higher is better) that count in measures
      of the front.
    - `constant`: the objectives, on the test data, of the model that gives all samples the more frequent answer. The
      table of a run shows its hypervolume next to that of the models.

    A node with several objectives does not send peers the loss of their models, because they could infer its
    preference.

    A task whose parameters contain several solutions may have a method `solutions(params)`. It returns
    p2pfl.pareto_metrics.Solutions of the test data, or None; the report shows them.

    Any task may have `extra_metrics`, names of further figures that `evaluate` reports and the table of a run shows. It
    may have `module_notes`, texts for the user before the first round. A method `tensors(params, seed)` returns the
    arrays for a file of a model by name, in place of the layout's tensors.

    A task whose learners the simulator can compute together, and that is not a TorchTask, has a static method
    `stacked(learners)`. It returns an object like p2pfl.learning.batched_learner.BatchedLearner, or raises
    ConfigurationError if these learners cannot be stacked.

    A task may take options from the node's data if they are not set, for example the number of classes. It then has
    `derived_options`, their values by name. A new federation sets these options for all of its members.

    A task that reads files or objects of the user has `data_facts`, a sequence of p2pfl.data_facts.DataFacts: what its
    readers understood, one entry for each source. Nodes that share a source share the object, so that it is made once.
    A run shows the entries of all nodes, and their notes; a node logs its own when it starts. Notes on the node's own
    samples, such as a test set that is smaller than requested, are in `data_notes`. `held_out` names the splits that were
    drawn from the training samples.
    """

    # Read-only, so that a task may compute them.
    @property
    def layout(self) -> Layout: ...

    @property
    def n_samples(self) -> int: ...

    @property
    def metric(self) -> str: ...

    @property
    def higher_is_better(self) -> bool: ...

    @property
    def public_info(self) -> Mapping[str, Any]: ...  # see check_public_info

    def initial(self, seed: int) -> Parameters:
        """Return the common initial model of all nodes."""

    def learner(self, streams: RandomStreams, device: str) -> Learner:
        """Return the learner of this task on a device."""


def make_task(name: str, options: Mapping[str, Any], part: Part, seed: int) -> Task:
    """Make the task called `name`: one of TASKS, an entry point of `p2pfl.tasks`, or "package.module:factory".

    Raises:
        ConfigurationError: the name is unknown, the task does not take an option, or the object is not a task.
        MissingRequirementError: the task needs a library that is not installed, such as PyTorch.
    """
    factory = resolve("task", name, TASKS, "p2pfl.tasks", ("learner",))
    with suppress(ValueError):  # without a signature; `build` reports it
        if not (takes(factory, "part") and takes(factory, "seed")):  # check before the call: it may be any object
            raise ConfigurationError(f"task {name!r} is not a valid task: it does not take `part` and `seed`")
    with needs_extra(f"task {name!r}"):
        task: Task = build("task", factory, options, part=part, seed=seed)
    needed = ("layout", "n_samples", "metric", "higher_is_better", "public_info", "initial", "learner")
    missing = [m for m in needed if not hasattr(task, m)]
    if task is None:
        raise ConfigurationError(f"task {name!r} returned None; return a task, such as that of p2pfl.classification")
    if missing:
        raise ConfigurationError(f"task {name!r} is not a valid task: it lacks {', '.join(missing)}")
    try:
        check_public_info(task.public_info)
    except ConfigurationError as error:
        raise ConfigurationError(f"task {name!r}: {error}") from error
    return task


def goals_of(task: Task) -> Mapping[str, bool]:
    """Return for each objective of a task, by name, whether higher is better; empty for a single objective."""
    goals: Mapping[str, bool] = getattr(task, "goals", {})
    return goals


def reference_of(task: Task) -> Sequence[float]:
    """Return the reference point of a task with m objectives, [m]; empty if it defines none."""
    reference: Sequence[float] = getattr(task, "reference", ())
    return reference


def constant_of(task: Task) -> Sequence[float]:
    """Return the objectives of a constant model on the test data of a task, [m]; empty if it defines none."""
    constant: Sequence[float] = getattr(task, "constant", ())
    return constant


def front_of(task: Task) -> Sequence[Sequence[float]]:
    """Return the attainable front of a task with m objectives, [n, m]; empty if it is unknown."""
    front: Sequence[Sequence[float]] = getattr(task, "front", ())
    return front


def extra_metrics_of(task: Task) -> Sequence[str]:
    """Return the names of the figures shown next to a task's metric; empty if it defines none."""
    also: Sequence[str] = getattr(task, "extra_metrics", ())
    return also


def derived_options_of(task: Task) -> Mapping[str, Any]:
    """Return the options that a task has, or has taken from its data, and that all nodes must share; see Task."""
    found: Mapping[str, Any] = getattr(task, "derived_options", {})
    return found


def data_facts_of(task: Task) -> Sequence[DataFacts]:
    """Return what the readers of a task's data understood; empty if the task does not say."""
    found: Sequence[DataFacts] = getattr(task, "data_facts", ())
    return found


def data_notes_of(task: Task) -> Sequence[str]:
    """Return what the user should know of the samples of a task's node."""
    found: Sequence[str] = getattr(task, "data_notes", ())
    return found


def tensors_of(task: Task, params: Parameters, seed: int) -> dict[str, np.ndarray]:
    """Return copies of a model's tensors by name, as files of models have them.

    Args:
        params: all values of the model, [P].
        seed: the federation's.
    """
    tensors = getattr(task, "tensors", None)
    if tensors is not None:
        found: dict[str, np.ndarray] = tensors(params, seed)
        return found
    return {name: tensor.copy() for name, tensor in task.layout.unflatten(params).items()}


def module_notes_of(task: Task) -> Sequence[str]:
    """Return what the user should know of the module of a task before the first round."""
    found: Sequence[str] = getattr(task, "module_notes", ())
    return found


def solutions_of(task: Task, params: Parameters) -> Solutions | None:
    """Evaluate the solutions that a model contains; None if the task's models contain only one."""
    solutions = getattr(task, "solutions", None)
    found: Solutions | None = None if solutions is None else solutions(params)
    return found


def excluded_solutions(task: Task, points: np.ndarray) -> list[int]:
    """Return the indices of the solutions [n, m] (higher is better) that do not count in measures of the front."""
    which = getattr(task, "counts_for_front", None)
    return [] if which is None else np.flatnonzero(~which(points)).tolist()


def does_not_count(task: Task, figures: Mapping[str, float]) -> bool:
    """Return whether a model with these figures of `evaluate` is almost constant, so that its objectives say nothing.

    It is one that the task leaves out of measures of the front, or a dead one of PraFFL.
    """
    goals = goals_of(task)
    if not goals or any(f"test_{name}" not in figures for name in goals):
        return figures.get("test_dead", 0.0) > 0
    return bool(excluded_solutions(task, to_maximisation([figures], goals)))


def group_of(task: Task) -> Any:
    """Return the group of the task's node, for reports: a private one if there is one, otherwise the public one."""
    own = getattr(task, "group", None)
    return task.public_info.get("group") if own is None else own


def check_public_info(public_info: Mapping[str, Any]) -> None:
    """Check that a task's `public_info` can be sent to peers.

    Raises:
        ConfigurationError: it is not a mapping, has too many entries, or an entry is not a plain number, bool or short
            string.
    """
    if not isinstance(public_info, Mapping) or len(public_info) > MOST_FACTS:
        raise ConfigurationError(f"public_info must be a dict of at most {MOST_FACTS} entries")
    for key, value in public_info.items():
        if type(key) is not str or not 1 <= len(key) <= LONGEST_KEY:
            raise ConfigurationError(
                f"public_info has the key {key!r}; keys must be strings of 1 to {LONGEST_KEY} characters"
            )
        allowed = (  # exact types only, because a NumPy number cannot be encoded
            type(value) in (bool, float)
            or (type(value) is int and abs(value) <= GREATEST_INT)
            or (type(value) is str and len(value) <= LONGEST_TEXT)
        )
        if not allowed:
            kind = f"{type(value).__module__}.{type(value).__name__}".removeprefix("builtins.")
            raise ConfigurationError(
                f"public_info[{key!r}] is of type {kind}; it must be a bool, a float, an int of at most 2**53, or a string"
                f" of at most {LONGEST_TEXT} characters"
            )
