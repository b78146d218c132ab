"""Training speed of p2pfl-sim with many nodes, against a plain loop and against the bare tensor program.

In one process, interleaved, on the same data and model, with one torch thread:

    loop      plain PyTorch: a module and an optimiser for each node, peers' models averaged tensor by tensor
    stacked   the bare stacked program: no node, no clock, no message; gradients written by hand as batched products
    sim       p2pfl-sim: nodes, policies, virtual clock, trace and records
    module    the same with a module that p2pfl does not know, so that its gradients come from torch.func
    evaluated "sim" with an evaluation of every node in every round, on 180 validation and 180 test samples (digits)
    outputs   "stacked" with the bare products of these evaluations: the outputs of each node for 360 samples (digits)
    shards    p2pfl-sim in two processes that each train half of the nodes (if nodes are trained one by one)

The others do not evaluate; data, modules and processes are created before the clock starts. The figures are the median of
the node-rounds per second over the repetitions, and the speed relative to the loop. The latter has the median, the
lowest and the highest of the ratios within a repetition.

With --policy also, for each policy named: p2pfl-sim with this policy in place of random gossip, and its time relative to
that of gossip ("sim"). The nodes have no validation data, so DPFL's searches compute no losses. DPFL trains one epoch in
each round and before the first, with a budget of 20 models; the time includes its preparation.

With --scale instead: a whole `p2pfl-sim run --engine local` with this number of nodes (10,000) on a 10-regular or a
complete graph, with set-up, evaluation and results: its time, its processor time and its peak memory. For example:

    python benchmarks/sim_speed.py --scale 100000 --rounds 3 --task linear
    python benchmarks/sim_speed.py --scale 4000 --topology complete

With --device cuda the loop, the stacked program and p2pfl-sim compute on the GPU; --nodes changes the number of nodes. The
figures of a GPU come from:

    python benchmarks/sim_speed.py --device cuda --only digits --nodes 1000
    python benchmarks/sim_speed.py --device cuda --only cnn --nodes 100

With --growth instead: the processor time per node and round of gossip, of each policy and of the bare stacked program,
with 100 and with 10,000 nodes on 10-regular graphs. The stacked program trains parts that fit into the cache.

With --launches instead: how many operations of torch a round of `digits` is, with and without evaluation, and how many
arrays become tensors, and tensors arrays, in it. They run on the CPU, through the code of a GPU: there an operation is a
launch of one or a few kernels, and the others are transfers. Views are not counted, as they launch nothing.

With --private instead: the time of a training step under a privacy budget, for the MLP of `digits` in a stack of 100 nodes
(--nodes changes it) with 16, 30 and 64 samples in a step, and of whole rounds of gossip; each relative to the same without
a budget.

With --graphs instead: the processor time of decentralised SGD of 10,000 nodes (--nodes changes it) with a static 4-regular
graph, and that with an `epidemic` and a `base-k` graph of degree 4 for each round. The nodes of a base-k graph have fewer
neighbours in some rounds, and so average fewer models.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from p2pfl.learning.batched_learner import BatchedLearner
from p2pfl.learning.optimizers import SGD
from p2pfl.learning.torch_learner import choose_device
from p2pfl.learning.torch_task import classification
from p2pfl.queries import NodeQuery, Train
from p2pfl.random_streams import RandomStreams
from p2pfl.sim.execution.runner import run_all
from p2pfl.sim.scenario.scenario import Scenario, ScenarioFile, resolve
from p2pfl.sim.simulation.simulation import Simulation
from p2pfl.sim.simulation.workers import prepare_process
from p2pfl.task import Part, Task, make_task
from p2pfl.update_rules import Mechanism

PEERS = 5
ROOT = Path(__file__).parent.parent
MODULE = Path(__file__).stem  # worker processes do not import the main module


class Mlp(nn.Module):
    """MLP with the shape of the built-in one, in a form without hand-written gradients in p2pfl."""

    def __init__(self, hidden: int = 64) -> None:
        super().__init__()
        self.first = nn.Linear(64, hidden)
        self.second = nn.Linear(hidden, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(functional.relu(self.first(x)))


def training_only(
    part: Part, seed: int, task: str, own_module: bool = False, evaluated: bool = False, **options: Any
) -> Task:
    """Return a task without validation and test data, unless it is `evaluated`; with a custom module if requested."""
    made: Any = make_task(task, options, part, seed)
    module = {"module": Mlp} if own_module else {}
    data = made.data if evaluated else {"train": made.data["train"]}
    return dataclasses.replace(made, data=data, **module)


def network() -> nn.Module:
    """Return a network of two convolutions and two dense layers, 215,370 parameters, for images of 28 x 28."""
    convolutions = (
        *(nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
    )
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(32 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, 10))


def noise(part: Part, seed: int, samples: int) -> Task:
    """Return a task with images of noise: the contents do not affect the training time."""
    rng = RandomStreams(seed, f"images of {part.index}").generator(0, "data")
    train = rng.standard_normal((samples, 1, 28, 28), np.float32), rng.integers(0, 10, samples)
    return classification(network, train, optimizer=SGD(0.01, 0.9), batch_size=32)


WORKLOADS: dict[str, dict[str, Any]] = {
    "digits": {
        "nodes": 100,
        "rounds": 20,
        "task": {"name": f"{MODULE}:training_only", "task": "digits", "batch_size": 16, "lr": 0.1, "momentum": 0.9},
        "policy": {"name": "random", "neighbours": PEERS},
        "evaluate_every": 0,
    },
    "linear": {
        "nodes": 99,
        "rounds": 40,
        "task": {"name": f"{MODULE}:training_only", "task": "concept-shift", "lr": 0.003},
        "policy": {"name": "random", "neighbours": PEERS},
        "evaluate_every": 0,
    },
    "cnn": {
        "nodes": 20,
        "rounds": 3,
        "task": {"name": f"{MODULE}:noise", "samples": 300},
        "policy": {"name": "random", "neighbours": PEERS},
        "evaluate_every": 0,
    },
}


POLICIES: dict[str, dict[str, Any]] = {
    "dac": {"policy": {"name": "dac", "neighbours": PEERS}},
    "fedsim": {"policy": {"name": "dac", "neighbours": PEERS, "tau": 0.0, "aggregation": "fedsim"}},
    "dpfl": {"policy": {"name": "dpfl", "epochs": 1, "initial_epochs": 1}, "budget": {"models": 20}},
}


def tasks_of(scenario: Scenario) -> list[Any]:
    options = {key: value for key, value in scenario.task.items() if key != "name"}
    return [make_task(scenario.task["name"], options, Part(k, scenario.nodes), 0) for k in range(scenario.nodes)]


def loop(scenario: Scenario) -> Callable[[], float]:
    """Return a function that trains a module for each node, one after another, on the scenario's device."""
    tasks = tasks_of(scenario)
    rng = np.random.default_rng(0)
    device = choose_device(scenario.device)
    data = [tuple(part.to(device) for part in task.data["train"]) for task in tasks]

    def run() -> float:
        modules = []
        for _ in tasks:
            torch.manual_seed(0)
            modules.append(tasks[0].module().to(device))
        begun = time.perf_counter()
        for _ in range(scenario.rounds):
            for task, (x, y), module in zip(tasks, data, modules, strict=True):
                settings = task.optimizer
                optimizer = torch.optim.SGD(module.parameters(), lr=settings.lr, momentum=settings.momentum)
                for index in torch.randperm(len(x)).split(task.batch_size):
                    optimizer.zero_grad()
                    task.loss(module(x[index]), y[index]).mean().backward()
                    optimizer.step()
            with torch.no_grad():
                merged = []
                for k in range(len(modules)):
                    picks = [k, *rng.choice([j for j in range(len(modules)) if j != k], PEERS, replace=False)]
                    parameters = zip(*(modules[j].parameters() for j in picks), strict=True)
                    merged.append([torch.stack(tensors).mean(0) for tensors in parameters])
                for module, tensors in zip(modules, merged, strict=True):
                    for parameter, tensor in zip(module.parameters(), tensors, strict=True):
                        parameter.copy_(tensor)
        _finish(device)
        return time.perf_counter() - begun

    return run


def _finish(device: torch.device) -> None:
    """Wait until a GPU has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Stack:
    """Samples and parameters of all nodes as one tensor each, on the scenario's device."""

    def __init__(self, scenario: Scenario) -> None:
        tasks = tasks_of(scenario)
        self.nodes, self.rounds, self.batch = scenario.nodes, scenario.rounds, tasks[0].batch_size
        self.lr, self.momentum = tasks[0].optimizer.lr, tasks[0].optimizer.momentum
        self.device = choose_device(scenario.device)
        self.x = torch.stack([task.data["train"].x for task in tasks]).to(self.device)
        self.y = torch.stack([task.data["train"].y for task in tasks]).to(self.device)
        self.initial = torch.from_numpy(tasks[0].initial(0)).to(self.device)
        self.rng = np.random.default_rng(0)

    def batches(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return the batches of an epoch, with each node's samples in its own order."""
        n = self.x.shape[1]
        if n <= self.batch:
            return [(self.x, self.y)]
        order = torch.from_numpy(self.rng.random((self.nodes, n)).argsort(1)).to(self.device)
        rows = torch.arange(self.nodes, device=self.device).unsqueeze(1)
        return [(self.x[rows, index], self.y[rows, index]) for index in order.split(self.batch, 1)]

    def mix(self, flat: torch.Tensor) -> torch.Tensor:
        """Average each node's parameters with those of its peers."""
        keys = self.rng.random((self.nodes, self.nodes))
        np.fill_diagonal(keys, -1.0)  # the node itself first
        picks = torch.from_numpy(keys.argpartition(PEERS, axis=1)[:, : PEERS + 1]).to(self.device)
        return functional.embedding_bag(picks, flat, mode="mean")


def train_mlp(stack: Stack, flat: torch.Tensor, grad: torch.Tensor, hidden: int = 64) -> None:
    """Train MLPs for an epoch: their parameters `flat` are changed, and `grad` is memory of the same shape; [K, P]."""
    n, d, h, c = stack.nodes, 64, hidden, 10
    edges = np.cumsum([0, h * d, h, c * h, c])

    def views(flat: torch.Tensor) -> list[torch.Tensor]:
        shapes = [(n, h, d), (n, 1, h), (n, c, h), (n, 1, c)]
        return [flat[:, a:b].view(shape) for a, b, shape in zip(edges[:-1], edges[1:], shapes, strict=True)]

    g1, gb1, g2, gb2 = views(grad)
    velocity = None
    for x, y in stack.batches():
        w1, b1, w2, b2 = views(flat)
        z = torch.baddbmm(b1, x, w1.mT).relu_()
        delta = torch.baddbmm(b2, z, w2.mT).softmax(-1)
        delta = delta.sub_(functional.one_hot(y, c)).div_(x.shape[1])
        torch.bmm(delta.mT, z, out=g2)
        torch.sum(delta, 1, keepdim=True, out=gb2)
        back = torch.bmm(delta, w2).mul_(z > 0)
        torch.bmm(back.mT, x, out=g1)
        torch.sum(back, 1, keepdim=True, out=gb1)
        velocity = grad.clone() if velocity is None else velocity.mul_(stack.momentum).add_(grad)
        flat.sub_(velocity, alpha=stack.lr)


@torch.no_grad()
def stacked_mlp(stack: Stack, judged: torch.Tensor | None = None) -> float:
    """Train all nodes in each round, and compute their outputs for the inputs `judged`, if any; return the seconds."""
    flat = stack.initial.repeat(stack.nodes, 1)
    grad = torch.empty_like(flat)
    begun = time.perf_counter()
    for _ in range(stack.rounds):
        train_mlp(stack, flat, grad)
        flat = stack.mix(flat)
        if judged is not None:
            outputs_of_mlp(flat, judged)
    _finish(stack.device)
    return time.perf_counter() - begun


def outputs_of_mlp(flat: torch.Tensor, x: torch.Tensor, hidden: int = 64) -> torch.Tensor:
    """Return the outputs [K, n, 10] of MLPs, [K, P], for the same inputs [n, 64]: one product for all first layers."""
    n, (samples, d), c = len(flat), x.shape, 10
    edges = np.cumsum([0, hidden * d, hidden, c * hidden, c])
    w1, b1, w2, b2 = (flat[:, a:b] for a, b in itertools.pairwise(edges))
    z = torch.addmm(b1.reshape(-1), x, w1.reshape(n * hidden, d).T).relu_()
    z = z.view(samples, n, hidden).transpose(0, 1)
    return torch.baddbmm(b2.unsqueeze(1), z, w2.view(n, c, hidden).mT)


@torch.no_grad()
def stacked_linear(stack: Stack) -> float:
    flat = stack.initial.repeat(stack.nodes, 1)
    begun = time.perf_counter()
    for _ in range(stack.rounds):
        for x, y in stack.batches():
            weight, bias = flat[:, :-1].unsqueeze(2), flat[:, -1:].unsqueeze(1)
            delta = torch.baddbmm(bias, x, weight).sub_(y).mul_(2 / x.shape[1])
            flat[:, :-1].sub_(torch.bmm(x.mT, delta).squeeze(2), alpha=stack.lr)
            flat[:, -1:].sub_(delta.sum(1), alpha=stack.lr)
        flat = stack.mix(flat)
    _finish(stack.device)
    return time.perf_counter() - begun


def simulated(scenario: Scenario) -> Callable[[], float]:
    return lambda: Simulation(scenario).run().wall_s


def judged_by(scenario: Scenario) -> list[Any]:
    """Return the validation and the test data of a node, which are common to all nodes of `digits`."""
    data = tasks_of(scenario)[0].data
    return [data["validation"], data["test"]]


def in_shards(file: ScenarioFile) -> Callable[[], float]:
    def run() -> float:
        (result,) = run_all(file, "process", workers=2)
        return float(result.summary["time"]["wall_s"])

    return run


def systems_of(name: str, file: ScenarioFile) -> dict[str, Callable[[], float]]:
    """Return the systems of a workload: functions that run it once and return its seconds."""
    (scenario,) = file.runs
    systems = {"loop": loop(scenario)}
    if name == "cnn":
        shards = {"shards": in_shards(file)} if scenario.device == "cpu" else {}
        return systems | {"sim": simulated(scenario)} | shards
    stack = Stack(scenario)
    systems["stacked"] = lambda: stacked_mlp(stack) if name == "digits" else stacked_linear(stack)
    systems["sim"] = simulated(scenario)
    if name == "digits":
        evaluated = {"task": scenario.task | {"evaluated": True}, "evaluate_every": 1}
        systems["evaluated"] = simulated(replace(scenario, **evaluated))
        judged = torch.cat([torch.as_tensor(part.x) for part in judged_by(replace(scenario, **evaluated))]).to(stack.device)
        systems["outputs"] = lambda: stacked_mlp(stack, judged)
        systems["module"] = simulated(replace(scenario, task=scenario.task | {"own_module": True}))
    return systems


def measure(name: str, repeat: int, changes: Sequence[str], policies: Sequence[str] = ()) -> dict[str, list[float]]:
    """Return node-rounds per second of each system and each policy on a workload, in each repetition.

    Args:
        changes: keys of the scenario to change, each as KEY=VALUE.
    """
    file = resolve(WORKLOADS[name] | {"name": name}, changes, name, ".")
    (scenario,) = file.runs
    systems = systems_of(name, file)
    for policy in policies:
        systems[policy] = simulated(resolve(WORKLOADS[name] | POLICIES[policy] | {"name": name}, changes, name, ".").runs[0])
    seconds: dict[str, list[float]] = {system: [] for system in systems}
    for repetition in range(repeat + 1):
        for system, run in systems.items():
            taken = run()
            if repetition:  # the first is a warm-up
                seconds[system].append(taken)
    done = scenario.nodes * scenario.rounds
    return {system: [done / value for value in values] for system, values in seconds.items()}


SCALE = """
nodes = {nodes}
rounds = {rounds}
task = {task}
policy = {{ name = "random", neighbours = 5 }}
topology = {topology}
"""
TOPOLOGIES = {
    "k-regular": '{ name = "k-regular", degree = 10 }',
    "complete": '{ name = "complete" }',
    "base-k": '{ name = "base-k", degree = 5 }',
    "epidemic": '{ name = "epidemic", degree = 10 }',
}
TASKS = {
    "digits": '{ name = "digits", samples = 16, shared = true, batch_size = 16 }',
    "linear": '{ name = "concept-shift" }',
}


def scale(nodes: int, rounds: int, topology: str, task: str) -> dict[str, float]:
    """Run a scenario of many nodes as a user would; return seconds, seconds of processor time, and GiB."""
    with tempfile.TemporaryDirectory() as folder:
        scenario = SCALE.format(nodes=nodes, rounds=rounds, topology=TOPOLOGIES[topology], task=TASKS[task])
        (Path(folder) / "scale.toml").write_text(scenario)
        command = [sys.executable, "-m", "p2pfl.sim", "run", "scale.toml", "--engine", "local", "--json", "--out", "out"]
        begun = time.perf_counter()
        subprocess.run(
            command, cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True, stdout=subprocess.DEVNULL
        )
        wall = time.perf_counter() - begun
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    unit = 2**30 if sys.platform == "darwin" else 2**20  # macOS counts bytes, other systems KiB
    return {
        **{"nodes": nodes, "rounds": rounds, "wall_s": wall},
        **{"processor_s": used.ru_utime + used.ru_stime, "peak_gib": used.ru_maxrss / unit},
    }


# Rounds of a short and of a long run, by number of nodes: their difference is without the beginning and the end of a run
SIZES = {100: (4, 40), 10_000: (2, 6)}
CACHED = 200  # models that fit into the cache together
GROWTH = {
    "name": "growth",
    "task": WORKLOADS["digits"]["task"] | {"samples": 16, "shared": True},
    "topology": {"name": "k-regular", "degree": 10},
    "evaluate_every": 0,
}


@torch.no_grad()
def stacked_in_parts(scenario: Scenario) -> float:
    """Return the processor time of the bare stacked program that trains parts of the nodes, and averages all together."""
    stack = Stack(replace(scenario, nodes=min(scenario.nodes, CACHED)))
    flat = stack.initial.repeat(scenario.nodes, 1)
    grad = torch.empty_like(flat[: stack.nodes])
    begun = time.process_time()
    for _ in range(scenario.rounds):
        for part in flat.split(stack.nodes):
            train_mlp(stack, part, grad)
        peers = stack.rng.integers(0, len(flat), (len(flat), PEERS))
        picks = torch.from_numpy(np.column_stack([np.arange(len(flat)), peers]))
        flat = functional.embedding_bag(picks, flat, mode="mean")
    return time.process_time() - begun


def in_simulation(scenario: Scenario) -> float:
    """Return the processor time of a simulation after its set-up."""
    simulation = Simulation(scenario)
    begun = time.process_time()
    simulation.run()
    return time.process_time() - begun


def growth(repeat: int) -> dict[str, dict[int, list[float]]]:
    """Return microseconds of processor time per node and round of each system, by the number of nodes."""
    systems = {"stacked": stacked_in_parts, "gossip": in_simulation} | dict.fromkeys(POLICIES, in_simulation)
    found: dict[str, dict[int, list[float]]] = {system: {nodes: [] for nodes in SIZES} for system in systems}
    for _ in range(repeat):
        for nodes, (short, long) in SIZES.items():
            for system, run in systems.items():
                policy = POLICIES.get(system, {"policy": WORKLOADS["digits"]["policy"]})
                taken = {}
                for rounds in (short, long):
                    (scenario,) = resolve(GROWTH | policy | {"nodes": nodes, "rounds": rounds}, [], "growth", ".").runs
                    taken[rounds] = statistics.median(run(scenario) for _ in range(5 if nodes == min(SIZES) else 1))
                found[system][nodes].append((taken[long] - taken[short]) / nodes / (long - short) * 1e6)
    return found


GRAPHS = {
    "k-regular": {"name": "k-regular", "degree": 4},
    "epidemic": {"name": "epidemic", "degree": 4},
    "base-k": {"name": "base-k", "degree": 4},
}


def graphs(nodes: int, repeat: int) -> dict[str, list[float]]:
    """Return seconds of processor time of a round with each kind of graph, in interleaved repetitions after a warm-up."""
    found: dict[str, list[float]] = {name: [] for name in GRAPHS}
    for repetition in range(repeat + 1):
        for name, topology in GRAPHS.items():
            settings = GROWTH | {"policy": {"name": "dsgd"}, "topology": topology, "nodes": nodes, "rounds": 4}
            (scenario,) = resolve(settings, [], "graphs", ".").runs
            taken = in_simulation(scenario) / scenario.rounds
            if repetition:
                found[name].append(taken)
    return found


class _Operations(TorchDispatchMode):
    """Counter of the operations of torch that compute, and of the conversions between arrays and tensors, in this block."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts = dict.fromkeys(("operations", "to the device", "from the device"), 0)
        self._originals = torch.from_numpy, torch.Tensor.cpu, torch.Tensor.tolist

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:  # a value becomes a number
            self.counts["from the device"] += 1
        elif not func.is_view:
            self.counts["operations"] += 1
        return func(*args, **(kwargs or {}))

    def __enter__(self) -> Any:
        def counted(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
            def count(*args: Any) -> Any:
                self.counts[name] += 1
                return original(*args)

            return count

        of_array, of_tensor, of_list = self._originals
        torch.from_numpy = counted("to the device", of_array)
        torch.Tensor.cpu = counted("from the device", of_tensor)  # type: ignore[method-assign]
        torch.Tensor.tolist = counted("from the device", of_list)  # type: ignore[method-assign]
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        torch.from_numpy, torch.Tensor.cpu, torch.Tensor.tolist = self._originals  # type: ignore[method-assign]
        super().__exit__(*error)  # type: ignore[no-untyped-call]


def launches(nodes: int) -> dict[str, dict[str, float]]:
    """Return by system what a round has of each kind; see `_Operations`.

    It is the difference of two runs, so that the first and the last round, which are longer, do not count.
    """
    systems = {"gossip": {}, "gossip, evaluated": {"evaluate_every": 1}, "dac": POLICIES["dac"]}
    found: dict[str, dict[str, float]] = {}
    for system, changes in systems.items():
        counts = []
        for rounds in (4, 8):
            task = WORKLOADS["digits"]["task"] | {"evaluated": system.endswith("evaluated")}
            settings = WORKLOADS["digits"] | changes | {"name": "launches", "task": task, "nodes": nodes, "rounds": rounds}
            simulation = Simulation(resolve(settings, [], "launches", ".").runs[0])
            with _Operations() as operations:
                simulation.run()
            counts.append(operations.counts)
        found[system] = {name: (counts[1][name] - counts[0][name]) / 4 for name in counts[0]}
    return found


EPSILON = 8.0
BATCHES = (16, 30, 64)  # of 150 samples of a node; the second one in `docs/how-to/choose-an-epsilon.md`


def private(nodes: int, repeat: int) -> dict[str, list[float]]:
    """Return seconds of a node's training step and of a node's round, plain and private, in interleaved repetitions."""

    def scenario(batch: int, **privacy: float) -> Scenario:
        task = WORKLOADS["digits"]["task"] | {"samples": 150, "shared": True, "batch_size": batch}
        settings = WORKLOADS["digits"] | {"name": "private", "nodes": nodes, "task": task, "privacy": privacy}
        return resolve(settings, [], "private", ".").runs[0]

    def trained(learner: BatchedLearner, start: np.ndarray, batch: int, mechanism: Mechanism | None) -> Callable[[], float]:
        def run() -> float:
            jobs = [NodeQuery(k, Train(start, 1, mechanism=mechanism)) for k in range(nodes)]
            begun = time.perf_counter()
            for _ in range(5):
                learner.compute(jobs)
            return (time.perf_counter() - begun) / 5 / nodes / -(-150 // batch)

        return run

    def whole(scenario: Scenario) -> Callable[[], float]:
        return lambda: Simulation(scenario).run().wall_s / nodes / scenario.rounds

    systems = {}
    for batch in BATCHES:
        tasks = tasks_of(scenario(batch))
        learner = BatchedLearner([task.learner(RandomStreams(0, f"node-{k}"), "cpu") for k, task in enumerate(tasks)])
        start = tasks[0].initial(0)
        systems[f"step of {batch}"] = trained(learner, start, batch, None)
        systems[f"private step of {batch}"] = trained(learner, start, batch, Mechanism(1.0, 1.0))
    systems["round of 30"] = whole(scenario(30))
    systems["private round of 30"] = whole(scenario(30, epsilon=EPSILON))
    found: dict[str, list[float]] = {system: [] for system in systems}
    for repetition in range(repeat + 1):
        for system, run in systems.items():
            taken = run()
            if repetition:
                found[system].append(taken)
    return found


def show_private(found: dict[str, list[float]]) -> None:
    print("microseconds for each node, and times that without a privacy budget")
    for name, own in found.items():
        ratios = [a / b for a, b in zip(own, found[name.removeprefix("private ")], strict=True)]
        of = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})" if "private" in name else ""
        print(f"  {name:19s} {statistics.median(own) * 1e6:7.1f}   {of}")


def show_graphs(nodes: int, found: dict[str, list[float]]) -> None:
    print(f"milliseconds of processor time of a round of {nodes:,} nodes, and times that with a static graph")
    for name, own in found.items():
        ratios = [a / b for a, b in zip(own, found["k-regular"], strict=True)]
        of = f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
        print(f"  {name:9s} {statistics.median(own) * 1e3:7.0f}   {of}")


def show_launches(nodes: int, found: dict[str, dict[str, float]]) -> None:
    print(f"a round of {nodes:,} nodes: operations of torch, and arrays to and from the device")
    for system, counts in found.items():
        print(f"  {system:18s}" + "".join(f" {count:7.1f}" for count in counts.values()))


def show_growth(found: dict[str, dict[int, list[float]]]) -> None:
    print(f"microseconds of processor time per node and round: {min(SIZES):,} nodes, {max(SIZES):,} nodes, growth")
    few, many = ({system: statistics.median(times[nodes]) for system, times in found.items()} for nodes in SIZES)
    for system in found:
        factor = many[system] / few[system]
        relative = factor / (many["stacked"] / few["stacked"])
        print(f"  {system:8s} {few[system]:6.0f} {many[system]:6.0f}   {factor:.2f}, {relative:.2f} x that of stacked")


def show(name: str, speeds: dict[str, list[float]]) -> None:
    print(f"{name}: node-rounds per second")
    for system, own in speeds.items():
        ratios = {
            other: [a / b for a, b in zip(own, speeds[other], strict=True)]
            for other in ("loop", "stacked", "sim")
            if other in speeds
        }
        text = f"  {system:9s} {statistics.median(own):10,.0f}   "
        text += f"{statistics.median(ratios['loop']):6.2f} x loop ({min(ratios['loop']):.2f} to {max(ratios['loop']):.2f})"
        if "stacked" in ratios:
            text += f", {statistics.median(ratios['stacked']):5.2f} x stacked"
        if system in (*POLICIES, "evaluated"):
            times = [1 / ratio for ratio in ratios["sim"]]
            text += f"; time {statistics.median(times):.2f} x sim ({min(times):.2f} to {max(times):.2f})"
        if system == "outputs":
            times = [1 / ratio for ratio in ratios["stacked"]]
            text += f"; time {statistics.median(times):.2f} x stacked ({min(times):.2f} to {max(times):.2f})"
        print(text)


def other_figures(options: argparse.Namespace) -> dict[str, Any]:
    """Measure and show what an option asks for in place of the speeds."""
    few = options.nodes or WORKLOADS["digits"]["nodes"]
    if options.growth:
        grown = growth(options.repeat)
        show_growth(grown)
        return {"growth": grown}
    if options.launches:
        counted = launches(few)
        show_launches(few, counted)
        return {"launches": counted}
    if options.private:
        spent = private(few, 1 if options.quick else options.repeat)
        show_private(spent)
        return {"private": spent}
    nodes = options.nodes or max(SIZES)
    times = graphs(nodes, options.repeat)
    show_graphs(nodes, times)
    return {"graphs": times}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file, as JSON")
    parser.add_argument(
        "--quick", action="store_true", help="few rounds, to check that the benchmark works; the figures are not accurate"
    )
    parser.add_argument(
        "--only", choices=WORKLOADS, action="append", help="workload to measure; can be repeated (default: all)"
    )
    parser.add_argument(
        "--policy", choices=POLICIES, action="append", default=[], help="policy to compare with gossip; can be repeated"
    )
    parser.add_argument("--repeat", type=int, default=5, metavar="N", help="repetitions after one warm-up (default: 5)")
    parser.add_argument(
        "--scale",
        type=int,
        nargs="?",
        const=10_000,
        metavar="N",
        help="measure only the time and memory of N nodes (default: 10,000)",
    )
    parser.add_argument("--device", default="cpu", help="device of torch, such as cuda (default: cpu)")
    parser.add_argument("--nodes", type=int, metavar="N", help="number of nodes (default: that of the workload)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="rounds with --scale (default: 5)")
    parser.add_argument(
        "--topology", choices=TOPOLOGIES, default="k-regular", help="topology with --scale (default: k-regular of degree 10)"
    )
    parser.add_argument("--task", choices=TASKS, default="digits", help="task with --scale (default: digits)")
    parser.add_argument(
        "--growth", action="store_true", help="measure only the processor time per node with 100 and with 10,000 nodes"
    )
    parser.add_argument(
        "--graphs", action="store_true", help="measure only the time of a round with a static and with changing graphs"
    )
    parser.add_argument(
        "--launches", action="store_true", help="count only the operations and transfers of a round, without a GPU"
    )
    parser.add_argument(
        "--private", action="store_true", help="measure only the time of a training step under a privacy budget"
    )
    options = parser.parse_args()
    if options.scale is not None:
        figures = scale(options.scale, options.rounds, options.topology, options.task)
        print(
            "{nodes:,} nodes, {rounds} rounds: {wall_s:.1f} s, {processor_s:.1f} s of one core, at most {peak_gib:.2f} GiB"
            "".format(**figures)
        )
        if options.json:
            options.json.write_text(json.dumps({"scale": figures}, indent=1) + "\n")
        return
    prepare_process([str(Path(__file__).parent)])
    if options.growth or options.graphs or options.private or options.launches:
        figures = other_figures(options)
        if options.json:
            options.json.write_text(json.dumps(figures, indent=1) + "\n")
        return
    repeat, changes = (1, ["rounds=3"]) if options.quick else (options.repeat, [])
    changes.append(f"device={options.device}")
    if options.nodes:
        changes.append(f"nodes={options.nodes}")
    measured = {}
    for name in options.only or WORKLOADS:
        measured[name] = measure(name, repeat, changes, options.policy)
        show(name, measured[name])
    if options.json:
        options.json.write_text(json.dumps(measured, indent=1) + "\n")


if __name__ == "__main__":
    main()
