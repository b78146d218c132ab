"""Secure sums of coordinated rounds as messages: both sides of p2pfl.protocols.secure_sums on a machine.

Theory of operation
===================

With `secure_sums`, a participant submits an announcement in place of its model, with the first `SumAnswer` of the round. To
the coordinator (p2pfl.node.coordination.coordinator) it is a submission like any other: the round closes when all have
announced, or after half a deadline. Then the coordinator does not run the policy's step, because it has no models. It leads
the participants through the steps of a secure sum (`SecureRounds.run`), and assigns the mean to the survivors. A participant
that was lost on the way has no assignment, and continues with its own model, as one that is late in any coordinated round.

**Time.** Each step ends when all that are asked have answered or are gone, or after its share of the deadline (TIMES). All
steps together take less than the half that is left, so that a participant that waits for one deadline gets its assignment.

**Once.** Every submission has new keys: after a change of coordinator, the participant submits again with others. But a
member that has signed the survivors of a sum submits no more in this round, whoever coordinates, because its signature may
open the sum. The sums of two lists of survivors for the same models would differ by one model. As 2 threshold > n + c, two
lists with enough signatures need an honest member in common. The round is on the disk before the signature is sent, because
a restarted node may train the same model again, from any of its checkpoints. So a node submits only in rounds after the
newest one that it has signed, which is never lowered. A node that is made to begin at round 0 again takes part again after
that round.

**Noise.** Under `privacy.central` a member adds noise to its model when it masks it, and counts on that of the others
(p2pfl.central_noise). It goes on from the roster only if what the members claim suffices, whoever of them colludes or drops
out, and announces itself only while the threshold stands the number of colluding members for which its budget is planned.

**Threads.** Masks of many members take time, and the beats of an election must not wait for it: the member's steps and the
coordinator's result are computed in other threads. A `SumMember` refuses a step that arrives before the last answer.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from p2pfl._util.atomic_files import reason
from p2pfl._util.event_log import EventLogger
from p2pfl._util.failpoints import failpoint
from p2pfl.algorithms.selection import fedavg
from p2pfl.central_noise import FARTHEST, enough, integers
from p2pfl.errors import ConfigurationError
from p2pfl.node.coordination.coordinator import StepResult
from p2pfl.node.coordination.election_runner import ElectionRunner
from p2pfl.node.folder.facts import read_facts, update_facts
from p2pfl.node.log import LOG
from p2pfl.node.peering.peer_manager import PeerManager
from p2pfl.node.peering.peers import Peer
from p2pfl.policy import Assignment, Submission
from p2pfl.privacy import SECRET, PrivacyPlan, SecretDraws, claimed_noise
from p2pfl.protocols.election import Term
from p2pfl.protocols.errors import ProtocolError
from p2pfl.protocols.identity import Identity
from p2pfl.protocols.secure_sums import (
    STEPS,
    Announcement,
    Secret,
    SumCollector,
    SumContext,
    SumMember,
    check_range,
    hides_from,
    read_announcement,
    threshold_of,
)
from p2pfl.protocols.wire import messages as m
from p2pfl.protocols.wire.envelope import Payload
from p2pfl.protocols.wire.messages import SumStep

TIMES: Mapping[SumStep, float] = {"roster": 1 / 16, "shares": 1 / 4, "survivors": 1 / 16, "open": 1 / 16}
"""Share of the deadline that each step may take; the answer to `shares` is as large as two models."""

NO_MODEL = np.empty(0, np.float32)  # of a submission whose model stays with its sender


class OpenedRounds:
    """Memory of the newest round whose sum a node has agreed to open, by its signature.

    This one is for simulated nodes, which never restart.

    Attributes:
        round: 0 before the first one.
    """

    def __init__(self, round: int = 0) -> None:
        self.round = round

    def save(self, round: int) -> None:
        """Save a round permanently before returning, unless a newer one is saved.

        Raises:
            OSError: it could not be saved.
        """
        self.round = max(round, self.round)


class SavedOpenedRounds(OpenedRounds):
    """The same in the facts of a node's folder; what it has signed in another federation does not count.

    Args:
        federation: 16 bytes; b"" for none.

    Raises:
        ConfigurationError: they cannot be read.
    """

    def __init__(self, folder: Path, federation: bytes) -> None:
        facts = read_facts(folder)
        super().__init__(facts.opened if facts.opened_in == federation else 0)
        self._folder = folder
        self._federation = federation

    def save(self, round: int) -> None:
        update_facts(self._folder, opened=max(round, self.round), opened_in=self._federation)
        super().save(round)


class SecureSums(NamedTuple):
    """Secure sums of one node.

    Attributes:
        federation: 16 bytes.
        threshold: the setting `secure_threshold`.
        opened: what the node has agreed to open, also before it started.
        source: source of its secrets.
        log: receives an event if a sum is refused, or not opened.
        plan: the plan of the node's privacy budget, if noise adds up in sums; else None.
    """

    identity: Identity
    federation: bytes
    threshold: int
    opened: OpenedRounds
    source: Secret = os.urandom
    log: EventLogger = LOG
    plan: PrivacyPlan | None = None


class Announced(Submission, frozen=True, gc=False, kw_only=True):
    """Submission without a model: its sender takes part in a secure sum.

    Attributes:
        ask: sends the sender a step.
        reachable: returns whether an answer of the sender may still arrive.
    """

    announcement: Announcement
    context: SumContext
    ask: Callable[[SumStep, Payload], None]
    reachable: Callable[[], bool]


class SumState(NamedTuple):
    """State of the sum of one round, as far as a member knows it.

    Attributes:
        announced, submitted: numbers of the members that have announced themselves, and whose masked models have arrived; 0
            until the coordinator has said so.
        opened: whether this member has been assigned the mean.
    """

    round: int
    announced: int
    submitted: int
    opened: bool


class _Asked(NamedTuple):
    """Step of a running sum.

    Attributes:
        waiting: members that have not answered it yet, by name.
    """

    collector: SumCollector
    step: SumStep
    waiting: dict[str, Announced]


class _Noise(NamedTuple):
    """Noise of one submission; see p2pfl.protocols.secure_sums.SumNoise.

    Attributes:
        deviation: its standard deviation in a value of the model.
        trained: number of values, from the start of the model, that have noise.
        claims: returns the noise that another member claims to add.
    """

    plan: PrivacyPlan
    name: str
    deviation: float
    trained: int
    claims: Callable[[str], float]
    source: Secret

    def check(self, members: Sequence[str]) -> None:
        claims = {name: self.claims(name) for name in members if name != self.name}
        if not enough(self.plan, claims):
            least = min(claims, key=lambda name: (claims[name], name), default=self.name)
            raise ConfigurationError(
                f"not submitted, because the noise of the members would not suffice for this node's privacy budget: {least}"
                f" claims {claims.get(least, 0.0):.4g}, this node {self.plan.share * self.plan.privacy.clip:.4g}; give all"
                " members the same privacy table with central = true, and start them with the same rounds",
                "privacy.central",
            )

    def add(self, total: np.ndarray, unit: float) -> None:
        draws = SecretDraws(self.source(SECRET), "noise of a sum")
        total[: self.trained] += integers(draws.normals, self.trained, self.deviation * unit).view(np.uint64)


class SecureRounds:
    """One node's part in secure sums: as a member, and while it is the coordinator.

    Args:
        size: P, the number of shared parameters.
        trained: number of those, from the start, that the optimiser updates.
        deadline: seconds for which participants wait.

    Attributes:
        assigned, missed: number of rounds in which this node has been assigned the mean of a sum, and has not.
        problem: reason why it has submitted nothing, or, as the coordinator, has opened nothing; "" since the last mean.
    """

    def __init__(
        self, peering: PeerManager, election: ElectionRunner, sums: SecureSums, *, size: int, trained: int, deadline: float
    ) -> None:
        self._peering = peering
        self._election = election
        self._sums = sums
        self._size = size
        self._trained = trained
        self._deadline = deadline
        self.assigned = self.missed = 0
        self.problem = ""
        self._opened = 0  # the last round of which it has been assigned the mean
        self._said = ""  # the last reason in the log
        self._member: SumMember | None = None
        self._threshold = 0  # when it was announced
        self._asked: dict[SumContext, _Asked] = {}  # a node may coordinate a later term before the sum of an earlier ends

    @property
    def threshold(self) -> int:
        return threshold_of(self._sums.threshold, self._election.voters)

    def _context(self, term: Term, round: int) -> SumContext:
        return SumContext(self._sums.federation, term.membership_version, term.number, round)

    def _key_of(self, name: str) -> bytes | None:
        """Return the public key of a member with a vote; None for any other name."""
        if not self._election.votes(name):
            return None
        if name == self._peering.name:
            return self._sums.identity.public
        return self._peering.peers[name].key if name in self._peering.peers else None

    @property
    def latest(self) -> SumState | None:
        """The state of the newest sum to which this node has announced itself; None before the first one."""
        member = self._member
        if member is None:
            return None
        return SumState(member.round, member.announced, member.submitted, self._opened == member.round)

    def record(self, round: int, assignment: Assignment | None) -> None:
        """Count a round of this node."""
        if assignment is None:
            self.missed += 1
        else:
            self.assigned += 1
            self._opened = round
            self.problem = self._said = ""

    # Member

    @property
    def signed(self) -> bool:
        """Whether this node has agreed to open the sum of its last submission."""
        return self._member is not None and self._member.signed

    def accepts(self, submission: Submission) -> bool:
        """Return whether this node may submit a model of a round; log why not."""
        self._member = None
        round, plan = submission.round, self._sums.plan
        try:
            check_range(submission.params, FARTHEST * submission.noise)
        except ConfigurationError as error:
            return self._refuse(round, str(error))
        if plan is not None and not hides_from(plan.privacy.colluding, self.threshold, self._election.voters):
            return self._refuse(
                round,
                f"not submitted, because a sum of {self.threshold} of {self._election.voters} members does not hide models"
                f" from {plan.privacy.colluding} that collude (privacy.colluding); it needs a greater secure_threshold, or"
                " fewer members",
            )
        if round <= self._sums.opened.round:
            return self._refuse(
                round,
                "not submitted, because this node has already signed the secure sum of round"
                f" {self._sums.opened.round}; it takes part again after that round, or at once in a new federation",
            )
        return True

    def _refuse(self, round: int, why: str) -> bool:
        self.problem = f"round {round}: {why}"
        self._sums.log.warning(self.problem, kind="sum-refused", round=round)
        return False

    def announce(self, submission: Submission, term: Term) -> Announcement:
        """Begin as a member of a sum, with new keys; return what to submit in place of the model."""
        plan, noise = self._sums.plan, None
        if plan is not None:
            noise = _Noise(plan, self._peering.name, submission.noise, self._trained, self._claimed, self._sums.source)
        self._threshold = self.threshold
        self._member = SumMember(
            self._peering.name,
            self._sums.identity,
            self._context(term, submission.round),
            submission.params,
            submission.n_samples,
            keys=self._key_of,
            threshold=self._threshold,
            source=self._sums.source,
            noise=noise,
        )
        return self._member.announcement

    def _claimed(self, name: str) -> float:
        """Return the noise that another member claims to add to what it submits."""
        return claimed_noise(self._peering.peers[name].public_info) if name in self._peering.peers else 0.0

    async def answer(self, step: SumStep, payload: bytes) -> Payload | None:
        """Return this member's answer to a step; None if it cannot save that it agrees to open the sum.

        Raises:
            ConfigurationError: the noise in the sum does not suffice; the member takes no further part.
            ProtocolError: the member takes no further part; see p2pfl.protocols.secure_sums.SumMember.
        """
        member = self._member
        if member is None:
            raise ProtocolError("not asked for", "a step of a secure sum that this member has not announced")
        if step == "roster" and self.threshold != self._threshold:  # with a committee, members are added within a term
            raise ProtocolError(
                "differs", f"the threshold is {self.threshold}, and was {self._threshold} at the announcement"
            )
        if step == "survivors":
            failpoint("sum-submitted")
        try:
            answer = await asyncio.get_running_loop().run_in_executor(None, member.answer, step, payload)
        except ConfigurationError as error:
            self._refuse(member.round, str(error))
            raise
        if self._member is not member:  # it has submitted again meanwhile: only the newer sum may be opened
            raise ProtocolError("not asked for", "a step of a secure sum that this member has left")
        if step == "shares":
            failpoint("sum-shared")
        elif step == "survivors":  # nothing was sent so far with which the sum may be opened
            try:
                self._sums.opened.save(member.round)
            except (OSError, ConfigurationError) as error:
                why = reason(error) if isinstance(error, OSError) else error
                self._member = None  # it must not answer the next step either
                self._refuse(member.round, f"cannot save that it is signed: {why}")
                return None
        return Payload.of(answer)

    # Coordinator

    def announced(self, peer: Peer, opened: memoryview, message: m.SumAnswer) -> Announced:
        """Return the submission of another member.

        Raises:
            ProtocolError: it is malformed, or not signed by the member.
        """
        context = self._context(Term(message.membership_version, message.term), message.round)
        announcement = read_announcement(peer.name, peer.public_info.get("n_samples"), opened)
        announcement.check(context, peer.key)
        announcement.check_keys()
        link = peer.link

        def reachable() -> bool:
            return self._peering.peers.get(peer.name) is peer and peer.link is link

        def ask(step: SumStep, payload: Payload) -> None:
            if reachable():
                request = (message.request, message.round, message.membership_version, message.term)
                self._peering.tell(peer, m.SumRequest(*request, step), payload)

        return _announced(announcement, context, ask, reachable)

    def own(self, submission: Submission, term: Term) -> Announced:
        """Return this node's own submission, while it is the coordinator."""

        async def answer(step: SumStep, payload: Payload) -> None:
            try:
                given = await self.answer(step, b"".join(map(bytes, payload.parts)))
                if given is not None:
                    self._take(self._peering.name, announced.context, step, given.parts[0])
            except ProtocolError as error:
                self._peering.rejected[error.cause] += 1
            except ConfigurationError:  # it is in the log
                pass

        def ask(step: SumStep, payload: Payload) -> None:
            self._peering.begin(answer(step, payload), f"{self._peering.name}: own part of a secure sum")

        announced = _announced(self.announce(submission, term), self._context(term, submission.round), ask, lambda: True)
        return announced

    def take(self, peer: Peer, message: m.SumAnswer, payload: memoryview) -> None:
        """Take a member's answer to a step; ignore one that is late.

        Raises:
            ProtocolError: it is not an answer to the step; the member has dropped out.
        """
        context = self._context(Term(message.membership_version, message.term), message.round)
        assert message.step != "announce"
        self._take(peer.name, context, message.step, payload)

    def _take(self, name: str, context: SumContext, step: SumStep, payload: bytes | memoryview) -> None:
        asked = self._asked.get(context)
        if asked is None or asked.step != step or name not in asked.waiting:
            return
        del asked.waiting[name]
        try:
            key = self._key_of(name)
            if key is not None:
                asked.collector.take(step, name, key, payload)
        finally:
            self._peering.notify()

    async def run(self, submissions: Sequence[Submission]) -> StepResult:
        """Lead the senders of a round through a secure sum; assign the mean of their models to the survivors.

        Nobody gets an assignment if the sum is not opened.
        """
        members = {each.sender: each for each in submissions if isinstance(each, Announced)}
        context = next(iter(members.values())).context
        term = Term(context.membership_version, context.term)
        collector = SumCollector(context, [each.announcement for each in members.values()], self.threshold, self._size)

        def answered(waiting: Mapping[str, Announced]) -> bool:
            return not any(each.reachable() for each in waiting.values()) or not self._election.coordinates(term)

        for step in STEPS:
            asked = collector.begin(step)
            if asked is None:
                return self._unopened(context.round, f"fewer than {collector.lack} have come to the step {step!r}")
            waiting = {name: members[name] for name in asked}
            self._asked[context] = _Asked(collector, step, waiting)
            common = None if step == "shares" else Payload.of(collector.request(step, asked[0]))
            for name in asked:
                members[name].ask(step, Payload.of(collector.request(step, name)) if common is None else common)
            await self._peering.until(partial(answered, waiting), self._deadline * TIMES[step])
            del self._asked[context]
        result = await asyncio.get_running_loop().run_in_executor(None, collector.result)
        if collector.wrong:
            self._peering.rejected["wrong share"] += len(collector.wrong)
            self._sums.log.warning(
                f"round {context.round}: {len(collector.wrong)} wrong shares in the secure sum, probably from"
                f" {', '.join(collector.suspects())}",
                kind="sum-shares",
                round=context.round,
                members=collector.suspects(),
            )
        if result is None:
            return self._unopened(context.round, f"fewer than {self.threshold} members have opened it, or with wrong shares")
        mean, samples = result
        weights = fedavg(samples)
        return StepResult({name: Assignment(mean, weights) for name in weights}, {}, {})

    def _unopened(self, round: int, why: str) -> StepResult:
        self.problem = f"round {round}: the secure sum is not opened: {why}"
        if why != self._said:  # it may be the same for many rounds, which the status counts
            self._sums.log.warning(f"{self.problem}; nodes keep their models", kind="sum-unopened", round=round)
        self._said = why
        return StepResult({}, {}, {})


def _announced(
    announcement: Announcement,
    context: SumContext,
    ask: Callable[[SumStep, Payload], None],
    reachable: Callable[[], bool],
) -> Announced:
    return Announced(
        announcement.name,
        context.round,
        NO_MODEL,
        announcement.n_samples,
        announcement=announcement,
        context=context,
        ask=ask,
        reachable=reachable,
    )
