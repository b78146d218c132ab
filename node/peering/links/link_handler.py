"""Handling of links and their frames: authentication, refusals, faults."""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine
from typing import Any

from p2pfl.node.peering.background_tasks import BackgroundTasks
from p2pfl.node.peering.links.incarnations import IncarnationCheck
from p2pfl.node.peering.links.message_router import MessageRouter
from p2pfl.node.peering.messenger import Messenger
from p2pfl.node.peering.newcomers import JoinReply, Newcomers
from p2pfl.node.peering.peer import Peer
from p2pfl.node.peering.peer_table import PeerEvents, PeerTable
from p2pfl.node.peering.peering_config import PeeringConfig
from p2pfl.protocols.errors import ProtocolError, TransportError
from p2pfl.protocols.transport import Link

EXPECTED = frozenset({"unknown session"})
"""Causes of refusal that occur without a fault: packets through a broker cross the end of a link, or arrive after a
restart."""


class LinkHandler:
    """Handler of a transport's links (see p2pfl.protocols.transport.Handler).

    It verifies every frame, counts refused frames by cause and sender, and passes all others on.
    """

    def __init__(
        self,
        config: PeeringConfig,
        events: PeerEvents,
        *,
        table: PeerTable,
        messenger: Messenger,
        tasks: BackgroundTasks,
        incarnations: IncarnationCheck,
        router: MessageRouter,
    ) -> None:
        self._name = config.name
        self._verifier = config.verifier
        self._transport = config.transport
        self._options = config.options
        self._events = events
        self._table = table
        self._rejected = messenger.rejected
        self._tasks = tasks
        self._incarnations = incarnations
        self._router = router
        self._newcomers = Newcomers(config.options.answer_join)

    def received(self, link: Link, frame: memoryview) -> None:
        """Handle a frame. Errors are counted, not raised."""
        try:
            if link.joining:
                answer = self._newcomers.ask(link, frame)
                self.serve(link, self._answer(link, answer), f"{self._name}: answer to a newcomer")
                return
            self._expect_member(link)
            opened = self._verifier.open(frame, link.session, link.key, link.payload_digest)
            peer = self._table.peers[opened.sender]
            peer.bytes_in += len(frame)
            self._router.receive(peer, link, opened)
        except ProtocolError as error:
            self._refuse(link, error)
        except TransportError:
            self._rejected["link lost"] += 1
        except Exception as error:
            self._fail(link, error)

    def drained(self, link: Link) -> None:
        """Report that a peer has read most of the data sent to it."""
        for peer in self._with(link):
            self._events.drained(peer)

    def lost(self, link: Link, reason: str) -> None:
        """Mark the peer at the other end of a link as disconnected."""
        for peer in self._with(link):
            self._table.disconnect(peer, reason)

    def refused(self, cause: str, detail: str) -> None:
        """Count a refused connection; log the first one of each cause that shows a fault or an attack."""
        self._rejected[cause] += 1
        if self._rejected[cause] == 1 and cause not in EXPECTED:  # the status file counts the rest
            self._options.log.warning(f"refused a connection: {detail}", kind="connection-refused", cause=cause)

    def serve(self, link: Link | None, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run the work that a frame of a link requested. An error in it ends only that link."""

        async def count_errors() -> None:
            try:
                await work
            except TransportError:
                self._rejected["link lost"] += 1
            except Exception as error:
                self._fail(link, error)

        self._tasks.spawn(count_errors(), name)

    def _with(self, link: Link) -> list[Peer]:
        return [peer for peer in self._table.peers.values() if peer.link is link]

    async def _answer(self, link: Link, answer: Awaitable[JoinReply]) -> None:
        """Send the answer to a newcomer."""
        reply = await answer
        if reply.cause:
            self.refused(reply.cause, reply.detail)
        link.send([reply.frame])

    def _expect_member(self, link: Link) -> None:
        """Close the link of a peer whose membership has ended. A peer may have other links than the one in use."""
        access = self._options.access
        if access is not None and link.key is not None and (cause := access.refusal(link.key)):
            link.close()
            raise ProtocolError(cause, f"{link.key.hex()} is no longer a member")

    def _refuse(self, link: Link, error: ProtocolError) -> None:
        """Count a refused frame by cause and sender. Exclude a member that sends many invalid frames."""
        self._rejected[error.cause] += 1
        peer = self._table.with_key(link.key)
        if peer is None:
            return
        peer.offences[error.cause] += 1
        if error.cause == "replay":
            self._incarnations.show_newest(link, peer)
        if error.cause == "version" and not peer.introduced:
            self._table.suspect(peer, str(error).removeprefix("version: "))
        guard = self._options.guard
        if guard is not None and guard.offend(peer.key, error.cause):
            self._transport.expel(peer.key)
            seconds = guard.seconds_left(peer.key)
            self._table.disconnect(peer, f"excluded for {seconds:.0f} s after invalid messages ({error.cause})")

    def _fail(self, link: Link | None, error: Exception) -> None:
        """End a link after an unexpected error in one of its frames, or the node if faults are not counted."""
        on_fault = self._options.on_fault
        if on_fault is None:
            self._tasks.fail(error, f"{self._name}: message of a peer")
            return
        on_fault("links", error)
        if link is not None:
            link.close()
            self.lost(link, "one of its messages could not be handled")
