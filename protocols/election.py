"""Election of a coordinator without input or output.

Callers pass messages and the time, and write and send the results. The election is that of Raft (Ongaro and Ousterhout
2014, section 5.2) without its log. It adds pre-vote (Ongaro's dissertation, 9.6), a lease (6.4.1) and members that come
from the membership log.

**Terms.** A term is a pair: the version of the membership log, and a number that counts elections within this version.
Terms are ordered by version, then by number. All members that know a version know the same members, so any two
majorities in one version share a member. That member gives one vote in a term, and writes the vote to its disk before
it sends it. A term therefore has at most one coordinator, however the membership changes. A coordinator's messages
carry its term, and a member that knows a later term refuses them.

**Majority.** A majority is of all members of the version, online or not. One node coordinates alone, after its first
wait. Two nodes have a coordinator while both are online and reach each other. Three or four members tolerate one
offline, five tolerate two. Two halves of a federation have no coordinator, and a minority has none: `coordinator` is
None, and `problem` gives the reason.

**Candidates.** Some members vote and never coordinate. The order of the others decides between members that stand at
the same time: a member does not support a candidate that comes after it. The order never ends the term of a
coordinator.

**Lease.** A member that answers a coordinator promises to support no other for `Timing.patience`. A coordinator holds
the lease for `Timing.lease`, counted from the time at which it sent the newest beat that a majority has answered. Both
use their own clocks. A member that starts supports no candidate for the same time, because it does not know its
earlier promises. The leases of two coordinators of one version never overlap under three conditions: no clock runs more
than patience / lease (1.25) times as fast as another, no clock jumps or goes back, and `leads` is called with the
current time. Clocks need not agree. Leases of different versions do not overlap if any majority of one shares a member
with any majority of the other. That holds if the versions differ by one entry that added or removed a member. It does
not hold for a replaced key, or for several entries; there only the terms decide. Members are trusted not to lie: a
lying member can prevent elections, or vote twice.

**Change of membership.** A new version of the log begins without votes. A coordinator that may continue stands at once,
and the members that had promised to support it do so; others wait as usual. Messages of an unknown version are ignored:
the log is distributed separately.

**Committee.** In a federation with a committee (p2pfl.protocols.membership.committee) the electorate is that committee. The
first part of a term is then the committee version, which other entries of the log leave as it is. All that is said above
holds with "committee" for "all members". A majority of the committee suffices, however many other members are absent.
Members outside it do not vote, receive no beats, and promise nothing. They follow the coordinator that a certificate names
(`certify`): votes of a majority of the committee with their signatures (p2pfl.protocols.term_certificates). The caller
verifies it once in a term. A member without a vote, in this and in all earlier committees, ignores all messages of
elections, so that nothing but a certificate ends the term that it follows: no promise protects it from a member of the
committee that claims a later one.

**Change of the committee.** Majorities of two committees need not share a member, whether one member was replaced or many.
Therefore a coordinator of a committee version needs votes of a majority of that committee, and of each committee before it,
back to the newest one that is *established*: one that has had a coordinator, as the candidate knows from a beat or from a
certificate. (`Electorate.earlier` has the committees before, and `Ballot.established` is on the disk.) After its first
election a committee is established itself, and its own majority suffices.

Let A hold a lease in version a, and let B be elected in a version b > a. Then A's lease has ended, and A gets no other:

1. *Some coordinator X, elected in a version after a and not later than B, had votes of a majority of committee a.* Either B
   had them, or B knew an established version e, a < e <= b. Then a coordinator of version e was elected before B, and the
   same holds for it in place of B. There are only finitely many elections before B's, so one of them had these votes.
2. Every majority that could support A shares a member v with the voters of X. v gave X its vote when it was promised to
   nobody else, so a lease of A that v had supported had ended. From then on v is in a later version, for ever, because its
   term is on the disk; it answers no beat of version a.

So two leases never overlap, whatever versions they are of, under the conditions above. Beats go to the present committee
only. A member that was in an earlier committee, and is not in the present one, votes in an election that needs it, and
never stands. Members that are no longer in the log, or have another key, count as absent. If a majority of an earlier
committee has stopped for good, no vote replaces it; then the admission key signs an entry with `lost`, and so vouches that
they lead nowhere. Before the first complete committee, versions are as in a federation without one.

**Parts.** `Voter` is a member that votes and follows: its promises, its votes, and the terms that it accepts. `Election`
is a `Voter` that also stands and coordinates. A member with no right to coordinate is an `Election` that never stands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from typing import Literal, NamedTuple

import msgspec

from p2pfl.protocols.errors import ProtocolError
from p2pfl.protocols.wire import messages as m

LAST = 2**32 - 1  # greatest number of a term
FURTHEST = 2**10  # maximum number of terms by which one member's message may advance a node


class Term(NamedTuple):
    """Period between two elections; a later term is greater."""

    membership_version: int
    number: int

    def __str__(self) -> str:
        return f"{self.membership_version}.{self.number}"


class Ballot(msgspec.Struct, frozen=True):
    """Latest known term, and the member for which this node voted in it ("" for none). It must never be lost.

    Attributes:
        established: the newest committee version that is known to have had a coordinator; 0 if none is, or without a
            committee.
    """

    term: Term = Term(0, 0)
    vote: str = ""
    established: int = 0


class Quorum(msgspec.Struct, frozen=True):
    """Earlier committee, whose majority must agree to the first coordinator of a later one.

    Attributes:
        membership_version: the first part of its terms.
        majority: number of its members that must agree.
        members: those of its members that may still vote.
    """

    membership_version: int
    majority: int
    members: frozenset[str]


class Electorate(msgspec.Struct, frozen=True):
    """Members that vote, and members that may coordinate.

    Attributes:
        membership_version: version of the membership log; with a committee, the version that made the present one.
        members: all members that vote, including this node if it votes.
        eligible: the members that may coordinate; the preferred one is first.
        keys: with a committee, the keys of its members by name; None without one.
        participants: with a committee, all members that follow its coordinator; None if all that vote do.
        earlier: committees before this one, the oldest first.
    """

    membership_version: int
    members: frozenset[str]
    eligible: tuple[str, ...]
    keys: Mapping[str, bytes] | None = None
    participants: frozenset[str] | None = None
    earlier: tuple[Quorum, ...] = ()

    @property
    def majority(self) -> int:
        return len(self.members) // 2 + 1


class Timing(msgspec.Struct, frozen=True):
    """Timing of elections in seconds, equal on all members.

    Attributes:
        beat: time between two messages of a coordinator, and before a question is repeated.
        lease: time for which a coordinator may act; see p2pfl.protocols.election.
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


class ElectionStep(NamedTuple):
    """Actions to carry out, in this order.

    Attributes:
        write: ballot to write to disk before any message is sent; None if it has not changed.
        send: recipients, each with its message.
    """

    write: Ballot | None
    send: tuple[tuple[str, m.ElectionMessage], ...]


class Voter:
    """Member that votes and follows; p2pfl.protocols.election.Election also lets it stand and coordinate.

    Args and attributes are those of Election.
    """

    def __init__(
        self, me: str, electorate: Electorate, ballot: Ballot, draw: Callable[[], float], now: float, *, timing: Timing
    ) -> None:
        if electorate.membership_version < ballot.term.membership_version:
            # The log has lost entries: no member is known until they are restored.
            electorate = Electorate(ballot.term.membership_version, frozenset(), ())
        self.me = me
        self.mute = False
        self.electorate = electorate
        self.timing = timing
        self.role: Literal["follower", "standing", "candidate", "coordinator"] = "follower"
        self.ballot = (
            ballot
            if ballot.term.membership_version == electorate.membership_version
            else Ballot(Term(electorate.membership_version, 0), established=ballot.established)
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

    @property
    def follows_only(self) -> bool:
        """Whether this node is outside the committee, or has no vote in it, and follows its coordinator."""
        participants = self.electorate.participants
        outside = self.mute or self.me not in self.electorate.members
        return participants is not None and self.me in participants and outside

    @property
    def _may_be_asked(self) -> bool:
        """Whether a candidate may need the vote of this node; it may not know that an earlier committee counts no more."""
        electorate = self.electorate
        if self.mute:
            return False
        return self.me in electorate.members or any(self.me in quorum.members for quorum in electorate.earlier)

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

    def _earlier(self) -> list[Quorum]:
        """Return the earlier committees that must agree to a coordinator, too."""
        established = self.ballot.established
        if established == self.term.membership_version:
            return []
        return [quorum for quorum in self.electorate.earlier if quorum.membership_version >= established]

    def _voters(self) -> frozenset[str]:
        """Return the members whose votes count for a coordinator."""
        earlier = self._earlier()
        return self.electorate.members.union(*(each.members for each in earlier)) if earlier else self.electorate.members

    def _establish(self) -> None:
        """Record that the present committee has had a coordinator, if there were others before it."""
        if self.electorate.earlier and self.ballot.established < self.term.membership_version:
            self.ballot = msgspec.structs.replace(self.ballot, established=self.term.membership_version)

    def _expect_eligible(self, sender: str) -> None:
        if sender not in self.electorate.eligible:
            raise ProtocolError("election", f"{sender} cannot be elected")

    def _adopt(self, term: Term, now: float) -> None:
        """Adopt a later term, in which this node has not voted."""
        self.ballot = Ballot(term, established=self.ballot.established)
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
            self.ballot = msgspec.structs.replace(self.ballot, vote=sender)
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


class Election(Voter):
    """The election as one member sees it.

    The caller carries out each step completely before it calls the election again. If the write fails, discard this
    object, because its state differs from the disk. Create a new one from the ballot on disk, as after a crash.

    Args:
        me: this node's name.
        ballot: the last written ballot; empty only if none was ever written.
        draw: returns a random number in [0, 1), so that members do not stand at the same time.
        now: time in seconds of a clock that never goes back and runs while the machine sleeps. All calls use this
            clock.

    Attributes:
        role: a node that is "standing" asks whether it would be elected; a "candidate" asks for votes.
        ballot: the ballot that was last returned in a step.
        willing: whether this node stands for election, if it may. A coordinator that is not willing any more steps down
            when the members change.
        mute: whether this node does not vote, because it does not know its earlier votes. With a committee it follows
            certificates, as if it was outside.
    """

    def __init__(
        self,
        me: str,
        electorate: Electorate,
        ballot: Ballot,
        draw: Callable[[], float],
        now: float,
        *,
        timing: Timing = TIMING,
    ) -> None:
        super().__init__(me, electorate, ballot, draw, now, timing=timing)
        self.willing = True
        self._heard = 0  # number of the coordinator's newest beat
        self._again = inf  # time at which to ask or send once more
        self._granted: set[str] = set()
        self._answered: set[str] = set()  # granted or refused
        self._in_sight = 0  # members that answered the last question, this one included
        self._since = 0.0  # time at which the coordination began
        self._beat_number = 0
        self._sent: dict[int, float] = {}  # time at which each beat was sent
        self._supported: dict[str, float] = {}  # by member: the time at which the newest beat that it answered was sent

    # State

    def leads(self, now: float) -> bool:
        """Return whether this node may act as the coordinator now. Call it immediately before acting."""
        return self.role == "coordinator" and now < self._lease_end(now)

    def coordinator(self, now: float) -> str | None:
        """Return the coordinator that this node knows; None if there is none or it has not sent a beat recently."""
        if self.role == "coordinator":
            return self.me if self.leads(now) else None
        if self.follows_only:
            return self._coordinator or None
        return self._coordinator or None if now < self._promised_until else None

    def problem(self, now: float) -> str:
        """Return the reason why there is no coordinator, for people; "" if there is one."""
        total, needed = len(self.electorate.members), self.electorate.majority
        if self.coordinator(now) is not None:
            return ""
        if self.follows_only and now >= self._promised_until:  # after the first answers have had time
            return "no coordinator: no member of the committee has shown the certificate of a present term"
        if self.me not in self.electorate.members and not self.follows_only:
            return "no coordinator: this node has no vote"
        if not self.electorate.eligible:
            return "no coordinator: no member can be elected"
        if self.term.number == LAST:
            return "no coordinator: the last possible term is used; elections continue when the membership changes"
        in_sight = max(self._in_sight, len(self._answered))
        of = "members" if self.electorate.participants is None else "members of the committee"
        if self._in_sight and in_sight < needed:  # after the first question has had time for answers
            return f"no coordinator: {in_sight} of {total} {of} reachable, {needed} needed"
        for quorum in self._earlier():
            if self._in_sight and (found := len(quorum.members & self._granted)) < quorum.majority:
                return (
                    f"no coordinator: {found} members of the committee of version {quorum.membership_version} agree to its"
                    f" change, {quorum.majority} needed; if they have stopped for good, name the new one with --lost"
                )
        return "no coordinator yet"

    def next_tick(self) -> float:
        """Return the time of the next `tick`. An earlier or later call does no harm."""
        if self.role == "coordinator":
            return self._again
        return self._timer if self.role == "follower" else min(self._timer, self._again)

    # Events

    def tick(self, now: float) -> ElectionStep:
        """Handle the passage of time."""
        before = self.ballot
        if self.role == "coordinator":
            if now >= max(self._lease_end(now), self._since + self.timing.lease):
                self._in_sight = 1 + sum(sent + self.timing.lease > now for sent in self._supported.values())
                self._answered = set()
                self._become_follower(now)
            elif now >= self._again:
                self._beat(now)
        elif now >= self._timer:
            self._stand(now)
        elif self.role != "follower" and now >= self._again:
            self._ask(now)
        return self._step(before)

    def receive(self, sender: str, message: m.ElectionMessage, now: float) -> ElectionStep:
        """Handle a verified message.

        Raises:
            ProtocolError: `election`, if a member that follows the rules would not have sent it. The state is then
                unchanged.
        """
        before = self.ballot
        known = message.membership_version == self.term.membership_version and sender in self._voters()
        if known and sender != self.me and self._may_be_asked:
            term = Term(message.membership_version, message.term)
            self._expect_credible(sender, term, now)
            match message:
                case m.Vote():
                    self._expect_eligible(sender)
                    self._on_request(sender, term, message.trial, now)
                case m.Voted():
                    self._on_vote(sender, term, message, now)
                case m.Leading() if not self.follows_only:
                    self._expect_eligible(sender)
                    self._led(sender, term, message.beat, now)
                case m.Following():
                    self._on_follow(sender, term, message.beat, now)
        return self._step(before)

    def certify(self, term: Term, coordinator: str, now: float) -> ElectionStep:
        """Follow the coordinator of a term, from a verified certificate of the present committee version.

        Raises:
            ProtocolError: `lower term` for a term before the latest known one; `election` if another member has
                coordinated it. The state is then unchanged.
        """
        before = self.ballot
        if self._stale(term):
            raise ProtocolError("lower term", f"a certificate of the ended term {term}")
        if self.follows_only:
            if term > self.term:
                self._adopt(term, now)
            if self._coordinator not in ("", coordinator):
                raise ProtocolError("election", f"{coordinator} and {self._coordinator} both coordinate term {term}")
            self._coordinator = coordinator
        self._establish()
        return self._step(before)

    def release(self, sender: str, term: Term) -> None:
        """Follow the coordinator of a term no more, because it has reported that it leads no longer."""
        if self.follows_only and self.obeys(sender, term):
            self._coordinator = ""

    def change(self, electorate: Electorate, now: float) -> ElectionStep:
        """Adopt a changed membership, which is on disk already. An older version changes nothing."""
        before = self.ballot
        if electorate.membership_version < self.term.membership_version:
            return self._step(before)
        led = self.leads(now)
        self.electorate = electorate
        if electorate.membership_version > self.term.membership_version:
            self._become_follower(now)
            self.ballot = Ballot(Term(electorate.membership_version, 0), established=self.ballot.established)
            self._answered, self._in_sight, self._far = set(), 0, {}
            if led and self._may_stand(now):
                self._run(now)
        elif self.role == "coordinator" and not self.willing:
            self._become_follower(now)
        return self._step(before)

    def _step(self, before: Ballot) -> ElectionStep:
        send, self._send = tuple(self._send), []
        return ElectionStep(self.ballot if self.ballot != before else None, send)

    # Standing for election

    def _may_stand(self, now: float) -> bool:
        free = self.willing and not self.mute and now >= self._promised_until and self.term.number < LAST
        return free and self.me in self.electorate.members and self.me in self.electorate.eligible

    def _stand(self, now: float) -> None:
        """Ask whether this node would be elected. This commits no member, so an isolated node does not raise terms."""
        if not self._may_stand(now):
            self._timer = max(now, self._promised_until) + self._pause()
            return
        self._in_sight = len(self._answered) or self._in_sight  # a coordinator that just lost the lead has not asked
        self._canvass("standing", now)

    def _run(self, now: float) -> None:
        """Ask for votes in a new term."""
        self._coordinator = ""
        term = Term(self.term.membership_version, self.term.number + 1)
        self.ballot = Ballot(term, self.me, self.ballot.established)
        self._canvass("candidate", now)

    def _canvass(self, role: Literal["standing", "candidate"], now: float) -> None:
        self.role = role
        self._granted, self._answered = {self.me}, {self.me}
        self._timer = now + self._pause()
        self._ask(now)
        self._count(now)

    def _ask(self, now: float) -> None:
        """Ask the members that have not answered."""
        trial = self.role == "standing"
        question = m.Vote(self.term.membership_version, self.term.number + trial, trial)
        self._send += [(name, question) for name in sorted(self._voters() - self._answered)]
        self._again = now + self.timing.beat

    def _count(self, now: float) -> None:
        """Count the answers, and continue if they are a majority."""
        agreed = all(len(quorum.members & self._granted) >= quorum.majority for quorum in self._earlier())
        if agreed and len(self._granted & self.electorate.members) >= self.electorate.majority:
            if self.role == "standing":
                self._run(now)
            else:
                self._lead(now)

    def _on_vote(self, sender: str, term: Term, answer: m.Voted, now: float) -> None:
        if not answer.granted and term > self.term:
            if self.role in ("standing", "candidate"):  # otherwise this node has not asked
                self._adopt(term, now)
            return
        asked_for = Term(self.term.membership_version, self.term.number + answer.trial)
        if self.role != ("standing" if answer.trial else "candidate") or (answer.granted and term != asked_for):
            return  # an answer to an earlier question
        self._answered.add(sender)
        if answer.granted:
            self._granted.add(sender)
            self._count(now)

    # Leading and following

    def _lead(self, now: float) -> None:
        self.role = "coordinator"
        self._coordinator = self.me
        self._since = now
        self._beat_number = 0
        self._sent, self._supported = {}, {}
        self._establish()
        self._beat(now)

    def _beat(self, now: float) -> None:
        self._beat_number += 1
        self._sent = {beat: sent for beat, sent in self._sent.items() if sent + self.timing.lease > now}
        self._sent[self._beat_number] = now
        beat = m.Leading(self.term.membership_version, self.term.number, self._beat_number)
        self._send += [(name, beat) for name in sorted(self.electorate.members - {self.me})]
        self._again = now + self.timing.beat

    def _lease_end(self, now: float) -> float:
        """Return the time until which a majority, this node included, supports no other candidate."""
        others = self.electorate.majority - 1
        if others == 0:
            return now + self.timing.lease
        if len(self._supported) < others:
            return -inf
        return sorted(self._supported.values(), reverse=True)[others - 1] + self.timing.lease

    def _led(self, sender: str, term: Term, beat: int, now: float) -> None:
        if self._stale(term):
            self._send.append((sender, m.Following(self.term.membership_version, self.term.number, 0)))
            return
        if term > self.term:
            self._adopt(term, now)
        elif self._coordinator not in ("", sender):
            raise ProtocolError("election", f"{sender} and {self._coordinator} both coordinate term {term}")
        elif sender == self._coordinator and beat <= self._heard:
            return  # it was overtaken, so it is out of date
        self._heard = beat
        self.role = "follower"
        self._establish()
        self._coordinator = self._promised_to = sender
        self._answered, self._in_sight = set(), 0
        self._promised_until = now + self.timing.patience
        self._timer = now + self._wait()
        self._send.append((sender, m.Following(term.membership_version, term.number, beat)))

    def _on_follow(self, sender: str, term: Term, beat: int, now: float) -> None:
        if term > self.term:
            self._adopt(term, now)
        elif term == self.term and self.role == "coordinator":
            if beat > self._beat_number:
                raise ProtocolError("election", f"{sender} answers a beat that was not sent")
            if beat in self._sent:
                self._supported[sender] = max(self._supported.get(sender, -inf), self._sent[beat])
