"""Links through a broker that loses, repeats, reorders, alters, forges and reads packets, and through real brokers.

The modules of p2pfl.protocols.mqtt are tested here together.
"""

import asyncio
import gc
import os
import random
import socket
import ssl
import struct
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from unittest import mock

import pytest

from p2pfl.node.connectivity import MultiTransport
from p2pfl.protocols.errors import AddressError, ProtocolError, TransportError
from p2pfl.protocols.identity import Identity
from p2pfl.protocols.mqtt import connection
from p2pfl.protocols.mqtt import transport as mqtt
from p2pfl.protocols.mqtt.broker_client import BATCH, LEAST, WAITING, AiomqttBus, Message, describe_failure
from p2pfl.protocols.mqtt.link import HANDSHAKE, HANDSHAKE_PACKET, LINKS_PER_KEY, QUEUE, REQUEST, STRANGERS, make_packet
from p2pfl.protocols.mqtt.packets import FORMER_OPENING, RESET_PACKET
from p2pfl.protocols.mqtt.reliable_stream import CHUNK, DATA_HEADER, DATA_PACKET
from p2pfl.protocols.mqtt.transport import LARGEST, MqttTransport
from p2pfl.protocols.rate_limit import Shares
from p2pfl.sim.simulation.clock import run
from tests.support import brokers
from tests.support.brokers import PATIENCE
from tests.support.depth import spread
from tests.support.handshakes import dialler
from tests.support.loops import LOOPS, run_on
from tests.support.members import ALICE, BOB, CAROL, EVE, FEDERATION, KnownMembers

MAX = 3_000_000
GREETING = 1000
ROOT = f"p2pfl/{FEDERATION.hex()}"


@dataclass
class Handler:
    """Handler that records events, trusts every link by default, and can be awaited."""

    trusting: bool = True
    frames: list = field(default_factory=list)
    links: list = field(default_factory=list)
    lost_links: list = field(default_factory=list)
    drains: int = 0
    causes: list = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def received(self, link, frame):
        if self.trusting:
            link.trust()
        self.frames.append(bytes(frame))
        self.links.append(link)
        self.news.set()

    def drained(self, link):
        self.drains += 1

    def lost(self, link, reason):
        self.lost_links.append((link, reason))
        self.news.set()

    def refused(self, cause, detail):
        self.causes.append(cause)
        self.news.set()

    async def until(self, condition, seconds=60):
        async with asyncio.timeout(seconds):
            while not condition(self):
                self.news.clear()
                await self.news.wait()


@dataclass
class End:
    transport: MqttTransport
    handler: Handler
    access: KnownMembers
    problems: list
    found: list
    hinted: list


class DisturbedWorld:
    """Nodes at one in-memory broker."""

    def __init__(self):
        self.broker = brokers.MemoryBroker()
        self.ends = []

    async def node(self, identity, access=None, bus=None, trusting=True, max_frame=MAX, **options):
        access = access or KnownMembers(ALICE, BOB, CAROL)
        problems, found, hinted = [], [], []
        transport = MqttTransport(
            bus or self.broker.bus(),
            identity,
            access,
            max_frame,
            **{"greeting": GREETING} | options,
            found=lambda *what: found.append(what),
            hinted=hinted.append,
            on_problem=problems.append,
            uniform=random.Random(1).uniform,
        )
        end = End(transport, Handler(trusting), access, problems, found, hinted)
        await transport.listen(end.handler)
        self.ends.append(end)
        return end

    async def close(self):
        for end in self.ends:
            await end.transport.close()


def world(test):
    """Run a test on virtual time with a new world."""

    async def main():
        here = DisturbedWorld()
        try:
            await test(here)
        finally:
            await here.close()

    return lambda: run(main())


def opening(sender, access, key):
    """Return the first packet of a new link."""
    return dialler(sender, access, key, os.urandom(16))[1]


async def trusted_link(a, b, key=BOB.public):
    """Return both ends of a new trusted link from a to b."""
    link = await a.transport.dial("mqtt:", key)
    link.send([b"hello"])
    await b.handler.until(lambda handler: handler.frames)
    other = b.handler.links[-1]
    other.send([b"welcome"])
    await a.handler.until(lambda handler: handler.frames)
    a.handler.frames.clear()
    b.handler.frames.clear()
    return link, other


class FullBus(brokers.MemoryBus):
    """Bus whose broker reads a packet only when `read` is called, except those of handshakes and acknowledgements."""

    def __init__(self, broker):
        super().__init__(broker)
        self.waiting, self.full = [], False

    def publish(self, topic, content, retain=False, last=False):
        if content[0] == DATA_PACKET and self.full:
            self.waiting.append((topic, content))
            self.queued += QUEUE
        else:
            super().publish(topic, content, retain, last)

    def read(self):
        topic, content = self.waiting.pop(0)
        self.queued -= QUEUE
        super().publish(topic, content)
        self.listener.writable()
        return topic


# Contract of a link


@world
async def test_link_carries_frames_both_ways_in_order(here):
    a, b = await here.node(ALICE), await here.node(BOB)
    link, other = await trusted_link(a, b)
    sent = [bytes([k]) * (1 + 37 * k % 5000) for k in range(100)] + [random.Random(0).randbytes(MAX)]
    for frame in sent:
        link.send([frame[:1], memoryview(frame)[1:]])
        other.send([frame])
    await a.handler.until(lambda handler: len(handler.frames) == 101)
    await b.handler.until(lambda handler: len(handler.frames) == 101)
    assert a.handler.frames == b.handler.frames == sent
    assert link.session == other.session
    assert (link.key, other.key) == (BOB.public, ALICE.public)
    assert (link.dialled, other.dialled, link.direct) == (True, False, False)


@world
async def test_each_connection_to_the_broker_is_reported(here):
    connected = []
    a, b = await here.node(ALICE, on_connected=lambda: connected.append("a")), await here.node(BOB)
    await trusted_link(a, b)
    assert connected == ["a"]


@world
async def test_backlog_counts_unacknowledged_bytes_and_reports_drain(here):
    a, b = await here.node(ALICE), await here.node(BOB)
    link, _ = await trusted_link(a, b)
    for _ in range(3):
        link.send([bytes(MAX)])
    assert link.backlog == 3 * MAX
    await b.handler.until(lambda handler: len(handler.frames) == 3)
    await asyncio.sleep(1)
    assert link.backlog == 0
    assert a.handler.drains > 0


@world
async def test_links_take_turns_while_broker_has_no_room(here):
    bus = FullBus(here.broker)
    a, b, c = await here.node(ALICE, bus=bus), await here.node(BOB), await here.node(CAROL)
    links = [(await trusted_link(a, end, key))[0] for end, key in ((b, BOB.public), (c, CAROL.public))]
    bus.full = True
    for _ in range(3):
        for link in links:
            link.send([b"small"])
            link.send([bytes(CHUNK)])
    topics = []
    for _ in range(12):
        assert len(bus.waiting) == 1  # the rest waits in the links, which neither seal it nor repeat it
        await asyncio.sleep(0.3)
        topics.append(bus.read())
    bob, carol = a.transport.topics.inbox(BOB.public), a.transport.topics.inbox(CAROL.public)
    assert topics[:9] == [bob, *[bob, carol] * 4]  # the first one did not wait
    assert topics.count(bob) == topics.count(carol) == 6
    await b.handler.until(lambda handler: len(handler.frames) == 6)
    await c.handler.until(lambda handler: len(handler.frames) == 6)
    assert bus.waiting == []


@world
async def test_send_to_peer_that_does_not_read_fails(here):
    a, b = await here.node(ALICE), await here.node(BOB)
    link, _ = await trusted_link(a, b)
    with pytest.raises(TransportError, match="does not read its messages"):
        for _ in range(10):
            link.send([bytes(MAX)])


@world
async def test_closed_link_refuses_frames_and_informs_other_side(here):
    a, b = await here.node(ALICE), await here.node(BOB)
    link, other = await trusted_link(a, b)
    link.close()
    link.close()
    with pytest.raises(TransportError, match="closed"):
        link.send([b"x"])
    await b.handler.until(lambda handler: handler.lost_links)
    assert b.handler.lost_links == [(other, "closed by the other side")]
    await asyncio.sleep(20)
    assert a.handler.lost_links == []
    assert not a.handler.causes
    assert not b.handler.causes


@world
async def test_large_frame_on_untrusted_link_ends_it(here):
    a, b = await here.node(ALICE), await here.node(BOB, trusting=False)
    link = await a.transport.dial("mqtt:", BOB.public)
    link.send([bytes(GREETING)])
    await b.handler.until(lambda handler: handler.frames)
    link.send([bytes(GREETING + 1)])
    await b.handler.until(lambda handler: handler.lost_links)
    assert b.handler.lost_links[0][1] == f"too large: a frame of {GREETING + 1} bytes, at most {GREETING} are allowed"


@world
async def test_link_that_is_never_trusted_is_ended(here):
    a, b = await here.node(ALICE), await here.node(BOB, trusting=False)
    await a.transport.dial("mqtt:", BOB.public)
    await b.handler.until(lambda handler: handler.lost_links)
    await a.handler.until(lambda handler: handler.lost_links)
    assert b.handler.lost_links[0][1] == "was not introduced in time"
    assert not a.transport.links
    assert not b.transport.links
    assert not b.transport.strangers


# A hostile broker


@pytest.mark.parametrize("seed", range(8))
def test_link_delivers_frames_once_in_order_over_hostile_broker(seed):
    generator = random.Random(seed)
    past = []

    def fate(topic, content):
        past.append((topic, content))
        del past[:-200]
        events = [] if generator.random() < 0.15 else [(generator.uniform(0.001, 0.4), topic, content)]
        if generator.random() < 0.1:
            events += [(generator.uniform(0.001, 2), topic, content)]
        if generator.random() < 0.1:  # altered
            changed = bytearray(content)
            changed[generator.randrange(len(changed))] ^= 1 << generator.randrange(8)
            events += [(0.001, topic, bytes(changed))]
        if generator.random() < 0.1:  # replayed
            events += [(generator.uniform(0.001, 9), *generator.choice(past))]
        if generator.random() < 0.1:  # moved to another topic
            events += [(0.001, generator.choice(past)[0], content)]
        if generator.random() < 0.1:  # forged
            noise = bytes([generator.randrange(8)]) + content[1:17] + generator.randbytes(generator.randrange(200))
            events += [(0.001, topic, noise)]
        return events

    @world
    async def test(here):
        a, b = await here.node(ALICE), await here.node(BOB)
        here.broker.fate = fate
        while True:
            try:
                link = await a.transport.dial("mqtt:", BOB.public)
                break
            except TransportError:
                pass
        link.trust()
        link.send([b"hello"])
        await b.handler.until(lambda handler: handler.frames)
        other = b.handler.links[0]
        sent = [generator.randbytes(generator.choice([1, 500, CHUNK, 1_000_000])) for _ in range(10)]
        for frame in sent:
            link.send([frame])
            other.send([frame[::-1]])
        await b.handler.until(lambda handler: len(handler.frames) == 11, 3000)
        await a.handler.until(lambda handler: len(handler.frames) == 10, 3000)
        await asyncio.sleep(30)
        assert b.handler.frames == [b"hello", *sent]
        assert a.handler.frames == [frame[::-1] for frame in sent]
        assert {id(one) for one in b.handler.links} == {id(other)}

    test()


@world
async def test_broker_never_sees_plaintext(here):
    a, b = await here.node(ALICE), await here.node(BOB)
    link, other = await trusted_link(a, b)
    pattern = b"a pattern that is known" * 4
    link.send([pattern * 10_000])
    other.send([pattern])
    await b.handler.until(lambda handler: handler.frames)
    await a.handler.until(lambda handler: handler.frames)
    assert sum(len(content) for _, content in here.broker.seen) > len(pattern) * 10_000
    for _, content in here.broker.seen:
        assert pattern[:12] not in content
        assert b"welcome" not in content


@world
async def test_recorded_packets_are_refused_also_after_restart(here):
    a, b = await here.node(ALICE), await here.node(BOB)
    link, _ = await trusted_link(a, b)
    link.send([b"once"])
    await b.handler.until(lambda handler: handler.frames)
    inbox = a.transport.topics.inbox(BOB.public)
    recorded = [content for topic, content in here.broker.seen if topic == inbox]
    for content in recorded:  # while the link is open
        here.broker.deliver(inbox, content)
    await asyncio.sleep(20)
    assert b.handler.frames == [b"once"]
    assert b.transport.links.keys() == a.transport.links.keys()
    link.close()
    await asyncio.sleep(20)
    b.handler.causes.clear()
    for content in recorded:  # after the link is closed
        here.broker.deliver(inbox, content)
    await asyncio.sleep(20)
    assert b.handler.frames == [b"once"]
    assert b.handler.causes == []  # they may be late
    await b.transport.close()
    again = await here.node(BOB)
    await asyncio.sleep(1)
    for content in recorded[::-1]:
        here.broker.deliver(inbox, content)
    await asyncio.sleep(20)
    assert again.handler.frames == []
    assert set(again.handler.causes) == {"unknown session"}  # alice has closed the link that the first one begins
    assert not again.transport.links


@world
async def test_packets_on_topic_of_another_member_are_refused(here):
    a, b, c = await here.node(ALICE), await here.node(BOB), await here.node(CAROL)
    await trusted_link(a, b)
    inbox = a.transport.topics.inbox(BOB.public)
    for topic, content in list(here.broker.seen):
        if topic == inbox:
            here.broker.deliver(c.transport.topics.inbox(BOB.public), content)
    await asyncio.sleep(20)
    assert set(b.handler.causes) == {"other sender"}
    assert len(b.transport.links) == 1


@world
async def test_packets_too_large_or_on_unknown_topic_are_ignored(here):
    b = await here.node(BOB)
    await asyncio.sleep(1)
    own = BOB.public.hex()
    for topic in (f"{ROOT}/{own}/zz", f"{ROOT}/{own}/{'é' * 64}", f"{ROOT}/{own}/00", "p2pfl/x/y/z", f"{ROOT}/{own}", "x"):
        b.transport.came(topic, b"\3" * 100)
    b.transport.came(f"{ROOT}/{own}/{ALICE.public.hex()}", bytes(mqtt.LARGEST + 1))
    b.transport.came(f"{ROOT}/{own}/{ALICE.public.hex()}", b"")
    assert b.handler.causes == []


# Refusals and limits


@world
async def test_stranger_is_refused_with_reason(here):
    await here.node(BOB)
    eve = await here.node(EVE)
    with pytest.raises(TransportError, match=r"refuses this node: stranger: .* is not a member \(membership version 1\)"):
        await eve.transport.dial("mqtt:", BOB.public)
    assert here.ends[0].handler.causes == ["stranger"]


@world
async def test_revoked_member_is_refused(here):
    bob = await here.node(BOB)
    alice = await here.node(ALICE)
    bob.access.revoke(ALICE.public)
    with pytest.raises(TransportError, match="revoked"):
        await alice.transport.dial("mqtt:", BOB.public)
    assert set(bob.handler.causes) == {"revoked"}


@world
async def test_new_member_introduces_itself_with_its_entry(here):
    bob = await here.node(BOB, KnownMembers(ALICE, BOB, membership_version=2))
    carol = await here.node(CAROL, KnownMembers(ALICE, BOB, CAROL, membership_version=3))
    await trusted_link(carol, bob)
    assert bob.access.refusal(CAROL.public) == ""


@world
async def test_members_of_different_federations_do_not_connect(here):
    bob = await here.node(BOB)
    alice = await here.node(ALICE, KnownMembers(ALICE, BOB, federation=bytes(16)))
    with pytest.raises(TransportError, match="is not present at the broker at memory:1883"):
        await alice.transport.dial("mqtt:", BOB.public)
    assert bob.handler.causes == []


@world
async def test_broker_cannot_connect_dialler_with_another_member(here):
    bob, alice = await here.node(BOB), await here.node(ALICE)
    meant, answered = alice.transport.topics.inbox(CAROL.public), bob.transport.topics.inbox(ALICE.public)
    elsewhere = {
        meant: alice.transport.topics.inbox(BOB.public),
        answered: f"{ROOT}/{ALICE.public.hex()}/{CAROL.public.hex()}",
    }
    here.broker.fate = lambda topic, content: [(0.001, elsewhere.get(topic, topic), content)]
    with pytest.raises(TransportError, match="wrong key"):
        await alice.transport.dial("mqtt:", CAROL.public)
    assert alice.handler.causes == ["wrong key"]
    await asyncio.sleep(1)
    assert bob.handler.causes == []  # alice has told him that she gave up
    assert not bob.transport.links


@world
async def test_dialler_that_gives_up_ends_the_half_open_link_of_the_listener(here):
    alice, bob = await here.node(ALICE), await here.node(BOB)
    await asyncio.sleep(1)
    here.broker.allowed = lambda topic: topic != bob.transport.topics.inbox(ALICE.public)
    dialling = asyncio.create_task(alice.transport.dial("mqtt:", BOB.public))
    await asyncio.sleep(1)
    (link,) = bob.transport.links.values()
    dialling.cancel()
    await asyncio.sleep(1)
    assert not bob.transport.links
    here.broker.deliver(alice.transport.topics.inbox(BOB.public), opening_of(here, alice, BOB.public))  # repeated, late
    assert not bob.transport.links
    link.fail("is closed already")
    assert bob.handler.causes == []


def opening_of(here, end, key):
    """Return the first packet of the handshake that a node has begun with the owner of `key`."""
    inbox = end.transport.topics.inbox(key)
    return next(content for topic, content in here.broker.seen if topic == inbox and content[0] == HANDSHAKE_PACKET)


@world
async def test_packets_of_ended_link_get_few_answers_and_are_not_refused(here):
    a, b = await here.node(ALICE), await here.node(BOB)
    link, other = await trusted_link(a, b)
    here.broker.allowed = lambda topic: False  # bob does not learn of the end
    link.close()
    here.broker.allowed = lambda topic: True
    before = len(here.broker.seen)
    for _ in range(100):
        other.send([b"frame"])
    await asyncio.sleep(0.5)
    inbox = a.transport.topics.inbox(BOB.public)
    assert sum(topic == inbox for topic, _ in here.broker.seen[before:]) == LINKS_PER_KEY
    await b.handler.until(lambda handler: handler.lost_links)
    assert b.handler.lost_links == [(other, "no longer knows this link")]
    sent = len(here.broker.seen)
    await asyncio.sleep(19)  # until the next packets of a node to itself
    assert len(here.broker.seen) - sent <= 4
    assert a.handler.causes == []


@world
async def test_damaged_handshake_does_not_stop_dial(here):
    await here.node(BOB)
    alice = await here.node(ALICE)

    def fate(topic, content):
        events = [(0.1, topic, content)]
        if content[0] == HANDSHAKE_PACKET and topic.startswith(f"{ROOT}/{ALICE.public.hex()}"):
            events.append((0.01, topic, content[:50] + bytes([content[50] ^ 1]) + content[51:]))
        return events

    here.broker.fate = fate
    assert await alice.transport.dial("mqtt:", BOB.public)
    assert alice.handler.causes == ["wrong seal"] * 3


@world
async def test_member_of_former_version_is_named_in_one_line(here):
    a = await here.node(ALICE)
    await asyncio.sleep(1)
    here.broker.deliver(f"{ROOT}/{ALICE.public.hex()}/{BOB.public.hex()}", bytes([FORMER_OPENING]) + bytes(300))
    assert a.handler.causes == ["version"]
    with pytest.raises(TransportError, match=r"version: .* opens links through the broker in version 1.*: update both"):
        await a.transport.dial("mqtt:", BOB.public)
    await here.node(BOB)
    await trusted_link(a, here.ends[1])


@world
async def test_joining_node_is_admitted_if_inviting_and_limited(here):
    bob = await here.node(BOB, KnownMembers(ALICE, BOB, invites=True), trusting=False)
    eve = await here.node(EVE, trusting=False)
    link = await eve.transport.dial("mqtt:", BOB.public, joining=True)
    link.send([bytes(REQUEST)])
    await bob.handler.until(lambda handler: handler.frames)
    other = bob.handler.links[0]
    assert other.joining
    other.send([bytes(MAX)])
    await eve.handler.until(lambda handler: handler.frames)
    link.send([bytes(REQUEST + 1)])
    await bob.handler.until(lambda handler: handler.lost_links)
    bob.access.invites = False
    with pytest.raises(TransportError, match="not inviting"):
        await eve.transport.dial("mqtt:", BOB.public, joining=True)


@world
async def test_half_open_links_are_limited_in_number_and_time(here):
    bob = await here.node(BOB, KnownMembers(BOB, *(Identity.from_seed(bytes([9, k]) * 16) for k in range(100))))
    await asyncio.sleep(1)
    for k in range(100):
        other = Identity.from_seed(bytes([9, k]) * 16)
        packet = opening(other, bob.access, BOB.public)
        here.broker.deliver(f"{ROOT}/{BOB.public.hex()}/{other.public.hex()}", packet)
        assert len(bob.transport.links) <= STRANGERS
    assert len(bob.transport.links) == STRANGERS
    await asyncio.sleep(HANDSHAKE + 1)
    assert not bob.transport.links
    assert set(bob.handler.causes) == {"not confirmed"}


@world
async def test_member_that_dials_too_often_is_refused(here):
    alice, bob, carol = [await here.node(who) for who in (ALICE, BOB, CAROL)]
    for _ in range(10):
        (await alice.transport.dial("mqtt:", BOB.public)).close()
    with pytest.raises(TransportError, match="refuses this node: too often"):
        await alice.transport.dial("mqtt:", BOB.public)
    assert bob.handler.causes == ["too often"]
    await trusted_link(carol, bob)


@world
async def test_flood_of_strangers_does_not_block_members(here):
    bob = await here.node(BOB)
    await asyncio.sleep(1)
    for k in range(200):
        stranger = Identity.from_seed(bytes([7, k]) * 16)
        here.broker.deliver(f"{ROOT}/{BOB.public.hex()}/{stranger.public.hex()}", opening(stranger, bob.access, BOB.public))
    assert (len(bob.transport.links), bob.handler.causes.count("too often")) == (20, 180)
    carol = await here.node(CAROL)
    await trusted_link(carol, bob)


def forged(sender, access, key, kind):
    """Return a first packet that claims to be from a member."""
    if kind == "noise":
        return bytes([HANDSHAKE_PACKET]) + os.urandom(80)
    if kind == "nonsense":
        return make_packet(os.urandom(16), 0, b"\x16\x03\x01\x02\x00\x01" + os.urandom(512))
    return opening(sender, access, key)


@pytest.mark.slow
@pytest.mark.parametrize("kind", spread(["nonsense", "noise", "without end"], 3))
def test_flood_of_forged_packets_does_not_block_members(kind):
    async def test(here):
        a, b = await here.node(ALICE), await here.node(BOB)

        async def flood():
            while True:
                for sender, end, key in ((ALICE, a, BOB.public), (BOB, b, ALICE.public)):
                    packet = forged(sender, end.access, key, kind)
                    here.broker.deliver(f"{ROOT}/{key.hex()}/{sender.public.hex()}", packet)
                await asyncio.sleep(1 / 70)

        flooding = asyncio.create_task(flood())
        await asyncio.sleep(10)
        for _ in range(5):
            link = await a.transport.dial("mqtt:", BOB.public)
            link.close()
            await asyncio.sleep(1)
        flooding.cancel()
        assert len(b.handler.causes) > 5 * 70

    world(test)()


@world
async def test_replayed_openings_do_not_count_against_member(here):
    a, b = await here.node(ALICE), await here.node(BOB)
    recorded = opening(ALICE, a.access, BOB.public)
    for _ in range(30):
        for _ in range(20):
            here.broker.deliver(f"{ROOT}/{BOB.public.hex()}/{ALICE.public.hex()}", recorded)
        await asyncio.sleep(1)
    await trusted_link(a, b)
    assert "too often" not in b.handler.causes


@world
async def test_forged_presences_do_not_hide_true_one(here):
    bob = await here.node(BOB)
    await asyncio.sleep(1)
    for _ in range(40):
        here.broker.deliver(f"{ROOT}/presence/{ALICE.public.hex()}", os.urandom(80))
    await here.node(ALICE, addresses=lambda: ["tcp://192.0.2.1:4100"])
    await asyncio.sleep(1)
    assert (ALICE.public, "tcp://192.0.2.1:4100") in bob.found


def test_shares_leave_part_of_rate_for_each_sender():
    shares = Shares(100)
    assert sum(shares.take(b"a", 0.5) for _ in range(1000)) == 100  # no other sender asks
    assert not shares.take(b"b", 0.9)
    for second in range(1, 9):
        assert sum(shares.take(b"a", second + 0.1) for _ in range(1000)) == 50
        assert sum(shares.take(b"b", second + 0.9) for _ in range(1000)) == 50
    given = [sum(shares.take(bytes([who]), 10.5) for _ in range(20)) for who in range(200)]
    assert sum(given) == 100
    assert max(given) <= 20


@world
async def test_links_per_member_are_limited(here):
    a, b = await here.node(ALICE), await here.node(BOB)
    for _ in range(LINKS_PER_KEY + 3):
        link = await a.transport.dial("mqtt:", BOB.public)
        link.send([b"hello"])
        await asyncio.sleep(1)
    assert len(b.transport.links) == LINKS_PER_KEY
    assert a.transport.links.keys() == b.transport.links.keys()
    assert link.stream.id in b.transport.links


@world
async def test_incomplete_frames_of_member_are_limited_over_all_links(here):
    a, b = await here.node(ALICE), await here.node(BOB)
    for _ in range(4):
        link, _ = await trusted_link(a, b)
        here.broker.fate = first_chunks_of_large_frames
        link.send([bytes(MAX)])
        await asyncio.sleep(1)
        here.broker.fate = lambda topic, content: [(0.001, topic, content)] if len(content) < CHUNK else []
    assert [each.incomplete for each in b.transport.links.values()] == [MAX, MAX]
    reasons = {reason for _, reason in b.handler.lost_links}
    assert reasons == {"closed to make room for a frame over another connection"}


def first_chunks_of_large_frames(topic, content):
    """Deliver all packets, but only the first chunk of a large frame."""
    large = content[0] == DATA_PACKET and len(content) > CHUNK
    return [] if large and DATA_HEADER.unpack_from(content)[4] else [(0.001, topic, content)]


@world
async def test_expel_closes_only_links_of_that_key(here):
    a, b, c = await here.node(ALICE), await here.node(BOB), await here.node(CAROL)
    for other in (a, a, c):
        (await other.transport.dial("mqtt:", BOB.public)).send([b"hello"])
    await asyncio.sleep(1)
    MultiTransport({"mqtt": b.transport}).expel(ALICE.public)
    await asyncio.sleep(1)
    assert [link.key for link in b.transport.links.values()] == [CAROL.public]
    assert not a.transport.links


# Outages and broken brokers


@world
async def test_link_survives_broker_outage_of_minutes(here):
    a, b = await here.node(ALICE), await here.node(BOB)
    link, other = await trusted_link(a, b)
    frame = random.Random(0).randbytes(MAX)
    link.send([frame])
    await asyncio.sleep(0.0025)
    here.broker.go_away()
    other.send([b"meanwhile"])
    await asyncio.sleep(300)
    assert a.handler.frames == b.handler.frames == []
    assert "does not answer" in a.transport.problem
    here.broker.up = True
    await b.handler.until(lambda handler: handler.frames)
    await a.handler.until(lambda handler: handler.frames)
    assert (b.handler.frames, a.handler.frames) == ([frame], [b"meanwhile"])
    assert a.handler.lost_links == b.handler.lost_links == []
    assert a.transport.problem == ""
    assert len(a.problems) == 2


@world
async def test_handshake_survives_broker_outage_of_seconds(here):
    a, b = await here.node(ALICE), await here.node(BOB)
    await asyncio.sleep(1)
    dialling = asyncio.create_task(a.transport.dial("mqtt:", BOB.public))
    await asyncio.sleep(0.0025)
    here.broker.go_away()
    await asyncio.sleep(0.2)
    here.broker.up = True
    link = await dialling
    assert b.transport.links.keys() == {link.id}
    assert b.handler.causes == []


@world
async def test_absent_broker_is_dialled_rarely(here):
    here.broker.up = False
    await here.node(ALICE)
    await asyncio.sleep(600)
    assert max(count for minute, count in here.broker.attempts.items() if minute > 0) <= 16


@world
async def test_broker_that_drops_connections_is_dialled_rarely(here):
    a = await here.node(ALICE)
    for _ in range(600):
        await asyncio.sleep(1)
        for bus in list(here.broker.connections):
            here.broker.drop(bus)
    assert max(count for minute, count in here.broker.attempts.items() if minute > 0) <= 16
    assert "repeatedly" in a.transport.problem
    await asyncio.sleep(60)
    assert a.transport.problem == ""


@world
async def test_link_to_peer_that_reads_nothing_is_closed(here):
    a, b = await here.node(ALICE), await here.node(BOB)
    link, _ = await trusted_link(a, b)
    inbox = b.transport.topics.inbox(ALICE.public)
    here.broker.allowed = lambda topic: topic != inbox
    link.send([b"never acknowledged"])
    await a.handler.until(lambda handler: handler.lost_links)
    assert a.handler.lost_links == [(link, "does not read its messages")]


@world
async def test_send_to_restarted_peer_ends_link(here):
    a, b = await here.node(ALICE), await here.node(BOB)
    link, _ = await trusted_link(a, b)
    inbox = b.transport.topics.inbox(ALICE.public)
    here.broker.allowed = lambda topic: topic != inbox  # so that it ends without notice
    await b.transport.close()
    here.broker.allowed = lambda topic: True
    await here.node(BOB)
    await asyncio.sleep(1)
    link.send([b"are you there?"])
    await a.handler.until(lambda handler: handler.lost_links, seconds=10)
    assert a.handler.lost_links == [(link, "no longer knows this link")]


@world
async def test_forged_reset_by_broker_ends_no_link(here):
    a, b = await here.node(ALICE), await here.node(BOB)
    link, other = await trusted_link(a, b)
    for _ in range(50):
        here.broker.deliver(b.transport.topics.inbox(ALICE.public), bytes([RESET_PACKET]) + link.stream.id)
        await asyncio.sleep(1)
    other.send([b"still there"])
    await a.handler.until(lambda handler: handler.frames)
    assert a.handler.lost_links == []


@world
async def test_dial_error_names_missing_broker_peer_or_rights(here):
    a = await here.node(ALICE)
    with pytest.raises(TransportError, match="is not present at the broker at memory:1883"):
        await a.transport.dial("mqtt:", BOB.public)
    b = await here.node(BOB)
    await asyncio.sleep(1)
    inbox = a.transport.topics.inbox(BOB.public)
    here.broker.allowed = lambda topic: topic != inbox
    with pytest.raises(TransportError, match=f"is present at .* check the access rules for publishing to {inbox}"):
        await a.transport.dial("mqtt:", BOB.public)
    here.broker.go_away()
    await asyncio.sleep(1)
    with pytest.raises(TransportError, match="the broker at memory:1883 does not answer: connection refused"):
        await b.transport.dial("mqtt:", ALICE.public)


@world
async def test_broker_that_denies_publishing_is_reported_in_time(here):
    a = await here.node(ALICE)
    await asyncio.sleep(100)
    assert a.problems == []
    here.broker.allowed = lambda topic: False
    await asyncio.sleep(30)
    own = ALICE.public.hex()
    assert a.problems == [
        f"the broker at memory:1883 does not deliver to topic {ROOT}/{own}/{own};"
        " check its access rules for publishing and subscribing"
    ]
    with pytest.raises(TransportError, match="does not deliver to topic"):
        await a.transport.dial("mqtt:", BOB.public)
    here.broker.allowed = lambda topic: True
    await asyncio.sleep(21)
    assert a.problems[1:] == [""]


@world
async def test_broker_that_delivers_only_to_sender_is_reported(here):
    own, other = ALICE.public.hex(), BOB.public.hex()
    here.broker.allowed = lambda topic: topic == f"{ROOT}/{own}/{own}"
    a = await here.node(ALICE)
    await asyncio.sleep(30)
    assert a.problems == [
        f"the broker at memory:1883 does not deliver to topic {ROOT}/presence/{own};"
        " check its access rules for publishing and subscribing"
    ]
    here.broker.allowed = lambda topic: (
        topic.startswith(f"{ROOT}/presence/")
        or topic
        in (
            f"{ROOT}/{own}/{own}",
            f"{ROOT}/{other}/{other}",
        )
    )
    await here.node(BOB)
    await asyncio.sleep(30)
    assert a.problems[1:] == [""]
    with pytest.raises(TransportError) as caught:
        await a.transport.dial("mqtt:", BOB.public)
    assert "is present at the broker at memory:1883, but does not answer" in str(caught.value)
    assert a.transport.problem == str(caught.value)
    await asyncio.sleep(60)
    assert a.transport.problem == str(caught.value)
    here.broker.allowed = lambda topic: True
    await a.transport.dial("mqtt:", BOB.public)
    assert a.transport.problem == ""


@world
async def test_broker_that_drops_large_packets_is_named(here):
    here.broker.fate = lambda topic, content: [(0.001, topic, content)] if len(content) <= 1000 else []
    a = await here.node(ALICE)
    await here.node(BOB)
    await asyncio.sleep(1)
    assert a.problems == [
        "the broker at memory:1883 drops packets of 255 KiB, which nodes use: it passes 256 bytes, and drops 1 KiB or more;"
        " raise message_size_limit and max_packet_size of the broker to 307200 bytes"
    ]
    here.broker.fate = lambda topic, content: []
    with pytest.raises(TransportError, match="is announced at the broker, but its messages do not arrive"):
        await a.transport.dial("mqtt:", BOB.public)
    here.broker.fate = lambda topic, content: [(0.001, topic, content)]
    await asyncio.sleep(100)
    assert a.problems[1:] == [""]


@world
async def test_broker_that_passes_a_few_bytes_has_no_wrong_rules(here):
    here.broker.fate = lambda topic, content: [(0.001, topic, content)] if len(content) <= 100 else []
    a = await here.node(ALICE)
    await asyncio.sleep(30)
    (problem,) = a.problems
    assert "it passes a few bytes, and drops 256 bytes or more" in problem


@world
async def test_slow_broker_is_not_taken_for_one_that_drops(here):
    here.broker.fate = lambda topic, content: [(9.0, topic, content)]
    a = await here.node(ALICE)
    await asyncio.sleep(300)
    assert a.problems == []


@world
async def test_size_in_use_is_sent_once_to_working_broker(here):
    a = await here.node(ALICE)
    await asyncio.sleep(3600)
    here.broker.drop(here.broker.connections[0])
    await asyncio.sleep(60)
    sizes = [len(content) for topic, content in here.broker.seen if topic == a.transport.topics.echo]
    assert sum(size > 1000 for size in sizes) == 2


@world
async def test_broker_is_not_blamed_for_absent_member(here):
    a, b = await here.node(ALICE), await here.node(BOB)
    await asyncio.sleep(1)
    here.broker.allowed = lambda topic: topic != a.transport.topics.inbox(BOB.public)
    here.broker.publish(f"{ROOT}/will/{BOB.public.hex()}", b"gone")
    with pytest.raises(TransportError, match="is not present"):
        await a.transport.dial("mqtt:", BOB.public)
    assert a.problems == []
    b.transport.announce()
    with pytest.raises(TransportError, match="is present"):
        await a.transport.dial("mqtt:", BOB.public)
    assert len(a.problems) == 1


# Presence


@world
async def test_presence_lets_members_find_each_other(here):
    await here.node(ALICE, addresses=lambda: ("tcp://192.168.1.5:4100", "nonsense"))
    await asyncio.sleep(1)
    b = await here.node(BOB)
    await asyncio.sleep(1)
    assert b.found == [(ALICE.public, "tcp://192.168.1.5:4100"), (ALICE.public, "mqtt:")]
    assert b.hinted == []


@world
async def test_leaving_and_will_are_reported_as_hints(here):
    a, b = await here.node(ALICE), await here.node(BOB)
    await asyncio.sleep(1)
    here.broker.drop(here.broker.connections[0])
    await asyncio.sleep(0.1)
    assert b.hinted == [ALICE.public]
    await asyncio.sleep(5)
    await a.transport.close()
    await asyncio.sleep(1)
    assert b.hinted == [ALICE.public] * 2
    with pytest.raises(TransportError, match="is not present"):
        await b.transport.dial("mqtt:", ALICE.public)


@world
async def test_flood_of_wills_gives_few_hints(here):
    b = await here.node(BOB)
    await asyncio.sleep(1)
    for _ in range(1000):
        here.broker.deliver(f"{ROOT}/will/{ALICE.public.hex()}", b"gone")
        here.broker.deliver(f"{ROOT}/will/{EVE.public.hex()}", b"gone")
    assert b.hinted == [ALICE.public] * 3


@world
async def test_presence_of_later_member_is_found(here):
    b = await here.node(BOB, KnownMembers(BOB))
    await here.node(CAROL)
    await asyncio.sleep(5)
    assert b.found == []
    assert b.handler.causes == []
    b.access.extend(CAROL.public)
    await asyncio.sleep(25)
    assert b.found == [(CAROL.public, "mqtt:")]


@world
async def test_presence_of_former_key_is_ignored(here):
    """Alice returns as Carol, and the broker still has the presence of her former key."""
    a = await here.node(ALICE)
    await asyncio.sleep(1)
    await a.transport.close()
    access = KnownMembers(BOB, CAROL)
    access.revoked.add(ALICE.public)
    b, c = await here.node(BOB, access), await here.node(CAROL, access)
    await asyncio.sleep(30)
    assert (b.handler.causes, c.handler.causes) == ([], [])
    assert (set(b.found), set(c.found)) == ({(CAROL.public, "mqtt:")}, {(BOB.public, "mqtt:")})


def test_directory_accepts_only_own_and_newer_presence():
    directory = mqtt.Directory(KnownMembers(ALICE, BOB))

    def describe(identity=ALICE, incarnation=1, sequence=1, **options):
        fields = {"federation": FEDERATION, "key": identity.public, "addresses": (), "online": True} | options
        return mqtt.sign(identity, mqtt.Presence(incarnation=incarnation, sequence=sequence, **fields))

    def cause(packet, key=ALICE.public):
        with pytest.raises(ProtocolError) as caught:
            directory.read(key, packet)
        return caught.value.cause

    assert not directory.online(ALICE.public)
    directory.read(ALICE.public, describe(incarnation=2))
    directory.read(ALICE.public, describe(incarnation=2))  # the broker resends it after every connection
    assert directory.online(ALICE.public)
    assert cause(describe(incarnation=1, sequence=9)) == "replay"
    assert cause(describe(BOB)) == "other sender"
    assert cause(describe(BOB, key=ALICE.public, incarnation=3)) == "wrong signature"
    assert cause(describe(EVE), EVE.public) == "stranger"
    assert cause(describe(federation=bytes(16))) == "other federation"
    assert cause(b"x" * 100) == "malformed"
    assert cause(bytes(mqtt.LARGEST_PRESENCE + 1)) == "malformed"
    good = describe(incarnation=2, sequence=2, addresses=("tcp://h:1",))
    for position in range(len(good)):
        changed = bytearray(good)
        changed[position] ^= 1
        assert cause(bytes(changed))
    directory.read(ALICE.public, describe(incarnation=2, sequence=3, online=False))
    assert not directory.online(ALICE.public)


# Real brokers


def shown_password(*options):
    """Return the password that a bus sends to its broker."""
    shown = []

    def client(*args, password, **more):
        shown.append(password)
        raise ConnectionRefusedError

    with mock.patch("p2pfl.protocols.mqtt.hardened_client.Client", client), suppress(ConnectionRefusedError):
        asyncio.run(AiomqttBus(*options).run(Message("will", b""), (), None))
    return shown[0]


def test_bus_reads_password_and_never_shows_it(tmp_path):
    bus = AiomqttBus("mqtts://alice:geheim@broker.local", environment={})
    assert repr(bus) == "AiomqttBus(broker.local:8883)"
    file = tmp_path / "password"
    file.write_text("from a file\n")
    environment = {"P2PFL_MQTT_PASSWORD": "from the environment"}
    assert shown_password("mqtt://a:b@h", file, environment) == "from a file"
    assert shown_password("mqtt://a:b@h", None, environment) == "from the environment"
    assert shown_password("mqtt://a:b@h", None, {}) == "b"
    for url in (
        "mqtt://alice:geheim@h:port",
        "http://alice:geheim@h",
        "mqtt://alice:geheim@",
        "mqtt://h/path",
        "mqtt://[geheim",
    ):
        with pytest.raises(AddressError) as caught:
            AiomqttBus(url)
        assert "geheim" not in str(caught.value)
    with pytest.raises(AddressError, match="cannot read the password of the broker from"):
        AiomqttBus("mqtt://h", tmp_path / "missing")


def test_describe_failure_distinguishes_login_from_silence():
    assert describe_failure(OSError("Not authorized"), stood=False).startswith("refuses this node")
    assert describe_failure(OSError("Connection refused"), stood=False) == "does not answer: connection refused"


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("opened", ["before the end", "after the end"])
def test_cancelled_connection_closes_socket_without_error(loop, opened, monkeypatch):
    connect, came, release = socket.create_connection, threading.Event(), threading.Event()

    def connect_slowly(*args, **options):
        found = connect(*args, **options)
        came.set()
        release.wait()
        return found

    async def test():
        here, errors, closed = asyncio.get_running_loop(), [], asyncio.Event()
        here.set_exception_handler(lambda _, context: errors.append(context))
        here.set_default_executor(thread := ThreadPoolExecutor(1))

        async def read_all(reader, writer):
            await reader.read()
            closed.set()
            writer.close()

        async with await asyncio.start_server(read_all, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            bus = AiomqttBus(f"mqtt://127.0.0.1:{port}")
            running = asyncio.create_task(bus.run(Message("will", b""), (), None))
            while not came.is_set():
                await asyncio.sleep(0)
            running.cancel()
            if opened == "after the end":
                await asyncio.wait([running])
            release.set()
            thread.submit(int).result()  # the thread has opened the socket
            await asyncio.wait([running])
            await closed.wait()
        assert errors == []

    monkeypatch.setattr(socket, "create_connection", connect_slowly)
    run_on(loop, asyncio.wait_for(test(), PATIENCE))


@pytest.fixture(params=["mosquitto", "amqtt"])
def broker(request):
    with getattr(brokers, request.param)() as running:
        yield running


def run_with_broker(broker, test, loop_factory=None, **options):
    """Run a test of two nodes at a real broker."""

    async def main():
        here = DisturbedWorld()
        here.bus = lambda url=broker.url: AiomqttBus(url, environment={})
        try:
            await test(here)
        finally:
            await here.close()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main())


LARGE = 20_000_000


@pytest.mark.slow
def test_real_broker_carries_large_frames_both_ways(broker):
    async def test(here):
        a, b = [await here.node(who, bus=here.bus(), max_frame=LARGE, incarnation=1) for who in (ALICE, BOB)]
        link, other = await trusted_link(a, b)
        frame = random.Random(0).randbytes(LARGE)
        link.send([frame[:100], memoryview(frame)[100:]])
        other.send([frame])
        await asyncio.gather(*(end.handler.until(lambda handler: handler.frames) for end in (a, b)))
        assert a.handler.frames == b.handler.frames == [frame]
        assert (b.found[-1], a.problems, b.problems) == ((ALICE.public, "mqtt:"), [], [])

    run_with_broker(broker, test)


@pytest.mark.slow
def test_link_survives_restart_of_real_broker(broker):
    async def test(here):
        a, b = [await here.node(who, bus=here.bus(), max_frame=LARGE) for who in (ALICE, BOB)]
        link, other = await trusted_link(a, b)
        frame = random.Random(0).randbytes(LARGE)
        link.send([frame])
        while link.backlog > LARGE - 3_000_000:
            await asyncio.sleep(0)
        await asyncio.to_thread(broker.kill)
        other.send([b"meanwhile"])
        async with asyncio.timeout(60):
            while not a.problems:
                await asyncio.sleep(0.05)
        assert b.handler.frames == []
        assert f"the broker at 127.0.0.1:{broker.port} does not answer: " in a.problems[0]
        with pytest.raises(TransportError, match=f"the broker at 127.0.0.1:{broker.port}"):
            await a.transport.dial("mqtt:", BOB.public)
        await asyncio.to_thread(broker.start)
        await asyncio.gather(*(end.handler.until(lambda handler: handler.frames) for end in (a, b)))
        assert (a.handler.frames, b.handler.frames) == ([b"meanwhile"], [frame])
        assert a.handler.lost_links == b.handler.lost_links == []

    run_with_broker(broker, test)


@pytest.mark.slow
def test_real_broker_hints_at_node_that_left(broker):
    async def test(here):
        a, b = [await here.node(who, bus=here.bus()) for who in (ALICE, BOB)]
        await trusted_link(a, b)
        await a.transport.close()
        async with asyncio.timeout(60):
            while not b.hinted:
                await asyncio.sleep(0.05)
        assert b.hinted == [ALICE.public]
        assert b.handler.lost_links[0][1] == "closed by the other side"

    run_with_broker(broker, test)


@pytest.mark.slow
def test_link_works_on_uvloop():
    uvloop = pytest.importorskip("uvloop")

    async def test(here):
        a, b = [await here.node(who, bus=here.bus()) for who in (ALICE, BOB)]
        link, _ = await trusted_link(a, b)
        link.send([bytes(MAX)])
        await b.handler.until(lambda handler: handler.frames)

    with brokers.mosquitto() as broker:
        run_with_broker(broker, test, uvloop.new_event_loop)


class PublishingListener:
    """Listener that publishes large messages as soon as it can."""

    def __init__(self, bus):
        self.bus = bus

    def connected(self):
        for _ in range(20):
            self.bus.publish("topic", bytes(CHUNK))

    def came(self, topic, content): ...

    def writable(self):
        self.bus.publish("topic", bytes(CHUNK))


async def reset_soon(reader, writer):
    """Act as a broker that accepts a client, reads some data, answers, and resets the connection."""
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        while (head := await reader.readexactly(2))[0] in (0x10, 0x82):
            content = await reader.readexactly(head[1])
            writer.write(b"\x20\x02\x00\x00" if head[0] == 0x10 else b"\x90\x03" + content[:2] + b"\x00")
        await reader.readexactly(100_000)
        writer.write(b"\x30\x04\x00\x01tx" * 20)
        await asyncio.sleep(0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@pytest.mark.slow
def test_bus_survives_broker_that_resets_mid_packet(on_loop):
    strays = []

    async def main():
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: strays.append(context))
        server = await asyncio.start_server(reset_soon, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        for _ in range(30):
            bus = AiomqttBus(f"mqtt://127.0.0.1:{port}", environment={})
            with pytest.raises(TransportError, match="closed the connection"):
                async with asyncio.timeout(60):
                    await bus.run(Message("will", b""), ["topic"], PublishingListener(bus))
        server.close()

    on_loop(main())
    assert strays == []


class Collector:
    """Listener that keeps what it receives, and publishes numbered small packets as soon as it can."""

    def __init__(self, bus, count=0):
        self.bus, self.count, self.contents = bus, count, []

    def connected(self):
        for number in range(self.count):
            self.bus.publish("topic", b"%d" % number)

    def came(self, topic, content):
        self.contents.append((len(content), content[:4]))

    def writable(self): ...


@asynccontextmanager
async def serving(behave):
    """Run a broker that accepts a client and its topics, and then behaves as `behave(reader, writer)` does."""

    async def serve(reader, writer):
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            for _ in range(2):
                head = await reader.readexactly(2)
                content = await reader.readexactly(head[1])
                writer.write(b"\x20\x02\x00\x00" if head[0] == 0x10 else b"\x90\x03" + content[:2] + b"\x00")
            await behave(reader, writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield AiomqttBus(f"mqtt://127.0.0.1:{server.sockets[0].getsockname()[1]}", environment={})
    finally:
        server.close()


def test_bus_keeps_only_the_beginning_of_a_long_packet(on_loop):
    size, piece = 48 << 20, bytes(1 << 16)  # MQTT permits 256 MiB

    async def behave(reader, writer):
        writer.write(b"\x30\x80\x80\x80\x18\x00\x01t")
        for _ in range((size - 3) // len(piece)):
            writer.write(piece)
            await writer.drain()
        writer.write(bytes((size - 3) % len(piece)) + b"\x30\x07\x00\x01tnext")
        await writer.drain()

    async def main():
        async with serving(behave) as bus:
            listener = Collector(bus)
            tracemalloc.start()
            try:
                with pytest.raises(TransportError):
                    await bus.run(Message("will", b""), ["topic"], listener)
                return listener, tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()

    listener, peak = on_loop(main())
    assert peak < 8 << 20
    assert listener.contents[-1] == (4, b"next")
    assert all(length > LARGEST for length, _ in listener.contents[:-1])  # too long for every receiver


@pytest.mark.slow
def test_newest_of_too_many_waiting_packets_are_sent(on_loop):
    received = []

    async def behave(reader, writer):
        while not received or received[-1] != WAITING + 999:
            number, mark = await next_packet(reader)
            received.extend([] if mark else [number])
            if mark:
                writer.write(b"\xb0\x02" + mark)

    async def main():
        async with serving(behave) as bus:
            with pytest.raises(TransportError):
                await bus.run(Message("will", b""), ["topic"], Collector(bus, WAITING + 1000))

    on_loop(main())
    assert received == list(range(1000, WAITING + 1000))


async def next_packet(reader):
    """Return the number in the next packet of a Collector, or 0 and the id of a mark that is to be confirmed."""
    head = await reader.readexactly(2)
    content = await reader.readexactly(head[1])
    if head[0] == 0xA2:  # UNSUBSCRIBE
        return 0, content[:2]
    assert head[0] & 0b110 == 0, "a message of a quality that not every broker admits"
    return int(content[7:]), b""  # after the topic


@pytest.mark.slow
def test_bus_sends_two_batches_more_than_broker_has_confirmed(on_loop):
    received, waiting, running = [], [], []
    batch = BATCH // LEAST

    async def behave(reader, writer):
        marks = []
        while len(received) < 6 * batch + 1:
            number, mark = await next_packet(reader)
            received.extend([] if mark else [number])
            if mark:
                marks.append(mark)
            if len(marks) == 2:  # only now, so that the bus would have sent everything if it did not wait
                waiting.append(running[0].queued // LEAST)
                writer.write(b"\xb0\x02" + marks.pop(0))

    async def main():
        async with serving(behave) as bus:
            running.append(bus)
            with pytest.raises(TransportError):
                await bus.run(Message("will", b""), ["topic"], Collector(bus, 6 * batch + 1))

    on_loop(main())
    assert received == list(range(6 * batch + 1))
    assert waiting == [4 * batch + 1, 3 * batch + 1, 2 * batch + 1, batch + 1, 1]


@pytest.mark.slow
def test_bus_drops_no_packet_of_many_that_arrive_at_once(on_loop):
    async def behave(reader, writer):
        writer.write(b"".join(b"\x30\x07\x00\x01t%04d" % number for number in range(5000)))
        await writer.drain()

    async def main():
        async with serving(behave) as bus:
            listener = Collector(bus)
            with pytest.raises(TransportError):
                await bus.run(Message("will", b""), ["topic"], listener)
            return listener

    assert on_loop(main()).contents == [(4, b"%04d" % number) for number in range(5000)]


@pytest.mark.slow
@pytest.mark.parametrize("trick", brokers.TRICKS)
def test_bus_leaves_broker_that_sends_garbage_at_connect(monkeypatch, trick, on_loop):
    monkeypatch.setattr("p2pfl.protocols.mqtt.broker_client.CONNECTING", 0.3)
    strays = []

    async def main():
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: strays.append(context))
        async with brokers.tricking(trick) as (url, ended):
            with pytest.raises(TransportError, match=r"the broker at 127.0.0.1:\d+ "):
                await AiomqttBus(url, environment={}).run(Message("will", b""), ["topic"], PublishingListener(None))
            async with asyncio.timeout(60):
                await ended.wait()  # the node has closed its socket
        gc.collect()
        await asyncio.sleep(0)

    on_loop(main())
    assert strays == []


@pytest.mark.parametrize("first", [0x32, 0x34], ids=["quality 1", "quality 2"])
def test_message_of_higher_quality_ends_the_connection(first, on_loop):
    """The client would keep messages of quality 2 until the broker releases them."""

    async def behave(reader, writer):
        writer.write(bytes([first, 5]) + b"\x00\x01t\x00\x07")
        await reader.read(-1)

    async def main():
        async with serving(behave) as bus:
            with pytest.raises(TransportError, match=r"the broker at 127.0.0.1:\d+ closed the connection"):
                await bus.run(Message("will", b""), ["t"], Collector(None))

    on_loop(main())


RULES = f"""
pattern write {ROOT}/+/%u
pattern read {ROOT}/%u/+
pattern read {ROOT}/presence/+
pattern read {ROOT}/will/+
"""


@pytest.mark.slow
def test_documented_acl_restricts_members_to_own_topics(monkeypatch):
    async def test(here):
        def user(identity):
            return here.bus(f"mqtt://{identity.public.hex()}@127.0.0.1:{broker.port}")

        a, b = [await here.node(who, bus=user(who)) for who in (ALICE, BOB)]
        link, _ = await trusted_link(a, b)
        async with asyncio.timeout(60):
            while not (a.found and b.found):  # both have seen the presence of the other
                await asyncio.sleep(0.05)
        c = await here.node(CAROL, bus=user(ALICE))  # with Alice's user name
        monkeypatch.setattr(mqtt, "DIALLING", 0.5)
        with pytest.raises(TransportError):
            await c.transport.dial("mqtt:", BOB.public)
        link.send([b"goes on"])
        await b.handler.until(lambda handler: handler.frames)
        assert (a.problems, b.problems, b.handler.causes) == ([], [], [])
        assert CAROL.public not in {key for key, _ in b.found}

    with brokers.mosquitto(["acl_file {folder}/rules"], {"rules": RULES}) as broker:
        run_with_broker(broker, test)


@pytest.mark.slow
def test_real_broker_that_denies_publishing_is_reported(monkeypatch):
    monkeypatch.setattr(connection, "ECHO_WAIT", 0.5)

    async def test(here):
        a = await here.node(ALICE, bus=here.bus())
        async with asyncio.timeout(60):
            while not a.problems:
                await asyncio.sleep(0.05)
        assert f"the broker at 127.0.0.1:{broker.port} does not deliver to topic {ROOT}/" in a.problems[0]

    with brokers.mosquitto(["acl_file {folder}/rules"], {"rules": "topic read #\n"}) as broker:
        run_with_broker(broker, test)


@pytest.mark.slow
def test_real_broker_login_failure_is_reported_without_password():
    async def test(here):
        a = await here.node(ALICE, bus=here.bus(f"mqtt://alice:geheim@127.0.0.1:{broker.port}"))
        async with asyncio.timeout(60):
            while not a.problems:
                await asyncio.sleep(0.05)
        assert f"the broker at 127.0.0.1:{broker.port} refuses this node: " in a.problems[0]
        with pytest.raises(
            TransportError, match="check the user name in mqtts://USER@HOST:PORT and P2PFL_MQTT_PASSWORD"
        ) as caught:
            await a.transport.dial("mqtt:", BOB.public)
        assert "geheim" not in a.problems[0] + str(caught.value)

    with brokers.mosquitto(["allow_anonymous false"]) as broker:
        run_with_broker(broker, test)


@pytest.mark.slow
def test_real_broker_with_small_packet_limit_is_reported():
    async def test(here):
        a, b = [await here.node(who, bus=here.bus()) for who in (ALICE, BOB)]
        link, _ = await trusted_link(a, b)
        link.send([bytes(MAX)])
        async with asyncio.timeout(60):
            while not any("passes 64 KiB, and closes the connection at 255 KiB" in text for text in a.problems):
                await asyncio.sleep(0.05)

    with brokers.mosquitto(["max_packet_size 100000"]) as broker:
        run_with_broker(broker, test)


@pytest.mark.slow
def test_real_broker_that_discards_large_packets_is_reported():
    async def test(here):
        a = await here.node(ALICE, bus=here.bus())
        async with asyncio.timeout(60):
            while not a.problems:
                await asyncio.sleep(0.05)
        assert a.problems == [
            f"the broker at 127.0.0.1:{broker.port} drops packets of 255 KiB, which nodes use: it passes 4 KiB, and drops"
            " 16 KiB or more; raise message_size_limit and max_packet_size of the broker to 307200 bytes"
        ]

    with brokers.mosquitto(["message_size_limit 5000"]) as broker:
        run_with_broker(broker, test)


@pytest.mark.slow
def test_bus_connects_to_broker_with_trusted_certificate():
    files = brokers.make_certificate()

    async def test(here):
        url = f"mqtts://127.0.0.1:{broker.port}"
        trusting = ssl.create_default_context(cadata=files["cert.pem"])
        a, b = [await here.node(who, bus=AiomqttBus(url, environment={}, tls=trusting)) for who in (ALICE, BOB)]
        link, _ = await trusted_link(a, b)
        link.send([bytes(MAX)])
        await b.handler.until(lambda handler: handler.frames)

    with brokers.mosquitto(["certfile {folder}/cert.pem", "keyfile {folder}/key.pem"], files) as broker:
        run_with_broker(broker, test)


@pytest.mark.slow
def test_bus_accepts_only_certificate_with_fingerprint():
    files = brokers.make_certificate()
    right = sha256(ssl.PEM_cert_to_DER_cert(files["cert.pem"])).hexdigest()

    async def test(here):
        url = f"mqtts://127.0.0.1:{broker.port}#sha256="
        a, b = [await here.node(who, bus=here.bus(url + right)) for who in (ALICE, BOB)]
        await trusted_link(a, b)
        assert (a.problems, b.problems) == ([], [])
        c = await here.node(CAROL, bus=here.bus(url + "ab" * 32))
        async with asyncio.timeout(60):
            while not c.problems:
                await asyncio.sleep(0.05)
        assert "shows another certificate" in c.problems[0]
        assert right in c.problems[0]

    with brokers.mosquitto(["certfile {folder}/cert.pem", "keyfile {folder}/key.pem"], files) as broker:
        run_with_broker(broker, test)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # the MQTT library leaves the socket to the garbage collector
def test_bus_refuses_broker_with_untrusted_certificate():
    async def test(here):
        a = await here.node(ALICE, bus=here.bus(f"mqtts://alice:geheim@127.0.0.1:{broker.port}"))
        async with asyncio.timeout(60):
            while not a.problems:
                await asyncio.sleep(0.05)
        assert "certificate verify failed" in a.problems[0]

    lines = ["certfile {folder}/cert.pem", "keyfile {folder}/key.pem"]
    with brokers.mosquitto(lines, brokers.make_certificate()) as broker:
        run_with_broker(broker, test)
    gc.collect()
