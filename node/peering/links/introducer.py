"""Introduction of peers to each other, with a hello that contains all settings that must be equal on both sides."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from p2pfl.node.peering.links.membership_gossip import MembershipGossip
from p2pfl.node.peering.messenger import Messenger
from p2pfl.node.peering.peer import Peer
from p2pfl.node.peering.peer_table import PeerTable
from p2pfl.node.peering.peering_config import LocalState, PeeringConfig
from p2pfl.protocols.errors import ProtocolError, TransportError
from p2pfl.protocols.transport import Link
from p2pfl.protocols.wire import messages as m
from p2pfl.protocols.wire.envelope import Opened, Payload
from p2pfl.system.printable import printable

SETTLED = 5.0  # seconds after which no data is in transit over a replaced link


class Introducer:
    """Introducer that greets peers over new links and accepts peers with equal settings.

    If the settings differ, each side excludes the other and names the difference.
    """

    def __init__(
        self,
        config: PeeringConfig,
        local: LocalState,
        table: PeerTable,
        messenger: Messenger,
        gossip: MembershipGossip,
    ) -> None:
        self._config = config
        self._local = local
        self._table = table
        self._messenger = messenger
        self._gossip = gossip

    def parameters(self) -> Payload:
        """Return the payload of a hello: the settings that must be equal, and the state of this node."""
        local, version = self._local, self._config.membership_version
        return Payload.of(
            m.HelloParameters(dict(self._config.agreed), local.public_info, local.round, local.final, version).encode()
        )

    def greet(self, link: Link, peer: Peer) -> None:
        """Send a hello over a new link.

        Raises:
            TransportError: the link is closed.
        """
        self._messenger.send_over(link, peer, m.Hello(), self.parameters())

    def greet_again(self) -> None:
        """Send the peers a new hello over their present links, because the state of this node in it has changed."""
        for peer in self._table.introduced_peers():
            try:
                if peer.link is not None:
                    self.greet(peer.link, peer)
            except TransportError:
                self._messenger.rejected["link lost"] += 1

    def receive(self, peer: Peer, link: Link, opened: Opened) -> None:
        """Handle a hello or the answer to one.

        Raises:
            ProtocolError: the message is malformed, or a setting that must be equal differs.
        """
        if peer.incarnation != opened.incarnation:  # requests to an earlier incarnation of the peer are lost
            peer.incarnation = opened.incarnation
            peer.give_up()
        theirs, answer = m.decode_hello_parameters(opened.payload), isinstance(opened.message, m.Hello)
        if answer:
            self._messenger.send_over(link, peer, m.Welcome(), self.parameters())
        if problem := difference(self._config.agreed, theirs.agreed):
            peer.problem = problem
            self._table.suspect(peer, problem)
            raise ProtocolError("differs", problem)
        peer.problem = peer.dial_problem = ""
        peer.revoked = False
        self._choose_link(peer, link, answer)
        peer.known = True
        peer.public_info, peer.stopped = theirs.public_info, theirs.stopped
        peer.round, peer.checking = theirs.round, 0  # possibly lower: a peer that has lost its disk starts again
        peer.membership_version = theirs.membership_version
        self._table.watch(peer)
        self._table.heard(peer)
        self._gossip.greet(peer)
        self._table.changes.notify()

    def _choose_link(self, peer: Peer, link: Link, answer: bool) -> None:
        """Use a new link with a peer, unless it is slower than the previous one and this node dialled it."""
        link.trust()
        before = peer.link
        slower = before is not None and before.direct and not link.direct
        if answer or not slower:  # the answer through the broker may arrive after a direct link was made
            peer.link = link
        if before is not None and link.direct and not before.direct:
            asyncio.get_running_loop().call_later(SETTLED, before.close)
        elif answer and slower:  # the peer is no longer reachable directly, or it has dialled both ways at once
            peer.trouble.set()


def difference(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    """Return a sentence that names the differing settings of two nodes with both values; "" if they agree."""
    for key in sorted({*ours, *theirs}):
        mine, other = ours.get(key, "not set"), theirs.get(key, "not set")
        if mine != other:
            return f"{printable(key)} differs: this node has {mine}, the peer has {printable(other)}"
    return ""
