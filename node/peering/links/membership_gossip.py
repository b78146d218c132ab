"""Exchange of entries of the membership log with peers."""

from __future__ import annotations

import asyncio
from functools import partial

import msgspec

from p2pfl.node.peering.messenger import Messenger
from p2pfl.node.peering.peer import Peer
from p2pfl.protocols.errors import ProtocolError, TransportError
from p2pfl.protocols.rate_limit import TokenBucket
from p2pfl.protocols.transport import AccessControl
from p2pfl.protocols.wire import messages as m
from p2pfl.protocols.wire.envelope import Opened, Payload

CONFIRMED, LONGEST = 5.0, 320.0  # seconds until unconfirmed entries are sent again; doubled each time
NO_ENTRIES = msgspec.msgpack.encode([])
NEWS_RATE, NEWS_BURST = 0.2, 3  # introductions per second of one peer that are sent missing entries


class MembershipGossip:
    """Gossip that sends peers the entries that they lack and accepts entries from them.

    A frame may be lost while its link remains. A peer therefore confirms entries with its own membership version, and
    receives them again until it does.

    Args:
        access: holds the log; None if there is none.
    """

    def __init__(self, access: AccessControl | None, messenger: Messenger) -> None:
        self._access = access
        self._messenger = messenger
        self._news = TokenBucket(NEWS_RATE, NEWS_BURST)
        self._confirmed: dict[bytes, int] = {}  # membership versions that peers have announced, by key

    def send(self, peer: Peer, pause: float = CONFIRMED) -> None:
        """Send a peer the entries that it is not known to have.

        Args:
            pause: seconds after which to send them again if the peer does not confirm them.
        """
        if self._access is None or peer.membership_version >= self._access.membership_version:
            return
        peer.repetition.start(pause, partial(self._repeat, peer, pause))
        try:
            while peer.membership_version < self._access.membership_version:  # a long log needs several messages
                news = self._access.after(peer.membership_version, m.Entries.LIMIT)
                self._messenger.send(peer, m.Entries(self._access.membership_version), Payload.of(news))
                peer.membership_version += len(msgspec.msgpack.decode(news, type=list[msgspec.Raw]))
        except TransportError:
            self._messenger.rejected["link lost"] += 1

    def _repeat(self, peer: Peer, pause: float) -> None:
        """Send unconfirmed entries again, within the rate limit of introductions."""
        confirmed = self._confirmed.get(peer.key, 0)
        if not peer.introduced or confirmed >= peer.membership_version:
            return
        if not self._news.take(peer.key, asyncio.get_running_loop().time()):
            peer.repetition.start(pause, partial(self._repeat, peer, pause))
            return
        peer.membership_version = confirmed
        self.send(peer, min(2 * pause, LONGEST))

    def greet(self, peer: Peer) -> None:
        """Send a newly introduced peer the entries that it lacks, within a rate limit."""
        self._confirmed[peer.key] = peer.membership_version
        if self._news.take(peer.key, asyncio.get_running_loop().time()):
            self.send(peer)

    def lacks_entries(self, peer: Peer) -> bool:
        """Return whether a peer has announced more entries than this node has."""
        return self._access is not None and peer.membership_version > self._access.membership_version

    def receive(self, peer: Peer, message: m.Entries, opened: Opened) -> None:
        """Accept entries from a peer.

        Raises:
            ProtocolError: this node has no log, or the entries are malformed or not signed.
        """
        announced = max(self._confirmed.get(peer.key, 0), message.membership_version)
        self._confirmed[peer.key] = announced
        peer.membership_version = max(peer.membership_version, announced)
        if self._access is None:
            raise ProtocolError("membership", "this node has no membership log")
        self._access.extend(bytes(opened.payload))
        if opened.payload != NO_ENTRIES and peer.link is not None:
            self._messenger.send(peer, m.Entries(self._access.membership_version), Payload.of(NO_ENTRIES))
