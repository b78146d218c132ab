"""Models that the nodes of a run release, each with what an attacker knows about its training.

A run of an audit is a run of its scenario, node by node, with instruments: an observer hears of every model that a node
publishes or submits, and a backend that passes all jobs on notes the start and the end of every training. A released model
that is the end of a training carries its start, so that an attacker who knows the start sees the sum of the steps.

Mechanisms that change what a node publishes, such as noise that cancels between neighbours, are seen here without further
ado. With secure sums nobody sees the model that a node submits. What the coordinator and all members of the sum see is the
mean, so an audit attacks each node by the mean that it is assigned, in place of its model.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from p2pfl.errors import ConfigurationError
from p2pfl.learning.kernels.dense_kernel import Layer
from p2pfl.learning.kernels.kernel import dense_chain
from p2pfl.learning.torch_problem import Samples
from p2pfl.learning.torch_task import TorchTask
from p2pfl.node.node import Observer
from p2pfl.parameters import Parameters
from p2pfl.policy import Assignment, Stage
from p2pfl.queries import NodeQuery, Train
from p2pfl.sim.scenario.scenario import Scenario
from p2pfl.sim.simulation.batching import ComputeBackend
from p2pfl.sim.simulation.plan import names
from p2pfl.sim.simulation.simulation import Instruments, Run, Simulation
from p2pfl.task import Task

SINGLY = "an audit looks at single nodes"
GRADIENTS = 2**24  # values of gradients of single samples that are held at once: 64 MiB


class Release(NamedTuple):
    """Model that somebody else than its node can see.

    Attributes:
        node: number of the node.
        round: the round in which it was released.
        model: the model, float32 [P].
        start: the model before its training, [P]; None if it is not the end of a training.
    """

    node: int
    round: int
    model: Parameters
    start: Parameters | None


See = Callable[[Release], None]
Change = Callable[[int, TorchTask], TorchTask]


class Watch(Observer):
    """Watch over the trainings and the releases of one run.

    Args:
        see: receives each release at the moment at which it happens; None watches nothing.
        change: returns the task of a node with other samples, from the number of the node and its task.

    Attributes:
        tasks: the task of each node before any change, once the run has been planned.
        sums: whether nodes submit to secure sums.
    """

    def __init__(self, nodes: int, see: See | None = None, change: Change | None = None) -> None:
        self.tasks: list[TorchTask] = []
        self.sums = False
        self._see, self._change = see, change
        self._numbers = {name: number for number, name in enumerate(names(nodes))}
        self._trainings: dict[int, list[tuple[int, Parameters, Parameters]]] = {}  # of the last round: round, start, end
        self._hidden: dict[int, Release] = {}  # by node: what it has submitted to a secure sum

    @property
    def instruments(self) -> Instruments:
        """The instruments of a simulation under this watch."""
        watched = self._see is not None
        return Instruments(self._planned, (lambda backend: _Noted(backend, self)) if watched else _same, [self] * watched)

    def _planned(self, given: Sequence[Task]) -> Sequence[Task]:
        self.tasks = [audited(task) for task in given]
        if self._change is None:
            return given
        change = self._change
        return [change(node, task) for node, task in enumerate(self.tasks)]

    def trained(self, node: int, query: Train, result: Parameters) -> None:
        """Note a training."""
        if self._see is not None:
            kept = [each for each in self._trainings.get(node, []) if each[0] == query.round]
            self._trainings[node] = [*kept, (query.round, query.params.copy(), result.copy())]

    def published(self, id: str, round: int, stage: Stage, params: Parameters) -> None:
        node = self._numbers[id]
        found = (start for _, start, end in reversed(self._trainings.get(node, [])) if np.array_equal(end, params))
        released = Release(node, round, params, next(found, None))
        if self.sums:
            self._hidden[node] = released
        else:
            self.release(released)

    def assigned(self, id: str, round: int, assignment: Assignment) -> None:
        node = self._numbers[id]
        if self.sums and node in self._hidden:
            self.release(self._hidden.pop(node)._replace(model=assignment.params))

    def release(self, release: Release) -> None:
        """Report a model that somebody else than its node can see."""
        if self._see is not None:
            self._see(release)


class _Noted:
    """Backend that notes trainings."""

    def __init__(self, backend: ComputeBackend, watch: Watch) -> None:
        self._backend, self._watch = backend, watch

    def compute(self, jobs: Sequence[NodeQuery[Any]]) -> Sequence[Any]:
        results = self._backend.compute(jobs)
        for job, result in zip(jobs, results, strict=True):
            if isinstance(job.query, Train):
                self._watch.trained(job.node, job.query, result)
        return results


def _same(backend: ComputeBackend) -> ComputeBackend:
    return backend


def observe(scenario: Scenario, graph: Any, watch: Watch, initial: Parameters | None = None) -> Run:
    """Run a scenario under a watch.

    Args:
        graph: the topology, in place of the scenario's; see Simulation.
        initial: the model that all nodes start from, in place of the task's.

    Raises:
        ConfigurationError: the tasks cannot be audited, or the scenario is wrong.
    """
    watch.sums = scenario.secure_sums
    gc.collect()  # the nodes of an earlier run are cycles, and collections are rare in this process
    return Simulation(scenario, graph, initial=initial, singly=SINGLY, instruments=watch.instruments).run()


def audited(task: Task) -> TorchTask:
    """Return a task that an audit can attack.

    Raises:
        ConfigurationError: the audit cannot attack it.
    """
    if not isinstance(task, TorchTask) or task.objectives is not None:
        raise ConfigurationError(
            "an audit needs a task of a torch module with one loss per sample, such as digits or images;"
            f" {type(task).__name__} is refused",
            "task",
        )
    if task.layout.unshared:
        raise ConfigurationError("an audit needs models that are released as a whole; a private part is refused", "task")
    return task


def with_samples(task: TorchTask, train: Samples, *, evaluated: bool = True) -> TorchTask:
    """Return a task with other training samples.

    Args:
        evaluated: whether it keeps its test samples, which cost time and have no part in a training.
    """
    kept = {split: samples for split, samples in task.data.items() if split == "validation" or evaluated}
    return replace(task, data=kept | {"train": train}, held_out=())


class Attacked:
    """Model of a task as an attacker computes with it, who has the code and a released model.

    Args:
        task: of any node; only its module and its loss matter.
        seed: of the federation, from which the module draws its constants.
    """

    def __init__(self, task: TorchTask, seed: int) -> None:
        self.task = task
        self._module: nn.Module = task.make(seed).eval()

    @cached_property
    def chain(self) -> list[Layer] | None:
        """The layers of the module if it is a chain of linear layers; None if not."""
        return dense_chain(self.task)

    def tensors(self) -> list[tuple[str, slice]]:
        """Return the name and the place of each trained tensor."""
        layout = self.task.layout
        return [(name, slice(start, stop)) for name, start, stop, _ in layout.places if stop <= layout.n_trained]

    def outputs(self, model: Tensor, x: Tensor) -> Tensor:
        """Return the outputs of a model, [P], for inputs [n, ...]."""
        return functional_call(self._module, self.task.layout.unflatten(model), (x,))  # type: ignore[no-any-return]

    def losses(self, model: Parameters, samples: Samples) -> np.ndarray:
        """Return the loss of each sample, [n]."""
        with torch.no_grad():
            found: np.ndarray = self.task.loss(self.outputs(torch.from_numpy(model), samples.x), samples.y).numpy()
        return found

    def gradients(self, model: Parameters, samples: Samples, clip: float) -> np.ndarray:
        """Return the clipped gradient of each sample by the trained values, [n, n_trained]; 0 where it is not finite."""
        n, whole = self.task.layout.n_trained, torch.from_numpy(np.array(model))

        def loss(trained: Tensor, x: Tensor, y: Tensor) -> Tensor:
            return self.task.loss(self.outputs(torch.cat([trained, whole[n:]]), x.unsqueeze(0)), y.unsqueeze(0)).sum()

        each, found = vmap(grad(loss), in_dims=(None, 0, 0)), []
        for x, y in zip(*(torch.split(part, max(1, GRADIENTS // n)) for part in samples), strict=True):
            rows = each(whole[:n], x, y)
            norms = rows.norm(dim=1, keepdim=True)
            found.append(torch.where(norms.isfinite(), rows * (clip / norms.clamp(min=clip)), 0.0))
        gradients: np.ndarray = torch.cat(found).numpy()
        return gradients
