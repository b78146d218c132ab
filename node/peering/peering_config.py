"""Inputs of a peer manager: its configuration, reports about members, and the guard that excludes offenders.

Reports (Discovery) come from transports and discovery services; they are hints, never facts. The Guard excludes members
that violate the wire protocol for a time, which doubles at each repetition.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple, Protocol

import msgspec

from p2pfl._util.event_log import EventLogger
from p2pfl.node.log import LOG
from p2pfl.protocols.rate_limit import TokenBucket
from p2pfl.protocols.transport import AccessControl, Transport
from p2pfl.protocols.wire.envelope import FrameSigner, FrameVerifier

# Causes of refusal that only a violation of the protocol can produce, never a network fault.
GRAVE = frozenset(
    {
        "malformed",
        "wrong length",
        "wrong signature",
        "not signed",
        "other recipient",
        "other sender",
        "other federation",
        "other session",
    }
)
TOLERATED = 9  # number of offences in a burst; the next one excludes a member
FORGIVEN = 1 / 60  # offences forgiven per second
FIRST_EXCLUSION, LONGEST_EXCLUSION = 60.0, 3600.0  # seconds; each exclusion is twice as long as the last
CAUSE = "kept out"


class Member(msgspec.Struct, frozen=True):
    """Neighbour as it is known before its first message.

    Attributes:
        addresses: addresses at which it may be reachable; more are found later.
    """

    key: bytes
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DialLimits:
    """Limits on the cost of dialling; see p2pfl.node.peering.dialler.

    Attributes:
        at_once: dials in progress, without those that take long.
        through_broker: the same for peers that are known only through a broker, where a dial takes many packets, and both
            sides repeat them when processor time is short.
        rate: dials of absent peers per second.
        longest: maximum seconds between two dials of a peer.
    """

    at_once: int = 6
    through_broker: int = 2
    rate: float = 12.0
    longest: float = 60.0


@dataclass(frozen=True, kw_only=True)
class PeeringOptions:
    """Options that only nodes on real machines need, not nodes in one process.

    Attributes:
        access: decides which nodes are members; None if the members never change.
        guard: excludes members that send invalid frames; None to exclude no member.
        period: seconds between probes of silent peers; inf to probe only suspected ones.
        rest: the same while no round is under way; at least `period`.
        dialling: limits on the cost of dialling; None for none, in one process.
        discovery: reports possible addresses of members.
        answer_join: answers the request of a newcomer; None if this node does not admit newcomers.
        on_fault: receives the name of a part and its unexpected error; None: an error ends the node.
        log: receives events about excluded peers.
    """

    access: AccessControl | None = None
    guard: Guard | None = None
    period: float = inf
    rest: float = 0.0
    dialling: DialLimits | None = None
    discovery: Discovery | None = None
    answer_join: AnswerJoin | None = None
    on_fault: Callable[[str, Exception], None] | None = None
    log: EventLogger = LOG


@dataclass(frozen=True, kw_only=True)
class PeeringConfig:
    """Configuration of a PeerManager, except for the receiver of its events.

    Attributes:
        name: name of this node.
        key: its public key.
        neighbours: the members with which it may exchange messages, by name. More may be added later.
        signer, verifier: signer of sent frames, and verifier of received frames.
        agreed: settings that must be equal on all nodes, as text, by key.
        public_info: public information about this node.
        seed: seed of the federation.
        asynchronous: whether a node may learn with a peer that is behind.
        sources: names of the neighbours from which it may fetch; None for all.
    """

    name: str
    key: bytes
    neighbours: Mapping[str, Member]
    transport: Transport
    signer: FrameSigner
    verifier: FrameVerifier
    agreed: Mapping[str, str]
    public_info: Mapping[str, Any]
    seed: int = 0
    asynchronous: bool = False
    sources: Collection[str] | None = None
    options: PeeringOptions = PeeringOptions()

    @property
    def membership_version(self) -> int:
        """The newest entry of the membership log that this node knows; 0 without a log."""
        return 0 if self.options.access is None else self.options.access.membership_version


class DiscoveryEvents(Protocol):
    """Receiver of reports. Reports are only hints: a member proves its key when it is dialled."""

    def found(self, key: bytes, address: str, source: str) -> None:
        """Record an address at which the member with a key may be reachable.

        Args:
            source: source of the report, for example "mdns" or "broker".
        """

    def hinted(self, key: bytes) -> None:
        """Record that the member with a key may be gone."""

    def broker_changed(self, problem: str) -> None:
        """Record the current problem of the broker; "" while it works."""


class Discovery:
    """Distributor that passes each report to all subscribers.

    It is created before both sides, because a transport that reports members is part of the peer manager that receives
    the reports.
    """

    def __init__(self) -> None:
        self._subscribers: list[DiscoveryEvents] = []

    def subscribe(self, subscriber: DiscoveryEvents) -> None:
        """Pass all future reports to `subscriber` as well."""
        self._subscribers.append(subscriber)

    def found(self, key: bytes, address: str, source: str) -> None:
        """Report an address at which the member with a key may be reachable."""
        for subscriber in self._subscribers:
            subscriber.found(key, address, source)

    def hinted(self, key: bytes) -> None:
        """Report that the member with a key may be gone."""
        for subscriber in self._subscribers:
            subscriber.hinted(key)

    def broker_changed(self, problem: str) -> None:
        """Report the current problem of the broker; "" while it works."""
        for subscriber in self._subscribers:
            subscriber.broker_changed(problem)


class _Record:
    """Exclusions of one member.

    Attributes:
        until: end of the current or the last exclusion, by the guard's clock; 0 before the first one.
        pause: length of the next exclusion in seconds.
    """

    __slots__ = ("pause", "until")

    def __init__(self) -> None:
        self.until = 0.0
        self.pause = FIRST_EXCLUSION


class Guard:
    """Access control (see p2pfl.protocols.transport.AccessControl) that also excludes offenders for a time.

    Args:
        access: decides which nodes are members.
        clock: returns seconds and never goes back.
    """

    def __init__(self, access: AccessControl, clock: Callable[[], float]) -> None:
        self._access = access
        self._clock = clock
        self._offences = TokenBucket(FORGIVEN, TOLERATED)
        self._records: dict[bytes, _Record] = {}

    def offend(self, key: bytes, cause: str) -> bool:
        """Record a refused frame of a member; return whether the member is excluded from now on."""
        now = self._clock()
        if cause not in GRAVE or self._offences.take(key, now):
            return False
        self._offences.reset(key)
        record = self._records.setdefault(key, _Record())
        record.until = now + record.pause
        record.pause = min(2 * record.pause, LONGEST_EXCLUSION)
        return True

    def seconds_left(self, key: bytes) -> float:
        """Return the seconds until the exclusion of a member ends; 0 if it is not excluded."""
        record = self._records.get(key)
        return 0.0 if record is None else max(0.0, record.until - self._clock())

    # Access control

    @property
    def federation(self) -> bytes:
        return self._access.federation

    @property
    def invites(self) -> bool:
        return self._access.invites

    @property
    def membership_version(self) -> int:
        return self._access.membership_version

    @property
    def stored(self) -> int:
        return self._access.stored

    @property
    def fork(self) -> tuple[bytes, bytes] | None:
        return self._access.fork

    def refusal(self, key: bytes) -> str:
        excluded = CAUSE if self.seconds_left(key) else ""
        return self._access.refusal(key) or excluded

    def after(self, membership_version: int, limit: int) -> bytes:
        return self._access.after(membership_version, limit)

    def extend(self, entries: bytes) -> int:
        return self._access.extend(entries)

    def revocation(self, key: bytes) -> bytes:
        return self._access.revocation(key)

    def accept_revocation(self, key: bytes, proof: bytes) -> bool:
        return self._access.accept_revocation(key, proof)


class JoinReply(NamedTuple):
    """Answer to a newcomer.

    Attributes:
        frame: the frame to send.
        cause: cause of a refusal, for the counters; "" for none.
        detail: explanation of a refusal, for people.
    """

    frame: bytes
    cause: str = ""
    detail: str = ""


AnswerJoin = Callable[[bytes, bytes, str], Awaitable[JoinReply]]
"""Function of a newcomer's public key, its request, and its host ("broker" if the host is unknown)."""
