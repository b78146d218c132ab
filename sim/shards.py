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

import numpy as np

from node import tables
from p2pfl.parameters import Parameters, weighted_mean
from p2pfl.randomness import Draws
from p2pfl.slopes import Slopes
from p2pfl.stacked import EvaluateJob, LossJob, MeanJob, OneByOne, SlopesJob, TallyJob, TrainJob
from p2pfl.tally import Tally
from p2pfl.task import Learner, Part, Task, make_task
from sim.processes import Worker, answer, end_all, prepare_process
from sim.scenario import Scenario


def task_of(scenario: Scenario, node: int) -> Task:
    """Return what the node at a place learns."""
    return make_task(*tables.named("task", scenario.task), Part(node, scenario.nodes), scenario.seed)


class Shards:
    """The computations of learners that are asked one by one, by several processes at the same time (see sim.batching.Crew).

    Args:
        learners, names, samples: of each node. Of the learners, only those are kept that this process asks itself.
        processes: how many, this one included.

    Raises:
        WorkerLostError: a process has ended; from every method.
    """

    def __init__(
        self, scenario: Scenario, learners: Sequence[Learner], names: Sequence[str], samples: Sequence[int], processes: int
    ) -> None:
        shares = dealt(samples, processes)
        self._own = OneByOne({node: learners[node] for node in shares[0]})
        self._owner = {node: k for k, nodes in enumerate(shares) for node in nodes}
        self._workers: list[Worker] = []
        try:
            for nodes in shares[1:]:
                self._workers.append(Worker(_serve, scenario, {node: names[node] for node in nodes}))
            for worker in self._workers:
                worker.give(("make", None))
            for worker in self._workers:
                if isinstance(error := worker.take(), Exception):
                    raise error
        except BaseException:
            self.close()
            raise

    def train(self, jobs: Sequence[TrainJob]) -> list[Parameters]:
        return self._compute("train", jobs)

    def mean(self, jobs: Sequence[MeanJob]) -> list[Parameters]:
        """Return the means, made here: to send the models would take longer than to average them."""
        return [weighted_mean(job.models, job.weights) for job in jobs]

    def loss(self, jobs: Sequence[LossJob]) -> list[np.ndarray]:
        return self._compute("loss", jobs)

    def evaluate(self, jobs: Sequence[EvaluateJob]) -> list[list[dict[str, float]]]:
        return self._compute("evaluate", jobs)

    def tally(self, jobs: Sequence[TallyJob]) -> list[Tally]:
        return self._compute("tally", jobs)

    def slopes(self, jobs: Sequence[SlopesJob]) -> list[Slopes]:
        return self._compute("slopes", jobs)

    def close(self) -> None:
        """End the processes."""
        end_all(self._workers)

    def _compute(self, kind: str, jobs: Sequence[Any]) -> list[Any]:
        """Have each job computed by the process that has its node.

        If several fail, the error of the first job is raised: the one that would have come if they were computed in turn.
        """
        results: list[Any] = [None] * len(jobs)
        errors: dict[int, Exception] = {}
        places = defaultdict(list)
        for place, job in enumerate(jobs):
            places[self._owner[job.node]].append(place)

        def ask(worker: Worker, mine: Sequence[int]) -> None:
            for place in mine:  # one at a time: two that are both sending much would wait for each other
                try:
                    worker.give((kind, jobs[place]))
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
                (results[place],) = getattr(self._own, kind)([jobs[place]])
            except Exception as error:
                errors[place] = error
                break
        for thread in threads:
            thread.join()
        if errors:
            raise errors[min(errors)]
        return results


def dealt(samples: Sequence[int], processes: int) -> list[list[int]]:
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
    crew = OneByOne(learners)

    def compute(given: tuple[str, Any]) -> Any:
        kind, job = given
        if kind == "make":
            learners.update(
                {k: task_of(scenario, k).learner(Draws(scenario.seed, n), scenario.device) for k, n in names.items()}
            )
            return None
        (result,) = getattr(crew, kind)([job])
        return result

    answer(pipe, compute)
