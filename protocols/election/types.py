"""Types of an election: terms, ballots, the electorate, and timing.

See p2pfl.protocols.election.raft.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

import msgspec

LAST = 2**32 - 1  # greatest number of a term
FURTHEST = 2**10  # maximum number of terms by which one member's message may advance a node


class Term(NamedTuple):
    """Period between two elections; a later term is greater."""

    membership_version: int
    number: int

    def __str__(self) -> str:
        return f"{self.membership_version}.{self.number}"


class Ballot(msgspec.Struct, frozen=True):
    """Latest known term, and the member for which this node voted in it ("" for none). It must never be lost."""

    term: Term = Term(0, 0)
    vote: str = ""


class Electorate(msgspec.Struct, frozen=True):
    """Members that vote, and members that may coordinate.

    Attributes:
        membership_version: version of the membership log.
        members: all members that vote, including this node if it votes.
        eligible: the members that may coordinate; the preferred one is first.
    """

    membership_version: int
    members: frozenset[str]
    eligible: tuple[str, ...]

    @property
    def majority(self) -> int:
        return len(self.members) // 2 + 1


class Timing(msgspec.Struct, frozen=True):
    """Timing of elections in seconds, equal on all members.

    Attributes:
        beat: time between two messages of a coordinator, and before a question is repeated.
        lease: time for which a coordinator may act; see p2pfl.protocols.election.raft.
        patience: time for which a member that has answered a coordinator supports no other. A member that receives no
            beat for one to two times as long stands for election.

    Raises:
        ValueError: the values are not in this order, or too close to each other.
    """

    beat: float = 0.4
    lease: float = 1.6
    patience: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < 2 * self.beat <= self.lease < self.patience < inf:
            raise ValueError("a lease must be at least two beats, and less than the patience")


TIMING = Timing()
