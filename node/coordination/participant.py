"""Participant's side of coordinated rounds: it submits its model to the coordinator and waits for the assignment.

A participant that loses its coordinator submits again to the successor, with its start model. If none is elected in
time, the round ends without a joint step. The coordinator's side is in node/coordination/submission_server.py.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from p2pfl.node.coordination.aggregation_step import without_known_start
from p2pfl.node.coordination.coordinator import Coordinator, PendingSubmission
from p2pfl.node.coordination.election_runner import ElectionRunner
from p2pfl.node.coordination.messages import CheckModel, read_assignment, submission_payload
from p2pfl.node.peering.peer import Peer
from p2pfl.node.peering.peer_manager import PeerManager
from p2pfl.policy import Assignment, Submission
from p2pfl.protocols.election.types import Term
from p2pfl.protocols.errors import ProtocolError, TransportError
from p2pfl.protocols.wire import messages as m
from p2pfl.protocols.wire.envelope import OVERHEAD, Opened


class UnansweredSubmission(NamedTuple):
    """Submission that waits for its answer."""

    number: int
    round: int
    coordinator: str
    term: Term
    answer: Future[Assignment | None]


class CoordinationClient:
    """Client that submits models to the coordinator.

    Args:
        coordinator: handles this node's submissions in the terms in which it coordinates itself.
        size: P, the number of shared parameters.
        deadline: seconds to wait for an assignment, elections included.

    Attributes:
        expired: number of missed deadlines.
        pending: the submission that waits for its answer; None if there is none.
    """

    def __init__(
        self,
        contacts: PeerManager,
        electing: ElectionRunner,
        coordinator: Coordinator,
        *,
        size: int,
        deadline: float,
        check: CheckModel,
    ) -> None:
        self._contacts = contacts
        self._electing = electing
        self._coordinator = coordinator
        self._size = size
        self._deadline = deadline
        self._check = check
        self.expired = 0
        self.pending: UnansweredSubmission | None = None
        self._assigned_in: Term | None = None  # term of the last assignment, if the node has continued from it
        self._assigned_by = ""  # coordinator that made the last assignment

    async def submit(self, submission: Submission) -> Assignment | None:
        """Return the coordinator's assignment; None if there is no coordinator, or no assignment by the deadline."""
        loop = asyncio.get_running_loop()
        expires = loop.time() + self._deadline
        known, self._assigned_in = self._assigned_in, None
        try:
            while (left := expires - loop.time()) > 0:
                seconds = min(left, self._electing.patience)
                if not await self._contacts.until(self._can_submit, seconds) and seconds < left:
                    return None  # no coordinator is elected: the round continues alone
                if self._can_submit():
                    pending = self._submit_once(submission, known)
                    if await self._wait_for_answer(pending, expires - loop.time()):
                        assignment = pending.answer.result()
                        self._assigned_in = None if assignment is None else pending.term
                        self._assigned_by = pending.coordinator
                        return assignment
        finally:
            self.pending = None
        self.expired += 1
        return None

    def set_aside(self) -> str:
        """Submit the next start model even if the coordinator has assigned one; return the coordinator's name."""
        self._assigned_in = None
        return self._assigned_by

    def _can_submit(self) -> bool:
        """Return whether there is a reachable coordinator."""
        name = self._electing.coordinator
        return name == self._contacts.name or (name in self._contacts.peers and self._contacts.peers[name].introduced)

    def _submit_once(self, submission: Submission, known: Term | None) -> UnansweredSubmission:
        name, term = self._electing.coordinator, self._electing.term
        assert name is not None
        submission = without_known_start(submission, known, term)
        number, loop = next(self._contacts.numbers), asyncio.get_running_loop()
        pending = self.pending = UnansweredSubmission(number, submission.round, name, term, loop.create_future())
        if name == self._contacts.name:
            self._coordinator.take(term, PendingSubmission(submission, partial(self._take_own, pending)))
        else:
            self._send(self._contacts.peers[name], pending, submission)
        return pending

    async def _wait_for_answer(self, pending: UnansweredSubmission, seconds: float) -> bool:
        """Wait until a submission is answered. Return False if that will not happen, or may not happen."""
        contacts, name = self._contacts, pending.coordinator
        link = None if name == contacts.name else contacts.peers[name].link

        def over() -> bool:
            there = self._electing.coordinator == name and self._electing.term == pending.term
            lost = name != contacts.name and (name not in contacts.peers or contacts.peers[name].link is not link)
            return pending.answer.done() or not there or lost

        await contacts.until(over, seconds)
        return pending.answer.done()

    def _send(self, peer: Peer, pending: UnansweredSubmission, submission: Submission) -> None:
        message = m.Submit(
            request=pending.number,
            round=pending.round,
            membership_version=pending.term.membership_version,
            term=pending.term.number,
            n_samples=submission.n_samples,
            start=submission.start is not None,
        )
        try:
            payload = submission_payload(submission)
        except ValueError:  # the last coordinator may have assigned more than fits
            payload = submission_payload(replace(submission, previous={}))
        try:
            self._contacts.send(peer, message, payload)
        except TransportError:
            self._contacts.rejected["link lost"] += 1
            return
        self._contacts.traffic.sent_models += 1
        self._contacts.traffic.sent_submit += OVERHEAD + payload.size

    def _take_own(self, pending: UnansweredSubmission, assignment: Assignment | None) -> None:
        """Adopt an assignment that this node has made for itself."""
        if self._electing.leads(pending.term):
            self._resolve(pending, assignment)

    def _resolve(self, pending: UnansweredSubmission, assignment: Assignment | None) -> None:
        if not pending.answer.done():
            pending.answer.set_result(assignment)
            self._contacts.notify()

    def take_assigned(self, peer: Peer, opened: Opened, message: m.Assigned) -> None:
        """Handle the coordinator's answer.

        Raises:
            ProtocolError: the sender is not the coordinator, there was no submission to it, or its answer is malformed.
        """
        traffic = self._contacts.traffic
        traffic.received_assigned += OVERHEAD + len(opened.payload)
        traffic.received_models += message.given
        term, pending = Term(message.membership_version, message.term), self.pending
        if term < self._electing.term:
            raise ProtocolError("lower term", f"an assignment of the ended term {term}")
        if pending is None or message.request != pending.number:
            return  # the answer came too late
        asked = (pending.coordinator, pending.term, pending.round) == (peer.name, term, message.round)
        if not asked or not self._electing.obeys(peer.name, term):
            raise ProtocolError("not asked for", f"an assignment for round {message.round} of term {term}")
        if not message.given:
            self._resolve(pending, None)
            if len(opened.payload):
                raise ProtocolError("wrong length", "a payload after an assignment without a model")
            return
        try:
            assignment = read_assignment(opened, self._size, self._check, self._electing.votes)
        except ProtocolError:
            self._resolve(pending, None)
            raise
        self._resolve(pending, assignment)
