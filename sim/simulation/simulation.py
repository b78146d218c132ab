"""One run of a scenario: its nodes on virtual time, and the result.

Theory of operation
-------------------

A simulation runs the nodes of real machines. Each `Node` (p2pfl.node.node) is a task of asyncio with its policy, its
budget and its rounds; only what surrounds it is replaced: the clock, the network, the computer and the observer.

- Clock: `VirtualLoop` (clock) is an event loop whose time jumps. While a callback is ready, it runs and takes no time.
  When none is, time moves to the next timer, or to the time at which deferred work is due. Nothing sleeps. If no event
  is left and a node still waits, the run ends with a DeadlockError.
- Computer: a node asks its `BatchedTrainer` for a training or a loss, which takes virtual seconds that follow from
  `compute`. The `Batcher` (batching) computes nothing until the first result is due. By then all nodes that train at
  the same time have asked, and one stacked program, or several processes (sharding), computes their jobs together. Each
  node gets its result at its own time.
- Network: with fidelity "wire", a MessageExchange (p2pfl.node.exchange) signs and verifies each message, and the links
  of the process delay it. With fidelity "modelled", no message exists: a `ModelledExchange` computes when a frame would
  arrive and how long it would be, hands over the model by reference, and calls the peer at that time.
- Observer: the `Recorder` (recorder) takes every event of every node into columns, and into a hash, the trace.

Who calls whom, for a round with the modelled network:

    Node._round -> Policy.round -> Trainer.submit -> Batcher -> backend         the model is trained
                -> Exchange.publish -> Outbox.add -> waiting fetches   it is offered to peers
                -> Exchange.fetch -> Fetch                          models of peers arrive
                -> Observer.merged -> Recorder                                    the round is recorded

Where nothing tells the nodes apart but their data and draws, no node runs by itself: a `Cohort` (cohort) runs the policy
once a round for all of them, without a loop of events, to the same bits.

Why a modelled run equals a run with messages: both exchanges take every decision by the same code. What to answer to a
request is in Outbox, how long a model is in ModelEncoder, when to wait for peers in Pacing, whom to exclude in PeerView
and Conduct, what a coordinator does in Coordinator; both exchanges take arrival times from the same Links and count
frames by Traffic.count. Introductions and elections are not modelled, and announcements and probes have times but no
count: they carry no learning, so a modelled run has less `control` traffic, and its coordinator is the node with the
lowest name. Tests compare both kinds of runs: the models bit for bit, the bytes and the deadlines.

What must never be:

- Nothing reads the time, the network or randomness of the machine: a result depends on the scenario and its seed alone.
- Nothing depends on the order in which nodes are made, or in which they run at one time. Where many answers meet, they
  are sorted by node: the jobs of a batch, the models of a fetch, the lines of the trace.
- No node draws from a stream that another node draws from, too; see p2pfl.random_streams.
- Watching a run changes nothing in it: snapshots only read what the recorder has.
"""

from __future__ import annotations

import asyncio
import time
from asyncio import Future, TaskGroup
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, NamedTuple

import networkx as nx
import numpy as np
from msgspec.structs import replace

from p2pfl._util.printable import plural
from p2pfl.attacks.attack import HonestView, as_accepted, attacker
from p2pfl.errors import ConfigurationError, first_error
from p2pfl.learner import Learner
from p2pfl.learning.batched_learner import BatchedLearner, SequentialLearner
from p2pfl.learning.task_stack import TaskStack, different, samples_of
from p2pfl.learning.torch_learner import TorchLearner, check_sizes
from p2pfl.learning.torch_problem import TorchProblem
from p2pfl.learning.torch_task import TorchTask
from p2pfl.node.coordination.election_runner import ElectionRunner, MemoryVotes, timing_of
from p2pfl.node.coordination.submissions import Coordination
from p2pfl.node.exchange.base import Exchange, NeighbourRoles
from p2pfl.node.exchange.message_exchange import MessageExchange, federation_id, message_exchange
from p2pfl.node.node import Node, Observer
from p2pfl.node.peering.peering_config import Member
from p2pfl.node.settings import End
from p2pfl.parameters import Parameters
from p2pfl.policy import Coordinated, Policy, PolicyStep, Update, asks_scores, fetches_fragments
from p2pfl.privacy import PrivacyPlan, claim_of
from p2pfl.protocols.election import Electorate
from p2pfl.protocols.transports.in_process import InProcessNetwork
from p2pfl.queries import Loss
from p2pfl.random_streams import RandomStreams, StreamsOfEach
from p2pfl.sim.formatting import some
from p2pfl.sim.scenario.network import Links
from p2pfl.sim.scenario.scenario import AttackPlan, Scenario
from p2pfl.sim.simulation import clock
from p2pfl.sim.simulation.batching import BatchedTrainer, Batcher, ComputeBackend
from p2pfl.sim.simulation.clock import DeadlockError, VirtualLoop, virtual_loop
from p2pfl.sim.simulation.cohort import Cohort, why_not
from p2pfl.sim.simulation.final_state import FinalState, state_of
from p2pfl.sim.simulation.modelled_coordinator import ModelledCoordination
from p2pfl.sim.simulation.modelled_exchange import ModelledExchange
from p2pfl.sim.simulation.modelled_network import ModelledConfig, ModelledNetwork
from p2pfl.sim.simulation.plan import RunPlan, identity_of, plan
from p2pfl.sim.simulation.recorder import Recorder
from p2pfl.sim.simulation.sharding import LocalShards, ShardedBackend, ShardSource
from p2pfl.task import Task

Progress = Callable[[int], None]
Trainers = Mapping[int, BatchedTrainer]  # by the number of the node


@dataclass
class Run:
    """Result of a simulation: the final state of its nodes, and notes for the user.

    Attributes:
        nodes: by name, if each ran by itself; a cohort has none.
        state: final state of all nodes as columns.
        computed: whether all nodes were computed at once, or why not.
        batches: by kind, the number of batches of jobs, and the number of jobs.
        notes: notes for the user about the computation.
    """

    plan: RunPlan
    nodes: Mapping[str, Node]
    state: FinalState
    recorder: Recorder
    computed: str
    batches: dict[str, tuple[int, int]]
    virtual_s: float
    wall_s: float
    expired: int
    notes: list[str]

    @property
    def scenario(self) -> Scenario:
        return self.plan.scenario

    @property
    def tasks(self) -> Sequence[Task]:
        """The task of each node."""
        return self.plan.tasks


class Instruments(NamedTuple):
    """Instruments of an audit in a run: they change the samples, and watch what the nodes compute and release.

    Attributes:
        tasks: returns the tasks of the run in place of the scenario's; see p2pfl.sim.simulation.plan.plan.
        backend: returns a backend that gives the same answers as the given one.
        observers: observers of each node, beside the recorder.
    """

    tasks: Callable[[Sequence[Task]], Sequence[Task]] | None = None
    backend: Callable[[ComputeBackend], ComputeBackend] = lambda backend: backend
    observers: Sequence[Observer] = ()


class Simulation:
    """All objects of a run, made from its plan, to be run once.

    Args:
        graph: the topology, in place of the scenario's; its number of nodes must be the scenario's.
        order: the order in which the nodes are created; it does not affect the result.
        workers: processes for the training of nodes that are trained one by one.
        initial: the model that all nodes start from, in place of the task's.
        shards: starts these processes; by default on this machine.
        links: in place of those that the scenario's network describes.
        singly: reason to run each node by itself although the nodes could be a cohort, such as a comparison.
        instruments: of an audit, which needs `singly`; by default none.

    Attributes:
        nodes: by name, if each runs by itself; a cohort has none.
        processes: the number of processes in use.
        singly: why each node runs by itself, in a few words; "" if they run as a cohort.
        notes: notes for the user about the computation.

    Raises:
        ConfigurationError: the scenario names something that does not exist.
    """

    def __init__(
        self,
        scenario: Scenario,
        graph: nx.Graph | None = None,
        order: Sequence[int] | None = None,
        workers: int = 1,
        initial: Parameters | None = None,
        *,
        shards: ShardSource | None = None,
        links: Links | None = None,
        singly: str = "",
        instruments: Instruments = Instruments(),  # noqa: B008 (it is a tuple)
    ) -> None:
        self.plan = plan(scenario, graph, initial, instruments.tasks)
        self._observers = instruments.observers
        self.notes = [
            *self.plan.notes,
            *dict.fromkeys(note for task in different(self.plan.tasks) for note in task.module_notes),
        ]
        self.loop = virtual_loop()
        self.links = links or self.plan.links(scenario.seed)
        self.recorder = Recorder(self.loop, self.plan.names, scenario.rounds)
        self.processes = 1
        self.backend = self._backend(workers, shards or LocalShards())
        self.batcher = Batcher(instruments.backend(self.backend), self.loop)
        self.singly = singly or why_not(self.plan, self.plan.policy(0), self.backend, self.links)
        self.nodes: Mapping[str, Node] = self._single_nodes(order) if self.singly else {}
        self._note_small_budgets()

    def run(self, progress: Progress = lambda rounds: None) -> Run:
        """Run the scenario on virtual time, to its end.

        Args:
            progress: called from time to time with the number of node-rounds done.

        Raises:
            DeadlockError: nodes wait for each other for ever.
        """
        self.recorder.progress = progress
        cohort = None
        begun = time.perf_counter()
        try:
            if self.singly:
                clock.run(self._main(), self.loop)
            else:
                assert isinstance(self.backend, BatchedLearner)
                cohort = Cohort(self.plan, self.backend, self.batcher, self.recorder, self.loop)
                cohort.run()
        except DeadlockError:
            raise DeadlockError(self._deadlock()) from None
        finally:
            if isinstance(self.backend, ShardedBackend):
                self.backend.close()
        wall = time.perf_counter() - begun
        self._note_early_nodes()
        if cohort is None:
            self.recorder.close(self.nodes)
        return Run(
            plan=self.plan,
            nodes=self.nodes,
            state=state_of([*self.nodes.values()]) if cohort is None else cohort.state(),
            recorder=self.recorder,
            computed=f"node by node: {self.singly}" if self.singly else "all nodes at once",
            batches={kind: (queue.batches, queue.jobs) for kind, queue in self.batcher.queues.items()},
            virtual_s=min(self.loop.time(), self._ends),
            wall_s=wall,
            expired=sum(node.exchange.expired for node in self.nodes.values()),
            notes=[*self.notes, *self._notes_on_trainings()],
        )

    def _notes_on_trainings(self) -> list[str]:
        """Return a note if budgets of trainings, of joules or of privacy were used up."""
        refused = [node for node in self.nodes.values() if node.me.training.refused]
        private = [node.me.privacy for node in self.nodes.values()] if self.plan.privacy else []
        if spent := [tracker for tracker in private if tracker is not None and tracker.refused]:
            few = f"{len(spent)} of {plural(len(self.nodes), 'node')}"
            then = "ended their rounds" if any(tracker.ended for tracker in spent) else "went on without training"
            return [f"{few} had spent the privacy budget before the end: they {then}"]
        if not refused:
            return []
        few = f"{len(refused)} of {plural(len(self.nodes), 'node')}"
        return [f"{few} had used up the budget of trainings before the end: they went on without training"]

    def _single_nodes(self, order: Sequence[int] | None) -> dict[str, Node]:
        """Return all nodes, each with its own task of asyncio."""
        plan, scenario = self.plan, self.plan.scenario
        self.trainers = {k: self._trainer(k) for k in range(scenario.nodes)}
        self.policies = {k: plan.policy(k) for k in range(scenario.nodes)}
        attack = scenario.attack_plan()
        if attack is not None:
            neighbours = dict(zip(plan.names, plan.topology.neighbours, strict=True))
            self.recorder.view = HonestView([plan.names[k] for k in attack.nodes], neighbours)
            for k in attack.nodes:
                self.policies[k] = attacker(self.policies[k], attack.attack, self.recorder.view)
        make = self._exchanges(self.policies, self.trainers)
        exchanges = [make(k) for k in range(scenario.nodes)]
        if attack is not None and self.recorder.view is not None and attack.attack.targeted:
            forge_for_victims(attack, self.recorder.view, exchanges)
        made = {
            k: self._node(k, self.policies[k], self.trainers[k], exchanges[k])
            for k in (range(scenario.nodes) if order is None else order)
        }
        return {name: made[k] for k, name in enumerate(plan.names)}

    def _step(self, policy: Policy) -> PolicyStep | None:
        """Return the joint step of a policy; None if it is not coordinated."""
        return self.recorder.clusters.watching(policy) if isinstance(policy, Coordinated) else None

    def _exchanges(
        self, policies: Mapping[int, Policy], trainers: Mapping[int, BatchedTrainer]
    ) -> Callable[[int], Exchange]:
        """Return the function that makes the exchange of a node, by its number, with the fidelity of the scenario.

        Args:
            trainers: compute the losses that peers request.
        """
        wire = self.plan.scenario.fidelity == "wire"
        return (self._message_exchanges if wire else self._modelled_exchanges)(policies, trainers)

    def _modelled_exchanges(self, policies: Mapping[int, Policy], trainers: Trainers) -> Callable[[int], Exchange]:
        """Return the function that makes exchanges which share a network and send no messages."""
        plan = self.plan
        network = ModelledNetwork(self.loop, self.links, plan.scenario)
        coordination = ModelledCoordination(network)
        attack = plan.scenario.attack_plan()
        detects = plan.scenario.distrust > 0 or (attack is not None and attack.attack.targeted)

        def make(k: int) -> Exchange:
            task, step, sources = plan.tasks[k], self._step(policies[k]), plan.topology.neighbours[k]
            config = ModelledConfig(
                name=plan.names[k],
                neighbours=sources,
                requesters=plan.topology.requesters(k, sources),
                n_samples=task.n_samples,
                public_info=task.public_info,
                encoder=plan.encoder(k),
                private=bool(task.goals),
                sparse=plan.sparse(k),
                detects=detects,
            )
            loss = partial(_loss, trainers[k])
            return ModelledExchange(network, config, loss, None if step is None else (coordination, step))

        return make

    def _message_exchanges(self, policies: Mapping[int, Policy], trainers: Trainers) -> Callable[[int], Exchange]:
        """Return the function that makes exchanges which sign, send and verify real messages over simulated links."""
        plan = self.plan
        scenario, names = plan.scenario, plan.names
        keys = {name: identity_of(scenario.seed, name) for name in names}
        network = InProcessNetwork(self.links, {name: key.public for name, key in keys.items()})
        scores = any(asks_scores(policy) for policy in policies.values())
        fragments = any(fetches_fragments(policy) for policy in policies.values())

        numbers = {name: k for k, name in enumerate(names)}

        def around(name: str) -> Collection[str]:
            sources = plan.topology.neighbours[numbers[name]]
            return {*sources, *plan.topology.requesters(numbers[name], sources)}

        def make(k: int) -> Exchange:
            name, sources, step = names[k], plan.topology.neighbours[k], self._step(policies[k])
            askers = plan.topology.requesters(k, sources)
            coordination = None if step is None else Coordination(_election(plan, self.loop, name), step)
            known = {*sources, *askers} if coordination is None else {*names} - {name}
            roles = NeighbourRoles(
                members={id: Member(keys[id].public, (f"memory:{id}",)) for id in known},
                sources=sources,
                askers=askers,
                sparse=plan.sparse(k),
                around=around if plan.sparse(k) and step is None else None,
            )
            return message_exchange(
                name,
                roles,
                identity=keys[name],
                transport=network.transport(name),
                incarnation=1,
                federation=federation_id("simulation"),
                task=plan.tasks[k],
                trainer=trainers[k],
                settings=scenario,
                agreed={},
                encoder=plan.encoder(k),
                coordination=coordination,
                scores=scores,
                fragments=fragments,
                secrets=RandomStreams(scenario.seed, name).generator(0, "secure sums").bytes,
                **_of_sums(plan.privacy[k] if plan.privacy else None),
            )

        return make

    def _trainer(self, k: int) -> BatchedTrainer:
        presence, name, loop = self.links.presence, self.plan.names[k], self.loop

        def lasting(seconds: float) -> float:
            assert presence is not None
            return presence.after(name, loop.now, seconds) - loop.now

        return BatchedTrainer(self.batcher, k, self.plan.speeds[k], None if presence is None else lasting)

    async def _main(self) -> None:
        learning, nobody = len(self.nodes), asyncio.Event()

        async def linger(exchange: MessageExchange) -> None:
            """Serve while a node may need it. With message loss, the message that a node is done may also be lost."""
            nonlocal learning
            learning -= 1
            if not learning:
                nobody.set()
            await (nobody.wait() if self.links.loses else exchange.others_done())

        running: list[asyncio.Task[None]] = []

        def cut() -> None:
            """End the run: drop what nodes have not finished."""
            for task in running:
                task.cancel()

        try:
            async with TaskGroup() as tasks:
                for name, node in self.nodes.items():
                    waits = partial(linger, node.exchange) if isinstance(node.exchange, MessageExchange) else None
                    running.append(tasks.create_task(node.run(waits), name=name))
                if self._ends < inf:  # after all that happens at this time, up to the rounding of sums of seconds
                    self.loop.call_at(self._ends * (1 + 1e-9), cut)
            async with TaskGroup() as tasks:
                for node, task in zip(self.nodes.values(), running, strict=True):
                    if task.cancelled() and not node.done:
                        tasks.create_task(node.conclude())
        except ExceptionGroup as group:
            raise first_error(group) from None

    def _deadlock(self) -> str:
        """Return which nodes wait for ever, and why."""
        waiting = [f"{name} in round {node.round}" for name, node in self.nodes.items() if not node.done]
        who = f"{len(waiting)} of {plural(len(self.nodes), 'node')} wait: {some(waiting)}"
        text = f"deadlock at {self.loop.time():g} s of virtual time: no event is left, but {who}"
        if self.plan.scenario.deadline == inf:
            text += "; with deadline = inf they wait for ever for a missing answer: set a finite one, such as deadline = 30"
        return text

    def _node(self, k: int, policy: Policy, trainer: BatchedTrainer, exchange: Exchange) -> Node:
        plan, scenario, name = self.plan, self.plan.scenario, self.plan.names[k]
        node = Node(
            name,
            plan.names,
            task=plan.tasks[k],
            policy=policy,
            trainer=trainer,
            exchange=exchange,
            settings=scenario,
            observers=[self.recorder, *self._observers],
            budget=scenario.budget.of(scenario.seed, name, scenario.nodes),
            initial=plan.initial if plan.tasks[k].layout == plan.tasks[0].layout else None,  # private parts may differ
            lenient=scenario.attack is not None,  # as on machines: one harmful model does not end the run
            end=End(bytes=scenario.end.bytes),  # the clock of the simulation ends its seconds
            rounds=plan.topology.rounds,
            privacy=plan.privacy[k] if plan.privacy else None,
        )
        if scenario.attack is not None:
            node.me.most_diverged = inf
        return node

    def _backend(self, workers: int, shards: ShardSource) -> ComputeBackend:
        """Return the backend for the nodes' jobs.

        It is stacked if the task allows it, else one by one in `workers` processes. A stack stays in one process,
        because smaller stacks would change the last bits of the results.
        """
        plan, scenario = self.plan, self.plan.scenario
        learners: Sequence[Learner]
        torch_learners: Sequence[TorchLearner]
        if isinstance(plan.tasks, TaskStack) and isinstance(plan.tasks.first, TorchTask):
            learners = torch_learners = LearnersOfStack(plan.tasks, scenario.seed, plan.names, scenario.device)
        else:
            streams = (RandomStreams(scenario.seed, name) for name in plan.names)
            learners = [task.learner(own, scenario.device) for task, own in zip(plan.tasks, streams, strict=True)]
            torch_learners = [learner for learner in learners if isinstance(learner, TorchLearner)]
        if scenario.trainer != "one-by-one" and len(learners) > 1:
            try:
                if len(torch_learners) == len(learners):
                    lenient = scenario.attack is not None
                    if not isinstance(plan.tasks, TaskStack):
                        return BatchedLearner(torch_learners, lenient=lenient)
                    streams_of_each = StreamsOfEach(scenario.seed, plan.names)
                    return BatchedLearner(torch_learners, lenient=lenient, data=plan.tasks.data, streams=streams_of_each)
                together: ComputeBackend | None = plan.tasks[0].stacked(learners)
                if together is not None:
                    return together
            except ConfigurationError as error:
                self.notes.append(f"trained one by one: {error}")
        most = min(workers, len(learners))
        if most == 1:
            return SequentialLearner([*learners])
        samples = samples_of(plan.tasks).tolist()
        backend = ShardedBackend(scenario, [*learners], plan.names, samples, most=most, shards=shards)
        self.processes = backend.processes
        return backend

    @property
    def _ends(self) -> float:
        """Virtual seconds after which the run ends; inf is no limit."""
        return self.plan.scenario.end.seconds or inf

    def _note_early_nodes(self) -> None:
        """Add notes if nodes have done all of their rounds, or none, when the run reached the `end` of its scenario."""
        scenario = self.plan.scenario
        if scenario.end == End():
            return
        table, ended = self.recorder.rounds_table(), np.zeros(scenario.nodes)
        np.maximum.at(ended, table["node"], table["virtual_time"])
        early = sum(
            node.round >= scenario.rounds and not node.end_reached and last < self._ends * (1 - 1e-9)
            for node, last in zip(self.nodes.values(), ended.tolist(), strict=True)
        )
        if early:
            self.notes.append(
                f"{early} of {plural(len(self.nodes), 'node')} ended all {scenario.rounds} rounds before the `end`; more"
                " `rounds` let them go on"
            )
        if late := int((ended == 0).sum()):
            self.notes.append(
                f"{late} of {plural(len(self.nodes), 'node')} ended no round before the `end`: their initial models count as"
                " results, and no mean over all nodes exists by round, over time or for a target"
            )

    def _note_small_budgets(self) -> None:
        """Add a note for budgets that are too small for any model.

        A policy that fetches only models within the budget would then train alone without a message.
        """
        size, scenario = self.plan.encoder(0).expected_bytes("", 1), self.plan.scenario
        limits = scenario.budget.of_each(scenario.seed, self.plan.names)["bytes"]
        if small := int(((limits > 0) & (limits < size)).sum()):
            few = f"{small} of {len(limits)} nodes"
            self.notes.append(f"budget.bytes of {few} is less than the size of a model, {size} bytes")


class LearnersOfStack(Sequence[TorchLearner]):
    """Learners of tasks that are alike. Each is made when it is asked for: a stack computes almost nothing by them."""

    def __init__(self, tasks: TaskStack, seed: int, names: Sequence[str], device: str) -> None:
        self._tasks, self._seed, self._names, self._device = tasks, seed, names, device
        conduct = tasks.first.conduct
        if conduct.least > 1 or conduct.least_evaluated > 1:
            for name, task in zip(names, tasks, strict=True):
                assert isinstance(task, TorchProblem)
                check_sizes(task, name)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[k] for k in range(len(self))[index]]
        found = self._tasks[index].learner(RandomStreams(self._seed, self._names[index]), self._device)
        assert isinstance(found, TorchLearner)
        return found

    def __len__(self) -> int:
        return len(self._names)


def forge_for_victims(attack: AttackPlan, view: HonestView, exchanges: Sequence[Exchange]) -> None:
    """Make the attackers send each honest node the model that the attack forges for it."""

    def forge(victim: str, update: Update) -> Update:
        if victim in view.attackers:
            return update
        with np.errstate(over="ignore", invalid="ignore"):
            forged = attack.attack.forge_for(victim, update.params, view)
        return replace(update, model=as_accepted(forged, update.params))

    for k in attack.nodes:
        exchange = exchanges[k]
        assert isinstance(exchange, ModelledExchange)
        exchange.peer.forge = forge


def _loss(trainer: BatchedTrainer, params: Parameters) -> Future[np.ndarray]:
    """Request the loss of a model on a node's training data; the result is float [1]."""
    return trainer.submit(Loss([params], "train"))


def _of_sums(plan: PrivacyPlan | None) -> dict[str, Any]:
    """Return the arguments of an exchange whose noise adds up in secure sums; {} for any other one."""
    if plan is None or not plan.share:
        return {}
    return {"claim": claim_of(plan.privacy, share=plan.share), "plan": plan}


def _election(plan: RunPlan, loop: VirtualLoop, name: str) -> ElectionRunner:
    """Return a node's election runner: all nodes vote, and any node may be elected."""
    return ElectionRunner(
        name,
        Electorate(1, frozenset(plan.names), plan.names),
        MemoryVotes(),
        incarnation=1,
        seed=plan.scenario.seed,
        clock=loop.time,
        timing=timing_of(plan.tasks[0].layout.shared.size, plan.scenario.deadline),
    )
