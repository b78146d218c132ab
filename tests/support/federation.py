"""Nodes that exchange real messages over a simulated network, on virtual time, with injected faults."""

import asyncio
from collections import Counter
from contextlib import suppress
from math import inf

from p2pfl.learning.batched_learner import SequentialLearner
from p2pfl.node.checkpoint import FileStore
from p2pfl.node.coordination.election_runner import ElectionRunner, FileVotes, MemoryVotes, electorate
from p2pfl.node.coordination.submissions import Coordination
from p2pfl.node.exchange.base import NeighbourRoles
from p2pfl.node.exchange.message_exchange import federation_id, message_exchange
from p2pfl.node.node import Node
from p2pfl.node.peering.peering_config import Member, PeeringOptions
from p2pfl.node.settings import Settings
from p2pfl.policies.random import Random
from p2pfl.policy import Coordinated, asks_scores, fetches_fragments
from p2pfl.protocols.identity import Identity
from p2pfl.protocols.membership.log import Member as MemberEntry
from p2pfl.protocols.transports.in_process import InProcessNetwork
from p2pfl.random_streams import RandomStreams
from p2pfl.sim.simulation.batching import BatchedTrainer, Batcher
from p2pfl.sim.simulation.clock import run
from p2pfl.task import Part, make_task
from tests.support.logs import log_to

LATENCY = 0.01


class Cable:
    """A network of constant latency in which nodes can be cut off: frames to and from them vanish silently.

    Attributes:
        cut: unreachable nodes.
        sides: side of a partition, by node; unnamed nodes share one side.
        one_way: pairs of a sender and a recipient that are cut in this direction only.
        frames: number of frames that each node has sent.
    """

    def __init__(self):
        self.cut = set()
        self.sides = {}
        self.one_way = set()
        self.frames = Counter()

    def arrival(self, source, target, size, now):
        self.frames[source] += 1
        apart = self.sides.get(source) != self.sides.get(target) or (source, target) in self.one_way
        return None if apart or {source, target} & self.cut else now + LATENCY


class Watch:
    """Record of a node's rounds.

    Attributes:
        weights: weights of the senders, by round.
        times: end of the round, by round.
    """

    def __init__(self):
        self.weights, self.times, self.metrics, self.result = {}, {}, {}, None
        self.elected_at = []
        self.skips, self.discards = [], []

    def restored(self, node): ...

    def discarded(self, id, round, reason, senders):
        self.discards.append((round, reason, senders))

    def skipped(self, node, finished, following):
        self.skips.append((finished, following))

    def published(self, id, round, stage, params): ...

    def received(self, id, round, updates): ...

    def received_fragments(self, id, round, fragments): ...

    def assigned(self, id, round, assignment): ...

    def elected(self, node, elected):
        self.elected_at.append((asyncio.get_running_loop().time(), elected))

    def merged(self, node, merge):
        self.weights[node.round] = dict(merge.weights)
        self.times[node.round] = asyncio.get_running_loop().time()

    def evaluated(self, node, round, stages):
        self.metrics[round] = stages

    def finished(self, node, result):
        self.result = result


class Federation:
    """A federation whose nodes can be started, killed and restarted separately.

    Args:
        edges: pairs of names that may exchange models; all pairs by default.
        folder: for checkpoints; without one nodes lose their state.
        task_options: options of the task, by name of a node.
        speeds: seconds that a node needs for a membership version; 1 by default.
        roles: of members, in a federation with a coordinator.
        on_fault: counts errors of the nodes; see PeeringOptions.
        period: seconds between probes; by default only suspected peers are probed.
        rest: the same at rest.
        proven: whether links have sessions and prove the keys of their ends.
        node_options: of p2pfl.node.node.Node.
    """

    def __init__(
        self,
        names,
        settings=None,
        *,
        edges=None,
        folder=None,
        policy=Random,
        speeds=None,
        task="concept-shift",
        task_options=None,
        period=inf,
        rest=0.0,
        roles=None,
        on_fault=None,
        proven=False,
        **node_options,
    ):
        self.names = sorted(names)
        self.settings = settings or Settings(rounds=5, deadline=10.0)
        self.cable = Cable()
        self.keys = {name: Identity.from_seed(RandomStreams(0, name).digest(0, "key")) for name in self.names}
        self.network = InProcessNetwork(self.cable, {name: key.public for name, key in self.keys.items()} if proven else {})
        self.edges = edges
        self.folder = folder
        self.policy = policy
        self.period, self.rest = period, rest
        self.roles = roles or {}
        self.on_fault = on_fault
        self.votes = {name: MemoryVotes() for name in self.names}
        self.said = {name: [] for name in self.names}
        self.node_options = node_options
        count = len(self.names)
        given = task_options or {}
        self.tasks = {name: make_task(task, given.get(name, {}), Part(k, count), 0) for k, name in enumerate(self.names)}
        learners = [task.learner(RandomStreams(self.settings.seed, name)) for name, task in self.tasks.items()]
        self.batcher = Batcher(SequentialLearner(learners), asyncio.get_running_loop())
        speeds = speeds or {}
        self.trainers = {name: BatchedTrainer(self.batcher, k, speeds.get(name, 1.0)) for k, name in enumerate(self.names)}
        self.watch = {name: Watch() for name in self.names}
        self.incarnations = dict.fromkeys(self.names, 0)
        self.starts = Counter()  # like the incarnations, but never set back with a folder
        self.stores = {}  # without a folder
        self.policies = {}
        self.nodes = {}
        self.running = {}

    def neighbours(self, name):
        if self.edges is None or self.coordinated:
            return [other for other in self.names if other != name]
        return [other for other in self.names if {(name, other), (other, name)} & set(self.edges)]

    @property
    def coordinated(self):
        return isinstance(self.policy(), Coordinated)

    def electorate(self, membership_version=1):
        roles = {name: self.roles.get(name, "participant") for name in self.names}
        return electorate(
            membership_version, [MemberEntry(name, self.keys[name].public, role) for name, role in roles.items()]
        )

    def ballots(self, name):
        """Return the storage of a node's ballot."""
        if not self.folder:
            return self.votes[name]
        own = self.folder / f"{name}.election"
        own.mkdir(exist_ok=True)
        return FileVotes(own / "vote", log_to(self.said[name]))

    def election(self, name):
        clock = asyncio.get_running_loop().time
        incarnation, seed = self.incarnations[name], self.settings.seed
        votes = self.ballots(name)
        return ElectionRunner(
            name, self.electorate(), votes, incarnation=incarnation, seed=seed, clock=clock, log=log_to(self.said[name])
        )

    def coordination(self, name, policy):
        return Coordination(self.election(name), policy.step)

    def exchange(self, name, task=None, agreed=None):
        """Return the exchange of a node for its next start."""
        self.incarnations[name] += 1
        self.starts[name] += 1
        self.policies[name] = policy = self.policy()
        return message_exchange(
            name,
            NeighbourRoles(
                members={other: Member(self.keys[other].public, (f"memory:{other}",)) for other in self.neighbours(name)},
                sparse=self.edges is not None,
                around=None if self.edges is None or self.coordinated else self.neighbours,
            ),
            identity=self.keys[name],
            transport=self.network.transport(name),
            incarnation=self.incarnations[name],
            generation=int(RandomStreams(0, name).generator(self.starts[name], "generation").integers(2**31)),
            federation=federation_id("test"),
            task=task or self.tasks[name],
            trainer=self.trainers[name],
            settings=self.settings,
            agreed=agreed or {},
            options=PeeringOptions(period=self.period, rest=self.rest, on_fault=self.on_fault),
            coordination=self.coordination(name, policy) if self.coordinated else None,
            scores=asks_scores(policy),
            fragments=fetches_fragments(policy),
        )

    def make(self, name, task=None, agreed=None, exchange=None, observer=None, resume_after=0):
        """Return a node, with the given exchange, and with the given observer instead of its watch."""
        exchange = exchange or self.exchange(name, task, agreed)
        store = FileStore(self.folder / name) if self.folder else self.stores.get(name)
        return Node(
            name,
            self.names,
            task=task or self.tasks[name],
            policy=self.policies[name],
            trainer=self.trainers[name],
            exchange=exchange,
            settings=self.settings,
            store=store,
            observers=[observer or self.watch[name]],
            resume_after=resume_after,
            **self.node_options,
        )

    def start(self, *names, **options):
        for name in names or self.names:
            self.nodes[name] = node = self.make(name, **options)
            self.running[name] = asyncio.create_task(node.run(node.exchange.others_done), name=name)

    async def kill(self, name):
        """End a node as in a power cut: it sends nothing more."""
        self.cable.cut.add(name)
        self.running[name].cancel()
        with suppress(asyncio.CancelledError):
            await self.running[name]
        self.cable.cut.discard(name)

    async def done(self, *names):
        for name in names or list(self.running):
            await self.running[name]

    async def round(self, name, number):
        """Wait until a node has finished a round."""
        while number not in self.watch[name].weights:
            if self.running[name].done():
                await self.running[name]
                raise AssertionError(f"{name} ended before round {number}")
            await asyncio.sleep(0.05)

    def partners(self, name, round):
        return set(self.watch[name].weights[round]) - {name}


def play(test, *args, **options):
    """Run `test(federation)` on virtual time; return the federation."""

    async def main():
        federation = Federation(*args, **options)
        async with asyncio.timeout(1000):  # virtual seconds
            await test(federation)
        return federation

    return run(main())
