"""Table of a node's neighbours, and its opinion of each of them.

The failure detector (p2pfl.node.peering.failure_detector) judges which of them are alive.
"""

from __future__ import annotations

import asyncio
from asyncio import Task, TaskGroup
from collections import Counter
from collections.abc import Callable, Coroutine
from itertools import count
from math import inf
from typing import Any, Protocol

from p2pfl._util.printable import printable
from p2pfl.node.peering.failure_detector import FailureDetector
from p2pfl.node.peering.peer import Peer, PeerView, Traffic
from p2pfl.node.peering.peering_config import PeeringConfig
from p2pfl.protocols.errors import TransportError
from p2pfl.protocols.transport import Link
from p2pfl.protocols.wire import messages as m
from p2pfl.protocols.wire.envelope import EMPTY, OVERHEAD, Opened, Payload
from p2pfl.random_streams import RandomStreams

NEW = "not connected yet"  # reason for the suspicion of a new member
_BEHIND = "behind"  # beginning of the reason for the suspicion of a connected peer in an earlier round


class PeerEvents(Protocol):
    """Receiver of peers' messages about learning and of changes among the peers; implemented by the exchange."""

    def handle(self, peer: Peer, opened: Opened) -> None:
        """Handle a message of an introduced peer about learning or elections.

        Raises:
            ProtocolError: the peer must not send this message.
        """

    def may_return(self, peer: Peer) -> bool:
        """Return whether this node may wait again for a suspected peer that has sent a message and keeps up."""

    def late(self, peer: Peer) -> None:
        """Report that a peer has answered a request after its deadline."""

    def drained(self, peer: Peer) -> None:
        """Report that a peer has read most of the data sent to it."""

    def peers_changed(self) -> None:
        """Report a change in the connected peers or their rounds, for which a task may wait."""


class PeerTable:
    """Neighbours of a node: what the node thinks of each of them, and how it sends to them and waits for them.

    It is the part of a PeerManager that the other parts of the peering use. It knows no message but the pings that it
    sends, and decides nothing about a peer but whether to wait for it.

    Attributes:
        name: name of this node.
        public_info, round, final: public information about this node, the newest round that it has reached, and whether
            its model is final; its peers receive all three.
        peers: neighbours by name, sorted. The mapping is replaced when one is added, so that others can iterate over
            it.
        view: the peers with which this node may learn.
        detector: judges which peers are alive.
        traffic: counts sent and received frames and bytes.
        rejected: counts refused or lost frames by cause.
        numbers: generates the numbers of requests.
    """

    def __init__(self, config: PeeringConfig, events: PeerEvents) -> None:
        neighbours, period = config.neighbours, config.options.period
        self.name = config.name
        self.public_info = dict(config.public_info)
        self.round = 0
        self.final = False
        self.peers = {id: Peer(id, neighbours[id]) for id in sorted(neighbours)}
        self.view = PeerView(neighbours if config.sources is None else config.sources)
        self.detector = FailureDetector(
            RandomStreams(config.seed, config.name).generator(0, "probing"), period if period < inf else 1.0
        )
        self.traffic = Traffic()
        self.rejected: Counter[str] = Counter()
        self.numbers = count(1)
        self.signer = config.signer
        self._names = {peer.key: peer.name for peer in self.peers.values()}
        self._events = events
        self._asynchronous = config.asynchronous
        self._progress: asyncio.Future[None] | None = None  # done at the next change
        self._group: TaskGroup
        self._running: set[Task[None]] = set()

    # Peers

    def introduced_peers(self) -> list[Peer]:
        """Return the peers that are connected and introduced."""
        return [peer for peer in self.peers.values() if peer.link is not None]

    def with_key(self, key: bytes | None) -> Peer | None:
        """Return the neighbour with a key; None if there is none."""
        name = self._names.get(key or b"")
        return None if name is None else self.peers[name]

    def knows(self, beginning: bytes) -> bool:
        """Return whether a neighbour's key begins with these bytes."""
        return any(key.startswith(beginning) for key in self._names)

    # Opinions

    def is_suspected(self, peer: Peer) -> bool:
        """Return whether a peer is suspected, so that this node does not wait for it."""
        return peer.name in self.view.suspected

    def suspect(self, peer: Peer, reason: str) -> None:
        """Stop waiting for a peer until its next message."""
        self.view.suspect(peer.name, printable(reason))
        peer.trouble.set()
        self.notify()

    def disconnect(self, peer: Peer, reason: str) -> None:
        """Mark a peer as disconnected, because its link has ended or must be closed."""
        peer.link = None
        peer.repetition.cancel()
        self.detector.unwatch(peer.name)
        self.suspect(peer, reason)
        peer.give_up()
        self.notify()

    def heard(self, peer: Peer) -> None:
        """Record an authentic frame of a peer. If the peer keeps up, end its suspicion, so that no deadline is lost."""
        peer.unanswered = 0
        self.detector.heard(peer.name, asyncio.get_running_loop().time())
        suspicion = self.view.suspected.get(peer.name)
        if suspicion is None:
            return
        if not (peer.stopped or self._asynchronous or peer.round >= self.round - 1):
            reason = f"{_BEHIND}, in round {peer.round}"
            if suspicion != reason:
                self.view.suspect(peer.name, reason)
                self.view.notify()  # it is connected now, if it was not before
        elif self._events.may_return(peer):
            self.view.heard(peer.name)
            self.notify()

    def set_round(self, peer: Peer, round: int) -> None:
        """Record the round of a peer."""
        if round != peer.round:
            peer.round = round
            self.notify()

    def resolve(self, peer: Peer, number: int, answer: Any) -> None:
        """Resolve a request with its answer, or with None if there will be none, even if no task waits for it."""
        if number in peer.overdue:
            peer.overdue.remove(number)
            self._events.late(peer)
            self.heard(peer)
        peer.resolve(number, answer)

    # Messages

    def send(self, peer: Peer, message: m.Message, payload: Payload = EMPTY) -> None:
        """Send a message to an introduced peer.

        Raises:
            TransportError: the peer is not connected.
        """
        if peer.link is None:
            raise TransportError(self.view.suspected.get(peer.name, "not connected"))
        self.send_over(peer.link, peer, message, payload)

    def send_over(self, link: Link, peer: Peer, message: m.Message, payload: Payload = EMPTY) -> None:
        """Send a message to a peer over any link with it.

        Raises:
            TransportError: the link is closed, or the peer does not read.
        """
        link.send(self.signer.seal(message, peer.key, payload, link.session))
        size = OVERHEAD + payload.size
        peer.bytes_out += size
        self.traffic.count_message("sent", message, size)

    def tell(self, peer: Peer, message: m.Message) -> None:
        """Send a message; ignore its loss."""
        try:
            self.send(peer, message)
        except TransportError:
            self.rejected["link lost"] += 1

    def ping(self, peer: Peer) -> int:
        """Send a ping to a peer, which may be lost; return the number of the request."""
        number = next(self.numbers)
        self.tell(peer, m.Ping(number))
        return number

    def check(self, peer: Peer) -> None:
        """Ask a peer for its current round. A frame with a long transit time may have named an older one."""
        peer.checking = next(self.numbers)
        self.tell(peer, m.Ping(peer.checking))

    # Waiting

    def notify(self) -> None:
        """Report a change for which a task may wait."""
        self._events.peers_changed()
        if self._progress is not None and not self._progress.done():
            self._progress.set_result(None)

    async def until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait until a change makes `condition` true. Return False if that took longer than `seconds`."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(None if seconds == inf else seconds):
                while not condition():
                    if self._progress is None or self._progress.done():
                        self._progress = loop.create_future()
                    await asyncio.shield(self._progress)  # several tasks wait for it; the timeout of one must not end it
        except TimeoutError:
            return False
        return True

    # Tasks

    def begin(self, coroutine: Coroutine[Any, Any, None], name: str) -> Task[None]:
        """Run a coroutine until the node ends. An error in it ends the node."""
        task = self._group.create_task(coroutine, name=name)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    def end(self, error: Exception, name: str) -> None:
        """End the node with an error."""

        async def fail() -> None:
            raise error

        self.begin(fail(), name)


def is_only_behind(peer: Peer, reason: str) -> bool:
    """Return whether a suspected peer is connected, and is suspected only because it is in an earlier round.

    Args:
        reason: why the peer is suspected; "" if it is not.
    """
    return peer.introduced and reason.startswith(_BEHIND)
