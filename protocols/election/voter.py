"""One member as a voter: its promises, its votes, and the terms that it accepts.

See p2pfl.protocols.election.raft.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from p2pfl.protocols.election.types import FURTHEST, Ballot, Electorate, Term, Timing
from p2pfl.protocols.errors import ProtocolError
from p2pfl.protocols.wire import messages as m


class Voter:
    """Member that votes and follows; p2pfl.protocols.election.raft.Election also lets it stand and coordinate.

    Args and attributes are those of Election.
    """

    def __init__(
        self, me: str, electorate: Electorate, ballot: Ballot, draw: Callable[[], float], now: float, *, timing: Timing
    ) -> None:
        if (
            electorate.membership_version < ballot.term.membership_version
        ):  # the log has lost entries: no member is known until they are restored
            electorate = Electorate(ballot.term.membership_version, frozenset(), ())
        self.me = me
        self.electorate = electorate
        self.timing = timing
        self.role: Literal["follower", "standing", "candidate", "coordinator"] = "follower"
        self.ballot = (
            ballot
            if ballot.term.membership_version == electorate.membership_version
            else Ballot(Term(electorate.membership_version, 0))
        )
        self._draw = draw
        self._send: list[tuple[str, m.ElectionMessage]] = []
        self._coordinator = ""  # coordinator of the term, if known
        self._promised_to = ""
        self._promised_until = now + timing.patience
        self._timer = self._promised_until + draw() * timing.patience  # time at which to stand, or to stand again
        self._far: dict[str, int] = {}  # by member: the latest term, too far ahead to accept from it alone

    @property
    def term(self) -> Term:
        return self.ballot.term

    def leads(self, now: float) -> bool:
        """Return whether this node may act as the coordinator now; a voter may not."""
        return False

    def obeys(self, sender: str, term: Term) -> bool:
        """Return whether to follow a member's message as that of the coordinator of a term."""
        return term == self.term and sender == self._coordinator

    # Terms

    def _stale(self, term: Term) -> bool:
        return term < self.term

    def _expect_credible(self, sender: str, term: Term, now: float) -> None:
        """Refuse a term far ahead until a majority of the members, and at least two, have claimed terms far ahead."""
        if term.number - self.term.number <= FURTHEST:
            return
        self._far[sender] = term.number
        claims = sorted((n for n in self._far.values() if n - self.term.number > FURTHEST), reverse=True)
        needed = max(2, self.electorate.majority)
        if len(claims) >= needed:
            self._adopt(Term(self.term.membership_version, claims[needed - 1]), now)
        if term.number - self.term.number > FURTHEST:
            raise ProtocolError("election", f"{sender} claims term {term.number}, far ahead of {self.term.number}")

    def _expect_eligible(self, sender: str) -> None:
        if sender not in self.electorate.eligible:
            raise ProtocolError("election", f"{sender} cannot be elected")

    def _adopt(self, term: Term, now: float) -> None:
        """Adopt a later term, in which this node has not voted."""
        self.ballot = Ballot(term)
        self._become_follower(now)

    def _become_follower(self, now: float) -> None:
        self.role = "follower"
        self._coordinator = ""
        self._timer = now + self._pause()

    # Votes

    def _has_promised(self, candidate: str, now: float) -> bool:
        """Return whether a promise of this node prevents support for a candidate now."""
        return self.leads(now) or (now < self._promised_until and self._promised_to != candidate)

    def _on_request(self, sender: str, term: Term, trial: bool, now: float) -> None:
        granted = self._would_grant(sender, term, now) if trial else self._grant(sender, term, now)
        answered = term if granted else self.term
        self._send.append((sender, m.Voted(answered.membership_version, answered.number, trial, granted)))
        if trial and granted and self.role == "standing":  # the preferred candidate goes first
            self.role = "follower"
            self._timer = now + self._pause()

    def _would_grant(self, sender: str, term: Term, now: float) -> bool:
        order = self.electorate.eligible
        rival = self.role == "standing" and order.index(self.me) < order.index(sender)
        return term > self.term and not self._has_promised(sender, now) and not rival

    def _grant(self, sender: str, term: Term, now: float) -> bool:
        if self._stale(term) or self._has_promised(sender, now):
            return False
        if term > self.term:
            self._adopt(term, now)
        if self.ballot.vote not in ("", sender):
            return False
        if not self.ballot.vote:
            self.ballot = Ballot(self.term, sender)
            self.role = "follower"
            self._timer = now + self._wait()
        return True

    # Waiting

    def _wait(self) -> float:
        """Return the time to wait for a coordinator, or for a member that may become one."""
        return self.timing.patience * (1 + self._draw())

    def _pause(self) -> float:
        """Return the time after which this node stands again, long enough for answers to arrive."""
        return self.timing.patience * (1 + self._draw()) / 2
