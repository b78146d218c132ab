"""Table of a node's neighbours, and the failure detector that judges which of them are alive.

The detector classifies peers as alive, suspected or dead by the time of their last authentic message. It follows SWIM
(Das, Gupta and Motivala, DSN 2002) and its Lifeguard extensions (Dadgar, Phillips and Currey, 2018), with three
differences:

- A peer that has sent something recently is not probed, because the traffic of learning is proof of life. An idle
  federation exchanges one ping per period and node, however many nodes it has.
- Any authentic message refutes a suspicion, without incarnation numbers, because all messages are signed.
- Death is this node's own opinion. It decides for which peers the node waits, never which nodes are members. It ends
  with the next message of the peer.

The detector sends nothing, receives nothing and reads no clock. Its caller (p2pfl.node.peering.control_messages.Prober)
calls `tick` at the time that `next_tick` returns, and carries out the returned steps.
"""

from __future__ import annotations

import asyncio
from asyncio import Task, TaskGroup
from collections import Counter
from collections.abc import Callable, Coroutine
from itertools import count
from math import inf, log10
from typing import Any, Protocol

import msgspec
import numpy as np

from p2pfl._util.printable import printable
from p2pfl.node.peering.peer import Peer, PeerView, Traffic
from p2pfl.node.peering.peering_config import PeeringConfig
from p2pfl.protocols.errors import TransportError
from p2pfl.protocols.transport import Link
from p2pfl.protocols.wire import messages as m
from p2pfl.protocols.wire.envelope import EMPTY, OVERHEAD, Opened, Payload
from p2pfl.random_streams import RandomStreams

NEW = "not connected yet"  # reason for the suspicion of a new member
_BEHIND = "behind"  # beginning of the reason for the suspicion of a connected peer in an earlier round
HELPERS = 3  # peers that are asked to probe for this node (SWIM: k)
LATE = 0.2  # seconds by which a tick may be late; a later tick means that this node's own event loop lags
MAX_HEALTH = 8


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
        if not self.is_suspected(peer):
            return
        if not (peer.stopped or self._asynchronous or peer.round >= self.round - 1):
            reason = f"{_BEHIND}, in round {peer.round}"
            if self.view.suspected[peer.name] != reason:
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


class Ping(msgspec.Struct, frozen=True):
    """Step: ask a peer for a sign of life."""

    name: str


class AskOthers(msgspec.Struct, frozen=True):
    """Step: ask 1 to 3 other peers to ping a peer and to report its answer, for `record_indirect_ack`."""

    helpers: tuple[str, ...]
    about: str


class Suspect(msgspec.Struct, frozen=True):
    """Step: stop waiting for a peer that answered neither this node nor others. One more ping lets it refute this."""

    name: str
    reason: str


class Dead(msgspec.Struct, frozen=True):
    """Step: close the link with a peer that did not refute its suspicion in time, and stop probing it."""

    name: str
    reason: str


Step = Ping | AskOthers | Suspect | Dead


class _Peer:
    __slots__ = ("heard", "stage", "until")

    def __init__(self, now: float) -> None:
        self.heard = now
        self.stage: type[Step] | None = None  # the latest step taken against the peer since its last message
        self.until = 0.0  # time at which the next step is due


class FailureDetector:
    """Judgement of each watched peer by the time of its last message, and the probes that are due.

    Args:
        rng: shuffles the order in which peers are probed.
        period: seconds between two probes.

    Attributes:
        health: factor of all waits; 1 while ticks are on time, at most 8 (Lifeguard's local health multiplier).
    """

    def __init__(self, rng: np.random.Generator, period: float = 1.0) -> None:
        self.period = period
        self.health = 1
        self._rng = rng
        self._peers: dict[str, _Peer] = {}
        self._probed: dict[str, _Peer] = {}  # the peers with a next step
        self._turns: list[str] = []  # order of the probes; the last entry is next
        self._due = inf

    def watch(self, name: str, now: float) -> None:
        """Start to watch a peer, as if it had just sent a message. Do nothing if it is watched already."""
        self._peers.setdefault(name, _Peer(now))

    def unwatch(self, name: str) -> None:
        """Stop watching a peer. Do nothing if it is not watched."""
        self._peers.pop(name, None)
        self._probed.pop(name, None)

    def heard(self, name: str, now: float) -> bool:
        """Record a sign of life of a peer; return whether it was suspected or dead. Ignore unwatched peers."""
        peer = self._peers.get(name)
        if peer is None:
            return False
        was_out = peer.stage is Suspect or peer.stage is Dead
        peer.heard, peer.stage = now, None
        self._probed.pop(name, None)
        return was_out

    def record_indirect_ack(self, name: str, now: float) -> bool:
        """Record another peer's report that a peer is alive, which ends a suspicion; return whether it was suspected.

        A dead peer stays dead, because this node cannot reach it.
        """
        return name in self._probed and self.heard(name, now)

    def next_tick(self, now: float) -> float:
        """Return the time of the next `tick`."""
        if self._due == inf:
            self._due = now + self.period
        return self._due

    def tick(self, now: float) -> list[Step]:
        """Return the steps that are due now.

        A late tick blames no peer, because messages of peers may be unread. All waits then restart and become longer.
        """
        late = now > self._due + LATE
        self._due = now + self.period
        self.health = min(MAX_HEALTH, self.health + 1) if late else max(1, self.health - 1)
        if late:
            for peer in self._probed.values():
                peer.until = now + self._patience(peer.stage)
        due = [(name, peer) for name, peer in self._probed.items() if peer.until <= now]
        steps = [step for name, peer in due for step in self._escalate(name, peer, now)]
        name = self._next(now)
        if name is not None:
            self._take(Ping, name, now)
            steps.append(Ping(name))
        return steps

    def _next(self, now: float) -> str | None:
        """Return the next peer in turn that has not sent anything recently.

        Every peer has one turn in a round, in shuffled order (SWIM, 4.3).
        """
        for _ in range(2):
            while self._turns:
                name = self._turns.pop()
                peer = self._peers.get(name)
                if peer is not None and peer.stage is None and now - peer.heard >= self.period:
                    return name
            names = list(self._peers)
            self._turns = [names[i] for i in self._rng.permutation(len(names))]
        return None

    def _escalate(self, name: str, peer: _Peer, now: float) -> list[Step]:
        """Return the step that follows an unanswered one."""
        if peer.stage is Ping:
            self._take(AskOthers, name, now)
            helpers = self._helpers()
            return [AskOthers(helpers, name)] if helpers else [Ping(name)]
        silent = f"silent for {now - peer.heard:.1f} s"
        if peer.stage is AskOthers:
            self._take(Suspect, name, now)
            return [Suspect(name, silent), Ping(name)]
        self._take(Dead, name, now)
        return [Dead(name, silent)]

    def _take(self, step: type[Step], name: str, now: float) -> None:
        peer = self._peers[name]
        peer.stage = step
        if step is Dead:
            del self._probed[name]
        else:
            peer.until = now + self._patience(step)
            self._probed[name] = peer

    def _patience(self, step: type[Step] | None) -> float:
        """Return the time in seconds to wait for an answer to a step.

        The time of a suspicion is longer if more peers can refute it.
        """
        periods = max(3.0, 4 * log10(len(self._peers) + 1)) if step is Suspect else 1.0
        return periods * self.period * self.health

    def _helpers(self) -> tuple[str, ...]:
        """Return the peers with the most recent messages that are not in doubt themselves."""
        alive = [name for name, peer in self._peers.items() if peer.stage is None]
        return tuple(sorted(alive, key=lambda name: self._peers[name].heard, reverse=True)[:HELPERS])
