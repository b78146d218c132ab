"""Additional rounds of a running node after an extension of its federation."""

from __future__ import annotations

from p2pfl.node.exchange.message_exchange import MessageExchange
from p2pfl.node.node import Node
from p2pfl.node.status.observer import StatusObserver
from p2pfl.protocols.membership.log import Membership


def follow_extensions(
    membership: Membership, node: Node, exchange: MessageExchange, status_observer: StatusObserver
) -> None:
    """Make a node run the additional rounds of each extension that its membership log gets from now on."""

    def extend() -> None:
        if membership.rounds > node.settings.rounds:
            node.extend(membership.rounds)
            exchange.extend(membership.rounds, resume=not node.done)
            status_observer.extended(node)

    membership.on_change.append(extend)
