"""State of one neighbour, as a node knows it."""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from p2pfl.compression.sparse_updates import Copy
from p2pfl.policy import Stage
from p2pfl.protocols.transport import Link
from p2pfl.protocols.wire.messages import Get

MOST_ADDRESSES = 8  # that one source has said
MOST_PROVEN = 4  # addresses that are known to have worked
MOST_OVERDUE = 4  # requests of one peer that may still be answered


class Member(msgspec.Struct, frozen=True):
    """A neighbour as it is known before anything was heard of it.

    Attributes:
        addresses: where it may be reached; more are found later.
    """

    key: bytes
    addresses: tuple[str, ...] = ()


class Asked(NamedTuple):
    """A requested model, and the one that the answer may be a difference from."""

    round: int
    stage: Stage
    known: Copy | None


class Peer:
    """A neighbour: its addresses, its link, its state, and the requests between it and this node.

    Attributes:
        addresses: where it may be, and who said so. Hints: who is really there is proven when it is dialled.
        proven: those of the addresses where it was reached, the last one at the end.
        untried: there is an address that was not dialled yet.
        link: over which it was introduced; None while it is not connected.
        progress: of the link, when it was last looked at.
        incarnation: how often it has started.
        public_info: what it says of itself.
        round: where it is.
        stopped: its model is final.
        known: it was introduced before, on this link or an earlier one.
        membership_version: the newest entry of the membership log that it is known to have.
        problem: why it is kept out for good.
        requests: what it was asked and has not answered.
        asked: the models among them.
        overdue: the newest requests that are not waited for any more, or never were.
        unanswered: probes since it was heard.
        checking: the ping whose answer says where it is now; 0 if there is none.
        waiting: what it has asked for and is not published yet.
        queued: the model that it is sent when it has read what it was sent before.
        scoring: losses that are computed for it.
        scored: the newest rounds for which it was told a loss.
        age: in seconds, of the model last received from it when it was sent.
        bytes_in, bytes_out: whole envelopes, of all kinds.
        offences: frames of it that were refused, by cause.
        trouble: it is not connected, or suspected, or there is a new address of it.
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
        self.requests: dict[int, Future[Any]] = {}
        self.asked: dict[int, Asked] = {}
        self.overdue: set[int] = set()
        self.unanswered = 0
        self.checking = 0
        self.waiting: dict[tuple[int, Stage], Get] = {}
        self.queued: tuple[Get, tuple[int, Stage]] | None = None
        self.scoring = 0
        self.scored: set[int] = set()
        self.age: float | None = None
        self.bytes_in = self.bytes_out = 0
        self.offences: Counter[str] = Counter()
        self.trouble = asyncio.Event()

    @property
    def introduced(self) -> bool:
        return self.link is not None

    def hint(self, address: str, source: str) -> bool:
        """Note where the peer may be; return whether that is news.

        The oldest hint of the same source makes room for one too many, but not an address where the peer was reached.
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
        """Note that the peer has proven its key at an address."""
        self.proven.pop(address, None)
        self.proven[address] = None
        if len(self.proven) > MOST_PROVEN:
            del self.proven[next(iter(self.proven))]

    def is_hint(self, address: str) -> bool:
        """Return whether an address is known from the word of others only."""
        return self.addresses[address] != "node.toml" and address not in self.proven

    def resolve(self, number: int, answer: Any) -> None:
        """Give the answer to a request, or None if there will be none."""
        future = self.requests.pop(number, None)
        if future is not None and not future.done():
            future.set_result(answer)

    def note_overdue(self, number: int) -> None:
        """Note a request that is not waited for any more, or never was."""
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
