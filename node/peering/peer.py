"""State of one neighbour, the neighbours that a node may learn with, and the counters of its traffic.

Traffic is counted in bytes of whole envelopes by kind, without the overhead of a transport.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from p2pfl.compression.sparse_updates import PeerCopy
from p2pfl.policy import Stage
from p2pfl.protocols.transport import Link, Timer
from p2pfl.protocols.wire import messages as m
from p2pfl.protocols.wire.messages import Get

MOST_ADDRESSES = 8  # addresses reported by one source
MOST_PROVEN = 4  # addresses that have worked before
MOST_OVERDUE = 4  # expired requests to one peer that may still be answered
KINDS = ("get", "update", "score", "scored", "submit", "assigned")  # the kinds that carry learning
COUNTS = (*KINDS, "control", "models", "preparation")

Way = Literal["sent", "received"]
_KIND_OF: Mapping[type[m.Message], str] = {
    m.Get: "get",
    m.ModelUpdate: "update",
    m.Score: "score",
    m.Scored: "scored",
    m.Submit: "submit",
    m.Assigned: "assigned",
}


class Member(msgspec.Struct, frozen=True):
    """Neighbour as it is known before its first message.

    Attributes:
        addresses: addresses at which it may be reachable; more are found later.
    """

    key: bytes
    addresses: tuple[str, ...] = ()


class Asked(NamedTuple):
    """Requested model, and the model from which the answer may be a difference."""

    round: int
    stage: Stage
    known: PeerCopy | None


class Peer:
    """Neighbour: its addresses, its link, its state, and the requests between it and this node.

    Attributes:
        addresses: possible addresses and their sources. They are only hints: a peer proves its key when it is dialled.
        proven: the addresses at which it was reached; the latest is at the end.
        untried: whether there is an address that has not been dialled yet.
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
        waiting: its requests for models that are not published yet.
        queued: the model to send when it has read the previous ones.
        scoring: losses that are being computed for it.
        scored: the newest rounds for which it has received a loss.
        published: time of the event loop at which it published the last model received from it; None without one.
        bytes_in, bytes_out: bytes of whole envelopes, of all kinds.
        offences: number of its refused frames, by cause.
        trouble: set if it is not connected, is suspected, or has a new address.
        repetition: sends entries of the membership log again that it has not confirmed.
    """

    def __init__(self, name: str, member: Member) -> None:
        self.name = name
        self.key = member.key
        self.addresses: dict[str, str] = dict.fromkeys(member.addresses, "node.toml")
        self.proven: dict[str, None] = {}
        self.untried = True
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
        self.asked: dict[int, Asked] = {}
        self.overdue: set[int] = set()
        self.unanswered = 0
        self.checking = 0
        self.waiting: dict[tuple[int, Stage], Get] = {}
        self.queued: tuple[Get, tuple[int, Stage]] | None = None
        self.scoring = 0
        self.scored: set[int] = set()
        self.published: float | None = None
        self.bytes_in = self.bytes_out = 0
        self.offences: Counter[str] = Counter()
        self.trouble = asyncio.Event()
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

    def give_up(self) -> None:
        """End all requests in both directions without an answer."""
        for future in self.requests.values():
            if not future.done():
                future.set_result(None)
        self.overdue.clear()
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

    def add(self, id: str) -> None:
        """Add a peer."""
        self.neighbours = tuple(sorted({*self.neighbours, id}))
        self._update()

    def remove(self, id: str) -> None:
        """Remove a peer that is no longer a neighbour."""
        self.neighbours = tuple(known for known in self.neighbours if known != id)
        self.suspected.pop(id, None)
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
        holds_model = isinstance(message, m.ModelUpdate | m.Submit) or (isinstance(message, m.Assigned) and message.given)
        early = isinstance(message, m.Get | m.ModelUpdate) and not message.round
        self.count(way, _KIND_OF.get(type(message), "control"), size, models=int(holds_model), preparation=early)

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
