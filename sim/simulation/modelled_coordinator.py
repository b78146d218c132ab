"""Submissions of simulated nodes to their coordinator, without messages (see p2pfl.policy.Coordinated).

Sizes are computed, as for fetches. There is no election: the node with the lowest name coordinates. A note tells the
user if its line is too slow for that: its beats would wait behind models until its lease ends.
node/coordination/coordinator.py implements the coordinator's handling of submissions.

Secure sums (p2pfl.protocols.secure_sums) have no masks and no shares here. In the sum of the survivors the masks cancel
exactly, so the models are added up as the same integers without them. The messages of all steps are charged, with their
bytes and times, and a member whose message is lost or late drops out as on machines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from math import ceil, inf
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from p2pfl._util.binding import split_name
from p2pfl.algorithms.selection import fedavg
from p2pfl.central_noise import FARTHEST, integers
from p2pfl.errors import ConfigurationError
from p2pfl.node.coordination.coordinator import (
    Coordinator,
    PendingSubmission,
    StepResult,
    run_protected_step,
    without_known_start,
)
from p2pfl.node.coordination.election_runner import timing_of
from p2pfl.node.coordination.secure_rounds import TIMES
from p2pfl.node.exchange.model_encoding import ModelEncoder
from p2pfl.node.log import LOG
from p2pfl.node.settings import check_coordinated
from p2pfl.policies import make_policy
from p2pfl.policy import Assignment, Coordinated, Policy, PolicyStep, Submission
from p2pfl.protocols.election import Term
from p2pfl.protocols.secure_sums import (
    ANNOUNCEMENT_SIZE,
    FRACTION,
    STEPS,
    SumSizes,
    check_range,
    counted_of,
    from_fixed_point,
    remaining_of,
    shares_of,
    threshold_of,
    to_fixed_point,
)
from p2pfl.protocols.wire.envelope import OVERHEAD
from p2pfl.protocols.wire.payload import encode_assignment, encode_submission
from p2pfl.random_streams import RandomStreams
from p2pfl.sim.scenario.network import Links
from p2pfl.sim.scenario.scenario import Scenario
from p2pfl.sim.simulation.modelled_network import Gather, ModelledNetwork, ModelledPeer


def refuse(scenario: Scenario, policy: Policy) -> None:
    """Raise ConfigurationError if a coordinated policy cannot run with a scenario's settings."""
    if not isinstance(policy, Coordinated):
        return
    check_coordinated(scenario)
    if scenario.policy_by_group:
        raise ConfigurationError("policy_by_group cannot be used with a coordinated policy, which all nodes share")
    attack = scenario.attack_plan()
    if attack is not None and attack.attack.targeted:
        raise ConfigurationError(
            "a coordinated policy needs an attack that sends one model to all; nodes submit to the coordinator only"
        )


def election_notes(scenario: Scenario, names: Sequence[str], encoder: ModelEncoder, links: Links) -> list[str]:
    """Return a note if messages would show a coordinator that cannot hold its lease on its line.

    Heartbeats, and the answers to them, wait behind the models that all other nodes send to the coordinator, or receive
    from it, in one round.
    """
    bandwidth = links.bandwidth(min(names))
    if scenario.fidelity == "wire" or not bandwidth:
        return []
    if not isinstance(make_policy(*split_name("policy", scenario.policy)), Coordinated):
        return []
    timing = timing_of(encoder.layout.size, scenario.deadline)
    most = timing.lease - timing.beat
    amount = (len(names) - 1) * (OVERHEAD + encoder.whole)
    if amount <= most * bandwidth:
        return []
    return [
        f"the coordinator's line carries the models of a round in {amount / bandwidth:.1f} s, but beats may wait for at"
        f' most {most:.1f} s: such a federation elects coordinators again and again, which fidelity = "modelled" does not'
        f' show; set network.bandwidth to {ceil(amount / most):,} or more, or fidelity = "wire"'
    ]


class Leader(NamedTuple):
    """The coordinator's name and its term; terms only increase."""

    term: Term
    id: str


class ModelledCoordination:
    """Coordination in one modelled network.

    Attributes:
        backends: coordinator backends by the name of their node.
    """

    def __init__(self, network: ModelledNetwork) -> None:
        self.network = network
        self.backends: dict[str, ModelledCoordinatorBackend] = {}
        self._lowest = ""  # name of a node

    def join(self, peer: ModelledPeer, step: PolicyStep) -> ModelledParticipant:
        """Add a participant; `step` is the joint step of its policy."""
        self.backends[peer.name] = ModelledCoordinatorBackend(self, peer, step)
        self._lowest = min(self._lowest or peer.name, peer.name)
        return ModelledParticipant(self, peer)

    def leader(self) -> Leader | None:
        """Return the current coordinator, or None if there is none: the lowest name, in a single term."""
        return Leader(Term(1, 1), self._lowest)


class ModelledParticipant:
    """One node's submissions (see p2pfl.node.coordination.submissions).

    Attributes:
        expired: number of deadlines that have passed.
        assigned_in: term of the last assignment, if the node has continued from it.
    """

    def __init__(self, coordination: ModelledCoordination, peer: ModelledPeer) -> None:
        self.coordination = coordination
        self.expired = 0
        self._peer = peer
        self.assigned_in: Term | None = None
        self._assigned_by = ""  # coordinator that made the last assignment

    async def submit(self, submission: Submission) -> Assignment | None:
        """Return the coordinator's assignment; None without a coordinator, or after the deadline."""
        network, peer = self._peer.network, self._peer
        if submission.round > peer.round:
            peer.reach(submission.round)
        leader = self.coordination.leader()
        known, self.assigned_in = self.assigned_in, None
        if leader is None:
            return None
        if self._masked and not self._in_range(submission):
            return None
        submission = without_known_start(submission, known, leader.term)
        answer = Gather(network.loop, 1, network.settings.deadline)
        arrives = self._send(submission, network.peers[leader.id])
        if arrives is not None:
            network.loop.call_at(arrives, self.coordination.backends[leader.id].take, leader.term, submission, peer, answer)
        network.open(answer)
        if not await answer.future:
            self.expired += 1
            return None
        assignment: Assignment | None = answer.items[leader.id]
        if assignment is not None:
            self.assigned_in, self._assigned_by = leader.term, leader.id
        return assignment

    def set_aside(self) -> str:
        """Submit the next start model even if the coordinator has assigned one; return the coordinator's name."""
        self.assigned_in = None
        return self._assigned_by

    def _send(self, submission: Submission, coordinator: ModelledPeer) -> float | None:
        """Count a submission; return its time of arrival, or None if it is lost."""
        peer = self._peer
        if coordinator is peer:
            return peer.network.loop.now
        masked = self._masked
        size = OVERHEAD + ANNOUNCEMENT_SIZE if masked else size_of(submission, peer.encoder.whole)
        peer.traffic.count("sent", "submit", size, models=not masked)
        arrives = peer.arrival(coordinator, size)
        if arrives is not None:
            coordinator.traffic.count("received", "submit", size, models=not masked)
        return arrives

    @property
    def _masked(self) -> bool:
        return self._peer.network.settings.secure_sums

    def _in_range(self, submission: Submission) -> bool:
        """Return whether a model can be added up; log why not."""
        try:
            check_range(submission.params, FARTHEST * submission.noise)
        except ConfigurationError as error:
            LOG.warning(f"{self._peer.name}, round {submission.round}: {error}", kind="sum-refused", round=submission.round)
            return False
        return True

    def leave(self) -> None:
        """Tell the coordinator to expect nothing more from this node."""
        leader = self.coordination.leader()
        if leader is None:
            return
        network = self._peer.network
        when = self._peer.arrival(network.peers[leader.id], OVERHEAD)
        if when is not None:
            network.loop.call_at(when, self.coordination.backends[leader.id].leave, self._peer.name)


class ModelledCoordinatorBackend:
    """Coordinator's side of a modelled node (see p2pfl.node.coordination.coordinator.CoordinatorBackend).

    Attributes:
        left: names of nodes that have stopped.
    """

    def __init__(self, coordination: ModelledCoordination, owner: ModelledPeer, step: PolicyStep) -> None:
        self._coordination = coordination
        self._owner = owner
        self._step = step
        self.desk = Coordinator(self, owner.network.settings.deadline)
        self.left: set[str] = set()

    def take(self, term: Term, submission: Submission, participant: ModelledPeer, answer: Gather) -> None:
        """Keep a submission that has arrived, or answer that it was sent to the wrong node."""
        reply = partial(self._send, participant, answer)
        if not self.coordinates(term):
            reply(None)
            return
        if term > self.desk.term:
            self.left = {id for id, peer in self._owner.network.peers.items() if peer.outbox.final}
        self.desk.take(term, PendingSubmission(submission, reply))

    def leave(self, id: str) -> None:
        """Expect nothing more from a node."""
        self.left.add(id)
        self.desk.review()

    def later(self, seconds: float, callback: Callable[[], None]) -> None:
        self._owner.network.loop.call_later(seconds, callback)

    def known_participants(self) -> AbstractSet[str]:
        return self._owner.network.peers.keys() - self.left

    def credible_round(self) -> float:
        return inf  # simulated nodes are honest

    def coordinates(self, term: Term) -> bool:
        return self._coordination.leader() == (term, self._owner.name)

    leads = coordinates

    def compute(
        self, submissions: Sequence[Submission], state: Mapping[str, Any], then: Callable[[StepResult], None]
    ) -> None:
        owner = self._owner
        if owner.network.settings.secure_sums:
            ModelledSum(owner, submissions, then).begin()
            return
        layout, robust = owner.encoder.layout, owner.network.settings.robust
        then(run_protected_step(self._step, submissions, state, layout, coordinator=owner.name, robust=robust, trusted=True))

    def _send(self, participant: ModelledPeer, answer: Gather, assignment: Assignment | None) -> None:
        """Send an assignment; None means that there will be none."""
        owner = self._owner
        if participant is owner:
            answer.add(owner.name, assignment, owner.network.loop.now)
            return
        if assignment is None:
            owner.traffic.count("sent", "assigned", OVERHEAD)
            participant.traffic.count("received", "assigned", OVERHEAD)
            answer.add(owner.name, None, owner.arrival(participant, OVERHEAD))
            return
        size = OVERHEAD + owner.encoder.whole + len(encode_assignment(assignment.weights, assignment.extras))
        owner.traffic.count("sent", "assigned", size, models=1)
        arrives = owner.arrival(participant, size)
        if arrives is not None:
            participant.traffic.count("received", "assigned", size, models=1)
            answer.add(owner.name, replace(assignment, size=size), arrives)


class ModelledSum:
    """Secure sum of one round; see p2pfl.node.coordination.secure_rounds.SecureRounds.run.

    Args:
        owner: the coordinator.
        submissions: of the members, with their models.
        then: receives the result.
    """

    def __init__(self, owner: ModelledPeer, submissions: Sequence[Submission], then: Callable[[StepResult], None]) -> None:
        self._owner = owner
        self._submissions = sorted(submissions, key=lambda submission: submission.sender)
        self._samples = {submission.sender: submission.n_samples for submission in submissions}
        self._sizes = SumSizes(self._samples, owner.encoder.layout.size)
        self._threshold = threshold_of(owner.network.settings.secure_threshold, len(owner.network.peers))
        self._remaining = remaining_of(len(submissions), self._threshold)
        self._counted = counted_of(self._samples)
        self._included: Sequence[str] = ()
        self._survivors: Sequence[str] = ()
        self._then = then

    def begin(self) -> None:
        """Ask all members the first step."""
        self._ask(0, [submission.sender for submission in self._submissions])

    def _ask(self, number: int, members: Sequence[str]) -> None:
        """Ask the members that have answered the steps so far another one; open the sum after the last one."""
        models = number < len(STEPS) and STEPS[number] in ("roster", "shares", "survivors")
        counted = len(self._counted.intersection(members)) if models else len(members)
        remaining = self._remaining if models else self._threshold
        if len(members) < remaining or counted < self._threshold:
            self._then(StepResult({}, {}, {}))
            return
        if number == len(STEPS):
            self._then(self._open())
            return
        step, loop = STEPS[number], self._owner.network.loop
        if step == "shares":
            self._included = members
        elif step == "survivors":
            self._survivors = members
        sizes = self._sizes.of(step, len(members), len(self._included))
        answers = {name: self._answer(name, OVERHEAD + sizes[0], OVERHEAD + sizes[1], step) for name in members}
        ends = loop.now + self._owner.network.settings.deadline * TIMES[step]
        arrived = {name: when for name, when in answers.items() if when is not None and when <= ends}
        if len(arrived) == len(members):
            ends = max(arrived.values())
        loop.call_at(ends, self._ask, number + 1, list(arrived))

    def _answer(self, name: str, request: int, answer: int, step: str) -> float | None:
        """Count a step's two messages; return the time at which the answer arrives, or None if one of them is lost."""
        owner, peer = self._owner, self._owner.network.peers[name]
        if peer is owner:
            return owner.network.loop.now
        masked = int(step == "shares")
        owner.traffic.count("sent", "assigned", request)
        asked = owner.arrival(peer, request)
        if asked is None:
            return None
        peer.traffic.count("received", "assigned", request)
        peer.traffic.count("sent", "submit", answer, models=masked)
        arrives = owner.network.links.arrival(peer.name, owner.name, answer, asked)
        if arrives is not None:
            owner.traffic.count("received", "submit", answer, models=masked)
        return arrives

    def _open(self) -> StepResult:
        shares = shares_of(self._samples)
        weight = sum(shares[name] for name in self._survivors)
        if not weight:
            return StepResult({}, {}, {})
        total = np.zeros(self._owner.encoder.layout.size, np.uint64)
        trained = self._owner.encoder.layout.n_trained
        for submission in self._submissions:
            name, noise = submission.sender, submission.noise
            if name not in self._survivors:
                continue
            total += to_fixed_point(submission.params, shares[name])
            if noise:  # see p2pfl.central_noise
                draws = RandomStreams(self._owner.network.settings.seed, name).generator(submission.round, "noise of a sum")
                added = integers(draws.standard_normal, trained, noise * shares[name] * FRACTION)
                total[:trained] += added.view(np.uint64)
        weights = fedavg({name: self._samples[name] for name in self._survivors})
        mean = from_fixed_point(total, weight)
        return StepResult({name: Assignment(mean, weights) for name in weights}, {}, {})


def size_of(submission: Submission, model: int) -> int:
    """Return the bytes of the frame of a submission.

    Args:
        model: bytes of one model.
    """
    rest = encode_submission(submission.extras, submission.previous)
    return OVERHEAD + model * (1 if submission.start is None else 2) + len(rest)
