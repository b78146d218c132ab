"""Candidates of a search: one federated training for each preference, with its result on disk until the search ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from hashlib import sha256
from pathlib import Path

import msgspec
import numpy as np
from msgspec.structs import replace

from p2pfl.errors import ConfigurationError
from p2pfl.parameters import Parameters
from p2pfl.pareto_metrics import Points, non_dominated, to_maximisation
from p2pfl.queries import Evaluate, NodeQuery
from p2pfl.sim.execution.inputs import Content, RunInputs
from p2pfl.sim.execution.resume import EarlierVersionError, Recomputed, Unfinished, reason_of
from p2pfl.sim.results.artifacts import CANDIDATES
from p2pfl.sim.scenario.scenario import Scenario, ScenarioFile
from p2pfl.sim.simulation.sharding import task_of
from p2pfl.sim.simulation.simulation import Simulation
from p2pfl.system.atomic_files import DamagedFileError
from p2pfl.task import goals_of

_MAGIC = b"p2pfl-sim candidate 2\n"


class Job(msgspec.Struct, frozen=True):
    """A training to be done.

    Attributes:
        number: number of the candidate among those of all searches.
        scenario: the row's scenario, with the same preference for all nodes.
        start: the model that the training starts from; None is the task's initial one.
    """

    number: int
    scenario: Scenario
    start: Parameters | None = None

    def digest(self) -> bytes:
        """Return a digest of the start model."""
        return b"" if self.start is None else sha256(self.start.tobytes()).digest()


class Solved(msgspec.Struct, frozen=True):
    """Result of a job.

    Attributes:
        values: for each objective, the mean over the nodes on the test data; float64 [m], more is better.
        params: the model, which all nodes share.
        seconds: duration of the training.
    """

    values: np.ndarray
    params: Parameters
    seconds: float


def objectives_of(scenario: Scenario) -> Mapping[str, bool]:
    """Return the objectives of a row by name; the value is True if more is better.

    Raises:
        ConfigurationError: the row has nothing to search for.
    """
    if scenario.search is None:
        raise ConfigurationError(f"run {scenario.name!r} has no [search] table; use p2pfl-sim run instead")
    goals = goals_of(task_of(scenario, 0))
    if len(goals) < 2:
        raise ConfigurationError(
            f"run {scenario.name!r}: a search needs a task with several objectives, such as deep-sea-treasure, but"
            f" {scenario.task['name']} has one"
        )
    return goals


def candidate(scenario: Scenario, preference: np.ndarray) -> Scenario:
    """Return the training for a preference: the row's scenario with this preference for all nodes."""
    task = {key: value for key, value in scenario.task.items() if key != "preferences"}
    return replace(scenario, search=None, task=task | {"preference": preference.tolist()})


def solve(job: Job, progress: Callable[[int], None] = lambda node_rounds: None) -> Solved:
    """Train, and evaluate the resulting model.

    Args:
        progress: called with the number of node-rounds done since the last call.

    Raises:
        ConfigurationError: the nodes end with different models.
    """
    done, begun = 0, time.perf_counter()

    def report(total: int) -> None:
        nonlocal done
        progress(total - done)
        done = total

    simulation = Simulation(job.scenario, initial=job.start)
    run = simulation.run(report)
    model, *others = [node.me.whole for node in run.nodes.values()]
    if any(other.tobytes() != model.tobytes() for other in others):
        raise ConfigurationError(
            "the nodes ended with different models; a search needs a policy that gives all nodes the same model, such as"
            " fedavg on a complete topology"
        )
    asked = [NodeQuery(k, Evaluate([model], ["test"])) for k in range(job.scenario.nodes)]
    figures = [row for (row,) in simulation.backend.compute(asked)]
    values = to_maximisation(figures, goals_of(simulation.plan.tasks[0])).mean(0)
    return Solved(values, model.copy(), time.perf_counter() - begun)


class _Kept(msgspec.Struct):
    """A candidate on disk.

    Attributes:
        start: digest of its start model.
    """

    content: Content
    start: bytes
    values: list[float]
    params: bytes
    seconds: float


class Candidates(Unfinished):
    """The solved candidates of searches, each in a sealed file."""

    def __init__(
        self, path: Path, file: ScenarioFile, inputs: RunInputs | None = None, *, different_bits: bool = False
    ) -> None:
        super().__init__(path, file, CANDIDATES, inputs, different_bits=different_bits)
        self._again = Recomputed("trained")
        self.done = sum(each.name.isdecimal() for each in self._folder.iterdir())

    def save(self, job: Job, solved: Solved) -> None:
        """Write a candidate.

        Raises:
            RunError: the file cannot be written, or an input has changed since the command began.
        """
        self.inputs.confirm(job.scenario)
        content = self.inputs.content(job.scenario)
        part = _Kept(content, job.digest(), solved.values.tolist(), solved.params.tobytes(), solved.seconds)
        self.write(job.number, _MAGIC, msgspec.msgpack.encode(part))

    def load(self, job: Job) -> Solved | None:
        """Return a candidate from disk; None if it must be solved."""
        try:
            part = self.read(job.number, _MAGIC, partial(msgspec.msgpack.decode, type=_Kept))
        except (DamagedFileError, EarlierVersionError) as error:
            self._must_solve(job, reason_of(error))
            return None
        if part is None:
            return None
        if changes := self.changes(job.scenario, part.content):
            self._must_solve(job, changes)
            return None
        if part.start != job.digest():
            self._must_solve(job, "the candidate that it starts from has changed")
            return None
        return Solved(np.array(part.values), np.frombuffer(part.params, np.float32), part.seconds)

    @property
    def notes(self) -> list[str]:
        """Return a line for each reason to solve candidates again."""
        return self._again.lines()

    def _must_solve(self, job: Job, reason: str) -> None:
        self._again.add(f"candidate {job.number} ({job.scenario.name}, seed {job.scenario.seed})", reason)
        self.done -= 1


def front_of_search(points: Points, left_out: list[int]) -> list[int]:
    """Return the numbers of the candidates on the front; of candidates with equal values, only the first.

    Args:
        points: the values of all, [n, m], more is better.
        left_out: candidates that do not count.
    """
    best = {tuple(values) for values in non_dominated(np.delete(points, left_out, axis=0)).tolist()}
    first: dict[tuple[float, ...], int] = {}
    for k, values in enumerate(points.tolist()):
        if k not in left_out and tuple(values) in best:
            first.setdefault(tuple(values), k)
    return list(first.values())
