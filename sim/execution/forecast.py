"""Forecast of a scenario's run time and memory, from the first rounds of a few of its runs.

The trials run like the scenario itself, in parallel worker processes, but only for a limited time. The rest of each run
is extrapolated. A forecast says "about", because runs differ in cost, other programs take cores, and early stopping
shortens runs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from heapq import heapreplace

from msgspec.structs import replace

from p2pfl._util.machine import status
from p2pfl.errors import DivergenceError
from p2pfl.node.settings import End
from p2pfl.sim.formatting import count
from p2pfl.sim.scenario.scenario import Scenario, name_errors
from p2pfl.sim.simulation.workers import Pipe, Worker, answer, prepare_process

TRIED = 6  # runs, at most
ROUNDS, ENOUGH = 3, 1.0  # rounds of a trial: at least ROUNDS, and more until ENOUGH seconds have passed since the first
PATIENCE = 15.0  # seconds for all trials together
LONGEST = 60.0  # seconds, if no trial has finished a round before
# Bytes, measured. ROW and EDGE: memory that the process of a run needs at its end for each round of a node and for each
# aggregated model, which are on disk before. TABLE_ROW and TABLE_EDGE: memory that the first process keeps for them until
# all runs are finished and their tables are concatenated.
ROW, EDGE = 250, 40
TABLE_ROW, TABLE_EDGE = 340, 75


@dataclass
class Trial:
    """Measurements of the first rounds of a run.

    Attributes:
        seconds: time from the start until the end of each round.
        memory: maximum bytes of its process.
        edges: models aggregated per round, over the rounds of the trial.
    """

    seconds: list[float]
    memory: int = 0
    edges: float = 0.0

    def run_of(self, rounds: int) -> float:
        """Return the seconds of a run with this number of rounds."""
        first, last, count = self.seconds[0], self.seconds[-1], len(self.seconds)
        return first + (rounds - 1) * ((last - first) / (count - 1) if count > 1 else first)


@dataclass(frozen=True)
class Forecast:
    """Forecast of the time and memory of a scenario.

    Attributes:
        nodes, rounds: least and greatest number in one run.
        processes: number of parallel processes.
        seconds: None if no run has ended a round in time; then `memory` is None too.
        memory: bytes of all processes together.
        most: whether these are upper limits, because the `end` of some run may come before its last round.
    """

    runs: int
    nodes: tuple[int, int]
    rounds: tuple[int, int]
    processes: int
    seconds: float | None
    memory: int | None
    most: bool = False

    def __str__(self) -> str:
        """Return a line like "24 runs of 100 nodes, 30 rounds: about 3 min on 2 cores, 0.9 GiB"."""
        what = f"{count(self.runs, 'run')} of {span(self.nodes)} node{'s' * (self.nodes[1] != 1)}"
        what += f", {span(self.rounds)} round{'s' * (self.rounds[1] != 1)}"
        if self.seconds is None:
            return f"{what}: no forecast, because no trial finished a round in {LONGEST:g} s"
        cores = f"{self.processes} core{'s' * (self.processes != 1)}"
        memory = "" if self.memory is None else f", {self.memory / 2**30:.1f} GiB"
        return f"{what}: {'at most ' * self.most}about {duration(self.seconds)} on {cores}{memory}"

    def warning(self, free: int | None) -> str:
        """Return a warning if free memory does not suffice; "" if it does, or if either amount is unknown."""
        if self.memory is None or free is None or self.memory <= free:
            return ""
        fewer = "; use fewer --workers" if self.processes > 1 else ""
        needed = f"{'at most ' * self.most}about {self.memory / 2**30:.1f} GiB"
        return f"the runs need {needed} of memory, and only {free / 2**30:.1f} GiB are free{fewer}"


def forecast(jobs: Sequence[Scenario], path: Sequence[str], processes: int) -> Forecast:
    """Run trials of some jobs, and return a forecast for all jobs on this number of processes.

    Args:
        path: folders to search for modules of the scenario.

    Raises:
        RunError: one of the jobs cannot run.
    """
    processes = max(1, min(processes, len(jobs)))
    different = list({kind_of(job): job for job in reversed(jobs)}.values())[::-1]
    tried = [different[k * len(different) // TRIED] for k in range(TRIED)] if len(different) > TRIED else different
    ready, trials = _try(tried, path, processes)
    return estimate(
        jobs, {kind_of(job): trial for job, trial in zip(tried, trials, strict=True)}, processes, ready, status("VmRSS:")
    )


def estimate(
    jobs: Sequence[Scenario], trials: Mapping[str, Trial], processes: int, ready: float = 0.0, own_memory: int = 0
) -> Forecast:
    """Compute a forecast from trials.

    A job without a trial takes as much time per node as the average trial with the same policy or, if there is none,
    the average of all trials.

    Args:
        trials: by `kind_of` of their job; trials without a finished round do not count.
        ready: seconds until a process can begin.
        own_memory: bytes of the main process.
    """
    sizes = [job.nodes for job in jobs], [job.rounds for job in jobs]
    nodes, rounds = ((min(size), max(size)) for size in sizes)
    there = {
        kind_of(job): (job, trials[kind_of(job)]) for job in jobs if kind_of(job) in trials and trials[kind_of(job)].seconds
    }
    if not there:
        return Forecast(len(jobs), nodes, rounds, processes, None, None)
    seconds, peaks, kept = [], [], 0.0
    for job in jobs:
        alike = [there[kind_of(job)]] if kind_of(job) in there else []
        alike = (
            alike or [one for one in there.values() if one[0].policy["name"] == job.policy["name"]] or list(there.values())
        )
        shares = [job.nodes / one.nodes for one, _ in alike]
        seconds.append(_mean([trial.run_of(job.rounds) * share for (_, trial), share in zip(alike, shares, strict=True)]))
        rows = job.nodes * job.rounds
        edges = job.rounds * _mean([trial.edges * share for (_, trial), share in zip(alike, shares, strict=True)])
        peaks.append(max(trial.memory for _, trial in alike) + int(ROW * rows + EDGE * edges))
        kept += TABLE_ROW * rows + TABLE_EDGE * edges
    free_at = [0.0] * processes  # each job goes to the first free process
    for took in seconds:
        heapreplace(free_at, free_at[0] + took)
    most = any(job.end != End() for job in jobs)
    known = all(trial.memory for _, trial in there.values())
    memory = own_memory + sum(sorted(peaks)[-processes:]) + int(kept)
    return Forecast(len(jobs), nodes, rounds, processes, ready + max(free_at), memory if known else None, most)


def _try(jobs: Sequence[Scenario], path: Sequence[str], processes: int) -> tuple[float, list[Trial]]:
    """Run the first rounds of jobs. Return the seconds until a process could begin, and a trial for each job."""
    from p2pfl.sim.execution.run_order import Assignment, compute_side_by_side  # it imports torch, which a list does without

    trials = [Trial([]) for _ in jobs]
    begun, ready = time.monotonic(), 0.0

    def left() -> float:
        patience = PATIENCE if any(trial.seconds for trial in trials) else LONGEST
        return begun + ready + patience - time.monotonic()

    def received(number: int, message: float | tuple[int, float] | None) -> bool:
        nonlocal ready
        if message is None:
            ready = max(ready, time.monotonic() - begun)
        elif isinstance(message, float):
            trials[number].seconds.append(message)
        else:
            trials[number].memory, trials[number].edges = message
        return isinstance(message, tuple)

    tried = (Assignment(number, job, job) for number, job in enumerate(jobs))
    compute_side_by_side(tried, processes, lambda: Worker(_work, path), received, left=left)
    return ready, trials


class _TrialOverError(Exception):
    """Raised to end a trial after enough rounds."""


def _work(pipe: Pipe, path: Sequence[str]) -> None:
    """Run the trials that come through a pipe: report the end of each round, and at the end the measurements."""
    prepare_process(path)
    import p2pfl.sim.simulation.simulation  # noqa: F401  the time to import it does not belong to the first run

    pipe.send(None)
    answer(pipe, lambda job: _try_run(job, pipe))


def _try_run(job: Scenario, pipe: Pipe) -> tuple[int, float]:
    """Return the maximum bytes of the process, and the number of models aggregated per round."""
    from p2pfl.sim.simulation.simulation import Simulation

    begun, ended = time.perf_counter(), []

    def progress(done: int) -> None:
        ended.append(time.perf_counter() - begun)
        pipe.send(ended[-1])
        if len(ended) >= ROUNDS and ended[-1] - ended[0] > ENOUGH:
            raise _TrialOverError

    with name_errors(job):
        simulation = Simulation(job)
        with suppress(_TrialOverError, DivergenceError):  # the run itself reports that it diverges
            simulation.run(progress)
    return status("VmHWM:"), len(simulation.recorder.edges_table()["round"]) / max(len(ended), 1)


def duration(seconds: float) -> str:
    """Return a duration like "8 s", "3 min" or "2 h 10 min"."""
    if seconds < 100:
        return f"{max(1, seconds):.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if minutes < 600 and minutes % 60 else f"{round(minutes / 60)} h"


def kind_of(job: Scenario) -> str:
    """Return a key that is equal for runs of the same kind, that is, runs that differ only in their seed."""
    return str(replace(job, seed=0))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def span(ends: Sequence[int]) -> str:
    """Return the two ends of a range as text, such as "3 to 12"; one number if they are equal."""
    return f"{ends[0]:,}" if ends[0] == ends[1] else f"{ends[0]:,} to {ends[1]:,}"
