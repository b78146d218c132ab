"""Configuration of a node's peering: who it is, how it is reached, what it agrees on, and its own state."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from p2pfl.node.log import LOG
from p2pfl.node.peering.discovery import Discovery
from p2pfl.node.peering.guard import Guard
from p2pfl.node.peering.newcomers import AnswerJoin
from p2pfl.node.peering.peer import Member
from p2pfl.protocols.transport import AccessControl, Transport
from p2pfl.protocols.wire.envelope import FrameSigner, FrameVerifier
from p2pfl.system.event_log import EventLogger


@dataclass(frozen=True, kw_only=True)
class PeeringOptions:
    """Parts that only a node among others on real machines has. Nodes in one process need none.

    Attributes:
        gate: decides who is a member; None where that never changes.
        guard: keeps out members that send invalid frames; None where nobody is kept out.
        period: seconds between probes of silent peers; inf probes only those that are suspected.
        discovery: reports where members may be.
        answer_join: answers the question of a newcomer; None where this node invites nobody.
        on_fault: receives the name of a part and its unexpected error; None: an error ends the node.
        log: receives events about those who are kept out.
    """

    gate: AccessControl | None = None
    guard: Guard | None = None
    period: float = inf
    discovery: Discovery | None = None
    answer_join: AnswerJoin | None = None
    on_fault: Callable[[str, Exception], None] | None = None
    log: EventLogger = LOG


@dataclass(frozen=True, kw_only=True)
class PeeringConfig:
    """Everything that a PeerManager is made from, but for the receiver of its events.

    Attributes:
        name: of this node.
        key: its public key.
        neighbours: the members with which it may exchange anything, by name. More may be added later.
        sealer, door: sign the frames that it sends, and verify those that it receives.
        agreed: settings that must be equal on all nodes, in words, by key.
        public_info: public facts of this node.
        seed: of the federation.
        asynchronous: whether a node may learn with a peer that is behind.
        sources: names of the neighbours that may be fetched from; None for all.
    """

    name: str
    key: bytes
    neighbours: Mapping[str, Member]
    transport: Transport
    sealer: FrameSigner
    door: FrameVerifier
    agreed: Mapping[str, str]
    public_info: Mapping[str, Any]
    seed: int = 0
    asynchronous: bool = False
    sources: Collection[str] | None = None
    options: PeeringOptions = PeeringOptions()

    @property
    def membership_version(self) -> int:
        """The newest entry of the membership log that is known here; 0 without a log."""
        return 0 if self.options.gate is None else self.options.gate.membership_version


class LocalState:
    """Public state of this node, as it tells its peers.

    Attributes:
        name: of this node.
        public_info: public facts.
        round: the newest one that it has reached.
        final: its model is final.
    """

    def __init__(self, name: str, public_info: Mapping[str, Any]) -> None:
        self.name = name
        self.public_info = dict(public_info)
        self.round = 0
        self.final = False
