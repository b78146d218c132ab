"""What an election is about: terms, votes, who has one, and how long everything takes.

See p2pfl.protocols.election.raft.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

import msgspec

LAST = 2**32 - 1  # the greatest number of a term
FURTHEST = 2**10  # terms by which one member's word may bring a node further


class Term(NamedTuple):
    """Later terms are greater."""

    membership_version: int
    number: int

    def __str__(self) -> str:
        return f"{self.membership_version}.{self.number}"


class Ballot(msgspec.Struct, frozen=True):
    """What must never be forgotten: the latest term that is known, and whom this node has voted for in it ("" for none)."""

    term: Term = Term(0, 0)
    vote: str = ""


class Electorate(msgspec.Struct, frozen=True):
    """
    Attributes:
        membership_version: of the membership log.
        members: all who vote, this node included if it does.
        eligible: those of them who may coordinate, the preferred one first.
    """

    membership_version: int
    members: frozenset[str]
    eligible: tuple[str, ...]

    @property
    def majority(self) -> int:
        return len(self.members) // 2 + 1


class Timing(msgspec.Struct, frozen=True):
    """In seconds, the same at all members.

    Attributes:
        beat: between two messages of a coordinator, and until a question is asked again.
        lease: for which a coordinator may act; see p2pfl.protocols.election.raft.
        patience: for which who has answered a coordinator supports no other. Who hears none for one to two times as long
            stands for election.

    Raises:
        ValueError: they are not in this order, or too close to each other.
    """

    beat: float = 0.4
    lease: float = 1.6
    patience: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < 2 * self.beat <= self.lease < self.patience < inf:
            raise ValueError("a lease takes at least two beats, and less than the patience")


TIMING = Timing()
