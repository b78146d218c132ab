"""Nodes that elect a coordinator and submit to it on virtual time, and a malicious member among them."""

import asyncio
from contextlib import asynccontextmanager

import numpy as np

from p2pfl.compression.codecs import Float32
from p2pfl.node.coordination.election_runner import ElectionRunner, MemoryVotes
from p2pfl.node.coordination.secure_rounds import OpenedRounds, SecureSums
from p2pfl.node.coordination.submissions import Coordination
from p2pfl.node.exchange.base import Detached, ExchangeConfig
from p2pfl.node.exchange.message_exchange import MessageExchange, payload_limit
from p2pfl.node.exchange.model_encoding import ModelEncoder
from p2pfl.node.peering.peering_config import Member, PeeringConfig
from p2pfl.node.settings import Settings
from p2pfl.parameters import Layout
from p2pfl.policy import Submission
from p2pfl.protocols.election import LAST, Ballot, Electorate, Term
from p2pfl.protocols.identity import Identity
from p2pfl.protocols.transports.in_process import InProcessNetwork
from p2pfl.protocols.wire import messages as m
from p2pfl.protocols.wire.envelope import FrameSigner, FrameVerifier, Payload
from p2pfl.protocols.wire.payload import encode_submission
from tests.support.logs import log_to

SIZE = 4  # values of a model
LAYOUT = Layout((("weights", (SIZE,)),), SIZE)
HONEST = ("alice", "bob", "carol", "dave")
NAMES = (*HONEST, "mallory")
KEYS = {name: Identity.from_seed(name.encode().ljust(32, b".")) for name in NAMES}
FEDERATION = bytes(16)
AGREED = {"size": str(SIZE)}
SAMPLES = {name: 10 * (k + 1) for k, name in enumerate(NAMES)}
DEADLINE = 8.0


def own(name, round):
    """Return the trained model of a node in a round."""
    return np.full(SIZE, 10.0 * NAMES.index(name) + round, np.float32)


class Council:
    """
    Args:
        policy: coordinated.
        eligible: names of members that may coordinate.
        damaged: names of members that have lost their record of votes.
        secure: whether they submit to secure sums.
        opened: the secure sums that nodes have opened before, by name.
    """

    def __init__(self, policy, eligible=NAMES, damaged=(), secure=False, opened=None):
        self.secure, self.opened, self.lines = secure, opened or {}, []
        self.network = InProcessNetwork()
        self.electorate = Electorate(1, frozenset(NAMES), tuple(eligible))
        self.damaged = damaged
        self.nodes = {name: self.node(name, policy) for name in HONEST}
        self.assigned = {name: {} for name in HONEST}

    def node(self, name, policy):
        others = {other: Member(KEYS[other].public, (f"memory:{other}",)) for other in NAMES if other != name}
        votes = MemoryVotes()
        votes.ballot = Ballot(Term(1, LAST if name in self.damaged else 0))
        keys = {id: member.key for id, member in others.items()}
        config = ExchangeConfig(
            peering=PeeringConfig(
                name=name,
                key=KEYS[name].public,
                neighbours=others,
                transport=self.network.transport(name),
                signer=FrameSigner(KEYS[name], FEDERATION, LAYOUT.fingerprint, 1),
                verifier=FrameVerifier(keys, KEYS[name].public, FEDERATION, payload_limit(SIZE, True)),
                agreed=AGREED,
                public_info={"n_samples": SAMPLES[name]},
            ),
            settings=Settings(deadline=DEADLINE),
            n_samples=SAMPLES[name],
        )
        election = ElectionRunner(
            name, self.electorate, votes, incarnation=1, seed=0, clock=lambda: asyncio.get_running_loop().time()
        )
        encoder, coordination = ModelEncoder(Float32(), LAYOUT), Coordination(election, policy.step)
        self.opened[name] = self.opened.get(name) or OpenedRounds()
        sums = SecureSums(KEYS[name], FEDERATION, 0, self.opened[name], log=log_to(self.lines)) if self.secure else None
        exchange = MessageExchange(config, encoder, coordination=coordination, sums=sums)
        exchange.resume(0, own(name, 0))
        return exchange

    async def until(self, condition, seconds=60.0):
        """Wait in virtual time."""
        async with asyncio.timeout(seconds):
            while not condition():
                await asyncio.sleep(0.05)

    def leader(self):
        """Return the coordinator if all honest nodes see the same one, else None."""
        seen = {node.election.coordinator for node in self.nodes.values()}
        return seen.pop() if len(seen) == 1 else None

    @property
    def term(self):
        return self.nodes[self.leader()].election.term

    async def round(self, round, previous=None):
        """Let every honest node submit its trained model; keep its assignment, or None."""

        async def one(name, node):
            start = own(name, round - 1)
            submission = Submission(name, round, own(name, round), SAMPLES[name], previous=previous or {}, start=start)
            self.assigned[name][round] = await node.submit(submission)

        async with asyncio.TaskGroup() as tasks:
            for name, node in self.nodes.items():
                tasks.create_task(one(name, node))

    def rejected(self, cause):
        return sum(node.rejected[cause] for node in self.nodes.values())


class Cheat:
    """The member mallory, introduced to all nodes."""

    def __init__(self, council):
        self.council = council
        self.signer = FrameSigner(KEYS["mallory"], FEDERATION, LAYOUT.fingerprint, 1)
        self.transport = council.network.transport("mallory")
        self.links, self.heard = {}, []

    def received(self, link, frame):
        self.heard.append(bytes(frame))

    def drained(self, link): ...

    def lost(self, link, reason): ...

    def refused(self, cause, detail): ...

    async def introduce(self):
        await self.transport.listen(self)
        for name in HONEST:
            self.links[name] = await self.transport.dial(f"memory:{name}", KEYS[name].public)
            terms = m.HelloParameters(AGREED, {"n_samples": SAMPLES["mallory"]}, 0, False)
            self.send(name, m.Hello(), Payload.of(terms.encode()))

    def send(self, name, message, payload=Payload.of(b"")):  # noqa: B008
        frame = b"".join(bytes(part) for part in self.signer.seal(message, KEYS[name].public, payload))
        self.links[name].send([frame])
        return frame

    def tell_all(self, message, payload=Payload.of(b"")):  # noqa: B008
        for name in HONEST:
            self.send(name, message, payload)

    def submit(self, round=1, params=None, start=None, extras=None, previous=None, rest=None, **changes):
        """Submit to the coordinator."""
        leader, term = self.council.leader(), self.council.term
        fields = {"request": 1, "round": round, "membership_version": term.membership_version, "term": term.number}
        fields |= {"n_samples": SAMPLES["mallory"], "start": start is not None} | changes
        models = [
            np.asarray(x, "<f4").tobytes()
            for x in (own("mallory", round) if params is None else params, start)
            if x is not None
        ]
        after = encode_submission(extras or {}, previous or {}) if rest is None else rest
        return self.send(leader, m.Submit(**fields), Payload.of(*models, after))


@asynccontextmanager
async def council(policy, damaged=(), **options):
    """Run the nodes until they have elected a coordinator; an error in any of their tasks ends the test."""
    here = Council(policy, damaged=damaged, **options)
    async with asyncio.TaskGroup() as tasks:
        cheat = Cheat(here)
        await cheat.transport.listen(cheat)
        cheat.transport.network.unregister(cheat.transport)
        starting = [tasks.create_task(node.start(tasks, Detached())) for node in here.nodes.values()]
        await asyncio.sleep(0.01)
        await cheat.introduce()
        await asyncio.gather(*starting)
        await here.until(lambda: damaged or here.leader() is not None)
        yield here, cheat
        for node in here.nodes.values():
            await node.close()
