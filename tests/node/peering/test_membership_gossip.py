"""Gossip of the membership log over links that lose frames."""

import asyncio
from math import inf
from types import SimpleNamespace

import msgspec

from p2pfl.node.peering.control_messages import NO_ENTRIES, MembershipGossip
from p2pfl.node.peering.peering_config import Member
from p2pfl.node.peering.peers import PeerTable
from p2pfl.protocols.transport import Timer
from p2pfl.protocols.wire import messages as m
from p2pfl.sim.simulation.clock import run


class Log:
    """A log of two entries."""

    membership_version = 2

    def __init__(self):
        self.got = []

    def after(self, version, limit):
        return msgspec.msgpack.encode([b"entry"] * (2 - version))

    def extend(self, entries):
        self.got.append(entries)


class Messenger:
    def __init__(self):
        self.sent = []

    def send(self, peer, message, payload):
        self.sent.append((message, b"".join(payload.parts)))


def peer_with(version):
    return SimpleNamespace(key=bytes(32), membership_version=version, introduced=True, link=object(), repetition=Timer())


def test_entries_are_repeated_until_they_are_confirmed():
    async def main():
        messenger, peer = Messenger(), peer_with(1)
        gossip = MembershipGossip(Log(), messenger)
        gossip.greet(peer)
        await asyncio.sleep(16.0)  # repeated after 5 and after 10 more seconds
        assert messenger.sent == 3 * [(m.Entries(2), msgspec.msgpack.encode([b"entry"]))]
        gossip.receive(peer, m.Entries(2), SimpleNamespace(payload=NO_ENTRIES))
        await asyncio.sleep(1000.0)
        assert len(messenger.sent) == 3

    run(main())


def test_repeated_hellos_get_entries_once_in_five_seconds():
    async def main():
        messenger, peer = Messenger(), peer_with(0)
        gossip = MembershipGossip(Log(), messenger)
        for _ in range(120):  # ten minutes
            peer.membership_version = 0
            gossip.greet(peer)
            await asyncio.sleep(5.0)
        assert len(messenger.sent) <= 123

    run(main())


def test_end_of_link_ends_repetition_of_entries():
    async def main():
        options = SimpleNamespace(period=inf)
        config = SimpleNamespace(
            name="alice",
            public_info={},
            signer=None,
            neighbours={"bob": Member(bytes(32))},
            sources=None,
            seed=0,
            asynchronous=False,
            options=options,
        )
        table = PeerTable(config, SimpleNamespace(peers_changed=lambda: None))
        peer = table.peers["bob"]
        peer.link = object()
        MembershipGossip(Log(), Messenger()).greet(peer)
        assert peer.repetition.pending
        table.disconnect(peer, "lost")
        assert not peer.repetition.pending

    run(main())


def test_received_entries_are_confirmed_once():
    async def main():
        messenger, peer, log = Messenger(), peer_with(2), Log()
        gossip = MembershipGossip(log, messenger)
        gossip.receive(peer, m.Entries(2), SimpleNamespace(payload=msgspec.msgpack.encode([b"entry"])))
        gossip.receive(peer, m.Entries(2), SimpleNamespace(payload=NO_ENTRIES))
        assert messenger.sent == [(m.Entries(2), NO_ENTRIES)]
        assert log.got == [msgspec.msgpack.encode([b"entry"]), NO_ENTRIES]

    run(main())
