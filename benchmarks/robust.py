"""Cost of the protection against malicious models, relative to the mean that it protects.

On a live node: prints the time that `median-clip` adds to the weighted mean of a round, as a multiple of the time of the
mean, for several model sizes. In one case no model is too far away, in the other half of them are. Then it prints the
time that each robust rule adds to the mean, in the same unit.

In the simulator: prints the processor time that each rule adds to the merges of all nodes at one instant, as a multiple
of the time of their means. `computed` is the time of the computation alone, `merged` includes the requests of the nodes.
For the rules with their own merge both are the whole time, because they replace the mean. There are 100 nodes, and 20
with 2,499,990 values.

All are measured in one run. Each figure is a ratio to the mean of the same repetition; the median is printed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import torch
from msgspec.structs import replace
from torch import nn

from p2pfl.learning.batched_learner import BatchedLearner
from p2pfl.learning.optimizers import SGD
from p2pfl.learning.torch_task import classification
from p2pfl.node.policy_api import Me
from p2pfl.parameters import Parameters, weighted_mean
from p2pfl.policy import Budget, Merge, Update, merge
from p2pfl.queries import Clip, Combine, Mean, NodeQuery, Train
from p2pfl.random_streams import RandomStreams
from p2pfl.robust.candidates import OwnMerge, combine
from p2pfl.robust.clipping import clip_models, without_clipping
from p2pfl.robust.registry import MEDIAN_CLIP, NONE, RULES, make_rule
from p2pfl.sim.simulation import clock
from p2pfl.sim.simulation.batching import BatchedTrainer, Batcher
from p2pfl.sim.simulation.clock import virtual_loop
from p2pfl.sim.simulation.workers import prepare_process

PEERS = 9
NODES = 100  # of the simulation
CASES = [  # degree, inputs of the model, nodes, repetitions
    (4, 480, NODES, 21),
    (10, 480, NODES, 21),
    (30, 480, NODES, 21),
    (99, 480, NODES, 21),
    (10, 9_999, NODES, 5),
    (10, 249_999, 20, 3),
]
LOSSY = ("ubar", "loss", "clip-loss")  # rules that compare losses, which are not part of their cost here
CALLS = 5  # in one measurement


def seconds(work: Callable[[], object]) -> float:
    """Return the processor time of one call."""
    begun = time.process_time()
    for _ in range(CALLS):
        work()
    return (time.process_time() - begun) / CALLS


def in_turn(mean: Callable[[], object], works: dict[str, Callable[[], object]], times: int) -> dict[str, float]:
    """Return the time of each work as a multiple of the time of the mean in the same repetition; medians."""
    taken: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(times):
        unit = seconds(mean)
        for name, work in works.items():
            taken[name].append(seconds(work) / unit)
    return {name: statistics.median(ratios) for name, ratios in taken.items()}


def measure(size: int, times: int) -> dict[str, float]:
    """Return the time that clipping adds to the mean, as a multiple of it, for models with `size` values."""
    rng = np.random.default_rng(0)
    initial = np.zeros(size, np.float32)
    own = rng.standard_normal(size).astype(np.float32)
    models = [own + rng.standard_normal(size).astype(np.float32) * np.float32(0.1) for _ in range(PEERS)]
    far = [*models[: PEERS // 2 + 1], *(model * np.float32(900) for model in models[PEERS // 2 + 1 :])]
    weights = [1 / (PEERS + 1)] * (PEERS + 1)

    def clip(received: list[Parameters]) -> Callable[[], object]:
        def work() -> Parameters:
            clipped = clip_models([own, *received], initial, ())
            return weighted_mean(*without_clipping([own, *clipped.models(own, received)], weights))

        return work

    works = {"honest": clip(models), "half of them far": clip(far)}
    found = in_turn(lambda: weighted_mean([own, *models], weights), works, times)
    return {name: ratio - 1 for name, ratio in found.items()}


def measure_rules(size: int, times: int) -> dict[str, float]:
    """Return the time that each rule adds to the mean, as a multiple of it, for models with `size` values."""
    rng = np.random.default_rng(0)
    models = [rng.standard_normal(size).astype(np.float32) for _ in range(PEERS + 1)]
    weights = [1 / (PEERS + 1)] * (PEERS + 1)
    losses = rng.random(PEERS + 1).tolist()

    def work(name: str) -> Callable[[], object]:
        rule = make_rule(name)
        assert rule is not None
        return lambda: combine(rule, models, weights, losses=losses)

    found = in_turn(lambda: weighted_mean(models, weights), {name: work(name) for name in RULES}, times)
    return {name: ratio - 1 for name, ratio in found.items()}


class Simulated:
    """Trained models of nodes, and their neighbours in a regular graph.

    Args:
        degree: number of neighbours of a node.
        width: inputs of the model, which has 10 (width + 1) values.
        nodes: number of nodes.
    """

    def __init__(self, degree: int, width: int, nodes: int = NODES) -> None:
        generator = torch.Generator().manual_seed(0)
        learners = []
        for k in range(nodes):
            samples = torch.randn(8, width, generator=generator), torch.arange(8) % 10
            task = classification(lambda: nn.Linear(width, 10), samples, optimizer=SGD(lr=0.1))
            learners.append(task.learner(RandomStreams(0, f"n{k:02}")))
        self.backend = BatchedLearner(learners)
        self.layout = learners[0].task.layout
        start = np.zeros(self.layout.size, np.float32)
        self.models = self.backend.compute([NodeQuery(k, Train(start, 1)) for k in range(nodes)])
        graph = nx.random_regular_graph(degree, nodes, seed=0) if degree < nodes - 1 else nx.complete_graph(nodes)
        self.around = [sorted(graph[k]) for k in range(nodes)]
        self.degree = degree

    def computed(self, name: str) -> Callable[[], object]:
        """Return the computation of all merges under a rule."""
        count = self.degree + 1
        jobs: list[NodeQuery[Any]] = []
        for k, around in enumerate(self.around):
            places = sorted([k, *around])
            models, weights = [self.models[j] for j in places], [1 / count] * count
            rule = make_rule(name)
            query = Mean(models, weights) if rule is None else Combine(models, weights, rule, places.index(k), [0.1] * count)
            jobs.append(NodeQuery(k, query))
        return lambda: self.backend.compute(jobs)

    def clipping(self, k: int) -> Clip:
        """Return the clipping of all models that a node has received by `median-clip`."""
        start = np.zeros(self.layout.size, np.float32)
        return Clip([self.models[k], *(self.models[j] for j in self.around[k])], start)

    def clip_all(self) -> Callable[[], object]:
        """Return the computation of all merges under `median-clip`."""
        jobs: list[NodeQuery[Any]] = [NodeQuery(k, self.clipping(k)) for k in range(len(self.around))]
        weights = [1 / (self.degree + 1)] * (self.degree + 1)

        def work() -> object:
            means: list[NodeQuery[Any]] = []
            for job, clipped in zip(jobs, self.backend.compute(jobs), strict=True):
                own, *received = job.query.models
                models = [own, *clipped.models(own, received)]
                means.append(NodeQuery(job.node, Mean(*without_clipping(models, weights))))
            return self.backend.compute(means)

        return work

    def merged(self, names: Sequence[str], times: int) -> dict[str, list[float]]:
        """Return the seconds of all merges under each rule, in which each node asks for its merge."""
        loop = virtual_loop()
        batcher = Batcher(self.backend, loop)
        start = np.zeros(self.layout.size, np.float32)

        def merges_by(name: str) -> list[Callable[[], Any]]:
            asked = []
            for k, around in enumerate(self.around):
                me = Me(
                    f"n{k:02}",
                    RandomStreams(0, f"n{k:02}"),
                    trainer=BatchedTrainer(batcher, k, 0.0),
                    initial=start,
                    layout=self.layout,
                    n_samples=8,
                    budget=Budget(),
                    rounds=1,
                    robust=name,
                )
                updates = [Update(f"n{j:02}", 1, "trained", self.models[j], 8) for j in around]
                weights = dict.fromkeys([me.id, *(update.sender for update in updates)], 1 / (self.degree + 1))
                ask = clip_and_merge if name == MEDIAN_CLIP else merge_at
                asked.append(partial(ask, me, k, updates, weights))
            return asked

        def merge_at(me: Me, k: int, updates: list[Update], weights: dict[str, float]) -> Awaitable[Merge]:
            return merge(me, self.models[k], updates, weights)

        async def clip_and_merge(me: Me, k: int, updates: list[Update], weights: dict[str, float]) -> Merge:
            clipped = await me.compute(self.clipping(k))
            kept = clipped.models(self.models[k], [update.params for update in updates])
            clipped_updates = [replace(update, model=model) for update, model in zip(updates, kept, strict=True)]
            return await merge(me, self.models[k], clipped_updates, weights)

        async def once(asked: Sequence[Callable[[], Any]]) -> float:
            begun = time.process_time()
            found = await asyncio.gather(*(ask() for ask in asked))
            assert len(found) == len(self.around)
            return time.process_time() - begun

        async def measure_all() -> dict[str, list[float]]:
            asked = {name: merges_by(name) for name in names}
            taken: dict[str, list[float]] = {name: [] for name in names}
            for _ in range(times):
                for name, one in asked.items():
                    taken[name].append(await once(one))
            return taken

        found: dict[str, list[float]] = {}

        async def main() -> None:
            found.update(await measure_all())

        clock.run(main(), loop)
        return found


def measure_simulated(world: Simulated, times: int) -> dict[str, dict[str, float]]:
    """Return what each rule adds to the means of all nodes, as a multiple of their time; see above."""

    def added(name: str, seconds: Sequence[float], means: Sequence[float]) -> float:
        replaces = isinstance(make_rule(name), OwnMerge)
        return statistics.median(taken / mean for taken, mean in zip(seconds, means, strict=True)) - (not replaces)

    works = {name: world.computed(name) for name in (NONE, *RULES)} | {MEDIAN_CLIP: world.clip_all()}
    taken: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(times + 1):
        for name, work in works.items():
            begun = time.process_time()
            work()
            taken[name].append(time.process_time() - begun)
    computed = {name: added(name, found[1:], taken[NONE][1:]) for name, found in taken.items() if name != NONE}
    whole = world.merged([NONE, *(name for name in RULES if name not in LOSSY), MEDIAN_CLIP], times)
    merged = {name: added(name, found, whole[NONE]) for name, found in whole.items() if name != NONE}
    return {"computed": computed, "merged": merged}


def format_ratios(ratios: dict[str, float]) -> str:
    """Return ratios as one line."""
    return ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="small models and few repetitions, to check that the benchmark works"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file, as JSON")
    options = parser.parse_args()
    times = 5 if options.quick else 21
    figures: dict[str, dict[str, float]] = {}
    for size in [4_810, 100_000] if options.quick else [4_810, 100_000, 2_500_000]:
        figures[str(size)] = measured = measure(size, times)
        print(f"{size:,} values, {PEERS} peers: {format_ratios(measured)}")
        figures[f"{size} rules"] = rules = measure_rules(size, times)
        print(f"  {format_ratios(rules)}")
    prepare_process()  # as the simulator does
    for degree, width, nodes, repetitions in [(10, 480, NODES, times)] if options.quick else CASES:
        size = 10 * (width + 1)
        for kind, ratios in measure_simulated(Simulated(degree, width, nodes), repetitions).items():
            figures[f"{size} {kind} by {nodes} nodes with {degree} peers"] = ratios
            print(f"{nodes} nodes, {degree} peers, {size:,} values, {kind}: {format_ratios(ratios)}", flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
