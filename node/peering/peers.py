"""Neighbours of a node: the state of each of them, the node's opinion of it, the table of all, and their traffic.

The failure detector (p2pfl.node.peering.failure_detector) judges which of them are alive. Traffic is counted in bytes of
whole envelopes by kind, without the overhead of a transport.
"""

from __future__ import annotations

import asyncio
from asyncio import Future, Task, TaskGroup
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from itertools import count
from math import inf
from typing import Any, Literal, NamedTuple, Protocol

from p2pfl._util.printable import printable
from p2pfl.compression.sparse_updates import PeerCopy
from p2pfl.fragments import Fragments
from p2pfl.node.peering.failure_detector import FailureDetector
from p2pfl.node.peering.peering_config import Member, PeeringConfig
from p2pfl.policy import Fragment, Stage
from p2pfl.protocols.errors import TransportError
from p2pfl.protocols.transport import Link, Timer
from p2pfl.protocols.wire import messages as m
from p2pfl.protocols.wire.envelope import EMPTY, OVERHEAD, Opened, Payload
from p2pfl.random_streams import RandomStreams

NEW = "not connected yet"  # reason for the suspicion of a new member
_BEHIND = "behind"  # beginning of the reason for the suspicion of a connected peer in an earlier round
MOST_ADDRESSES = 8  # addresses reported by one source
MOST_PROVEN = 4  # addresses that have worked before
MOST_OVERDUE = 4  # expired requests to one peer that may still be answered
KINDS = ("get", "update", "score", "scored", "submit", "assigned")  # the kinds that carry learning
COUNTS = (*KINDS, "control", "models", "preparation")
Way = Literal["sent", "received"]
_KIND_OF: Mapping[type[m.Message], str] = {
    m.Get: "get",
    m.ModelUpdate: "update",
    m.GetFragments: "get",
    m.FragmentUpdate: "update",
    m.Score: "score",
    m.Scored: "scored",
    m.Submit: "submit",
    m.GroupMean: "submit",
    m.SumAnswer: "submit",
    m.SumRequest: "assigned",
    m.Assigned: "assigned",
}


class Asked(NamedTuple):
    """Requested model, and the model from which the answer may be a difference."""

    round: int
    stage: Stage
    known: PeerCopy | None


class AskedFragments(NamedTuple):
    """Requested parts of a model.

    Attributes:
        missing: numbers of the parts that have not arrived.
        arrived: those that have.
    """

    round: int
    stage: Stage
    fragments: Fragments
    missing: set[int]
    arrived: list[Fragment]


Request = m.Get | m.GetFragments
"""Request for a model, or for parts of one."""


class Peer:
    """Neighbour: its addresses, its link, its state, and the requests between it and this node.

    Attributes:
        addresses: possible addresses and their sources. They are only hints: a peer proves its key when it is dialled.
        proven: the addresses at which it was reached; the latest is at the end.
        untried: whether there is an address that has not been dialled yet.
        dialled: whether this node dials it when it is not connected.
        link: the link over which it was introduced; None while it is not connected.
        progress: progress of the link at the last check.
        incarnation: number of its starts.
        public_info: public information that it has announced.
        round: its current round.
        stopped: whether its model is final.
        known: whether it has been introduced, on this link or an earlier one.
        membership_version: the newest entry of the membership log that it is known to have.
        problem: reason for its permanent exclusion.
        revoked: whether it refuses this node as a former member.
        dial_problem: reason why it could not be dialled since it was last connected.
        requests: requests to it that are not answered yet.
        asked: requests for models among them.
        overdue: the newest requests for whose answers this node does not wait, or never did.
        unanswered: number of probes since its last message.
        checking: number of the ping whose answer will contain its current round; 0 if there is none.
        waiting: its requests for models that are not published yet, by round, stage, and whether they are for parts.
        queued: the model to send when it has read the previous ones.
        scoring: losses that are being computed for it.
        scored: the newest rounds for which it has received a loss.
        published: time of the event loop at which it published the last model received from it; None without one.
        bytes_in, bytes_out: bytes of whole envelopes, of all kinds.
        offences: number of its refused frames, by cause.
        trouble: set if it is not connected, is suspected, or has a new address.
        news: set at each change of its link, its suspicion and its addresses; wakes its own task only.
        sighted: whether others have reported it since it was dialled.
        repetition: sends entries of the membership log again that it has not confirmed.
    """

    def __init__(self, name: str, member: Member) -> None:
        self.name = name
        self.key = member.key
        self.addresses: dict[str, str] = dict.fromkeys(member.addresses, "node.toml")
        self.proven: dict[str, None] = {}
        self.untried = True
        self.dialled = True
        self.link: Link | None = None
        self.progress = 0
        self.incarnation = 0
        self.public_info: Mapping[str, Any] = {}
        self.round = 0
        self.stopped = False
        self.known = False
        self.membership_version = 0
        self.problem = ""
        self.revoked = False
        self.dial_problem = ""
        self.requests: dict[int, Future[Any]] = {}
        self.asked: dict[int, Asked | AskedFragments] = {}
        self.overdue: set[int] = set()
        self.unanswered = 0
        self.checking = 0
        self.waiting: dict[tuple[int, Stage, bool], Request] = {}
        self.queued: tuple[Request, tuple[int, Stage]] | None = None
        self.scoring = 0
        self.scored: set[int] = set()
        self.published: float | None = None
        self.bytes_in = self.bytes_out = 0
        self.offences: Counter[str] = Counter()
        self.trouble = asyncio.Event()
        self.news = asyncio.Event()
        self.sighted = False
        self.repetition = Timer()

    @property
    def introduced(self) -> bool:
        return self.link is not None

    def hint(self, address: str, source: str) -> bool:
        """Record a possible address of the peer; return whether it is new.

        If there are too many, the oldest hint of the same source is removed, but never an address at which the peer was
        reached.
        """
        if address in self.addresses:
            return False
        hints = [known for known, said in self.addresses.items() if said == source]
        if len(hints) >= MOST_ADDRESSES:
            del self.addresses[next(hint for hint in hints if hint not in self.proven)]
        self.addresses[address] = source
        self.untried = True
        return True

    def record_proof(self, address: str) -> None:
        """Record that the peer has proven its key at an address."""
        self.proven.pop(address, None)
        self.proven[address] = None
        if len(self.proven) > MOST_PROVEN:
            del self.proven[next(iter(self.proven))]

    def is_hint(self, address: str) -> bool:
        """Return whether an address is known only from other nodes' reports."""
        return self.addresses[address] != "node.toml" and address not in self.proven

    def resolve(self, number: int, answer: Any) -> None:
        """Resolve a request with its answer, or with None if there will be none."""
        future = self.requests.pop(number, None)
        if future is not None and not future.done():
            future.set_result(answer)

    def note_overdue(self, number: int) -> None:
        """Record a request for whose answer this node does not wait, or never did."""
        self.overdue.add(number)
        if len(self.overdue) > MOST_OVERDUE:
            self.overdue.remove(min(self.overdue))

    def give_up_requests(self) -> None:
        """End this node's requests to the peer without an answer. Those of the peer are answered if it still lives."""
        for future in self.requests.values():
            if not future.done():
                future.set_result(None)
        self.overdue.clear()

    def give_up(self) -> None:
        """End all requests in both directions without an answer."""
        self.give_up_requests()
        self.waiting.clear()
        self.queued = None


class PeerView:
    """Peers with which a node may learn.

    Attributes:
        neighbours: all peers that the topology allows; sorted.
        ids: the peers that are not suspected; sorted. The value is replaced, never changed, so that it can be kept.
        suspected: reason for the suspicion of a peer.
        left_out: reason for leaving out a peer for good; it is none of `neighbours`.
        on_change: called after every change.
    """

    def __init__(self, neighbours: Iterable[str]) -> None:
        given = tuple(neighbours)
        ordered = tuple(sorted(given))
        self.neighbours = given if given == ordered else ordered  # the caller's own tuple, if possible
        self.ids = self.neighbours
        self.suspected: dict[str, str] = {}
        self.left_out: dict[str, str] = {}
        self.on_change: list[Callable[[], None]] = []

    def among(self, ids: Iterable[str]) -> tuple[str, ...]:
        """Return those of `ids` that are peers and not suspected, in their order."""
        known = self.ids
        return tuple(id for id in ids if (at := bisect_left(known, id)) < len(known) and known[at] == id)

    def add(self, id: str) -> None:
        """Add a peer, unless it is left out for good."""
        if id not in self.left_out:
            self.neighbours = tuple(sorted({*self.neighbours, id}))
            self._update()

    def remove(self, id: str, for_now: bool = False) -> None:
        """Remove a peer that is no longer a neighbour.

        Args:
            for_now: whether it may be a neighbour again, and stays left out if it is.
        """
        self.neighbours = tuple(known for known in self.neighbours if known != id)
        self.suspected.pop(id, None)
        if not for_now:
            self.left_out.pop(id, None)
        self._update()

    def leave_out(self, id: str, reason: str) -> None:
        """Exclude a peer for good: this node neither learns from it, nor serves it, nor waits for it."""
        if id not in self.left_out:
            self.left_out[id] = reason
            self.neighbours = tuple(known for known in self.neighbours if known != id)
            self._update()

    def suspect(self, id: str, reason: str) -> None:
        """Exclude a peer until its next message. This is an opinion of this node and decides nothing else."""
        if id not in self.suspected:
            self.suspected[id] = reason
            self._update()
        else:
            self.suspected[id] = reason

    def heard(self, id: str) -> None:
        """End the suspicion of a peer after an authentic message."""
        if self.suspected.pop(id, None) is not None:
            self._update()

    def notify(self) -> None:
        """Notify all subscribers of a change."""
        for notify in self.on_change:
            notify()

    def _update(self) -> None:
        self.ids = tuple(id for id in self.neighbours if id not in self.suspected)
        self.notify()


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
        released: members that were peers and may be again, with their keys.
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
            RandomStreams(config.seed, config.name).generator(0, "probing"),
            period if period < inf else 1.0,
            config.options.rest,
        )
        self.traffic = Traffic()
        self.rejected: Counter[str] = Counter()
        self.numbers = count(1)
        self.released: dict[str, bytes] = {}
        self.signer = config.signer
        self._names = {peer.key: peer.name for peer in self.peers.values()}
        self._events = events
        self._asynchronous = config.asynchronous
        self._progress: asyncio.Future[None] | None = None  # done at the next change
        self._hurry = asyncio.Event()  # set while the node does not rest
        self._group: TaskGroup
        self._running: set[Task[None]] = set()
        self._closed = False

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
        """Stop waiting for a peer until its next message. Wake nobody if the reason is the same as before."""
        reason = printable(reason)
        known = self.view.suspected.get(peer.name)
        peer.trouble.set()
        peer.news.set()
        if known != reason:
            self.view.suspect(peer.name, reason)
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
            peer.news.set()
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
        link.send(self.signer.seal(message, peer.key, payload, link.session, link.version))
        size = OVERHEAD + payload.size
        peer.bytes_out += size
        self.traffic.count_message("sent", message, size)

    def tell(self, peer: Peer, message: m.Message, payload: Payload = EMPTY) -> None:
        """Send a message; ignore its loss."""
        try:
            self.send(peer, message, payload)
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

    # Rest

    def rest(self) -> None:
        """Probe rarely from now on, because no round is under way."""
        self.detector.resting = True
        self._hurry.clear()

    def end_rest(self) -> None:
        """Probe as in a round from now on."""
        self.detector.resting = False
        self._hurry.set()

    async def pause(self, seconds: float) -> None:
        """Sleep for a time, or until the node no longer rests."""
        if not self.detector.resting:
            await asyncio.sleep(seconds)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._hurry.wait()

    # Tasks

    def begin(self, coroutine: Coroutine[Any, Any, None], name: str) -> Task[None]:
        """Run a coroutine until the node ends. An error in it ends the node."""
        task = self._group.create_task(coroutine, name=name)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    def later(self, seconds: float, callback: Callable[[], None]) -> None:
        """Call `callback` after `seconds`, unless the node has ended; never for inf."""

        def call() -> None:
            if not self._closed:
                callback()

        if seconds < inf:
            asyncio.get_running_loop().call_later(seconds, call)

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


class Traffic:
    """Frames and bytes of one node, by direction and kind.

    `count` is the only place that changes the counts. A live node calls it through `count_message` for each frame that it
    has sent, or has received from an introduced peer; a simulated one, which has no frames, calls it directly.

    Attributes:
        sent, received: counts of each direction: the bytes of each of the kinds that carry learning, and of all other
            kinds as `control`; `models`, the number of frames that hold a model; `preparation`, the bytes of requests
            and models that belong to the preparation instead of a round, which their kinds include.
    """

    __slots__ = ("received", "sent")

    def __init__(self) -> None:
        self.sent = dict.fromkeys(COUNTS, 0)
        self.received = dict.fromkeys(COUNTS, 0)

    def count(self, way: Way, kind: str, size: int, *, models: int = 0, preparation: bool = False) -> None:
        """Count frames of one kind.

        Args:
            size: bytes of all of them.
            models: how many of them hold a model.
            preparation: whether they belong to the preparation.
        """
        counts = self.sent if way == "sent" else self.received
        counts[kind] += size
        counts["models"] += models
        if preparation:
            counts["preparation"] += size

    def count_message(self, way: Way, message: m.Message, size: int) -> None:
        """Count the frame of a message; `size` is the bytes of its whole envelope."""
        kind = _KIND_OF.get(type(message))
        if kind is None:
            self.count(way, "control", size)
            return
        holds_model = (
            isinstance(message, m.ModelUpdate | m.Submit | m.GroupMean)
            or (isinstance(message, m.Assigned) and message.given)
            or (isinstance(message, m.SumAnswer) and message.step == "shares")  # it is masked
        )
        early = isinstance(message, m.Get | m.ModelUpdate | m.GetFragments | m.FragmentUpdate) and not message.round
        self.count(way, kind, size, models=int(holds_model), preparation=early)

    @property
    def sent_in_rounds(self) -> int:
        """Bytes sent of the kinds that carry learning, without the preparation."""
        return _in_rounds(self.sent)

    @property
    def received_in_rounds(self) -> int:
        """Bytes received of the kinds that carry learning, without the preparation."""
        return _in_rounds(self.received)

    def as_dict(self) -> dict[str, dict[str, int]]:
        """Return the counts of all kinds and of models, by direction."""
        names = ("models", *KINDS, "control")
        return {"sent": {name: self.sent[name] for name in names}, "received": {name: self.received[name] for name in names}}


def _in_rounds(counts: Mapping[str, int]) -> int:
    return sum(map(counts.__getitem__, KINDS)) - counts["preparation"]
