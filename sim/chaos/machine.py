"""One simulated machine, and the processes of its node: one after the other, on the same disk.

A process is made of the parts of p2pfl.node.runtime, with its disk, its links, its clock and its training replaced. It
begins as `p2pfl-node run` does: it reads its folder, checks that it is still a member, counts its start, and continues
from its checkpoint. A process ends in one of these ways:

- It is killed, by a crash or a power failure: its life ends, and whoever killed it decides when the machine starts a
  process again.
- Peers know later messages of its key (IncarnationConflictError), because its folder is older than they are: it takes
  new numbers and starts again at once, as the runtime does.
- It has been revoked (RevokedError): the machine stays without a process.
- The disk is full when it starts: it is tried again after a second, as by a supervisor.
- Any other error is a violation.

What a killed process still holds must have no effect: see `hardware` for its tasks and its disk, and
`FaultyTransport.crash` for its links.
"""

from __future__ import annotations

import asyncio
from asyncio import Future, Task, TaskGroup
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from math import inf
from pathlib import Path
from random import Random

import numpy as np
from msgspec.structs import replace

from p2pfl._util.event_log import EventLogger
from p2pfl.budget import Effort
from p2pfl.errors import ConfigurationError, first_error
from p2pfl.learner import Learner
from p2pfl.node.checkpoint import Checkpoint, FileStore
from p2pfl.node.coordination.election_runner import ElectionRunner, FileVotes, VoteSigner, timing_of
from p2pfl.node.coordination.submissions import Coordination
from p2pfl.node.federation import agreement, membership_file
from p2pfl.node.federation.loading import LoadedNode
from p2pfl.node.federation.membership_sync import MembershipSync, Neighbourhood
from p2pfl.node.folder import config as folders
from p2pfl.node.folder.config import NodeConfig
from p2pfl.node.folder.incarnation import count_start, last_published
from p2pfl.node.node import Node
from p2pfl.node.peering.control_messages import IncarnationConflictError
from p2pfl.node.peering.peering_config import DialLimits, Guard, PeeringOptions
from p2pfl.node.runtime.assembly import PROBING, member_exchange
from p2pfl.node.runtime.run import renumber
from p2pfl.node.settings import Settings
from p2pfl.policy import Coordinated, asks_scores, fetches_fragments
from p2pfl.protocols.identity import Identity
from p2pfl.protocols.membership.federation_file import Federation
from p2pfl.protocols.membership.log import Membership
from p2pfl.queries import Query, R
from p2pfl.random_streams import RandomStreams
from p2pfl.sim.chaos.hardware import LIFE, Life, MachineLoop, Mount, ProcessEnd, SimulatedDisk
from p2pfl.sim.chaos.invariants import Invariants, ProcessWatch
from p2pfl.sim.chaos.network import FaultyNetwork, Host
from p2pfl.sim.chaos.schedule import Fault, Kind
from p2pfl.sim.scenario.scenario import Scenario
from p2pfl.sim.simulation.plan import RunPlan, identity_of, names, plan

FOLDER = Path("node")  # of every node, on its own disk
RESTART = 1.0  # seconds after which a process that has failed is started again
FEWEST = 3  # nodes
WITH_NEWCOMER = 4  # nodes from which on the last one is a newcomer


# The federation that every run of a scenario starts from


@dataclass(frozen=True)
class ChaosPlan:
    """Values that every run of a scenario under faults starts from.

    Attributes:
        configs, keys: of each node.
        membership: the membership log at the start.
        newcomers: names of the nodes that are no members at the start.
        paces: virtual seconds that each node needs for a pass over its training data.
    """

    scenario: Scenario
    run: RunPlan
    configs: Sequence[NodeConfig]
    keys: Sequence[Identity]
    admission: Identity
    membership: Membership
    newcomers: tuple[str, ...]
    paces: Sequence[float]

    @property
    def names(self) -> tuple[str, ...]:
        return self.run.names

    @property
    def members(self) -> list[str]:
        """The names of the members at the start."""
        return list(self.membership.members)


def chaos_plan(scenario: Scenario) -> ChaosPlan:
    """Return the plan of runs of a scenario under faults.

    Raises:
        ConfigurationError: the scenario cannot run in this way, or asks for something that does not exist.
    """
    if scenario.nodes < FEWEST:
        raise ConfigurationError(f"run {scenario.name!r}: chaos needs at least {FEWEST} nodes, got {scenario.nodes}")
    if scenario.attack is not None:
        raise ConfigurationError(f"run {scenario.name!r}: chaos has faults but no attackers; leave out attack")
    run = plan(scenario)
    keys = [identity_of(scenario.seed, name) for name in run.names]
    admission = identity_of(scenario.seed, "admission")
    configs = [_config(scenario, k, name) for k, name in enumerate(run.names)]
    tables = agreement.draft("chaos", configs[0], run.tasks[0], _edges(run))
    membership = Membership(Federation.sign({**tables, "nonce": "0" * 32}, admission))
    newcomers = run.names[-1:] if scenario.nodes >= WITH_NEWCOMER else ()
    for name, key in zip(run.names, keys, strict=True):
        if name not in newcomers:
            membership.append(admission, "add", name, key.public)
    paces = [speed.pass_s for speed in run.speeds]
    return ChaosPlan(scenario, run, configs, keys, admission, membership, newcomers, paces)


def address(node: int) -> str:
    """Return the address of a node's machine."""
    return f"10.{node >> 16}.{node >> 8 & 255}.{node & 255}:4100"


def _config(scenario: Scenario, node: int, name: str) -> NodeConfig:
    settings = {key: getattr(scenario, key) for key in Settings.__struct_fields__}
    return NodeConfig(
        name=name,
        listen="127.0.0.1:0",
        part=f"{node}/{scenario.nodes}",
        task=scenario.task,
        policy=scenario.policy,
        budget=scenario.budget.of(scenario.seed, name, scenario.nodes),
        addresses={other: address(k) for k, other in enumerate(names(scenario.nodes)) if other != name},
        **settings,
    )


def _edges(run: RunPlan) -> agreement.Edges:
    """Return the pairs of nodes that may exchange models."""
    pairs = {tuple(sorted((name, other))) for k, name in enumerate(run.names) for other in run.topology.neighbours[k]}
    count = len(run.names)
    return "all" if len(pairs) == count * (count - 1) // 2 else tuple(sorted((a, b) for a, b in pairs))


# A process


class SlowTrainer:
    """Trainer whose answers take virtual time; see p2pfl.node.trainer.Trainer.

    Args:
        seconds: returns the virtual seconds that a pass over the training data takes now.
        begun: called when a training begins.
    """

    def __init__(self, learner: Learner, seconds: Callable[[], float], begun: Callable[[], None]) -> None:
        self._learner = learner
        self._seconds = seconds
        self._begun = begun
        self._used = 0.0

    def submit(self, query: Query[R]) -> Future[R]:
        loop = asyncio.get_running_loop()
        future: Future[R] = loop.create_future()

        def answer() -> None:
            if not future.done():  # the process may have been killed
                future.set_result(self._learner.compute(query))

        seconds = query.passes * self._seconds()
        if query.passes:
            self._begun()
        self._used += seconds
        loop.call_later(seconds, answer)
        return future

    def used(self) -> Effort:
        return Effort(self._used)

    def joules(self, samples: int) -> None:
        """Return nothing: a simulated machine has no device."""

    def learner_state(self) -> Mapping[str, np.ndarray]:
        return {}

    def restore(self, kept: Mapping[str, np.ndarray]) -> None:
        """Do nothing: the learner keeps nothing."""


class WatchedStore(FileStore):
    """Store of checkpoints that reports what is loaded and saved."""

    def __init__(self, machine: Machine, mount: Mount, watch: ProcessWatch) -> None:
        super().__init__(FOLDER / folders.CHECKPOINT, machine.log, mount)
        self._watch = watch

    def save(self, checkpoint: Checkpoint) -> None:
        self._watch.saving(checkpoint)
        super().save(checkpoint)
        if not self.problem:
            self._watch.saved(checkpoint)

    def load(self) -> Checkpoint | None:
        checkpoint = super().load()
        self._watch.loaded(checkpoint)
        return checkpoint


class Process:
    """A process of a node; its event loop must run.

    Args:
        host: the process in the network.
        mount: the disk of the machine, until the process is killed.

    Attributes:
        membership: the membership log as this process knows it.
        file: the log on disk.
        transport: its links.

    Raises:
        ConfigurationError: a file of the node cannot be read or written; or it is no longer a member (RevokedError).
    """

    def __init__(self, machine: Machine, host: Host, mount: Mount, watch: ProcessWatch) -> None:
        plan, number, log = machine.plan, machine.number, machine.log
        generation = machine.generations.getrandbits(31)
        membership = membership_file.load_federation(FOLDER, mount)
        assert membership is not None
        self.membership = membership
        identity = plan.keys[number]
        membership_file.check_member(membership, identity.public, FOLDER)
        config = replace(plan.configs[number], rounds=membership.rounds)
        ready = LoadedNode(FOLDER, config, membership, agreement.read(membership.file))
        self.incarnation = count_start(FOLDER / folders.INCARNATION, log, mount)
        self.file = membership_file.MembershipFile(FOLDER, disk=mount)
        task, policy = plan.run.tasks[number], plan.run.policy(number)
        learner = task.learner(RandomStreams(config.seed, config.name), config.device)
        trainer = SlowTrainer(learner, lambda: plan.paces[number] * machine.slowdown, watch.trained)
        guard = Guard(membership, machine.loop.time)
        neighbourhood = Neighbourhood(ready, (), isinstance(policy, Coordinated))
        coordination = None
        if isinstance(policy, Coordinated):
            election = ElectionRunner(
                config.name,
                neighbourhood.electorate(),
                FileVotes(FOLDER / folders.VOTE, log, mount),
                incarnation=self.incarnation,
                seed=config.seed,
                clock=machine.clock,
                log=log,
                timing=timing_of(plan.run.tasks[0].layout.shared.size, config.deadline),
                signer=VoteSigner(identity, membership.federation),
            )
            coordination = Coordination(election, policy.step)
        self.transport = machine.network.transport(host, guard)
        self._exchange = exchange = member_exchange(
            ready,
            neighbourhood,
            transport=self.transport,
            options=PeeringOptions(
                access=guard,
                guard=guard,
                period=PROBING,
                rest=config.probe_period,
                dialling=DialLimits(),
                on_fault=watch.fault,
                log=log,
            ),
            coordination=coordination,
            identity=identity,
            incarnation=self.incarnation,
            generation=generation,
            task=task,
            trainer=trainer,
            settings=config,
            initial=agreement.digest(task.layout.shared_of(plan.run.initial)),
            scores=asks_scores(policy),
            fragments=fetches_fragments(policy),
        )
        self._members = MembershipSync(
            ready, identity.public, neighbourhood, exchange.peering, exchange.election, file=self.file, log=log
        )
        self.node = Node(
            config.name,
            list(membership.members),
            task=task,
            policy=policy,
            trainer=trainer,
            exchange=exchange,
            settings=config,
            store=WatchedStore(machine, mount, watch),
            observers=[watch],
            budget=config.budget,
            lenient=True,
            initial=plan.run.initial,
            resume_after=last_published(FOLDER / folders.PUBLISHED, mount),
        )

    async def run(self) -> None:
        """Run until the process is killed.

        Raises:
            RevokedError: the membership of the node was revoked.
            IncarnationConflictError: peers know later messages of this node's key.
        """
        async with TaskGroup() as tasks:
            tasks.create_task(self._members.run(), name=f"{self.node.name}: membership")
            await self.node.run(self._serve)

    async def _serve(self) -> None:
        """Answer peers until the federation is extended."""
        peering = self._exchange.peering
        await peering.until(lambda: not peering.final, inf)

    @property
    def votes(self) -> bool:
        """Return whether the node takes part in elections."""
        election = self._exchange.election
        return election is not None and election.election is not None


# The machine


class Machine:
    """Disk, clock and network place of a node, which outlive its processes.

    Args:
        number: number of the node in the plan.
        seed: decides what a power failure leaves on the disk.
        log: receives the events of its node.

    Attributes:
        process: the running process; None while there is none.
        watch: observer of the last process.
        ended: whether the node has ended for good, because its membership was revoked.
        last_error: reason why the last process could not start.
        clock_offset: seconds by which the clock that runs while the machine sleeps is ahead.
        generations: source of the random number of each process.
    """

    def __init__(
        self,
        plan: ChaosPlan,
        number: int,
        *,
        loop: MachineLoop,
        network: FaultyNetwork,
        invariants: Invariants,
        seed: int,
        log: EventLogger,
    ) -> None:
        self.plan = plan
        self.number = number
        self.loop = loop
        self.network = network
        self.log = log
        self.name = plan.names[number]
        self.key = plan.keys[number].public
        self.process: Process | None = None
        self.watch: ProcessWatch | None = None
        self.ended = False
        self.last_error = ""
        self.clock_offset = 0.0
        self.disk = SimulatedDisk(Random(f"{seed} {self.name}"))
        self.disk.is_full = lambda: bool(self._faults_of("disk-full"))
        self._invariants = invariants
        self._memory = invariants.memories[self.name]
        self.generations = Random(f"{seed} {self.name} generation")
        self._life = Life(self.name)
        self._task: Task[None] | None = None
        self._backups: list[tuple[float, dict[Path, bytes]]] = []

    def clock(self) -> float:
        """Return the seconds of the clock that also runs while the machine sleeps."""
        return self.loop.time() + self.clock_offset

    @property
    def slowdown(self) -> float:
        """The factor by which the machine is slower now."""
        return max([1.0, *(fault.amount for fault in self._faults_of("slow"))])

    def _faults_of(self, kind: Kind) -> list[Fault]:
        return [fault for fault in self.network.faults if (fault.kind, fault.node) == (kind, self.name)]

    # The folder of the node

    def install(self, membership: Membership) -> None:
        """Make the node a member, as p2pfl-node join does."""
        membership_file.write_federation(FOLDER, membership.copy(), self._tools())

    def write_membership(self, membership: Membership) -> None:
        """Write new entries of the membership log to the folder, as p2pfl-node revoke does.

        Raises:
            OSError: the disk is full.
        """
        membership_file.MembershipFile(FOLDER, disk=self._tools()).save(membership.copy())

    def _tools(self) -> Mount:
        """Return the disk for the commands of an administrator."""
        return Mount(self.disk, Life(self.name))

    def back_up(self) -> None:
        """Keep a copy of the folder."""
        self._backups.append((self.loop.time(), self.disk.copy()))

    def restore(self, before: float) -> None:
        """Replace the folder by the last copy that was made before a time, or by the first one."""
        self.kill(silently=False)
        older = [files for at, files in self._backups if at <= before] or [self._backups[0][1]]
        self.disk.restore(older[-1])
        self._memory.forget(self.loop.time())

    # Processes

    def start(self) -> None:
        """Start the node, if it does not run."""
        if self._task is None and not self.ended and self.disk.names:
            self._life = life = Life(self.name)
            context = copy_context()
            context.run(LIFE.set, life)
            host = Host(self.name, address(self.number), self.key, context)
            self._task = self.loop.create_task(self._live(host, life), name=self.name, context=context)

    def kill(self, silently: bool) -> None:
        """End the process at once.

        Args:
            silently: the machine ends, too, so that no other machine learns of it.
        """
        self._life.end = self.loop.time()
        self._leave(silently)
        task, self._task = self._task, None
        if task is not None:
            self.log.info("killed")
            task.cancel()
        self.loop.thaw(self.name)

    def _leave(self, silently: bool) -> None:
        """Close the links of the process, and remember what it had on its disk."""
        process, self.process = self.process, None
        if process is not None:
            process.transport.crash(silently)
            self._memory.membership_version = max(self._memory.membership_version, process.file.membership_version)

    def lose_power(self) -> None:
        """End the machine: it loses what was not flushed."""
        self.kill(silently=True)
        self.disk.lose_power()

    def lose_power_on_write(self, changes: int, seconds: float) -> None:
        """End the machine during one of the next changes of its disk, and start it again after some seconds."""

        def fail() -> None:
            self.lose_power()
            self.loop.call_later(seconds, self.start)

        self.disk.fails_at = self.disk.operations + changes
        self.disk.on_failure = fail

    async def _live(self, host: Host, life: Life) -> None:
        """Run a process to its end."""
        mount = Mount(self.disk, life)
        watch = ProcessWatch(self._invariants, self.name, self.plan.configs[self.number].budget, self.log.info)
        error: BaseException | None = None
        try:
            process = Process(self, host, mount, watch)
            self.process, self.watch, self.last_error = process, watch, ""
            self._invariants.starts(self.name, process.membership)
            self.log.info(f"start {process.incarnation}")
            await process.run()
        except (asyncio.CancelledError, KeyboardInterrupt):
            raise
        except BaseException as failure:
            error = first_error(failure)
        if not (life.over or isinstance(error, ProcessEnd)):
            self._end(error, mount)
            life.end = self.loop.time()

    def _end(self, error: BaseException | None, mount: Mount) -> None:
        """Handle the end of a process that was not killed."""
        self.log.info(f"ends: {error}")
        self._leave(silently=False)
        self._task = None
        pause = RESTART
        try:
            match error:
                case IncarnationConflictError():
                    renumber(FOLDER, error.incarnation, self.log, mount, error.round)
                    pause = 0.0
                case membership_file.RevokedError():
                    self.ended = True
                case ConfigurationError() if self.disk.is_full():
                    pass
                case _:
                    self._invariants.fail("error", self.name, f"ended: {type(error).__name__}: {error}")
        except ConfigurationError as failure:
            error = failure
        self.last_error = str(error)
        self.loop.call_later(pause, self.start)
