"""Sending of signed messages to peers."""

from __future__ import annotations

from collections import Counter
from itertools import count

from p2pfl.node.peering.peer import Peer
from p2pfl.node.peering.peer_view import PeerView
from p2pfl.node.peering.traffic import Traffic
from p2pfl.protocols.errors import TransportError
from p2pfl.protocols.transport import Link
from p2pfl.protocols.wire import messages as m
from p2pfl.protocols.wire.envelope import EMPTY, OVERHEAD, FrameSigner, Payload


class Messenger:
    """Messenger that signs messages, sends them over the links of peers, and counts their bytes.

    Attributes:
        numbers: generates the numbers of requests.
        rejected: counts refused or lost frames by cause.
    """

    def __init__(self, signer: FrameSigner, roster: PeerView, traffic: Traffic) -> None:
        self.numbers = count(1)
        self.rejected: Counter[str] = Counter()
        self._signer = signer
        self._roster = roster
        self._traffic = traffic

    def send(self, peer: Peer, message: m.Message, payload: Payload = EMPTY) -> None:
        """Send a message to an introduced peer.

        Raises:
            TransportError: the peer is not connected.
        """
        if peer.link is None:
            raise TransportError(self._roster.suspected.get(peer.name, "not connected"))
        self.send_over(peer.link, peer, message, payload)

    def send_over(self, link: Link, peer: Peer, message: m.Message, payload: Payload = EMPTY) -> None:
        """Send a message to a peer over any link with it.

        Raises:
            TransportError: the link is closed, or the peer does not read.
        """
        link.send(self._signer.seal(message, peer.key, payload, link.session))
        peer.bytes_out += OVERHEAD + payload.size
        if not isinstance(message, m.Learning):
            self._traffic.sent_control += OVERHEAD + payload.size

    def try_send(self, peer: Peer, message: m.Message) -> None:
        """Send a message; ignore its loss."""
        try:
            self.send(peer, message)
        except TransportError:
            self.rejected["link lost"] += 1

    def ping(self, peer: Peer) -> int:
        """Send a ping to a peer, which may be lost; return the number of the request."""
        number = next(self.numbers)
        self.try_send(peer, m.Ping(number))
        return number
