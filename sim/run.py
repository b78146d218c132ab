"""One run of a scenario: nodes, their world, and what became of them."""

from __future__ import annotations

import asyncio
import time
from asyncio import TaskGroup
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import networkx as nx

from node import tables
from node.coding import Coding
from node.electing import Electing, MemoryVotes, timing_of
from node.exchange import Exchange
from node.messaging import MessageExchange
from node.node import Node, first_error
from node.peer import Member
from node.wiring import federation_id, message_exchange
from p2pfl.codecs import make_codec
from p2pfl.errors import ConfigurationError
from p2pfl.parameters import Layout, Parameters
from p2pfl.policies import make_policy
from p2pfl.policy import Coordinated, asks_scores
from p2pfl.randomness import Draws
from p2pfl.stacked import OneByOne, Stacked
from p2pfl.task import POINT, Learner, Part, Task, also_of, goals_of, make_task
from p2pfl.torch_learner import TorchLearner, choose_device
from protocols.identity import Identity
from protocols.memory import MemoryNetwork
from protocols.terms import Electorate
from sim import clock
from sim.batching import BatchedTrainer, Batcher, Crew
from sim.clock import virtual_loop
from sim.coordination import refuse
from sim.network import Links, draw
from sim.recorder import Recorder
from sim.scenario import Scenario
from sim.shards import Shards, task_of
from sim.topology import located, mapped, measured, topology
from sim.world import ModelledExchange, World
from topologies import labels, neighbours

Progress = Callable[[int], None]


@dataclass
class Run:
    """A finished run.

    Attributes:
        topology: its name.
        properties: of the topology; see topologies.properties.
        labels: what each node is called in the topology, or else where it is; empty where that is its number.
        nodes: as they were at the end, by name.
        batches: by kind, how often jobs were computed, and how many.
        notes: what the user should know about how it was computed.
    """

    scenario: Scenario
    topology: str
    properties: dict[str, Any]
    labels: list[str]
    nodes: dict[str, Node]
    recorder: Recorder
    batches: dict[str, tuple[int, int]]
    virtual_s: float
    wall_s: float
    expired: int
    notes: list[str] = field(default_factory=list)


def run(
    scenario: Scenario,
    *,
    graph: nx.Graph | None = None,
    order: Sequence[int] | None = None,
    progress: Progress = lambda rounds: None,
) -> Run:
    """Run a scenario on virtual time.

    Args:
        graph: the topology, in place of the scenario's; its number of nodes must be the scenario's.
        order: the order in which the nodes are made; it changes nothing.
        progress: called now and then with the number of node-rounds done.

    Raises:
        ConfigurationError: the scenario asks for what does not exist.
        sim.clock.DeadlockError: nodes wait for each other for ever.
    """
    return Simulation(scenario, graph, order).run(progress)


def names(count: int) -> list[str]:
    """Return the names of simulated nodes: sorted as they are numbered."""
    width = len(str(count - 1))
    return [f"node-{k:0{width}d}" for k in range(count)]


def check(scenario: Scenario) -> Task:
    """Make one of each thing that a scenario names, so that what is wrong is said before anything runs.

    Returns:
        What its first node learns.

    Raises:
        ConfigurationError: naming the run.
    """
    try:
        graph = topology(scenario.topology, scenario.nodes, scenario.seed)
        if scenario.network.latency == "geography":
            located(mapped(scenario.network, graph), names(scenario.nodes))
        for group in (None, *scenario.policy_by_group):
            refuse(scenario, make_policy(*tables.named("policy", scenario.policy_of(group))))
        task = make_task(*tables.named("task", scenario.task), Part(0, scenario.nodes), scenario.seed)
        if scenario.pool is not None and scenario.pool.of == "fronts":
            if not {*also_of(task)} >= POINT:
                raise ConfigurationError(
                    "a pool of fronts is for runs of tasks that report error and disparity, such as `praffl`"
                )
        elif scenario.pool is not None and not goals_of(task):
            raise ConfigurationError("a pool is for runs of tasks with several objectives")
        choose_device(scenario.device)
    except ConfigurationError as error:
        raise ConfigurationError(f"run {scenario.name!r}: {error}") from error
    return task


class Simulation:
    """Everything that a run is made of; set up on construction, run once.

    Args: see `run`.
        workers: processes that may be used to train the nodes, where they are trained one by one.
        initial: the model that all nodes start from, in place of the task's.

    Attributes:
        processes: how many are.
    """

    def __init__(
        self,
        scenario: Scenario,
        graph: nx.Graph | None = None,
        order: Sequence[int] | None = None,
        workers: int = 1,
        initial: Parameters | None = None,
    ) -> None:
        scenario.check()
        self.scenario = scenario
        self.notes: list[str] = []
        self.names = names(scenario.nodes)
        self._everyone = tuple(self.names)  # one for all nodes: each with its own would have nodes times nodes names
        if graph is None:
            graph = topology(scenario.topology, scenario.nodes, scenario.seed)
            self.topology = str(graph.graph["name"])
            self.notes += graph.graph.get("notes", [])
        else:
            self.topology = "a graph of one's own"
        if len(graph) != scenario.nodes:
            raise ConfigurationError(f"the topology has {len(graph)} nodes, the scenario {scenario.nodes}")
        self.properties = measured(graph)
        places = mapped(scenario.network, graph)
        numbers = [str(k) for k in range(len(graph))]
        self.labels = next((called for called in (labels(graph), labels(places)) if called != numbers), [])
        around = neighbours(graph)
        self.neighbours = [[self.names[k] for k in ks] for ks in around]
        self.tasks = [task_of(scenario, k) for k in range(scenario.nodes)]
        self._note_scarcity()
        self._same_layout()
        self._known_groups()
        self.initial = self.tasks[0].initial(scenario.seed) if initial is None else initial
        self._same_start()
        self._codec = make_codec(*tables.named("codec", scenario.codec))
        self.loop = virtual_loop()
        points, notes = located(places, self.names) if scenario.network.latency == "geography" else ({}, [])
        self.notes += notes
        self.links = Links(scenario.network, scenario.seed, points)
        self.recorder = Recorder(self.loop, self.names, scenario.rounds)
        draws = [Draws(scenario.seed, name) for name in self.names]
        learners = [task.learner(d, scenario.device) for task, d in zip(self.tasks, draws, strict=True)]
        self.processes = 1
        self.crew = self._crew(learners, workers)
        self.batcher = Batcher(self.crew, self.loop)
        slowdowns = [draw(scenario.compute.slowdown, scenario.seed, name, "slowdown") for name in self.names]
        self.trainers = [
            BatchedTrainer(self.batcher, k, scenario.compute.seconds * slowdown) for k, slowdown in enumerate(slowdowns)
        ]
        exchanges = self._by_messages() if scenario.fidelity == "wire" else self._modelled()
        made = {k: self._node(k, exchanges[k]) for k in (range(scenario.nodes) if order is None else order)}
        self.nodes = {name: made[k] for k, name in enumerate(self.names)}
        self._note_budgets_that_are_useless()

    def run(self, progress: Progress = lambda rounds: None) -> Run:
        self.recorder.progress = progress
        begun = time.perf_counter()
        try:
            clock.run(self._main(), self.loop)
        finally:
            if isinstance(self.crew, Shards):
                self.crew.close()
        wall = time.perf_counter() - begun
        expired = sum(node.exchange.expired for node in self.nodes.values())
        batches = {kind: (queue.batches, queue.jobs) for kind, queue in self.batcher.queues.items()}
        self.recorder.close(self.nodes)
        return Run(
            self.scenario,
            self.topology,
            self.properties,
            self.labels,
            self.nodes,
            self.recorder,
            batches,
            self.loop.time(),
            wall,
            expired,
            self.notes,
        )

    async def _main(self) -> None:
        learning, nobody = len(self.nodes), asyncio.Event()

        async def linger(exchange: MessageExchange) -> None:
            """Serve while a node may need it. Where messages are lost, the one that says so may be lost too."""
            nonlocal learning
            learning -= 1
            if not learning:
                nobody.set()
            await (nobody.wait() if self.scenario.network.loss else exchange.others_done())

        try:
            async with TaskGroup() as tasks:
                for name, node in self.nodes.items():
                    waits = partial(linger, node.exchange) if isinstance(node.exchange, MessageExchange) else None
                    tasks.create_task(node.run(waits), name=name)
        except ExceptionGroup as group:
            raise first_error(group) from None

    def _node(self, k: int, exchange: Exchange) -> Node:
        policy = make_policy(*tables.named("policy", self.scenario.policy_of(self.tasks[k].about.get("group"))))
        refuse(self.scenario, policy)
        node = Node(
            self.names[k],
            self._everyone,
            task=self.tasks[k],
            policy=policy,
            trainer=self.trainers[k],
            exchange=exchange,
            settings=self.scenario,
            observer=self.recorder,
            budget=self.scenario.budget.of(self.scenario.seed, self.names[k], self.scenario.nodes),
            initial=self.initial if self.tasks[k].layout == self.tasks[0].layout else None,  # private parts may differ
        )
        if isinstance(policy, Coordinated):
            exchange.step = self.recorder.clusters.watching(policy)
        return node

    def _modelled(self) -> list[Exchange]:
        """Exchanges that share a world and make no messages."""
        world = World(self.loop, self.links, self.scenario)
        exchanges = [
            ModelledExchange(
                world,
                name,
                around,
                trainer,
                task.n_samples,
                task.about,
                self._coding(task.layout.shared),
                bool(goals_of(task)),
                sparse=len(around) < len(self.names) - 1,
            )
            for name, around, trainer, task in zip(self.names, self.neighbours, self.trainers, self.tasks, strict=True)
        ]
        for exchange in exchanges:
            for id in exchange.roster.neighbours:
                world.nodes[id].requesters.append(exchange)
        return list(exchanges)

    def _by_messages(self) -> list[Exchange]:
        """Exchanges that sign, send and verify real messages over simulated links."""
        network = MemoryNetwork(self.links)
        seed = self.scenario.seed
        keys = {name: Identity.from_seed(Draws(seed, name).digest(0, "key of a simulation")) for name in self.names}
        askers: dict[str, list[str]] = {name: [] for name in self.names}
        for name, sources in zip(self.names, self.neighbours, strict=True):
            for id in sources:
                askers[id].append(name)
        exchanges: list[Exchange] = []
        changes = [{}, *self.scenario.policy_by_group.values()]
        policies = [make_policy(*tables.named("policy", self.scenario.policy | change)) for change in changes]
        coordinated = isinstance(policies[0], Coordinated)
        for k, name in enumerate(self.names):
            known = {*self.names} - {name} if coordinated else {*self.neighbours[k], *askers[name]}
            around = {id: Member(keys[id].public, (f"memory:{id}",)) for id in known}
            exchange = message_exchange(
                name,
                around,
                identity=keys[name],
                transport=network.transport(name),
                boot=1,
                federation=federation_id("simulation"),
                task=self.tasks[k],
                trainer=self.trainers[k],
                settings=self.scenario,
                agreed={},
                sources=self.neighbours[k],
                askers=askers[name],
                coding=self._coding(self.tasks[k].layout.shared),
                electing=self._electing(name) if coordinated else None,
                scores=any(map(asks_scores, policies)),
                sparse=len(self.neighbours[k]) < len(self.names) - 1,
            )
            exchanges.append(exchange)
        return exchanges

    def _electing(self, name: str) -> Electing:
        """A node's part in electing a coordinator: all vote, and any may be elected."""
        everyone = Electorate(1, frozenset(self.names), tuple(self.names))
        timing = timing_of(self.tasks[0].layout.shared.size, self.scenario.deadline)
        return Electing(
            *(name, everyone, MemoryVotes()), boot=1, seed=self.scenario.seed, clock=self.loop.time, timing=timing
        )

    def _coding(self, layout: Layout) -> Coding:
        return Coding(self._codec, layout, self.tasks[0].layout.cut(self.initial))

    def _crew(self, learners: Sequence[Learner], workers: int) -> Crew:
        """Who computes: all nodes' jobs together where the task allows it, else each for itself in several processes.

        Stacks stay in one process: in smaller ones, the last bits of the results would be others.
        """
        torch_learners = [learner for learner in learners if isinstance(learner, TorchLearner)]
        if self.scenario.trainer != "one-by-one" and len(torch_learners) == len(learners) > 1:
            try:
                return Stacked(torch_learners)
            except ConfigurationError as error:
                self.notes.append(f"trained one by one: {error}")
        self.processes = min(workers, len(learners))
        if self.processes == 1:
            return OneByOne(learners)
        samples = [task.n_samples for task in self.tasks]
        return Shards(self.scenario, learners, self.names, samples, self.processes)

    def _note_budgets_that_are_useless(self) -> None:
        """A policy that takes what fits would train alone, and nobody would know why."""
        size = self._coding(self.tasks[0].layout.shared).expected("", 1)
        small = [limit for node in self.nodes.values() if 0 < (limit := node.me.budget.bytes) < size]
        if small:
            self.notes.append(f"budget.bytes of {len(small)} of {len(self.nodes)} nodes is less than a model takes: {size}")

    def _known_groups(self) -> None:
        groups = {str(task.about["group"]) for task in self.tasks if "group" in task.about}
        for group in self.scenario.policy_by_group:
            if group not in groups:
                known = ", ".join(sorted(groups)) or "none"
                raise ConfigurationError(f"policy_by_group names the group {group!r}; the nodes' groups are: {known}")

    def _note_scarcity(self) -> None:
        """Say where a task that was asked for so many training samples had fewer."""
        asked = self.scenario.task.get("samples", 0)
        least = min(task.n_samples for task in self.tasks)
        if isinstance(asked, int) and least < asked:
            few = sum(task.n_samples < asked for task in self.tasks)
            self.notes.append(
                f"{few} of {len(self.tasks)} nodes have fewer than {asked} training samples, the least {least}"
            )

    def _same_start(self) -> None:
        """Hold that all nodes start from the same shared values, as nodes on machines do before they talk."""
        first = self.tasks[0].layout
        for name, task in zip(self.names, self.tasks, strict=True):
            if task.layout != first and (task.layout.cut(task.initial(self.scenario.seed)) != first.cut(self.initial)).any():
                raise ConfigurationError(
                    f"the shared part of {name} does not start as that of {self.names[0]} does: where private parts"
                    " differ in size, the module must make the shared part first"
                )

    def _same_layout(self) -> None:
        first = self.tasks[0].layout.shared
        for name, task in zip(self.names, self.tasks, strict=True):
            layout = task.layout.shared
            if layout.fingerprint != first.fingerprint:
                raise ConfigurationError(
                    f"the task of {name} has another layout than that of {self.names[0]}: {layout.size} values"
                    f" in {len(layout.shapes)} tensors, against {first.size} in {len(first.shapes)}"
                )
