"""One process of a node on a simulated machine: the parts of p2pfl.node.runtime, on its disk and its network."""

from __future__ import annotations

import asyncio
from asyncio import Future, TaskGroup
from collections.abc import Callable, Mapping
from math import inf
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from msgspec.structs import replace

from p2pfl.learner import Learner
from p2pfl.node.checkpoint import Checkpoint, FileStore
from p2pfl.node.coordination.election_runner import ElectionRunner, FileVotes, timing_of
from p2pfl.node.coordination.factory import Coordination
from p2pfl.node.federation import agreement
from p2pfl.node.federation.loading import LoadedNode
from p2pfl.node.federation.membership_file import MembershipFile, load_federation
from p2pfl.node.federation.membership_sync import MembershipSync
from p2pfl.node.federation.neighbourhood import Neighbourhood
from p2pfl.node.federation.revocation import check_member
from p2pfl.node.folder import config as folders
from p2pfl.node.folder.incarnation import count_start, last_published
from p2pfl.node.node import Node, Observer
from p2pfl.node.peering.guard import Guard
from p2pfl.node.peering.peering_config import PeeringOptions
from p2pfl.node.runtime.assembly import PROBING, member_exchange
from p2pfl.policy import Coordinated, asks_scores
from p2pfl.protocols.identity import Identity
from p2pfl.queries import Query, R
from p2pfl.random_streams import RandomStreams
from p2pfl.sim.chaos.disk import Mount
from p2pfl.sim.chaos.network import FaultyNetwork, Host
from p2pfl.sim.chaos.plan import ChaosPlan
from p2pfl.system.event_log import EventLogger

FOLDER = Path("node")  # of every node, on its own disk


class Watch(Observer, Protocol):
    """Observer of a process."""

    def loaded(self, checkpoint: Checkpoint | None) -> None:
        """Report the checkpoint with which the node starts."""

    def saving(self, checkpoint: Checkpoint) -> None:
        """Report that a checkpoint is about to be written."""

    def saved(self, checkpoint: Checkpoint) -> None:
        """Report that a checkpoint is on disk."""

    def fault(self, part: str, error: Exception) -> None:
        """Report an unexpected error in a part of the node."""


class Surroundings(NamedTuple):
    """Everything that a process takes from its machine.

    Attributes:
        number: number of the node.
        generation: random number of the process.
        clock: returns the seconds of the machine's clock that also counts while it sleeps.
        slowdown: returns the factor by which the machine is slower now.
    """

    number: int
    identity: Identity
    host: Host
    network: FaultyNetwork
    mount: Mount
    generation: int
    clock: Callable[[], float]
    slowdown: Callable[[], float]
    log: EventLogger


class SlowTrainer:
    """Trainer whose answers take virtual time; see p2pfl.node.trainer.Trainer.

    Args:
        seconds: returns the virtual seconds that a pass over the training data takes now.
    """

    def __init__(self, learner: Learner, seconds: Callable[[], float]) -> None:
        self._learner = learner
        self._seconds = seconds

    def submit(self, query: Query[R]) -> Future[R]:
        loop = asyncio.get_running_loop()
        future: Future[R] = loop.create_future()

        def answer() -> None:
            if not future.done():  # the process may have been killed
                future.set_result(self._learner.compute(query))

        loop.call_later(query.passes * self._seconds(), answer)
        return future

    def learner_state(self) -> Mapping[str, np.ndarray]:
        return {}

    def restore(self, kept: Mapping[str, np.ndarray]) -> None:
        """Do nothing: the learner keeps nothing."""


class WatchedStore:
    """Store of checkpoints that reports what is loaded and saved; see p2pfl.node.checkpoint.Store."""

    def __init__(self, store: FileStore, watch: Watch) -> None:
        self._store = store
        self._watch = watch

    @property
    def problem(self) -> str:
        return self._store.problem

    @property
    def round(self) -> int:
        return self._store.round

    def save(self, checkpoint: Checkpoint) -> None:
        self._watch.saving(checkpoint)
        self._store.save(checkpoint)
        if not self._store.problem:
            self._watch.saved(checkpoint)

    def load(self) -> Checkpoint | None:
        checkpoint = self._store.load()
        self._watch.loaded(checkpoint)
        return checkpoint


class Process:
    """A process of a node; its event loop must run.

    Attributes:
        node: the node.
        membership: the membership log as this process knows it.
        file: the log on disk.
        transport: its links.

    Raises:
        ConfigurationError: a file of the node cannot be read or written; or it is no longer a member (RevokedError).
    """

    def __init__(self, plan: ChaosPlan, around: Surroundings, watch: Watch) -> None:
        self._plan = plan
        self._around = around
        self._loop = asyncio.get_running_loop()
        membership = load_federation(FOLDER, around.mount)
        assert membership is not None
        self.membership = membership
        check_member(membership, around.identity.public, FOLDER)
        agreed = agreement.read(membership.file)
        config = replace(plan.configs[around.number], rounds=membership.rounds)
        self._ready = LoadedNode(FOLDER, config, membership, agreed)
        self.incarnation = count_start(FOLDER / folders.INCARNATION, around.log, around.mount)
        self.file = MembershipFile(FOLDER, disk=around.mount)
        self.node = self._node(watch)

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
        contacts = self._exchange.contacts
        await contacts.until(lambda: not contacts.final, inf)

    @property
    def votes(self) -> bool:
        """Return whether the node takes part in elections."""
        electing = self._exchange.electing
        return electing is not None and electing.election is not None

    def _node(self, watch: Watch) -> Node:
        plan, around, config = self._plan, self._around, self._ready.config
        task, policy = plan.tasks[around.number], plan.policy(around.number)
        learner = task.learner(RandomStreams(config.seed, config.name), config.device)
        trainer = SlowTrainer(learner, lambda: plan.seconds(around.number) * around.slowdown())
        guard = Guard(self.membership, self._loop.time)
        neighbourhood = Neighbourhood(self._ready, (), isinstance(policy, Coordinated))
        coordination = None
        if isinstance(policy, Coordinated):
            coordination = Coordination(self._electing(neighbourhood), policy.step)
        self.transport = around.network.transport(around.host, guard)
        self._exchange = exchange = member_exchange(
            self._ready,
            neighbourhood,
            transport=self.transport,
            options=PeeringOptions(access=guard, guard=guard, period=PROBING, on_fault=watch.fault, log=around.log),
            coordination=coordination,
            identity=around.identity,
            incarnation=self.incarnation,
            generation=around.generation,
            task=task,
            trainer=trainer,
            settings=config,
            initial=agreement.digest(task.layout.shared_of(plan.initial)),
            scores=asks_scores(policy),
        )
        self._members = MembershipSync(
            self._ready,
            around.identity.public,
            neighbourhood,
            exchange.contacts,
            exchange.electing,
            file=self.file,
            log=around.log,
        )
        return Node(
            config.name,
            list(self.membership.members),
            task=task,
            policy=policy,
            trainer=trainer,
            exchange=exchange,
            settings=config,
            store=WatchedStore(FileStore(FOLDER / folders.CHECKPOINT, around.log, around.mount), watch),
            observer=watch,
            budget=config.budget,
            lenient=True,
            initial=plan.initial,
            resume_after=last_published(FOLDER / folders.PUBLISHED, around.mount),
        )

    def _electing(self, neighbourhood: Neighbourhood) -> ElectionRunner:
        config, around = self._ready.config, self._around
        return ElectionRunner(
            config.name,
            neighbourhood.electorate(),
            FileVotes(FOLDER / folders.VOTE, around.log, around.mount),
            incarnation=self.incarnation,
            seed=config.seed,
            clock=around.clock,
            log=around.log,
            timing=timing_of(self._plan.tasks[0].layout.shared.size, config.deadline),
        )
