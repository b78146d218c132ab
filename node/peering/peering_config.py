"""Configuration of a node's peering: its identity, its addresses, its agreed settings, and its public state."""

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
    """Options that only nodes on real machines need, not nodes in one process.

    Attributes:
        access: decides which nodes are members; None if the members never change.
        guard: excludes members that send invalid frames; None to exclude no member.
        period: seconds between probes of silent peers; inf to probe only suspected ones.
        discovery: reports possible addresses of members.
        answer_join: answers the request of a newcomer; None if this node does not admit newcomers.
        on_fault: receives the name of a part and its unexpected error; None: an error ends the node.
        log: receives events about excluded peers.
    """

    access: AccessControl | None = None
    guard: Guard | None = None
    period: float = inf
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


class LocalState:
    """Public state of this node, as its peers receive it.

    Attributes:
        name: name of this node.
        public_info: public information.
        round: the newest round that it has reached.
        final: whether its model is final.
    """

    def __init__(self, name: str, public_info: Mapping[str, Any]) -> None:
        self.name = name
        self.public_info = dict(public_info)
        self.round = 0
        self.final = False
