"""MOFL/D: search for the front of a task with several objectives (Hartmann's dissertation, chapter 3, algorithm 2).

A search proposes preferences by Pareto simulated annealing (p2pfl.multiobjective.annealing), and trains a federation
for each: a `Candidate`. The results of all candidates of an iteration determine the next iteration. A search depends only
on its seed and the values of its candidates, so the number of processes has no effect.

Each candidate is on disk until the search ends; an interrupted search is repeated with the candidates on disk. The files
of a finished search are a summary as JSON, its candidates as Parquet, and the models of each front.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from p2pfl._util.atomic_files import reason, replace_file
from p2pfl._util.printable import to_json
from p2pfl._version import __version__
from p2pfl.errors import ConfigurationError, RunError
from p2pfl.multiobjective.annealing import Annealing
from p2pfl.parameters import Parameters
from p2pfl.pareto_metrics import Points, hypervolume, non_dominated, to_maximisation
from p2pfl.queries import Evaluate, NodeQuery
from p2pfl.sim.columns import Table
from p2pfl.sim.execution.inputs import Content, RunInputs
from p2pfl.sim.execution.resume import Recomputed, Unfinished, UnusableFileError
from p2pfl.sim.execution.run_order import Assignment, compute_side_by_side
from p2pfl.sim.execution.runner import processes_of
from p2pfl.sim.results import objectives
from p2pfl.sim.results.results import asked, versions
from p2pfl.sim.results.tables import CANDIDATES, MODELS, SUMMARY, write_parquet
from p2pfl.sim.scenario.claims import MEAN
from p2pfl.sim.scenario.questions import surroundings
from p2pfl.sim.scenario.scenario import Scenario, ScenarioFile, name_errors
from p2pfl.sim.simulation.sharding import task_of
from p2pfl.sim.simulation.simulation import Simulation
from p2pfl.sim.simulation.workers import Pipe, Worker, answer, prepare_process
from p2pfl.task import excluded_solutions

_MAGIC = b"p2pfl-sim candidate 2\n"


@dataclass(frozen=True)
class Candidate:
    """A preference with its result.

    Attributes:
        iteration: from 1.
        values: of the objectives, [m], more is better.
        start: the number of the candidate whose model the training started from; -1 for none.
        generating: whether it became a generating solution.
    """

    iteration: int
    preference: np.ndarray
    values: np.ndarray
    params: Parameters
    start: int
    generating: bool
    seconds: float


class FrontSearch:
    """The search of a row with a seed.

    Args:
        first: the number of its first candidate among those of all searches.

    Attributes:
        goals: the objectives by name; the value is True if more is better.
        candidates: of all iterations that have ended.
    """

    def __init__(self, scenario: Scenario, first: int = 0) -> None:
        assert scenario.search is not None
        self.scenario = scenario
        self.goals: Mapping[str, bool] = objectives_of(scenario)
        self.candidates: list[Candidate] = []
        self.settings = scenario.search
        self._first = first
        self._annealing = Annealing(len(self.goals), scenario.search, scenario.seed)
        self._propose()

    @property
    def total(self) -> int:
        """Number of candidates of the whole search."""
        return self.settings.iterations * self.settings.samples

    def points(self) -> Points:
        """Return the values of all candidates, [n, m], more is better."""
        return np.array([each.values for each in self.candidates]).reshape(-1, len(self.goals))

    def next(self) -> Job | None:
        """Return the next training; None if others must be solved first, or at the end."""
        return self._waiting.pop(0) if self._waiting else None

    def take(self, job: Job, solved: Solved) -> bool:
        """Add a solved candidate, and return whether it was the last one of its iteration."""
        self._solved[job.number] = solved
        if len(self._solved) < self.settings.samples:
            return False
        found = [self._solved[number] for number in sorted(self._solved)]
        taken = self._annealing.tell(self._proposed, np.array([each.values for each in found]))
        self.candidates += [
            Candidate(self._annealing.iteration, preference, each.values, each.params, start, generating, each.seconds)
            for preference, each, start, generating in zip(self._proposed, found, self._starts, taken, strict=True)
        ]
        if self._annealing.iteration < self.settings.iterations:
            self._propose()
        return True

    def _propose(self) -> None:
        self._proposed = self._annealing.propose()
        warm = self.settings.warm_start and bool(self.candidates)
        self._starts = [self._nearest(preference) if warm else -1 for preference in self._proposed]
        number = self._first + len(self.candidates)
        self._waiting = [
            Job(number + k, candidate(self.scenario, preference), self.candidates[start].params if start >= 0 else None)
            for k, (preference, start) in enumerate(zip(self._proposed, self._starts, strict=True))
        ]
        self._solved: dict[int, Solved] = {}

    def _nearest(self, preference: np.ndarray) -> int:
        """Return the candidate with the nearest preference (Euclidean); of several, the newest."""
        solved = np.array([each.preference for each in self.candidates])
        distances = np.linalg.norm(solved - preference, axis=1)
        return int(len(distances) - 1 - distances[::-1].argmin())


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


Key = tuple[FrontSearch, Job]  # a training, and its search


def searches_of(rows: Sequence[Scenario]) -> list[FrontSearch]:
    """Return a search for each row with its seed."""
    found: list[FrontSearch] = []
    for row in rows:
        found.append(FrontSearch(row, sum(search.total for search in found)))
    return found


def search_all(
    searches: Sequence[FrontSearch],
    path: Sequence[str],
    kept: Candidates,
    *,
    workers: int | None = None,
    progress: Callable[[int], None] = lambda node_rounds: None,
    iterated: Callable[[FrontSearch], None] = lambda search: None,
) -> None:
    """Run searches to their end; the number of processes does not affect results.

    Args:
        path: folders to search for modules of the scenario.
        workers: parallel processes, each with one candidate; by default one for each core. 1 is this process.
        progress: called with the number of node-rounds done since the last call.
        iterated: called with a search that has ended an iteration.

    Raises:
        RunError: a training cannot continue; the others are ended.
    """
    prepare_process(path)
    count = processes_of("process", workers)

    def finished(key: Key, solved: Solved) -> None:
        kept.save(key[1], solved)
        if key[0].take(key[1], solved):
            iterated(key[0])

    def received(key: Key, message: int | Solved) -> bool:
        if isinstance(message, int):
            progress(message)
            return False
        finished(key, message)
        return True

    jobs = _jobs(searches, kept, progress, iterated)
    if count > 1:
        assignments = (None if key is None else Assignment(key, key[1].scenario, key[1]) for key in jobs)
        compute_side_by_side(assignments, count, lambda: Worker(_work, path), received)
        return
    while (key := next(jobs)) is not None:
        with name_errors(key[1].scenario):
            solved = solve(key[1], progress)
        finished(key, solved)


def _jobs(
    searches: Sequence[FrontSearch],
    kept: Candidates,
    progress: Callable[[int], None],
    iterated: Callable[[FrontSearch], None],
) -> Iterator[Key | None]:
    """Yield the next trainings, the earliest search first; yield None while the rest depends on unfinished trainings.

    Searches use the candidates on disk.
    """
    while True:
        search, job = next(((each, job) for each in searches if (job := each.next()) is not None), (None, None))
        if search is None or job is None:
            yield None
        elif (solved := kept.load(job)) is not None:
            progress(job.scenario.nodes * job.scenario.rounds)
            if search.take(job, solved):
                iterated(search)
        else:
            yield search, job


def _work(pipe: Pipe, path: Sequence[str]) -> None:
    """Solve the jobs that come through a pipe."""
    prepare_process(path)

    def one(job: Job) -> Solved:
        with name_errors(job.scenario):
            return solve(job, pipe.send)

    answer(pipe, one)


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
    goals = task_of(scenario, 0).goals
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
    model, *others = run.state.last
    if any(other.tobytes() != model.tobytes() for other in others):
        raise ConfigurationError(
            "the nodes ended with different models; a search needs a policy that gives all nodes the same model, such as"
            " fedavg on a complete topology"
        )
    asked = [NodeQuery(k, Evaluate([model], ["test"])) for k in range(job.scenario.nodes)]
    figures = [row for (row,) in simulation.backend.compute(asked)]
    values = to_maximisation(figures, simulation.plan.tasks[0].goals).mean(0)
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
        except UnusableFileError as error:
            self._must_solve(job, str(error))
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


def summarise(file: ScenarioFile, searches: Sequence[FrontSearch], notes: Sequence[str] = ()) -> dict[str, Any]:
    """Return the contents of summary.json.

    The key `search` distinguishes it from the summary of a run. `runs` has an entry for each row and seed, and the
    measures of the `table` are averaged over seeds.

    In an entry, `objectives` are those of all candidates in order (see p2pfl.sim.results.objectives.of_points).
    `preferences` are their preferences, `front` has the numbers of the candidates on the front, and `hypervolumes` the
    hypervolume after each iteration.
    """
    runs = objectives.with_distances(
        [_entry(search) for search in searches], {run.name: surroundings(run.varied) for run in file.runs}
    )
    table = []
    for scenario in file.runs:
        repeated = [run for run in runs if run["name"] == scenario.name]
        measures = objectives.over_seeds(repeated)
        found = [run["objectives"].get("hypervolume") for run in repeated]
        row: dict[str, Any] = {"name": scenario.name, "seeds": len(repeated), "objectives": measures}
        if len(found) > 1 and None not in found:
            row["std"] = float(np.std(found, ddof=1))
        if file.answers and None not in found:
            row["by_seed"] = {"objectives.hypervolume": found}
        row["candidates"] = len(repeated[0]["preferences"])
        row["seconds"] = float(np.mean([run["time"]["wall_s"] for run in repeated]))
        if scenario.paper is not None:
            row["paper"] = scenario.paper
        table.append(row)
    return {
        "scenario": file.name,
        "search": True,
        "version": __version__,
        "versions": versions(),
        **({} if file.figure == MEAN else {"figure": file.figure}),
        **asked(file),
        "seeds": sorted({run["seed"] for run in runs}),
        "runs": runs,
        "table": table,
        "notes": list(dict.fromkeys([*file.notes, *notes])),
    }


def _entry(search: FrontSearch) -> dict[str, Any]:
    task, points = task_of(search.scenario, 0), search.points()
    reached = [hypervolume_of(search, k) for k in range(1, search.settings.iterations + 1)]
    return {
        "name": search.scenario.name,
        "seed": search.scenario.seed,
        "nodes": search.scenario.nodes,
        "rounds": search.scenario.rounds,
        "metric": task.metric,
        "higher_is_better": task.higher_is_better,
        "preferences": [each.preference.tolist() for each in search.candidates],
        "labels": [_preference_label(k, each.preference) for k, each in enumerate(search.candidates)],
        "front": front_of_search(points, excluded_solutions(task, points)),
        "objectives": objectives.of_points(task, points, search.goals) | {"each": "candidate"},
        "hypervolumes": [] if None in reached else reached,
        "time": {"wall_s": round(sum(each.seconds for each in search.candidates), 3)},
    }


def _preference_label(number: int, preference: np.ndarray) -> str:
    return f"{number} ({' : '.join(f'{weight:.2f}' for weight in preference)})"


def hypervolume_of(search: FrontSearch, iterations: int) -> float | None:
    """Return the hypervolume of a search after some iterations; None if there is no reference point."""
    task = task_of(search.scenario, 0)
    reference = task.reference
    if not len(reference):
        return None
    points = search.points()[: iterations * search.settings.samples]
    signs = np.array([1 if higher else -1 for higher in search.goals.values()])
    counted = np.delete(points, excluded_solutions(task, points), axis=0)
    return hypervolume(counted, (np.array(reference) * signs).tolist())


def write(path: Path, searches: Sequence[FrontSearch], summary: Mapping[str, Any]) -> None:
    """Write all files of searches; summary.json comes last, so a folder with a summary.json is complete.

    Raises:
        RunError: the files cannot be written.
    """
    try:
        write_parquet(
            path / "candidates.parquet", [(run, _columns(s, run)) for s, run in zip(searches, summary["runs"], strict=True)]
        )
        shutil.rmtree(path / MODELS, ignore_errors=True)
        for search, run in zip(searches, summary["runs"], strict=True):
            row = re.sub(r"[^A-Za-z0-9.-]+", "-", run["name"])
            _write_models(path / MODELS / row / f"seed-{run['seed']}", search, run)
        replace_file(path / SUMMARY, [to_json(summary, indent=1).encode() + b"\n"])
    except OSError as error:
        raise RunError(f"cannot write to {path}: {reason(error)}") from error


def _columns(search: FrontSearch, run: Mapping[str, Any]) -> Table:
    found = search.candidates
    front = set(run["front"])
    preferences, values = np.array(run["preferences"]), np.array(run["objectives"]["nodes"])
    return {
        "candidate": np.arange(len(found)),
        "iteration": np.array([each.iteration for each in found]),
        "started_from": np.array([each.start for each in found]),
        "generating": np.array([each.generating for each in found]),
        "on_front": np.array([k in front for k in range(len(found))]),
        **{f"preference_{name}": preferences[:, k] for k, name in enumerate(search.goals)},
        **{f"test_{name}": values[:, k] for k, name in enumerate(search.goals)},
    }


def _write_models(folder: Path, search: FrontSearch, run: Mapping[str, Any]) -> None:
    """Write the models of the front. A model's facts are one metadata entry, because several have no fixed order."""
    from safetensors.numpy import save

    task = task_of(search.scenario, 0)
    folder.mkdir(parents=True, exist_ok=True)
    for k in run["front"]:
        about = {
            "run": run["name"],
            "seed": run["seed"],
            "candidate": k,
            "preference": dict(zip(search.goals, run["preferences"][k], strict=True)),
            "test": dict(zip(search.goals, run["objectives"]["nodes"][k], strict=True)),
            "fingerprint": task.layout.fingerprint.hex(),
        }
        tensors = task.tensors(search.candidates[k].params, search.scenario.seed)
        content = save(tensors, {"p2pfl": json.dumps(about)})
        replace_file(folder / f"candidate-{k}.safetensors", [content])
