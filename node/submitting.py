"""How a node submits to the coordinator by messages, and answers those who submit to it while it is the coordinator.

A participant that loses its coordinator submits again to the successor, with the model that it began from; where nobody is
elected in time, the round goes on without a joint step. What the coordinator does stands in node/desk.py.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from math import inf
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from node.contact import Contacts
from node.desk import Desk, Entry, Outcome, protected_outcome
from node.electing import Electing
from node.peer import Peer
from p2pfl.parameters import Layout, Parameters
from p2pfl.policy import Assignment, Robust, Step, Submission
from protocols import messages as m
from protocols.envelope import EMPTY, OVERHEAD, Opened, Payload
from protocols.errors import ProtocolError, TransportError
from protocols.submission import decode_assignment, decode_submission, encode_assignment, encode_submission
from protocols.terms import Term


class _Pending(NamedTuple):
    """What was submitted to whom, and where the answer is waited for."""

    number: int
    round: int
    coordinator: str
    term: Term
    answer: Future[Assignment | None]


class Submitting:
    """
    Args:
        deadline: seconds for which an assignment is waited for, elections included.
        newest: returns the latest round in which so many others are that it can be believed.
        check: raises ProtocolError for a model that is too large to be of use.
        late: is called when a deadline has passed.
        step: returns the step of the node's policy.
        robust: protection against members that lie; see p2pfl.robust.
    """

    def __init__(
        self,
        contacts: Contacts,
        electing: Electing,
        layout: Layout,
        deadline: float,
        newest: Callable[[], int],
        check: Callable[[Parameters], None],
        late: Callable[[], None],
        step: Callable[[], Step | None],
        robust: Robust,
    ) -> None:
        self._contacts = contacts
        self._electing = electing
        self._layout = layout
        self._deadline = deadline
        self._newest = newest
        self._check = check
        self._late = late
        self._step = step
        self._robust = robust
        self._desk = Desk(self, deadline)
        self._pending: _Pending | None = None
        self._assigned_in: Term | None = None  # of the last assignment, if the last submission was answered by one

    # As a participant

    async def submit(self, submission: Submission) -> Assignment | None:
        """Return what the coordinator assigns; None if there is none, or nothing came of it by the deadline."""
        loop = asyncio.get_running_loop()
        expires = loop.time() + self._deadline
        known, self._assigned_in = self._assigned_in, None
        try:
            while (left := expires - loop.time()) > 0:
                seconds = min(left, self._electing.patience)
                if not await self._contacts.until(self._can_submit, seconds) and seconds < left:
                    return None  # nobody is elected: the round goes on alone
                if self._can_submit():
                    pending = self._submit_once(submission, known)
                    if await self._answered(pending, expires - loop.time()):
                        assignment = pending.answer.result()
                        self._assigned_in = None if assignment is None else pending.term
                        return assignment
        finally:
            self._pending = None
        self._late()
        return None

    def _can_submit(self) -> bool:
        """Whether there is a coordinator, and it can be reached."""
        name = self._electing.coordinator
        return name == self._contacts.name or (name in self._contacts.peers and self._contacts.peers[name].introduced)

    def _submit_once(self, submission: Submission, known: Term | None) -> _Pending:
        coordinator, term = self._electing.coordinator, self._electing.term
        assert coordinator is not None
        if known == term:
            submission = replace(submission, start=None)
        number, loop = next(self._contacts.numbers), asyncio.get_running_loop()
        pending = self._pending = _Pending(number, submission.round, coordinator, term, loop.create_future())
        if coordinator == self._contacts.name:
            self._desk.take(term, Entry(submission, partial(self._reply_here, pending)))
        else:
            self._send(self._contacts.peers[coordinator], pending, submission)
        return pending

    async def _answered(self, pending: _Pending, seconds: float) -> bool:
        """Wait until a submission is answered. Return False when that will not happen, or may not."""
        contacts, name = self._contacts, pending.coordinator
        link = None if name == contacts.name else contacts.peers[name].link

        def over() -> bool:
            there = self._electing.coordinator == name and self._electing.term == pending.term
            lost = name != contacts.name and (name not in contacts.peers or contacts.peers[name].link is not link)
            return pending.answer.done() or not there or lost

        await contacts.until(over, seconds)
        return pending.answer.done()

    def _send(self, peer: Peer, pending: _Pending, submission: Submission) -> None:
        start = submission.start
        message = m.Submit(
            *(pending.number, pending.round, *pending.term, submission.n_samples),
            start=start is not None,
        )
        models = [bytes_of(model) for model in (submission.params, start) if model is not None]
        payload = Payload.of(*models, encode_submission(submission.extras, submission.previous))
        try:
            self._contacts.say(peer, message, payload)
        except TransportError:
            self._contacts.rejected["link lost"] += 1
            return
        self._contacts.traffic.sent_models += 1
        self._contacts.traffic.sent_submit += OVERHEAD + payload.size

    def _resolve(self, pending: _Pending, assignment: Assignment | None) -> None:
        if not pending.answer.done():
            pending.answer.set_result(assignment)
            self._contacts.moved()

    def take_assigned(self, peer: Peer, opened: Opened, message: m.Assigned) -> None:
        """The coordinator has answered.

        Raises:
            ProtocolError: it is not the coordinator, or was not asked, or its answer is malformed.
        """
        size, traffic = OVERHEAD + len(opened.payload), self._contacts.traffic
        traffic.received_assigned += size
        traffic.received_models += message.given
        term, pending = Term(message.epoch, message.term), self._pending
        if term < self._electing.term:
            raise ProtocolError("lower term", f"an assignment of term {term}, which is over")
        if pending is None or message.request != pending.number:
            return  # it came too late
        asked = (pending.coordinator, pending.term, pending.round) == (peer.name, term, message.round)
        if not asked or not self._electing.obeys(peer.name, term):
            raise ProtocolError("not asked for", f"an assignment for round {message.round} of term {term}")
        if not message.given:
            self._resolve(pending, None)
            if len(opened.payload):
                raise ProtocolError("wrong length", "a model with an assignment that has none")
            return
        try:
            given = decode_assignment(opened.payload, self._layout.size)
            self._check(given.params)
            if not all(map(self._electing.votes, given.weights)):
                raise ProtocolError("malformed", "an assignment with weights of some who have no vote")
        except ProtocolError:
            self._resolve(pending, None)
            raise
        self._resolve(pending, Assignment(given.params, given.weights, given.extras, size))

    # As the coordinator (see node.desk.Office)

    def take_submit(self, peer: Peer, opened: Opened, message: m.Submit) -> None:
        """A member submits.

        Raises:
            ProtocolError: to another one, or something that no step can be made with.
        """
        traffic = self._contacts.traffic
        traffic.received_submit += OVERHEAD + len(opened.payload)
        traffic.received_models += 1
        term = Term(message.epoch, message.term)
        if term < self._electing.term:
            raise ProtocolError("lower term", f"a submission in term {term}, which is over")
        if not self._electing.coordinates(term):
            raise ProtocolError("not the coordinator", f"a submission in term {term}")
        if not self._electing.votes(peer.name):  # an observer's model counts in nobody's
            self._reply(peer, message, None)
            return
        try:
            submission = self._read(peer, opened, message)
        except ProtocolError:
            self._desk.refuse(term, peer.name)
            self._reply(peer, message, None)
            raise
        self._desk.take(term, Entry(submission, partial(self._reply, peer, message)))

    def _read(self, peer: Peer, opened: Opened, message: m.Submit) -> Submission:
        samples = peer.about.get("n_samples")
        if message.n_samples != samples:
            raise ProtocolError("differs", f"{message.n_samples} samples, {samples} at the introduction")
        said = decode_submission(opened.payload, self._layout.size, message.start)
        for model in (said.params, said.start):
            if model is not None:
                self._check(model)
        return Submission(
            *(peer.name, message.round, said.params, message.n_samples, said.extras, said.previous, said.start)
        )

    def rewind(self, round: int) -> None:
        """Take submissions for a round, and for those after it, again: this node went back to it."""
        self._desk.rewind(round)

    def review(self) -> None:
        """Somebody has come, gone or stopped."""
        self._desk.review()

    def later(self, seconds: float, callback: Callable[[], None]) -> None:
        if seconds < inf:
            asyncio.get_running_loop().call_later(seconds, callback)

    def expected(self) -> AbstractSet[str]:
        contacts = self._contacts
        there = {
            peer.name
            for peer in contacts.introduced()
            if not peer.stopped and peer.name not in contacts.roster.suspected and self._electing.votes(peer.name)
        }
        return there if contacts.final else there | {contacts.name}

    def reached(self) -> int:
        return max(self._contacts.round, self._newest())

    def coordinates(self, term: Term) -> bool:
        return self._electing.coordinates(term)

    def leads(self, term: Term) -> bool:
        return self._electing.leads(term)

    def compute(self, submissions: Sequence[Submission], state: Mapping[str, Any], then: Callable[[Outcome], None]) -> None:
        step, own = self._step(), self._contacts.name
        assert step is not None  # only nodes with a coordinated policy take part in elections

        async def work() -> None:
            make = partial(protected_outcome, step, submissions, state, self._layout, own, self._robust)
            made: Outcome = await asyncio.get_running_loop().run_in_executor(None, make)
            if made.dropped:
                self._contacts.rejected["submission"] += len(made.dropped)
            then(made)

        self._contacts.begin(work(), f"{own} makes the step of round {submissions[0].round}")

    def _reply_here(self, pending: _Pending, assignment: Assignment | None) -> None:
        if self._electing.leads(pending.term):
            self._resolve(pending, assignment)

    def _reply(self, peer: Peer, submit: m.Submit, assignment: Assignment | None) -> None:
        """Send an assignment, or, for None, that there will be none."""
        if not self._electing.leads(Term(submit.epoch, submit.term)):
            return  # whoever waits submits again, to the successor
        given = assignment is not None
        message = m.Assigned(submit.request, submit.round, submit.epoch, submit.term, given)
        payload = EMPTY
        if assignment is not None:
            rest = encode_assignment(assignment.weights, assignment.extras)
            payload = Payload.of(bytes_of(assignment.params), rest)
        try:
            self._contacts.say(peer, message, payload)
        except TransportError:
            self._contacts.rejected["link lost"] += 1
            return
        self._contacts.traffic.sent_models += given
        self._contacts.traffic.sent_assigned += OVERHEAD + payload.size


def bytes_of(params: Parameters) -> memoryview:
    """Return a model as it travels: float32, little-endian."""
    return np.ascontiguousarray(params, "<f4").data.cast("B")
