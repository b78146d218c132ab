"""Submissions and assignments as messages: both sides of coordinated rounds on a machine.

The theory is at the head of p2pfl.node.coordination.coordinator. Here are the parts that connect it to peers:

- `CoordinationClient`, the participant's side. It submits to the coordinator of the newest term, once for each coordinator
  and link, and waits until it is answered, the coordinator changes, or the deadline passes. A submission includes the
  start model, unless the same coordinator has assigned that model in the same term.
- `CoordinationServer`, the coordinator's side. It refuses submissions of other terms and unusable ones, and answers those
  of observers without looking at them, because an observer's model counts for nobody.
- `MessageCoordinatorBackend`, what a `Coordinator` needs of a machine: an event loop, peers, an election, and a thread for
  the policy's step.
- With secure sums, both sides exchange announcements in place of models; see p2pfl.node.coordination.secure_rounds.
- `make_coordination_roles`, which builds all of them for one node.

How far an assignment may move the node is limited where the policy receives it, in p2pfl.node.policy_api.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
from msgspec.structs import replace

from p2pfl.errors import ConfigurationError
from p2pfl.node.coordination.coordinator import (
    Coordinator,
    PendingSubmission,
    StepResult,
    run_protected_step,
    without_known_start,
)
from p2pfl.node.coordination.election_runner import ElectionRunner
from p2pfl.node.coordination.groups import GroupMean, Groups, of_members, read_group, spread, without_repeated
from p2pfl.node.coordination.secure_rounds import SecureRounds, SecureSums
from p2pfl.node.peering.peer_manager import PeerManager
from p2pfl.node.peering.peers import Peer
from p2pfl.node.settings import Settings
from p2pfl.parameters import Layout, Parameters
from p2pfl.policy import Assignment, PolicyStep, Submission
from p2pfl.protocols.election import Term
from p2pfl.protocols.errors import ProtocolError, TransportError
from p2pfl.protocols.wire import messages as m
from p2pfl.protocols.wire.envelope import EMPTY, OVERHEAD, Opened, Payload
from p2pfl.protocols.wire.payload import decode_assignment, decode_submission, encode_assignment, encode_submission
from p2pfl.robust.registry import Robust

REFUSALS = 2  # refusals of a summer after which a member asks it no more in the term: it has no room, and is not just late
CheckModel = Callable[[Parameters], None]  # raises ProtocolError for a model that is too large to be useful


class UnansweredSubmission(NamedTuple):
    """Request of this node to the coordinator of a term; `answer` is done when the coordinator has answered."""

    number: int
    round: int
    coordinator: str
    term: Term
    answer: Future[Assignment | None]
    summer: str = ""  # of the node's group, if it was sent there

    @property
    def recipient(self) -> str:
        return self.summer or self.coordinator


class CoordinationClient:
    """Submits models to the coordinator, this node included, and waits for assignments.

    Args:
        coordinator: handles this node's submissions in the terms in which it coordinates itself.
        size: P, the number of shared parameters.
        deadline: seconds to wait for an assignment, elections included.
        sums: this node's part in secure sums; None if it submits models.
        groups: this node's part in groups; None without them.

    Attributes:
        expired: number of missed deadlines.
        pending: the submission that waits for its answer; None if there is none.
    """

    def __init__(
        self,
        peering: PeerManager,
        election: ElectionRunner,
        coordinator: Coordinator,
        *,
        size: int,
        deadline: float,
        check: CheckModel,
        sums: SecureRounds | None = None,
        groups: Groups | None = None,
    ) -> None:
        self._peering = peering
        self._election = election
        self._coordinator = coordinator
        self._sums = sums
        self._groups = groups
        self._size = size
        self._deadline = deadline
        self._check = check
        self.expired = 0
        self.pending: UnansweredSubmission | None = None
        self._assigned_in: Term | None = None  # term of the last assignment, if the node has continued from it
        self._assigned_by = ""  # coordinator that made the last assignment
        self._refusing = ""  # summer that does not take this node's submission of the round
        self._refusals: tuple[Term, Counter[str]] = Term(0, 0), Counter()  # by summer, in a term

    async def submit(self, submission: Submission) -> Assignment | None:
        """Return the coordinator's assignment; None if there is no coordinator, or no assignment by the deadline."""
        sums = self._sums
        if sums is None:
            return await self._submit(submission)
        assignment = await self._submit(submission) if sums.accepts(submission) else None
        sums.record(submission.round, assignment)
        return assignment

    async def _submit(self, submission: Submission) -> Assignment | None:
        loop, sums = asyncio.get_running_loop(), self._sums
        expires = loop.time() + self._deadline
        known, self._assigned_in = self._assigned_in, None
        self._refusing = ""
        try:
            while (left := expires - loop.time()) > 0:
                seconds = min(left, self._election.patience)
                if not await self._peering.until(self._can_submit, seconds) and seconds < left:
                    return None  # no coordinator is elected: the round continues alone
                if self._can_submit():
                    pending = self._submit_once(submission, known)
                    if await self._wait_for_answer(pending, expires - loop.time()):
                        assignment = pending.answer.result()
                        self._assigned_in = None if assignment is None else pending.term
                        self._assigned_by = pending.coordinator
                        return assignment
                    if sums is not None and sums.signed:  # see p2pfl.node.coordination.secure_rounds
                        break
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
        name = self._election.coordinator
        return name == self._peering.name or (name in self._peering.peers and self._peering.peers[name].introduced)

    def _submit_once(self, submission: Submission, known: Term | None) -> UnansweredSubmission:
        name, term = self._election.coordinator, self._election.term
        assert name is not None
        submission = without_known_start(submission, known, term)
        summer = "" if self._groups is None else self._groups.summer(name)
        refused_in, refusals = self._refusals
        if summer == self._refusing or (refused_in == term and refusals[summer] >= REFUSALS):
            summer = ""
        number, loop = next(self._peering.numbers), asyncio.get_running_loop()
        pending = self.pending = UnansweredSubmission(number, submission.round, name, term, loop.create_future(), summer)
        if self._groups is not None and summer == self._peering.name:
            self._groups.coordinator.take(term, PendingSubmission(submission, partial(self._take_of_group, pending)))
        elif name == self._peering.name:
            own = submission if self._sums is None else self._sums.own(submission, term)
            self._coordinator.take(term, PendingSubmission(own, partial(self._take_own, pending)))
        elif self._sums is not None:
            announcement = Payload.of(self._sums.announce(submission, term).encode())
            self._peering.tell(self._peering.peers[name], _part(pending, "announce"), announcement)
        else:
            self._send(self._peering.peers[pending.recipient], pending, submission)
        return pending

    async def _wait_for_answer(self, pending: UnansweredSubmission, seconds: float) -> bool:
        """Wait until a submission is answered. Return False if that will not happen, or may not happen."""
        peering, name = self._peering, pending.recipient
        link = None if name == peering.name else peering.peers[name].link

        def over() -> bool:
            there = self._election.coordinator == pending.coordinator and self._election.term == pending.term
            lost = name != peering.name and (name not in peering.peers or peering.peers[name].link is not link)
            if self._groups is not None and pending.summer not in ("", peering.name):
                lost = lost or name == self._refusing or not self._groups.reaches(name)  # the coordinator stands in for it
            return pending.answer.done() or not there or lost

        await peering.until(over, seconds)
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
            self._peering.send(peer, message, payload)
        except TransportError:
            self._peering.rejected["link lost"] += 1

    def _take_own(self, pending: UnansweredSubmission, assignment: Assignment | None) -> None:
        """Adopt an assignment that this node has made for itself."""
        if self._election.leads(pending.term):
            self._resolve(pending, assignment)

    def _take_of_group(self, pending: UnansweredSubmission, assignment: Assignment | None) -> None:
        """Adopt what the coordinator has assigned to the group that this node sums."""
        if self._election.obeys(pending.coordinator, pending.term):
            self._resolve(pending, assignment)

    def _resolve(self, pending: UnansweredSubmission, assignment: Assignment | None) -> None:
        if not pending.answer.done():
            pending.answer.set_result(assignment)
            self._peering.notify()

    def take_assigned(self, peer: Peer, opened: Opened, message: m.Assigned) -> None:
        """Handle the coordinator's answer.

        Raises:
            ProtocolError: the sender is not the coordinator, there was no submission to it, or its answer is malformed.
        """
        read = partial(read_assignment, opened, self._size, self._check, self._election.votes)
        if self._groups is not None and self._groups.take_answer(peer, message, read):
            return
        pending = self._submission_of(peer, message, "an assignment")
        if pending is None:
            return
        if not message.given:
            self._resolve(pending, None)
            if len(opened.payload):
                raise ProtocolError("wrong length", "a payload after an assignment without a model")
            return
        try:
            assignment = read()
        except ProtocolError:
            self._resolve(pending, None)
            raise
        self._resolve(pending, assignment)

    def take_term_over(self, peer: Peer, message: m.TermOver) -> None:
        """Handle a summer's answer that it does not sum in this term: submit to the coordinator."""
        pending, term = self.pending, Term(message.membership_version, message.term)
        if pending is not None and (pending.summer, pending.term) == (peer.name, term):
            self._refusing = peer.name
            if self._refusals[0] != term:
                self._refusals = term, Counter()
            self._refusals[1][peer.name] += 1
            self._peering.notify()

    def _submission_of(self, peer: Peer, message: m.Assigned | m.SumRequest, what: str) -> UnansweredSubmission | None:
        """Return the submission to which a coordinator's message belongs; None if the message came too late.

        Raises:
            ProtocolError: the sender is not the coordinator, or there was no submission to it.
        """
        term, pending = Term(message.membership_version, message.term), self.pending
        if term < self._election.term:
            raise ProtocolError("lower term", f"{what} of the ended term {term}")
        if pending is None or message.request != pending.number:
            return None
        asked = (pending.recipient, pending.term, pending.round) == (peer.name, term, message.round)
        if not asked or not self._election.obeys(pending.coordinator, term):
            raise ProtocolError("not asked for", f"{what} for round {message.round} of term {term}")
        return pending

    def take_sum_request(self, peer: Peer, opened: Opened, message: m.SumRequest) -> None:
        """Handle a step of a secure sum, and answer it.

        Raises:
            ProtocolError: the sender is not the coordinator, or there was no announcement to it.
        """
        sums = _expect_sums(self._sums)
        pending = self._submission_of(peer, message, "a step of a secure sum")
        if pending is not None:
            work = self._answer_step(sums, peer, pending, message.step, bytes(opened.payload))
            self._peering.serve(peer.link, work, f"{self._peering.name}: step {message.step} of a secure sum")

    async def _answer_step(
        self, sums: SecureRounds, peer: Peer, pending: UnansweredSubmission, step: m.SumStep, payload: bytes
    ) -> None:
        try:
            answer = await sums.answer(step, payload)
        except ProtocolError as error:  # the member takes no further part
            self._peering.rejected[error.cause] += 1
            peer.offences[error.cause] += 1
            self._resolve(pending, None)
            return
        except ConfigurationError:  # it is in the log
            self._resolve(pending, None)
            return
        if answer is not None:
            self._peering.tell(peer, _part(pending, step), answer)


def _part(pending: UnansweredSubmission, step: Literal["announce", m.SumStep]) -> m.SumAnswer:
    """Return the message with an announcement, or with an answer to a step."""
    term = pending.term
    return m.SumAnswer(pending.number, pending.round, term.membership_version, term.number, step)


def _expect_sums(sums: SecureRounds | None) -> SecureRounds:
    if sums is None:
        raise ProtocolError("not asked for", "a secure sum in a federation without them")
    return sums


def submission_payload(submission: Submission) -> Payload:
    """Return the payload of a Submit message: the model, the start model if it is sent, and the extras."""
    models = [_to_bytes(model) for model in (submission.params, submission.start) if model is not None]
    return Payload.of(*models, encode_submission(submission.extras, submission.previous))


def assignment_payload(assignment: Assignment) -> Payload:
    """Return the payload of an Assigned message: the model, its weights and the extras."""
    rest = encode_assignment(assignment.weights, assignment.extras)
    return Payload.of(_to_bytes(assignment.params), rest)


def read_submission(sender: str, opened: Opened, message: m.Submit, size: int, check: CheckModel) -> Submission:
    """Return the submission in a message.

    Args:
        size: P, the number of shared parameters.

    Raises:
        ProtocolError: the submission is malformed, or a model in it is too large.
    """
    content = decode_submission(opened.payload, size, message.start)
    for model in (content.params, content.start):
        if model is not None:
            check(model)
    return Submission(
        sender=sender,
        round=message.round,
        params=content.params,
        n_samples=message.n_samples,
        extras=content.extras,
        previous=content.previous,
        start=content.start,
    )


def read_assignment(opened: Opened, size: int, check: CheckModel, has_vote: Callable[[str], bool]) -> Assignment:
    """Return the assignment in a message.

    Args:
        size: P, the number of shared parameters.
        has_vote: returns whether a member has a vote; only models of members with a vote may count.

    Raises:
        ProtocolError: the assignment is malformed, its model is too large, or it has weights of others.
    """
    content = decode_assignment(opened.payload, size)
    check(content.params)
    if not all(map(has_vote, content.weights)):  # no violation: with a committee, the logs of two members may differ
        raise ProtocolError("differs", "an assignment with weights of members that take no part")
    return Assignment(content.params, content.weights, content.extras, OVERHEAD + len(opened.payload))


def _to_bytes(params: Parameters) -> memoryview:
    """Return a model as little-endian float32."""
    return np.ascontiguousarray(params, "<f4").data.cast("B")


class CoordinationServer:
    """Accepts the submissions of others while this node coordinates, and answers them.

    Args:
        coordinator: collects the submissions of a round and runs its step.
        size: P, the number of shared parameters.
        sums: this node's part in secure sums; None if submissions have models.
        groups: this node's part in groups; None without them.
    """

    def __init__(
        self,
        peering: PeerManager,
        election: ElectionRunner,
        coordinator: Coordinator,
        *,
        size: int,
        check: CheckModel,
        sums: SecureRounds | None = None,
        groups: Groups | None = None,
    ) -> None:
        self._peering = peering
        self._election = election
        self._coordinator = coordinator
        self._sums = sums
        self._groups = groups
        self._size = size
        self._check = check

    def take_submit(self, peer: Peer, opened: Opened, message: m.Submit) -> None:
        """Handle a member's submission.

        Raises:
            ProtocolError: the submission is for another coordinator, or unusable for a step.
        """
        if self._sums is not None:
            raise ProtocolError("not asked for", "a model that is not masked, in a federation with secure sums")
        self._take(peer, opened, message)

    def take_sum_answer(self, peer: Peer, opened: Opened, message: m.SumAnswer) -> None:
        """Handle a member's announcement for a secure sum, or its answer to a step.

        Raises:
            ProtocolError: it is for another coordinator, or malformed.
        """
        sums = _expect_sums(self._sums)
        if message.step == "announce":
            self._take(peer, opened, message)
        else:
            self._expect_term(peer, message)
            sums.take(peer, message, opened.payload)

    def _expect_term(self, peer: Peer, message: m.Submit | m.SumAnswer | m.GroupMean) -> Term:
        term, groups = Term(message.membership_version, message.term), self._groups
        if term < self._election.term:
            raise ProtocolError("lower term", f"a submission in the ended term {term}")
        of_group = groups is not None and isinstance(message, m.Submit) and groups.takes(peer.name, term)
        if not of_group and not self._election.coordinates(term):
            raise ProtocolError("not the coordinator", f"a submission in term {term}")
        return term

    def _sums_for(self, term: Term, message: m.Submit | m.SumAnswer | m.GroupMean) -> bool:
        """Return whether this node takes a model for the coordinator of a term, because it sums its group."""
        return self._groups is not None and isinstance(message, m.Submit) and self._groups.sums(term)

    def take_group_mean(self, peer: Peer, opened: Opened, message: m.GroupMean) -> None:
        """Handle the mean of a group from its summer.

        Raises:
            ProtocolError: there are no groups, it is for another coordinator, or unusable for a step.
        """
        if self._groups is None or not self._election.is_voter(peer.name):
            raise ProtocolError("not asked for", f"{peer.name} is not the summer of a group")
        self._take(peer, opened, message)

    def _take(self, peer: Peer, opened: Opened, message: m.Submit | m.SumAnswer | m.GroupMean) -> None:
        try:
            term = self._expect_term(peer, message)
        except ProtocolError:
            self._election.correct(peer.name, Term(message.membership_version, message.term))
            raise
        if not self._election.votes(peer.name):  # the model of an observer counts for no node
            self._reply(peer, message, None)
            return
        coordinator = self._coordinator
        if self._groups is not None and self._sums_for(term, message):
            coordinator = self._groups.coordinator
        if not self._make_room(coordinator, peer, message):
            self._election.report_full()
            coordinator.refuse(term, peer.name)
            if coordinator is not self._coordinator:  # the member turns to the coordinator
                self._election.correct(peer.name, term)
            else:
                self._reply(peer, message, None)
            return
        try:
            submission: Submission
            if isinstance(message, m.SumAnswer):
                submission = _expect_sums(self._sums).announced(peer, opened.payload, message)
            elif isinstance(message, m.GroupMean):
                submission = self._read_group(peer, opened, message)
            else:
                submission = self._read(peer, opened, message)
        except ProtocolError:
            coordinator.refuse(term, peer.name)
            self._reply(peer, message, None)
            raise
        if self._groups is not None and coordinator is self._coordinator:
            self._groups.note(submission, term)
        coordinator.take(term, PendingSubmission(submission, partial(self._reply, peer, message)))

    def _make_room(self, coordinator: Coordinator, peer: Peer, message: m.Submit | m.SumAnswer | m.GroupMean) -> bool:
        """Return whether the memory permits a submission. Nobody finds no room because another one has submitted twice.

        A coordinator keeps room for the means of the groups.
        """
        if isinstance(message, m.SumAnswer):  # it contains no model
            return True
        kept = 0
        if self._groups is not None and coordinator is self._coordinator and isinstance(message, m.Submit):
            kept = len(self._groups.summers()) - 1
        while not self._election.has_room(coordinator.held_of_others(peer.name) + kept):
            if not coordinator.drop_surplus():
                return False
        return True

    def _read(self, peer: Peer, opened: Opened, message: m.Submit) -> Submission:
        samples = peer.public_info.get("n_samples")
        if message.n_samples != samples:
            raise ProtocolError("differs", f"a submission of {message.n_samples} samples, but {samples} in the introduction")
        return read_submission(peer.name, opened, message, self._size, self._check)

    def _read_group(self, peer: Peer, opened: Opened, message: m.GroupMean) -> GroupMean:
        assert self._groups is not None  # see `take_group_mean`
        mean = read_group(peer.name, opened, message, self._size, partial(self._groups.samples_of, peer.name))
        self._check(mean.params)
        return mean

    def _reply(self, peer: Peer, submit: m.Submit | m.SumAnswer | m.GroupMean, assignment: Assignment | None) -> None:
        """Send an assignment, or, for None, the message that there will be none."""
        term = Term(submit.membership_version, submit.term)
        if not self._election.leads(term) and not self._sums_for(term, submit):  # it submits again to the successor
            if not self._election.coordinates(term):
                self._election.correct(peer.name, term)
            return
        payload, given = EMPTY, assignment is not None
        try:
            if assignment is not None:
                payload = assignment_payload(assignment)
        except ValueError as error:  # of so many members, or with such extras, that it fits into no message
            self._election.report_too_large(str(error))
            given = False
        message = m.Assigned(submit.request, submit.round, submit.membership_version, submit.term, given)
        try:
            self._peering.send(peer, message, payload)
        except TransportError:
            self._peering.rejected["link lost"] += 1


class MessageCoordinatorBackend:
    """Services of a machine for its coordinator; see p2pfl.node.coordination.coordinator.CoordinatorBackend.

    Args:
        newest: returns the latest credible round, which enough of the other nodes have reached.
        step: step of the node's policy.
        robust: protection against malicious members; see p2pfl.robust.registry.
        sums: makes the mean from masked models in place of the step; None without secure sums.
        groups: this node's part in groups; None without them.
    """

    def __init__(
        self,
        peering: PeerManager,
        election: ElectionRunner,
        layout: Layout,
        *,
        newest: Callable[[], int],
        step: PolicyStep,
        robust: Robust,
        sums: SecureRounds | None = None,
        groups: Groups | None = None,
    ) -> None:
        self._peering = peering
        self._groups = groups
        self._election = election
        self._layout = layout
        self._newest = newest
        self._step = step
        self._robust = robust
        self._sums = sums

    def later(self, seconds: float, callback: Callable[[], None]) -> None:
        self._peering.later(seconds, callback)

    def known_participants(self) -> AbstractSet[str]:
        peering = self._peering
        if self._groups is not None:
            return self._groups.expected()
        there = {
            peer.name
            for peer in peering.introduced_peers()
            if not peer.stopped and peer.name not in peering.view.suspected and self._election.votes(peer.name)
        }
        return there if peering.final else there | {peering.name}

    def credible_round(self) -> int:
        return max(self._peering.round, self._newest())

    def coordinates(self, term: Term) -> bool:
        return self._election.coordinates(term)

    def leads(self, term: Term) -> bool:
        return self._election.leads(term)

    def compute(
        self, submissions: Sequence[Submission], state: Mapping[str, Any], then: Callable[[StepResult], None]
    ) -> None:
        own, sums = self._peering.name, self._sums
        there = of_members(submissions, self._election.votes)
        counted, refused = (there, {}) if self._groups is None else without_repeated(there)
        run = partial(run_protected_step, self._step, counted, state, self._layout, coordinator=own, robust=self._robust)

        async def work() -> None:
            result: StepResult
            if not there:
                result = StepResult({}, state, {})
            elif sums is None:
                result = await asyncio.get_running_loop().run_in_executor(None, run)
            else:
                result = await sums.run(there)
            if self._groups is not None:
                result = spread(result._replace(dropped={**result.dropped, **refused}), counted, there)
            if result.dropped:
                self._peering.rejected["submission"] += len(result.dropped)
            then(result)

        self._peering.begin(work(), f"{own}: step of round {submissions[0].round}")


class Coordination(NamedTuple):
    """Node's part in a coordinated policy.

    Attributes:
        election: its part in the election of a coordinator.
        step: step of the policy, which runs while this node is the coordinator.
        group_size: members of a group whose mean is submitted together; 0 without groups.
    """

    election: ElectionRunner
    step: PolicyStep
    group_size: int = 0


class CoordinationRoles(NamedTuple):
    """Roles of a node in coordinated rounds: it takes part, and it may coordinate.

    Attributes:
        client: submits to the coordinator.
        server: accepts the submissions of others while this node is the coordinator.
        coordinator: collects the submissions of a round and runs its step.
        sums: its part in secure sums; None without them.
        groups: its part in groups; None without them.
    """

    client: CoordinationClient
    server: CoordinationServer
    coordinator: Coordinator
    sums: SecureRounds | None = None
    groups: Groups | None = None

    def rewind(self, round: int) -> None:
        """Reopen a round and the rounds after it for submissions."""
        for coordinator in self._collecting():
            coordinator.rewind(round)

    def review(self) -> None:
        """Close a round that is complete, after a change of the peers."""
        for coordinator in self._collecting():
            coordinator.review()

    def _collecting(self) -> list[Coordinator]:
        return [self.coordinator, *([] if self.groups is None else [self.groups.coordinator])]


def make_coordination_roles(
    peering: PeerManager,
    coordination: Coordination,
    layout: Layout,
    *,
    settings: Settings,
    newest: Callable[[], int],
    check: CheckModel,
    sums: SecureSums | None = None,
    group_size: int = 0,
) -> CoordinationRoles:
    """Return a node's roles in coordinated rounds.

    Args:
        newest: returns the latest credible round, which enough of the other nodes have reached.
        sums: identity and secrets of its secure sums; None without them.
        group_size: members of a group, about; 0 without groups (see p2pfl.node.coordination.groups).
    """
    election, deadline, size = coordination.election, settings.deadline, layout.size
    secure = (
        None
        if sums is None
        else SecureRounds(peering, election, sums, size=size, trained=layout.n_trained, deadline=deadline)
    )
    groups = Groups(peering, election, group_size, deadline, newest=newest) if group_size else None
    backend = MessageCoordinatorBackend(
        peering, election, layout, newest=newest, step=coordination.step, robust=settings.robust, sums=secure, groups=groups
    )
    coordinator = Coordinator(backend, deadline)
    client = CoordinationClient(
        peering, election, coordinator, size=size, deadline=deadline, check=check, sums=secure, groups=groups
    )
    server = CoordinationServer(peering, election, coordinator, size=size, check=check, sums=secure, groups=groups)
    return CoordinationRoles(client, server, coordinator, secure, groups)
