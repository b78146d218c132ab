"""Indirect probes: the peers that may request them, and the answers that count."""

import asyncio

import pytest

from p2pfl.node.peering.control_messages import DEAF, PENDING_PROBES, REMEMBERED, Prober
from p2pfl.node.peering.failure_detector import Dead, Ping, Suspect
from p2pfl.node.peering.peering_config import Member, PeeringConfig
from p2pfl.node.peering.peers import PeerTable
from p2pfl.protocols.errors import TransportError
from p2pfl.protocols.transports.in_process import InProcessNetwork
from p2pfl.protocols.wire import messages as m
from p2pfl.sim.simulation.clock import run

NAMES = ("bob", "carol", "dave")
KEYS = {name: bytes([k]) * 32 for k, name in enumerate(NAMES)}


class PlainSigner:
    """Signer that leaves messages as they are."""

    def seal(self, message, recipient, payload, session, version):
        return [message]


class RecordingLink:
    """Link that records all sent frames."""

    session, version, progress = bytes(16), 7, 0

    def __init__(self):
        self.sent, self.closed = [], False

    def send(self, parts):
        if self.closed:
            raise TransportError("closed")
        self.sent += parts

    def close(self):
        self.closed = True


class IdleExchange:
    """Exchange that ignores all events."""

    def may_return(self, peer):
        return True

    def peers_changed(self): ...


class Alice:
    """Node with links to bob, carol and dave."""

    def __init__(self):
        config = PeeringConfig(
            name="alice",
            key=bytes([9]) * 32,
            neighbours={name: Member(key) for name, key in KEYS.items()},
            transport=InProcessNetwork().transport("alice"),
            signer=PlainSigner(),
            verifier=None,
            agreed={},
            public_info={},
        )
        self.table = PeerTable(config, IdleExchange())
        self.prober = Prober(self.table)
        for peer in self.table.peers.values():
            peer.link = RecordingLink()
            self.table.detector.watch(peer.name, asyncio.get_running_loop().time())

    def receive(self, name, message):
        self.prober.receive(self.table.peers[name], message)

    def sent(self, name):
        return self.table.peers[name].link.sent


def play(test):
    async def main():
        await test(Alice())

    run(main())


def test_prober_answers_ping_with_own_round():
    async def test(alice):
        alice.table.round = 7
        alice.receive("bob", m.Ping(3))
        assert alice.sent("bob") == [m.Pong(3, 7)]

    play(test)


def test_ping_request_is_acknowledged_after_subject_answers():
    async def test(alice):
        alice.receive("bob", m.PingRequest(7, KEYS["carol"]))
        (ping,) = alice.sent("carol")
        assert isinstance(ping, m.Ping)
        assert alice.sent("bob") == []
        alice.receive("carol", m.Pong(ping.request, 1))
        alice.receive("carol", m.Pong(ping.request, 1))  # a repeated pong changes nothing
        assert alice.sent("bob") == [m.IndirectAck(7, KEYS["carol"])]

    play(test)


def test_ping_request_ignores_pongs_of_other_members():
    async def test(alice):
        alice.receive("bob", m.PingRequest(7, KEYS["carol"]))
        (ping,) = alice.sent("carol")
        for name in ("bob", "dave"):
            alice.receive(name, m.Pong(ping.request, 1))
        assert alice.sent("bob") == []

    play(test)


def test_ping_request_ignores_late_pong():
    async def test(alice):
        alice.receive("bob", m.PingRequest(7, KEYS["carol"]))
        (ping,) = alice.sent("carol")
        await asyncio.sleep(REMEMBERED + 1)
        alice.receive("carol", m.Pong(ping.request, 1))
        assert alice.sent("bob") == []

    play(test)


def test_pending_ping_requests_are_limited_per_member():
    async def test(alice):
        for number in range(3 * PENDING_PROBES):
            alice.receive("bob", m.PingRequest(number, KEYS["carol"]))
        alice.receive("dave", m.PingRequest(1, KEYS["carol"]))  # its limit is separate
        assert len(alice.sent("carol")) == PENDING_PROBES + 1

    play(test)


@pytest.mark.parametrize(
    ("sender", "other_request", "subject"),
    [("carol", 0, "carol"), ("bob", 1, "carol"), ("bob", 0, "dave")],
    ids=["not asked", "other request", "other subject"],
)
def test_unsolicited_indirect_ack_does_not_end_suspicion(sender, other_request, subject):
    async def test(alice):
        probe = await suspect_carol(alice)
        alice.receive(sender, m.IndirectAck(probe.request + other_request, KEYS[subject]))
        assert next_step(alice) is Dead

    play(test)


def test_requested_indirect_ack_ends_suspicion():
    async def test(alice):
        probe = await suspect_carol(alice)
        alice.receive("bob", m.IndirectAck(probe.request, KEYS["carol"]))
        assert next_step(alice) is Ping

    play(test)


async def suspect_carol(alice):
    """Wait until carol, who answers no ping, is suspected; return the last ping request about her that bob received."""
    loop, detector = asyncio.get_running_loop(), alice.table.detector
    for _ in range(100):
        await asyncio.sleep(detector.next_tick(loop.time()) - loop.time())
        for name in ("bob", "dave"):
            detector.heard(name, loop.time())
        steps = detector.tick(loop.time())
        for step in steps:
            alice.prober.take(step)
        if any(isinstance(step, Suspect) for step in steps):
            assert set(alice.table.view.suspected) == {"carol"}
            return [message for message in alice.sent("bob") if isinstance(message, m.PingRequest)][-1]
    raise AssertionError("nobody is suspected")


def test_suspicion_ends_only_the_requests_of_the_suspicious_node():
    async def test(alice):
        carol = alice.table.peers["carol"]
        asked = carol.requests[7] = asyncio.get_running_loop().create_future()
        carol.waiting[1, "trained", False] = m.Get(8, 1, "trained", b"")
        await suspect_carol(alice)
        assert asked.result() is None
        assert [get.request for get in carol.waiting.values()] == [8]  # she may live, and waits for the answer
        alice.prober.take(Dead("carol", "silent"))
        assert not carol.waiting

    play(test)


def next_step(alice):
    """Return the kind of the next step about carol, while bob and dave are heard; `Dead` if she is still suspected."""
    detector, now = alice.table.detector, asyncio.get_running_loop().time()
    while True:
        now = detector.next_tick(now)
        for name in ("bob", "dave"):
            detector.heard(name, now)
        for step in detector.tick(now):
            return type(step)


def test_prober_closes_link_after_unanswered_pings():
    async def test(alice):
        peer, link = alice.table.peers["carol"], alice.table.peers["carol"].link
        for _ in range(DEAF):
            alice.prober.take(Ping("carol"))
        assert not link.closed
        alice.prober.take(Ping("carol"))
        assert link.closed
        assert not peer.introduced
        assert alice.table.view.suspected == {"carol": "does not answer"}

    play(test)


def test_check_ends_with_matching_pong():
    async def test(alice):
        peer = alice.table.peers["bob"]
        alice.table.check(peer)
        (ping,) = alice.sent("bob")
        alice.receive("bob", m.Pong(ping.request + 1, 4))
        assert peer.checking == ping.request
        alice.receive("bob", m.Pong(ping.request, 4))
        assert peer.checking == 0

    play(test)
