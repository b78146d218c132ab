"""Training of one run's nodes in several processes, with the same results as one by one in a single process.

The virtual clock, the nodes and their communication stay in the main process, which also computes a share of the jobs.
A worker makes the tasks and learners of its nodes itself; only jobs and results are sent. Every process therefore
computes a job from the same numbers, with the same program.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from threading import Thread
from typing import Any, Protocol

import msgspec

from p2pfl._util.binding import split_name
from p2pfl._util.shared_work import sharing
from p2pfl.attacks.registry import flip_labels
from p2pfl.learner import Learner
from p2pfl.learning.batched_learner import combine_all
from p2pfl.policies import make_policy
from p2pfl.queries import Combine, NodeQuery, R
from p2pfl.random_streams import RandomStreams
from p2pfl.sim.scenario.scenario import Scenario
from p2pfl.sim.simulation.workers import Pipe, Worker, answer, end_all, prepare_process
from p2pfl.task import Part, Task, make_task


def task_of(scenario: Scenario, node: int) -> Task:
    """Return the task of a node."""
    task = make_task(*split_name("task", scenario.task), Part(node, scenario.nodes), scenario.seed)
    found = scenario.attack_plan()
    return task if found is None or not found.attack.flips_labels or node not in found.nodes else flip_labels(task)


class ShardSetup(msgspec.Struct, frozen=True):
    """First message to a shard: the nodes whose learners it makes.

    Attributes:
        names: of the nodes, by their index.
    """

    scenario: Scenario
    names: dict[int, str]


class Shard(Protocol):
    """A worker that answers each message: the setup with None, then jobs with their results, or with an exception."""

    def give(self, message: Any) -> None:
        """Send a message."""

    def take(self) -> Any:
        """Wait for the answer, and return it."""


class ShardSource(Protocol):
    """Source of the shards of a run."""

    def start(self, most: int) -> Sequence[Shard]:
        """Return at most this number of new shards."""

    def end(self) -> None:
        """End all shards."""


class LocalShards:
    """Shards in processes of this machine."""

    def __init__(self) -> None:
        self._workers: list[Worker] = []

    def start(self, most: int) -> Sequence[Shard]:
        for _ in range(most):
            self._workers.append(Worker(_serve))
        return self._workers

    def end(self) -> None:
        end_all(self._workers)


class ShardedBackend:
    """Computations of learners that run one by one, in several processes in parallel.

    See p2pfl.sim.simulation.batching.ComputeBackend.

    Args:
        learners, names, samples: of each node. Only the learners that this process uses itself are kept.
        most: maximum number of processes, including this one.
        shards: starts the other processes.

    Attributes:
        processes: number of processes, including this one.

    Raises:
        WorkerLostError: a process has ended; from every method.
    """

    def __init__(
        self,
        scenario: Scenario,
        learners: Sequence[Learner],
        names: Sequence[str],
        samples: Sequence[int],
        *,
        most: int,
        shards: ShardSource,
    ) -> None:
        self._shards = shards
        try:
            self._workers = shards.start(most - 1)
            self.processes = 1 + len(self._workers)
            shares = balance_by_samples(samples, self.processes)
            for worker, nodes in zip(self._workers, shares[1:], strict=True):
                worker.give(ShardSetup(scenario, {node: names[node] for node in nodes}))
            for worker in self._workers:
                if isinstance(error := worker.take(), Exception):
                    raise error
        except BaseException:
            self.close()
            raise
        self._own = {node: learners[node] for node in shares[0]}
        self._first = learners[shares[0][0]]
        self._owner = {node: k for k, nodes in enumerate(shares) for node in nodes}

    def close(self) -> None:
        """End the processes."""
        self._shards.end()

    def compute(self, jobs: Sequence[NodeQuery[R]]) -> list[R]:
        """Compute each job in the process that has its node; a job without data runs in this process.

        Averaging models is faster than sending them. If several jobs fail, the error of the first job is raised, as if
        they were computed in turn.
        """
        if jobs[0].query.name == Combine.name:
            return combine_all(jobs)
        results: list[Any] = [None] * len(jobs)
        errors: dict[int, Exception] = {}
        places = defaultdict(list)
        for place, job in enumerate(jobs):
            places[self._owner[job.node] if job.query.needs_data else 0].append(place)

        def ask(worker: Shard, mine: Sequence[int]) -> None:
            for place in mine:  # one at a time, because two processes that both send large messages would deadlock
                try:
                    worker.give(jobs[place])
                    result = worker.take()
                except Exception as error:
                    result = error
                if isinstance(result, Exception):
                    errors[place] = result
                    return
                results[place] = result

        threads = [
            Thread(target=ask, args=(worker, places[k]), daemon=True)
            for k, worker in enumerate(self._workers, 1)
            if places[k]
        ]
        for thread in threads:
            thread.start()
        for place in places[0]:
            try:
                job = jobs[place]
                results[place] = self._own.get(job.node, self._first).compute(job.query)
            except Exception as error:
                errors[place] = error
                break
        for thread in threads:
            thread.join()
        if errors:
            raise errors[min(errors)]
        return results


def balance_by_samples(samples: Sequence[int], processes: int) -> list[list[int]]:
    """Distribute nodes so that all processes have about the same number of samples.

    The first process has additional work, so it never gets the most.

    Returns:
        The nodes of each process, sorted; at least one each if there are enough.
    """
    shares: list[list[int]] = [[] for _ in range(processes)]
    loads = [0] * processes
    for node in sorted(range(len(samples)), key=lambda node: (-samples[node], node)):  # the largest first
        lightest = min(reversed(range(processes)), key=lambda k: (loads[k], len(shares[k])))
        shares[lightest].append(node)
        loads[lightest] += samples[node]
    shares = [shares[k] for k in sorted(range(processes), key=lambda k: loads[k])]
    return [sorted(share) for share in shares]


class ShardServer:
    """Answers to the messages of a shard: learners of some nodes, and the computation of their jobs."""

    def __init__(self) -> None:
        self._learners: dict[int, Learner] = {}

    def answer(self, message: ShardSetup | NodeQuery[Any]) -> Any:
        """Make the learners that a setup names and return None, or return the result of a job."""
        if isinstance(message, NodeQuery):
            return self._learners[message.node].compute(message.query)
        scenario = message.scenario
        make_policy(*split_name("policy", scenario.policy))  # imports the module that defines its queries
        with sharing():
            for node, name in message.names.items():
                self._learners[node] = task_of(scenario, node).learner(RandomStreams(scenario.seed, name), scenario.device)
        return None


def _serve(pipe: Pipe) -> None:
    """Answer messages from a pipe."""
    prepare_process()  # a spawned process searches the same folders for modules as its parent
    answer(pipe, ShardServer().answer)
