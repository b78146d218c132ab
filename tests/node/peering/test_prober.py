"""Indirect probes: the peers that may request them, and the answers that count."""

import asyncio

import pytest

from p2pfl.node.peering.failure_detector import Dead, Ping, Suspect
from p2pfl.node.peering.messenger import Messenger
from p2pfl.node.peering.peer import Member
from p2pfl.node.peering.peer_table import PeerTable
from p2pfl.node.peering.peering_config import LocalState, PeeringConfig
from p2pfl.node.peering.prober import DEAF, PENDING_PROBES, REMEMBERED, Prober
from p2pfl.node.peering.traffic import Traffic
from p2pfl.protocols.errors import TransportError
from p2pfl.protocols.transports.in_process import InProcessNetwork
from p2pfl.protocols.wire import messages as m
from p2pfl.sim.simulation.clock import run

NAMES = ("bob", "carol", "dave")
KEYS = {name: bytes([k]) * 32 for k, name in enumerate(NAMES)}


class Plain:
    """Seals nothing: a frame is its message."""

    def seal(self, message, recipient, payload, session):
        return [message]


class Wire:
    """A link that keeps what is sent over it."""

    session, progress = bytes(16), 0

    def __init__(self):
        self.sent, self.closed = [], False

    def send(self, parts):
        if self.closed:
            raise TransportError("closed")
        self.sent += parts

    def close(self):
        self.closed = True


class Quiet:
    """An exchange to which nothing matters."""

    def may_return(self, peer):
        return True

    def peers_changed(self): ...


class Alice:
    """A node that is introduced to bob, carol and dave."""

    def __init__(self):
        config = PeeringConfig(
            name="alice",
            key=bytes([9]) * 32,
            neighbours={name: Member(key) for name, key in KEYS.items()},
            transport=InProcessNetwork().transport("alice"),
            sealer=Plain(),
            door=None,
            agreed={},
            public_info={},
        )
        self.local = LocalState("alice", {})
        self.table = PeerTable(config, self.local, Quiet())
        self.prober = Prober(self.local, self.table, Messenger(Plain(), self.table.roster, Traffic()))
        for peer in self.table.peers.values():
            peer.link = Wire()
            self.table.watch(peer)

    def hears(self, name, message):
        self.prober.receive(self.table.peers[name], message)

    def sent(self, name):
        return self.table.peers[name].link.sent


def play(test):
    async def main():
        await test(Alice())

    run(main())


def test_a_ping_is_answered_with_the_round_of_the_node():
    async def test(alice):
        alice.local.round = 7
        alice.hears("bob", m.Ping(3))
        assert alice.sent("bob") == [m.Pong(3, 7)]

    play(test)


def test_a_probe_is_answered_when_its_subject_has_answered():
    async def test(alice):
        alice.hears("bob", m.PingRequest(7, KEYS["carol"]))
        (ping,) = alice.sent("carol")
        assert isinstance(ping, m.Ping)
        assert alice.sent("bob") == []
        alice.hears("carol", m.Pong(ping.request, 1))
        alice.hears("carol", m.Pong(ping.request, 1))  # a second time says nothing new
        assert alice.sent("bob") == [m.IndirectAck(7, KEYS["carol"])]

    play(test)


def test_a_member_cannot_answer_a_probe_in_the_name_of_another():
    async def test(alice):
        alice.hears("bob", m.PingRequest(7, KEYS["carol"]))
        (ping,) = alice.sent("carol")
        for name in ("bob", "dave"):
            alice.hears(name, m.Pong(ping.request, 1))
        assert alice.sent("bob") == []

    play(test)


def test_an_answer_that_comes_too_late_is_passed_on_to_nobody():
    async def test(alice):
        alice.hears("bob", m.PingRequest(7, KEYS["carol"]))
        (ping,) = alice.sent("carol")
        await asyncio.sleep(REMEMBERED + 1)
        alice.hears("carol", m.Pong(ping.request, 1))
        assert alice.sent("bob") == []

    play(test)


def test_a_member_has_only_a_few_probes_pending():
    async def test(alice):
        for number in range(3 * PENDING_PROBES):
            alice.hears("bob", m.PingRequest(number, KEYS["carol"]))
        alice.hears("dave", m.PingRequest(1, KEYS["carol"]))  # it has probes of its own
        assert len(alice.sent("carol")) == PENDING_PROBES + 1

    play(test)


@pytest.mark.parametrize(
    ("sender", "other_request", "subject"),
    [("carol", 0, "carol"), ("bob", 1, "carol"), ("bob", 0, "dave")],
    ids=["not asked", "other request", "other subject"],
)
def test_a_vouch_that_was_not_asked_for_ends_no_suspicion(sender, other_request, subject):
    async def test(alice):
        probe = await suspicion(alice)
        alice.hears(sender, m.IndirectAck(probe.request + other_request, KEYS[subject]))
        assert next_step(alice) is Dead

    play(test)


def test_a_vouch_of_the_one_that_was_asked_ends_a_suspicion():
    async def test(alice):
        probe = await suspicion(alice)
        alice.hears("bob", m.IndirectAck(probe.request, KEYS["carol"]))
        assert next_step(alice) is Ping

    play(test)


async def suspicion(alice):
    """Have carol suspected, as she answers nobody; return the newest probe about her that bob was sent."""
    loop, detector = asyncio.get_running_loop(), alice.table.detector
    for _ in range(100):
        await asyncio.sleep(detector.next_tick(loop.time()) - loop.time())
        for name in ("bob", "dave"):
            detector.heard(name, loop.time())
        steps = detector.tick(loop.time())
        for step in steps:
            alice.prober.take(step)
        if any(isinstance(step, Suspect) for step in steps):
            assert set(alice.table.roster.suspected) == {"carol"}
            return [message for message in alice.sent("bob") if isinstance(message, m.PingRequest)][-1]
    raise AssertionError("nobody is suspected")


def next_step(alice):
    """Return the next step against carol, while bob and dave are heard: of one who stays suspected, that she is dead."""
    detector, now = alice.table.detector, asyncio.get_running_loop().time()
    while True:
        now = detector.next_tick(now)
        for name in ("bob", "dave"):
            detector.heard(name, now)
        for step in detector.tick(now):
            return type(step)


def test_a_link_with_a_peer_that_answers_no_ping_is_given_up():
    async def test(alice):
        peer, link = alice.table.peers["carol"], alice.table.peers["carol"].link
        for _ in range(DEAF):
            alice.prober.take(Ping("carol"))
        assert not link.closed
        alice.prober.take(Ping("carol"))
        assert link.closed
        assert not peer.introduced
        assert alice.table.roster.suspected == {"carol": "does not answer"}

    play(test)


def test_a_check_ends_with_the_answer_to_it():
    async def test(alice):
        peer = alice.table.peers["bob"]
        alice.prober.check(peer)
        (ping,) = alice.sent("bob")
        alice.hears("bob", m.Pong(ping.request + 1, 4))
        assert peer.checking == ping.request
        alice.hears("bob", m.Pong(ping.request, 4))
        assert peer.checking == 0

    play(test)
