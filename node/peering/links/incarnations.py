"""Detection of two processes, or two copies of a folder, that use the same node key."""

from __future__ import annotations

from contextlib import suppress
from weakref import WeakSet

from p2pfl.errors import P2pflError
from p2pfl.node.peering.background_tasks import BackgroundTasks
from p2pfl.node.peering.messenger import Messenger
from p2pfl.node.peering.peer import Peer
from p2pfl.node.peering.peering_config import PeeringConfig
from p2pfl.protocols.errors import TransportError
from p2pfl.protocols.transport import Link
from p2pfl.protocols.wire import messages as m
from p2pfl.protocols.wire.envelope import Opened, Payload


class IncarnationConflictError(P2pflError):
    """Error: a peer has a later frame signed with this node's key that this process did not sign.

    Attributes:
        incarnation: incarnation in that frame.
        round: the newest round whose model of this node peers hold; 0 if they show none.
    """

    def __init__(self, incarnation: int, round: int = 0) -> None:
        super().__init__(f"a peer has a message from start {incarnation} of this node")
        self.incarnation = incarnation
        self.round = round


class IncarnationCheck:
    """Check for reused keys.

    It shows a peer the newest frames of its key if the peer repeats old numbers, and checks the frames that peers show
    to this node.
    """

    def __init__(self, config: PeeringConfig, messenger: Messenger, tasks: BackgroundTasks) -> None:
        self._name = config.name
        self._verifier = config.verifier
        self._signer = config.signer
        self._messenger = messenger
        self._tasks = tasks
        self._shown: WeakSet[Link] = WeakSet()

    def show_newest(self, link: Link, peer: Peer) -> None:
        """Send a peer the newest frame and model of its key, once per link. Its folder may be a copy or a backup."""
        evidence = self._verifier.newest(peer.key) + self._verifier.newest_model(peer.key)
        if evidence and link not in self._shown:
            self._shown.add(link)
            with suppress(TransportError):
                self._messenger.send_over(link, peer, m.Conflict(), Payload.of(evidence))

    def receive(self, opened: Opened) -> None:
        """End the node with IncarnationConflictError if another process signed the frame that a peer shows.

        Raises:
            ProtocolError: the frame does not carry this node's key.
        """
        if (foreign := self._signer.foreign(opened.payload)) is not None:
            self._tasks.fail(IncarnationConflictError(*foreign), f"{self._name}: conflict of incarnations")
