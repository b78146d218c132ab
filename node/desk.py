"""What a node does as the coordinator: it gathers a round's submissions, has the step made, and sends what that assigns.

A round's submissions are gathered until everyone who is expected has submitted, or until half a deadline after the first of
them: the participants wait for a whole one, each from when it has submitted, so that the assignments of a round that some
have missed still come in time for the others.

The state of the policy's steps is never handed on. A term begins with none: the first step of a coordinator rebuilds it from
what the participants hold and say again (see p2pfl.policy.Submission).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any, NamedTuple, Protocol

from p2pfl.parameters import Layout, problem
from p2pfl.policy import Assignment, Robust, Step, Submission
from p2pfl.robust import protect_submissions
from protocols.terms import Term

AT_ONCE = 2  # submissions of one participant that are kept: of the round that it is in, and of one before
LAPSE = 0.1  # seconds after which a coordinator without a lease looks again whether it has one


class Entry(NamedTuple):
    """A submission that has come, and how its sender is answered; None says that nothing will come of it."""

    submission: Submission
    reply: Callable[[Assignment | None], None]


class Outcome(NamedTuple):
    """What a step has made, and whose submissions it could not be made with: what it raised, by sender."""

    assignments: Mapping[str, Assignment]
    state: Mapping[str, Any]
    dropped: Mapping[str, Exception]


class Office(Protocol):
    """Where the coordinator works: what differs between machines and the modelled world."""

    def later(self, seconds: float, callback: Callable[[], None]) -> None:
        """Call back after so many seconds."""

    def expected(self) -> AbstractSet[str]:
        """Return who takes part, as far as it is known here: members that are there and have not stopped."""

    def reached(self) -> float:
        """Return the latest round in which this node is, or so many of those who take part that it can be believed."""

    def coordinates(self, term: Term) -> bool:
        """Return whether this node is still the coordinator of a term."""

    def leads(self, term: Term) -> bool:
        """Return whether it may act as that now."""

    def compute(self, submissions: Sequence[Submission], state: Mapping[str, Any], then: Callable[[Outcome], None]) -> None:
        """Make the policy's step (see `outcome`) and call `then` with what came of it, now or later."""


class _Wait:
    """How long it is waited for a round: whether that has begun, and whether it is over."""

    begun = over = False


class Desk:
    """
    Args:
        deadline: for which participants wait, in seconds.

    Attributes:
        term: in which this node was the coordinator last. The state of a term is forgotten with it: a later one begins with
            what the participants hold, as others may have coordinated in between.
        state: of the policy's steps in this term.
        away: who has missed a round and was not heard since. Nobody waits for them.
    """

    def __init__(self, office: Office, deadline: float) -> None:
        self._office = office
        self._deadline = deadline
        self.term = Term(0, 0)
        self.state: Mapping[str, Any] = {}
        self.away: set[str] = set()
        self._open: dict[int, dict[str, Entry]] = {}  # by round
        self._until: dict[int, _Wait] = {}  # how long it is waited for a round that is open
        self._closed = 0  # no round up to this one takes submissions any more
        self._working: dict[str, Entry] | None = None  # whose step is being made
        self._given: Mapping[str, Assignment] = {}  # in the round that was closed last

    def take(self, term: Term, entry: Entry) -> None:
        """A submission has come for the coordinator of a term, which this node is: keep it, or say that it is too late.

        One that comes again, as its sender has lost touch, takes the place of the first, or has the answer that was lost.
        """
        if term > self.term:
            self.term, self.state, self._closed = term, {}, 0
            self.away, self._working, self._given = set(), None, {}
            self._open.clear()
            self._until.clear()
        sender, round = entry.submission.sender, entry.submission.round
        self.away.discard(sender)
        if round == self._closed and self._working is not None and sender in self._working:
            self._working[sender] = entry
        elif round == self._closed and self._working is None and sender in self._given:
            entry.reply(self._given[sender])
        elif round <= self._closed:
            entry.reply(None)
        else:
            self._open.setdefault(round, {})[sender] = entry
            self._until.setdefault(round, _Wait())
            for before in sorted(other for other, entries in self._open.items() if sender in entries)[:-AT_ONCE]:
                self._open[before].pop(sender).reply(None)
                if not self._open[before]:
                    del self._open[before], self._until[before]
            self.review()

    def rewind(self, round: int) -> None:
        """Take submissions for a round, and for those after it, again."""
        if round <= self._closed:
            self._closed, self._given = round - 1, {}

    def refuse(self, term: Term, sender: str) -> None:
        """A submission has come with which no step can be made: nobody waits for another one of its sender."""
        if term == self.term:
            self.away.add(sender)
            self.review()

    def review(self) -> None:
        """Close the rounds for which everyone has submitted who is expected to, or is not waited for any more.

        Who is further ahead than can be believed waits until the others come there, and takes nobody along.
        """
        if not self._open or self._working is not None:
            return
        if not self._office.coordinates(self.term):
            self._give_up()
            return
        near = [round for round in self._open if round <= self._office.reached() + 1]
        for round in near:
            if not self._until[round].begun:
                self._until[round].begun = True
                self._office.later(self._deadline / 2, partial(self._expire, round, self._until[round]))
        if any(self._until[round].over or not self._missing(round) for round in near):
            self._close(min(near))  # the step of an earlier one comes first

    def _missing(self, round: int) -> AbstractSet[str]:
        """Return whose submission for a round may still come: not of those who are away, or at a later round."""
        ahead = {sender for other, entries in self._open.items() if other >= round for sender in entries}
        return self._office.expected() - self.away - ahead

    def _expire(self, round: int, wait: _Wait) -> None:
        """The coordinator's deadline has come."""
        if self._until.get(round) is wait:
            self.away |= self._missing(round)
            wait.over = True
            self.review()

    def _close(self, round: int) -> None:
        """Have the step of a round made."""
        self._working = entries = self._open.pop(round)
        del self._until[round]
        self._closed = round
        submissions = [entry.submission for entry in entries.values()]
        self._office.compute(submissions, self.state, partial(self._done, self.term, entries))

    def _done(self, term: Term, entries: dict[str, Entry], outcome: Outcome) -> None:
        """Send what a step has assigned."""
        if self._working is not entries:  # of a term that is over
            return
        if not self._office.leads(term):  # asked just before anything is sent
            if self._office.coordinates(term):
                self._office.later(LAPSE, partial(self._done, term, entries, outcome))
            else:
                self._give_up()
            return
        self._working, self.state, self._given = None, outcome.state, outcome.assignments
        for sender in sorted(entries):
            entries[sender].reply(outcome.assignments.get(sender))
        self.review()

    def _give_up(self) -> None:
        """This node coordinates no more: nothing will come of what it has."""
        given_up = [
            *(self._working or {}).values(),
            *(entry for entries in self._open.values() for entry in entries.values()),
        ]
        self._working = None
        self._open.clear()
        self._until.clear()
        for entry in given_up:
            entry.reply(None)


def protected_outcome(
    step: Step,
    submissions: Sequence[Submission],
    state: Mapping[str, Any],
    layout: Layout,
    own: str,
    robust: Robust,
    trusted: bool = False,
) -> Outcome:
    """Make a policy's step of submissions that are protected as the federation has agreed; see `outcome`, p2pfl.robust.

    Args:
        own: the coordinator's name.
        trusted: whatever the step raises comes through.
    """
    if robust != "none":
        submissions = protect_submissions(submissions, own)
    return outcome(step, submissions, state, layout, None if trusted else own)


def outcome(
    step: Step, submissions: Sequence[Submission], state: Mapping[str, Any], layout: Layout, own: str | None
) -> Outcome:
    """Make a policy's step, if need be without the submissions that it cannot be made with.

    Where it raises, it is made with one submission more at a time, the coordinator's own first: one with which it raises is
    left out. So no participant can cost the others their round.

    Args:
        own: the coordinator's name; None where all submissions are trusted, and whatever the step raises comes through.

    Raises:
        Exception: what the step raises with the coordinator's own submission alone: that is a fault of the policy.
    """
    try:
        return Outcome(*_checked(step, submissions, state, layout), {})
    except Exception:  # a step is the policy's own code, and what it raises on nonsense is its own business
        if own is None:
            raise
    kept: list[Submission] = []
    made: tuple[Mapping[str, Assignment], Mapping[str, Any]] = {}, state
    dropped: dict[str, Exception] = {}
    for submission in sorted(submissions, key=lambda s: (s.sender != own, s.sender)):
        try:
            made = _checked(step, [*kept, submission], state, layout)
        except Exception as error:
            if submission.sender == own:
                raise
            dropped[submission.sender] = error
        else:
            kept.append(submission)
    return Outcome(*made, dropped)


def _checked(
    step: Step, submissions: Sequence[Submission], state: Mapping[str, Any], layout: Layout
) -> tuple[Mapping[str, Assignment], Mapping[str, Any]]:
    assignments, after = step(submissions, state, layout)
    for id, assignment in assignments.items():
        if wrong := problem(assignment.params, layout.size):
            raise ValueError(f"the step assigns {id} {wrong}")
    return assignments, after
