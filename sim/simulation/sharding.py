"""Trains the nodes of one run in several processes, with the results of training them one by one in one.

The virtual clock, the nodes and what goes on between them stay in the process of the run, which also computes a share of its
own. A worker makes the tasks and learners of its nodes itself; what travels are jobs and results. So whoever computes a job
computes it from the same numbers, in the same program.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from threading import Thread
from typing import Any

from p2pfl.config.binding import split_name
from p2pfl.learner import Learner
from p2pfl.queries import NodeQuery, R
from p2pfl.random_streams import RandomStreams
from p2pfl.sim.scenario.scenario import Scenario
from p2pfl.sim.simulation.workers import Worker, answer, end_all, prepare_process
from p2pfl.task import Part, Task, make_task


def task_of(scenario: Scenario, node: int) -> Task:
    """Return what the node at a place learns."""
    return make_task(*split_name("task", scenario.task), Part(node, scenario.nodes), scenario.seed)


class ShardedBackend:
    """The computations of learners that are asked one by one, by several processes at the same time (see
    p2pfl.sim.simulation.batching.ComputeBackend).

    Args:
        learners, names, samples: of each node. Of the learners, only those are kept that this process asks itself.
        processes: how many, this one included.

    Raises:
        WorkerLostError: a process has ended; from every method.
    """

    def __init__(
        self, scenario: Scenario, learners: Sequence[Learner], names: Sequence[str], samples: Sequence[int], processes: int
    ) -> None:
        shares = balance_by_samples(samples, processes)
        self._own = {node: learners[node] for node in shares[0]}
        self._first = learners[shares[0][0]]
        self._owner = {node: k for k, nodes in enumerate(shares) for node in nodes}
        self._workers: list[Worker] = []
        try:
            for nodes in shares[1:]:
                self._workers.append(Worker(_serve, scenario, {node: names[node] for node in nodes}))
            for worker in self._workers:
                worker.give(None)
            for worker in self._workers:
                if isinstance(error := worker.take(), Exception):
                    raise error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the processes."""
        end_all(self._workers)

    def compute(self, jobs: Sequence[NodeQuery[R]]) -> list[R]:
        """Have each job computed by the process that has its node; one that needs no data by this process.

        (To send the models of a mean would take longer than to average them.)

        If several fail, the error of the first job is raised: the one that would have come if they were computed in turn.
        """
        results: list[Any] = [None] * len(jobs)
        errors: dict[int, Exception] = {}
        places = defaultdict(list)
        for place, job in enumerate(jobs):
            places[self._owner[job.node] if job.query.needs_data else 0].append(place)

        def ask(worker: Worker, mine: Sequence[int]) -> None:
            for place in mine:  # one at a time: two that are both sending much would wait for each other
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
    """Deal nodes out so that all processes have about as many samples; the first, which has more to do, never the most.

    Returns:
        The nodes of each process, sorted; at least one each where there are enough.
    """
    shares: list[list[int]] = [[] for _ in range(processes)]
    loads = [0] * processes
    for node in sorted(range(len(samples)), key=lambda node: (-samples[node], node)):  # the largest first
        lightest = min(reversed(range(processes)), key=lambda k: (loads[k], len(shares[k])))
        shares[lightest].append(node)
        loads[lightest] += samples[node]
    shares = [shares[k] for k in sorted(range(processes), key=lambda k: loads[k])]
    return [sorted(share) for share in shares]


def _serve(pipe: Connection, scenario: Scenario, names: Mapping[int, str]) -> None:
    """Make some nodes' learners, say so, and compute their jobs."""
    prepare_process()  # a process that is started looks for modules where the one that starts it does
    learners: dict[int, Learner] = {}

    def compute(job: NodeQuery[Any] | None) -> Any:
        if job is not None:
            return learners[job.node].compute(job.query)
        for node, name in names.items():
            learners[node] = task_of(scenario, node).learner(RandomStreams(scenario.seed, name), scenario.device)
        return None

    answer(pipe, compute)
