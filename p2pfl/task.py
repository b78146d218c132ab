"""Interface of tasks: data, model and learner of one node.

A user's own task is named "package.module:factory" in the configuration; the factory is called as
`factory(part, seed, **options)` and returns a Task, usually a TorchTask.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from p2pfl.config.binding import build, takes
from p2pfl.config.registry import resolve
from p2pfl.errors import ConfigurationError
from p2pfl.learner import Learner
from p2pfl.parameters import Layout, Parameters
from p2pfl.pareto_metrics import Solutions
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


POINT = {
    "smallest_error",
    "smallest_disparity",
}  # in `extra_metrics` of tasks that report of one model what PraFFL does of many

# Limits of the public facts that a node sends to a peer (the limits of p2pfl.protocols.wire.messages.HelloParameters, which
# adds
# n_samples).
MOST_FACTS, LONGEST_KEY, LONGEST_TEXT, GREATEST_INT = 31, 64, 256, 2**53


@dataclass(frozen=True)
class Part:
    """Which part of the data a node has: number `index` of `count`, counted from 0."""

    index: int
    count: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise ConfigurationError(f"part {self.index}/{self.count} does not exist; the first of 3 is 0/3")

    @classmethod
    def parse(cls, text: str) -> Part:
        """Read "0/3"."""
        index, slash, count = text.partition("/")
        if not (slash and index.isdecimal() and count.isdecimal()):
            raise ConfigurationError(f"part {text!r} is not of the form 0/3")
        return cls(int(index), int(count))


@runtime_checkable
class StatefulLearner(Protocol):
    """A learner with state (transitions, moments) that lasts from training to training.

    The state stays on the node, and is part of its checkpoint.
    """

    def state(self) -> Mapping[str, np.ndarray]:
        """Return a copy of the state."""

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue from what `state` has returned.

        Raises:
            ConfigurationError: the state is another task's.
        """


@runtime_checkable
class PreferenceConditioned(Protocol):
    """A task whose parameters hold a model for every preference between its objectives.

    Attributes:
        data: samples by split; the first of their fields are the inputs of such a model.
    """

    data: Mapping[Any, Any]

    def model_for(self, params: Parameters, preference: Sequence[float]) -> Any:
        """Return the model for a preference: a torch.nn.Module that evaluates.

        Raises:
            ConfigurationError: it is no preference between the task's objectives.
        """


class Task(Protocol):
    """Data and model of one node.

    Attributes:
        layout: what the values of a model are, and which of them are private. The learner and `initial` have all of them;
            peers and policies know of the shared ones only.
        n_samples: of training.
        metric: the name of what is reported, such as "accuracy".
        higher_is_better: whether more of it is better.
        public_info: public facts, sent to peers (`group` for the oracle); never preferences. At most 31 plain numbers,
            bools and
            short strings.

    A task of several objectives also has `goals`, which says of each by name whether more of it is better. Its learner
    trains what the node's preference makes of them; `evaluate` reports that as loss and metric, and beside it each objective
    as "<split>_<name>". It may have a `reference`, the worst value of each objective that is of interest, for the
    hypervolume of a run. It may have a `front`, all values that are best, for the distance from it (IGD). It may have
    `counts_for_front`, which says which rows of float64 [n, m] (more is better) count in measures of the front. Such a node
    does not tell peers the loss of their models, from which they could infer its preference.

    A task whose parameters hold several solutions (see Answering) may have a method `solutions(params)`, which returns
    p2pfl.pareto_metrics.Solutions of the test data, or None without any: the report shows them.

    Any task may have `extra_metrics`, names of further figures that `evaluate` reports, which the table of a run shows too.
    """

    layout: Layout
    n_samples: int
    metric: str
    higher_is_better: bool
    public_info: Mapping[str, Any]  # see check_public_info

    def initial(self, seed: int) -> Parameters:
        """Return the model that all nodes of a federation start from."""

    def learner(self, draws: RandomStreams, device: str) -> Learner:
        """Return the computations of this task on a device."""


def make_task(name: str, options: Mapping[str, Any], part: Part, seed: int) -> Task:
    """Make the task called `name`: one of TASKS, an entry point of `p2pfl.tasks`, or "package.module:factory".

    Raises:
        ConfigurationError: an unknown name, an option that the task does not take, or something that is no task.
    """
    factory = resolve("task", name, TASKS, "p2pfl.tasks", ("learner",))
    with suppress(ValueError):  # it has no signature, as `build` reports
        if not (takes(factory, "part") and takes(factory, "seed")):  # before it is called: it may be anything
            raise ConfigurationError(f"task {name!r} is no task: it does not take `part` and `seed`")
    task: Task = build("task", factory, options, part=part, seed=seed)
    needed = ("layout", "n_samples", "metric", "higher_is_better", "public_info", "initial", "learner")
    missing = [m for m in needed if not hasattr(task, m)]
    if missing:
        raise ConfigurationError(f"task {name!r} is no task: it lacks {', '.join(missing)}")
    try:
        check_public_info(task.public_info)
    except ConfigurationError as error:
        raise ConfigurationError(f"task {name!r}: {error}") from error
    return task


def goals_of(task: Task) -> Mapping[str, bool]:
    """Return the objectives of a task by name, and of each whether more is better; none if it has a single one."""
    goals: Mapping[str, bool] = getattr(task, "goals", {})
    return goals


def reference_of(task: Task) -> Sequence[float]:
    """Return the reference point of a task of m objectives, [m]; none if it says none."""
    reference: Sequence[float] = getattr(task, "reference", ())
    return reference


def front_of(task: Task) -> Sequence[Sequence[float]]:
    """Return the front of what is attainable in a task of m objectives, [n, m]; none if it is not known."""
    front: Sequence[Sequence[float]] = getattr(task, "front", ())
    return front


def extra_metrics_of(task: Task) -> Sequence[str]:
    """Return the figures of a task that are shown beside its metric; none if it names none."""
    also: Sequence[str] = getattr(task, "extra_metrics", ())
    return also


def solutions_of(task: Task, params: Parameters) -> Solutions | None:
    """Return what the solutions that a model holds are worth; None if a task has a single one for a model."""
    solutions = getattr(task, "solutions", None)
    found: Solutions | None = None if solutions is None else solutions(params)
    return found


def excluded_solutions(task: Task, points: np.ndarray) -> list[int]:
    """Return which of the solutions [n, m] (more is better) do not count in measures of the front."""
    which = getattr(task, "counts_for_front", None)
    return [] if which is None else np.flatnonzero(~which(points)).tolist()


def group_of(task: Task) -> Any:
    """Return the group of the task's node, for reports: the one that peers are told, or one that stays on the node."""
    own = getattr(task, "group", None)
    return task.public_info.get("group") if own is None else own


def check_public_info(public_info: Mapping[str, Any]) -> None:
    """Check that a task's `public_info` is something that peers can be told.

    Raises:
        ConfigurationError: it is no mapping, has too many entries, or one that is no plain number, bool or short string.
    """
    if not isinstance(public_info, Mapping) or len(public_info) > MOST_FACTS:
        raise ConfigurationError(f"public_info must be a dict of at most {MOST_FACTS} entries")
    for key, value in public_info.items():
        if type(key) is not str or not 1 <= len(key) <= LONGEST_KEY:
            raise ConfigurationError(
                f"public_info has the key {key!r}; keys must be strings of 1 to {LONGEST_KEY} characters"
            )
        allowed = (  # by the very type, as a NumPy number is no message
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
