"""Interface of tasks: data, model and learner of one node.

A user's own task is named "package.module:factory" in the configuration. The factory is called as
`factory(part, seed, **options)` and returns a Task, usually a TorchTask.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from p2pfl._util.binding import build, takes
from p2pfl._util.registry import resolve
from p2pfl.data_facts import DataFacts
from p2pfl.errors import ConfigurationError, needs_extra
from p2pfl.learner import Learner
from p2pfl.parameters import Layout, Parameters
from p2pfl.pareto_metrics import Solutions, to_maximisation
from p2pfl.queries import Train
from p2pfl.random_streams import RandomStreams
from p2pfl.task_specs import FACTORIES

POINT = {
    "smallest_error",
    "smallest_disparity",
}  # in `extra_metrics` of tasks that report, for one model, the figures that PraFFL reports for many

# Limits of the public facts that a node sends to a peer. They match p2pfl.protocols.wire.messages.HelloParameters,
# which adds n_samples.
MOST_FACTS, LONGEST_KEY, LONGEST_TEXT, GREATEST_INT = 31, 64, 256, 2**53


if TYPE_CHECKING:
    from builtins import property as member
else:

    class member:  # noqa: N801
        """Member of Task that a subclass replaces: by an attribute, a field of a dataclass or a property.

        Unlike a property, it lets instances have an attribute of its name, and classes have no value under its name,
        which a dataclass would take for the default of a field.
        """

        def __init__(self, value):
            self._value, self.__doc__ = value, value.__doc__

        def __set_name__(self, owner, name):
            self._name = name

        def __get__(self, task, owner=None):
            if task is None:
                raise AttributeError(f"{self._name} belongs to the tasks, not to their class")
            return self._value(task)


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


class Task:
    """Data and model of one node: the base class of tasks.

    A task must have `layout`, `n_samples`, `metric`, `initial` and `learner`; all other members have a default. A subclass
    replaces a member that is not a method by an attribute, a field of a dataclass or a property.

    A task with several objectives has `goals`. Its learner trains a combination of the objectives that follows the node's
    preference. `evaluate` reports that combination as loss and metric, and each objective as "<split>_<name>". Its node
    does not send peers the loss of their models, because they could infer its preference.
    """

    @member
    def layout(self) -> Layout:
        """Return the names and shapes of a model's tensors, and which of them are private.

        The learner and `initial` have all values; peers and policies see only the shared ones.
        """
        raise AttributeError("layout")

    @member
    def n_samples(self) -> int:
        """Return the number of training samples."""
        raise AttributeError("n_samples")

    @member
    def metric(self) -> str:
        """Return the name of the reported metric, for example "accuracy"."""
        raise AttributeError("metric")

    @member
    def higher_is_better(self) -> bool:
        """Return whether a higher metric is better."""
        return True

    @member
    def public_info(self) -> Mapping[str, Any]:
        """Return public facts that are sent to peers (`group` for the oracle); never preferences.

        At most 31 plain numbers, bools and short strings; see `check_public_info`.
        """
        return {}

    def initial(self, seed: int) -> Parameters:
        """Return the common initial model of all nodes, [P]."""
        raise NotImplementedError

    def learner(self, streams: RandomStreams, device: str) -> Learner:
        """Return the learner of this task on a device."""
        raise NotImplementedError

    def check_private(self) -> None:
        """Check that the task's learner has private steps; see p2pfl.privacy.

        Raises:
            ConfigurationError: it has none, as that of any task whose class does not say so; the text has the remedy.
        """
        raise ConfigurationError(
            "a privacy budget needs a task whose samples give gradients, such as p2pfl.classification or digits;"
            f" {type(self).__name__} is refused",
            "privacy",
            "task",
        )

    @member
    def data(self) -> Mapping[Any, Any]:
        """Return samples by split, (inputs [n, ...], targets [n, ...]); empty if there are none, as in an environment."""
        return {}

    @member
    def optimizer(self) -> Any:
        """Return the optimiser, whose schedule must fit the rounds of a run; None without one."""
        return None

    @member
    def extra_metrics(self) -> Sequence[str]:
        """Return the names of further figures that `evaluate` reports and the table of a run shows."""
        return ()

    @member
    def module_notes(self) -> Sequence[str]:
        """Return what the user should know of the module before the first round."""
        return ()

    @member
    def derived_options(self) -> Mapping[str, Any]:
        """Return the options that the task has taken from the node's data, such as the number of classes, by name.

        All nodes of a federation must share them: a new federation sets them for all of its members.
        """
        return {}

    @member
    def data_facts(self) -> Sequence[DataFacts]:
        """Return what the readers of files or objects of the user understood, one entry for each source.

        Nodes that share a source share the object, so that it is made once. A run shows the entries of all nodes, and
        their notes; a node logs its own when it starts.
        """
        return ()

    @member
    def data_notes(self) -> Sequence[str]:
        """Return notes on the node's own samples, such as a test set that is smaller than requested."""
        return ()

    @member
    def data_label(self) -> str:
        """Return what the data call the node, such as its site, for reports; "" if they do not name it."""
        return ""

    @member
    def row_encoding(self) -> Mapping[str, Any]:
        """Return how the node's rows became the inputs and targets of the model, for the files of `export`.

        It can be written as JSON; empty if the task does not describe it. For the form see p2pfl.tasks.table.
        """
        return {}

    @member
    def held_out(self) -> Sequence[str]:
        """Return the splits that were drawn from the training samples."""
        return ()

    @member
    def group(self) -> Any:
        """Return the group of the node if it must stay private, for reports; otherwise it is in `public_info`."""
        return None

    @member
    def goals(self) -> Mapping[str, bool]:
        """Return whether higher is better, for each of several objectives by name; empty for a single one."""
        return {}

    @member
    def reference(self) -> Sequence[float]:
        """Return the worst value of interest of each objective, [m], for the hypervolume of a run; empty if unknown."""
        return ()

    @member
    def front(self) -> Sequence[Sequence[float]]:
        """Return all optimal values of the objectives, [n, m], for the distance to them (IGD); empty if unknown."""
        return ()

    @member
    def constant(self) -> Sequence[float]:
        """Return the objectives on the test data, [m], of the model that gives all samples the more frequent answer.

        The table of a run shows its hypervolume next to that of the models; empty if there is none.
        """
        return ()

    def counts_for_front(self, points: np.ndarray) -> np.ndarray:
        """Return which rows of float64 [n, m] (higher is better) count in measures of the front, bool [n]."""
        return np.ones(len(points), np.bool_)

    def solutions(self, params: Parameters) -> Solutions | None:
        """Evaluate on the test data the solutions that a model contains; None if it contains only one."""
        return None

    def tensors(self, params: Parameters, seed: int) -> dict[str, np.ndarray]:
        """Return copies of a model's tensors by name, as files of models have them.

        Args:
            params: all values of the model, [P].
            seed: the federation's.
        """
        return {name: tensor.copy() for name, tensor in self.layout.unflatten(params).items()}

    @staticmethod
    def stacked(learners: Sequence[Any]) -> Any:
        """Return an object that computes the learners of this task together; None if only a TorchTask's can be.

        The object is like p2pfl.learning.batched_learner.BatchedLearner.

        Raises:
            ConfigurationError: these learners cannot be computed together.
        """
        return None


REQUIRED = "layout", "n_samples", "metric", "initial", "learner"


def check_task(what: str, task: Any) -> Task:
    """Return a task after checking that it has the members of Task.

    Args:
        what: what it is, for the error, such as "task 'mine:task'".

    Raises:
        ConfigurationError: it is not a Task, or lacks a required member.
    """
    if task is None:
        raise ConfigurationError(f"{what} returned None; return a task, such as that of p2pfl.classification")
    if missing := [name for name in REQUIRED if not _has(task, name)]:
        raise ConfigurationError(f"{what} is not a valid task: it lacks {', '.join(missing)}")
    if not isinstance(task, Task):
        raise ConfigurationError(f"{what} is not a valid task: make {type(task).__name__} a subclass of p2pfl.Task")
    if hasattr(type(task), "__getattr__"):  # the members of Task would hide those of the other task
        raise ConfigurationError(
            f"{what} is not a valid task: {type(task).__name__} has __getattr__; to change members of another task, return a"
            " copy.copy of it with these members set"
        )
    return task


def _has(task: Any, name: str) -> bool:
    return hasattr(task, name) and getattr(getattr(task, name), "__func__", None) is not vars(Task)[name]


def make_task(name: str, options: Mapping[str, Any], part: Part, seed: int) -> Task:
    """Make the task called `name`: built in, an entry point of `p2pfl.tasks`, or "package.module:factory".

    Raises:
        ConfigurationError: the name is unknown, the task does not take an option, or the object is not a task.
        MissingRequirementError: the task needs a library that is not installed, such as PyTorch.
    """
    factory = task_factory(name)
    with suppress(ValueError):  # without a signature; `build` reports it
        if not (takes(factory, "part") and takes(factory, "seed")):  # check before the call: it may be any object
            raise ConfigurationError(f"task {name!r} is not a valid task: it does not take `part` and `seed`")
    with needs_extra(f"task {name!r}"):
        task = check_task(f"task {name!r}", build("task", factory, options, part=part, seed=seed))
    try:
        check_public_info(task.public_info)
    except ConfigurationError as error:
        raise ConfigurationError(f"task {name!r}: {error}") from error
    return task


def task_factory(name: str) -> Any:
    """Return the function that makes the task called `name`; see `make_task`."""
    return resolve("task", name, FACTORIES, "p2pfl.tasks", ("learner",))


def excluded_solutions(task: Task, points: np.ndarray) -> list[int]:
    """Return the indices of the solutions [n, m] (higher is better) that do not count in measures of the front."""
    left_out: list[int] = np.flatnonzero(~task.counts_for_front(points)).tolist()
    return left_out


def does_not_count(task: Task, figures: Mapping[str, float]) -> bool:
    """Return whether a model with these figures of `evaluate` is almost constant, so that its objectives say nothing.

    It is one that the task leaves out of measures of the front, or a dead one of PraFFL.
    """
    goals = task.goals
    if not goals or any(f"test_{name}" not in figures for name in goals):
        return figures.get("test_dead", 0.0) > 0
    return bool(excluded_solutions(task, to_maximisation([figures], goals)))


def batch_size_of(task: Task) -> int:
    """Return the samples of a training step; 0 if the task has no batches."""
    return int(getattr(task, "batch_size", 0))


def samples_of(task: Task, query: Train) -> int:
    """Return the number of samples that a training of the task's node takes, repeated ones included."""
    return int(query.samples(task.n_samples, batch_size_of(task)))


def group_of(task: Task) -> Any:
    """Return the group of the task's node, for reports: a private one if there is one, otherwise the public one."""
    return task.public_info.get("group") if task.group is None else task.group


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
