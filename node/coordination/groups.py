"""Means of groups: members of the committee add up the models of about `group_size` members each, for the coordinator.

Theory of operation. A policy whose step is the mean of all models by samples (`only_mean`) needs no more of a group than its
mean and the samples of its members: the mean of the groups' means, by samples, is that of all. So a tree of two levels
stands in for one node that receives everything:

- There are G = N / group_size groups for N members, rounded up, but at most as many as the committee has members. A hash of
  its name puts each member into a group, so that members with the same log agree, and a newcomer moves nobody while G stays.
- The group of number 0 submits to the coordinator itself, as without groups. Each of the others has a *summer*: the other
  members of the committee in the order of their names. A member of the committee is in the group that it sums.
- A member submits to its summer, or to the coordinator if it has no link with the summer, loses it, suspects the summer, or
  hears from it that it does not sum: it may not have heard the first beat of a term yet, or its `coordinator_memory` permits
  no more models. The coordinator waits for the members of a summer that it does not reach itself, and for those that have
  submitted to it instead of their summer, until a mean contains them.
- A summer collects its group's submissions by the rules of a coordinator (`Coordinator`), with half the deadline, because
  the coordinator waits for it. Its step is to compute the mean of the group, to send it up as `group_mean`, and to assign
  what the coordinator assigns to it, to each member of its group.
- The coordinator takes a mean of a group as a submission of its summer, with the samples of the group, and runs the policy's
  step. Then it divides the weight of each group among its members, by samples.

Per round the coordinator receives and holds about N / G + G models in place of N. The result differs from the flat mean by
the rounding of float32 at two levels, and by nothing else: sums run in the order of names.

What must never be:

- A model counts twice. A member whose summer was lost may have submitted to the coordinator as well: a single submission of
  a member that a group's mean contains is left out, and its sender still gets the assignment (`without_repeated`). A second
  mean with a name that another one contains is refused.
- A summer or a member decides about other groups than its own. A summer takes submissions of its own group only; otherwise a
  member that submits to several of them would make their means contain one name. The coordinator takes a mean only if all
  its members are of the summer's group. (If the number of groups has changed since the summer began to collect, its group
  loses the round.) It gives the mean no more weight than the samples with which these members have introduced themselves to
  the coordinator. It does not refuse other samples: a member may have told the summer others.
- A summer acts in a term that is over: it answers only while it follows that term's coordinator.
- A member waits longer than without groups: a lost summer is noticed by the lost link, and a slow one ends its group's
  round after a quarter of the deadline.

Trust. A summer is trusted for its group, as the coordinator is for all: it can leave members out, or put any model in place
of theirs and of what is assigned to them, with the weight of its group and no more. Members cannot see it, because it passes
on the assignment with its weights. So groups need `robust = "none"`, like secure sums, and do not go with those, because a
summer would have to open the mask of a group alone.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from hashlib import sha256
from math import ceil
from typing import Any, NamedTuple

import numpy as np

from p2pfl.algorithms.selection import fedavg
from p2pfl.node.coordination.coordinator import Coordinator, StepResult
from p2pfl.node.coordination.election_runner import ElectionRunner
from p2pfl.node.peering.peer_manager import PeerManager
from p2pfl.node.peering.peers import Peer
from p2pfl.parameters import weighted_mean
from p2pfl.policy import Assignment, Submission
from p2pfl.protocols.election import Electorate, Term
from p2pfl.protocols.errors import ProtocolError
from p2pfl.protocols.transport import Link
from p2pfl.protocols.wire import messages as m
from p2pfl.protocols.wire.envelope import Opened, Payload
from p2pfl.protocols.wire.payload import decode_group, encode_group


class GroupMean(Submission, frozen=True, gc=False):
    """Mean of a group as its summer submits it; `n_samples` is the weight of the whole group.

    Attributes:
        samples: number of samples by name of each member that the mean contains, as the summer states them. `n_samples` may
            be less than their sum.
    """

    samples: Mapping[str, int] = {}


def summers(electorate: Electorate, coordinator: str, group_size: int) -> tuple[str, ...]:
    """Return the members that compute the means of the groups, in the order of the groups; the coordinator is first."""
    participants = electorate.participants or electorate.members
    others = sorted(electorate.members - {coordinator})
    return (coordinator, *others)[: max(1, ceil(len(participants) / group_size))]


def group_of(name: str, chosen: Sequence[str]) -> str:
    """Return the summer of a member's group."""
    if name in chosen:
        return name
    return chosen[int.from_bytes(sha256(f"p2pfl group 1\0{name}".encode()).digest()[:8]) % len(chosen)]


def mean_of_group(submissions: Sequence[Submission], summer: str) -> GroupMean:
    """Return the mean of a group's models by samples, summed in the order of names."""
    there = sorted(submissions, key=lambda each: each.sender)
    weights = fedavg({each.sender: each.n_samples for each in there})
    mean = weighted_mean([each.params for each in there], list(weights.values()))
    samples = {each.sender: each.n_samples for each in there}
    return GroupMean(summer, there[0].round, mean, sum(samples.values()), samples=samples)


def of_members(submissions: Sequence[Submission], votes: Callable[[str], bool]) -> list[Submission]:
    """Return the submissions that contain models of present members only.

    With a committee the term goes on when another member is revoked, and nobody accepts an assignment with its model.

    Args:
        votes: returns whether a member takes part in coordinated rounds.
    """
    return [s for s in submissions if all(map(votes, s.samples if isinstance(s, GroupMean) else [s.sender]))]


def without_repeated(submissions: Sequence[Submission]) -> tuple[list[Submission], dict[str, Exception]]:
    """Return the submissions in which each member counts once, and the refused ones by their senders."""
    kept: list[Submission] = []
    refused: dict[str, Exception] = {}
    counted: set[str] = set()
    for mean in sorted((each for each in submissions if isinstance(each, GroupMean)), key=lambda each: each.sender):
        if counted & mean.samples.keys():
            refused[mean.sender] = ProtocolError("submission", f"{mean.sender} counts a member that another group has")
        else:
            kept.append(mean)
            counted |= mean.samples.keys()
    kept += [each for each in submissions if not isinstance(each, GroupMean) and each.sender not in counted]
    return kept, refused


def spread(result: StepResult, counted: Sequence[Submission], submissions: Sequence[Submission]) -> StepResult:
    """Return a step's result with weights by member, and an assignment for each sender whose model a group's mean contains.

    Args:
        counted: what the step was made of.
        submissions: everything that was submitted.
    """
    if not result.assignments:
        return result
    one = next(iter(result.assignments.values()))
    weights: dict[str, float] = {}
    for each in counted:
        share = one.weights.get(each.sender, 0.0)
        own = fedavg(each.samples) if isinstance(each, GroupMean) else {each.sender: 1.0}
        weights |= {name: share * part for name, part in own.items()}
    assignment = Assignment(one.params, dict(sorted(weights.items())), one.extras)
    refused = result.dropped.keys()
    return result._replace(assignments={each.sender: assignment for each in submissions if each.sender not in refused})


def group_payload(mean: GroupMean) -> Payload:
    """Return the payload of a `group_mean`: the mean, and the samples by name."""
    return Payload.of(np.ascontiguousarray(mean.params, "<f4").data.cast("B"), encode_group(mean.samples))


def read_group(
    sender: str, opened: Opened, message: m.GroupMean, size: int, known: Callable[[str], int | None]
) -> GroupMean:
    """Return the mean of a group in a message.

    Args:
        size: P, the number of shared parameters.
        known: returns the samples of a member of the sender's group, as far as this node knows; None for another name.

    Raises:
        ProtocolError: the payload is malformed, or counts somebody who is not in the group.
    """
    params, samples = decode_group(opened.payload, size)
    if not samples:
        raise ProtocolError("malformed", "the mean of a group without members")
    most = 0
    for name in samples:
        if (own := known(name)) is None:
            raise ProtocolError("differs", f"{sender} counts {name}, who is not in its group")
        most += own
    return GroupMean(sender, message.round, params, min(most, sum(samples.values())), samples=samples)


class _Unanswered(NamedTuple):
    number: int
    term: Term
    answer: Future[Assignment | None]


class Groups:
    """This node's part in groups: which summer it submits to, and the sums that it makes itself.

    Args:
        group_size: members of a group, about.
        deadline: seconds for which participants wait.
        newest: returns the latest credible round, which enough of the other nodes have reached.

    Attributes:
        coordinator: collects the submissions of this node's group, while it is a summer and not the coordinator.
        direct: members that their summers have not taken, with the last term in which they submitted to this node instead.
    """

    def __init__(
        self,
        peering: PeerManager,
        election: ElectionRunner,
        group_size: int,
        deadline: float,
        *,
        newest: Callable[[], int],
    ) -> None:
        self._peering = peering
        self._newest = newest
        self._election = election
        self._group_size = group_size
        self._deadline = deadline
        self._pending: _Unanswered | None = None  # the group's mean that waits for its answer
        self.coordinator = Coordinator(_SummerBackend(self), deadline / 2)
        self.direct: dict[str, Term] = {}

    def summers(self) -> tuple[str, ...]:
        """Return the summers of the present term; empty without a coordinator."""
        election = self._election  # a coordinator remains one while it has no lease
        name = self._peering.name if election.coordinates(election.term) else election.coordinator
        return () if name is None else summers(self._election.electorate, name, self._group_size)

    def summer(self, coordinator: str) -> str:
        """Return the summer to which this node submits; "" if that is the coordinator, or the summer seems to be gone."""
        name = group_of(self._peering.name, self.summers() or (coordinator,))
        return name if name != coordinator and (name == self._peering.name or self.reaches(name)) else ""

    def reaches(self, name: str) -> bool:
        """Return whether a member is connected, has not ended, and is not suspected."""
        peering = self._peering
        peer = peering.peers.get(name)
        return peer is not None and peer.introduced and not peer.stopped and name not in peering.view.suspected

    def sums(self, term: Term) -> bool:
        """Return whether this node sums for the coordinator of a term, and is not the coordinator."""
        name = self._election.coordinator
        follows = name not in (None, self._peering.name) and self._election.term == term
        return follows and self._peering.name in self.summers()

    def takes(self, name: str, term: Term) -> bool:
        """Return whether this node takes the submission of a member for the coordinator of a term."""
        return self.sums(term) and group_of(name, self.summers()) == self._peering.name

    def samples_of(self, summer: str, name: str) -> int | None:
        """Return the samples that a member has introduced itself with here; None if it is not in a summer's group."""
        chosen, peer = self.summers(), self._peering.peers.get(name)
        if peer is None or not self._election.votes(name) or summer not in chosen or group_of(name, chosen) != summer:
            return None
        told = peer.public_info.get("n_samples")
        return max(0, told) if isinstance(told, int) else 0

    def expected(self) -> AbstractSet[str]:
        """Return the names of the connected participants that submit to this node; it is one of them until it has ended."""
        peering, chosen = self._peering, self.summers()
        there = {
            peer.name
            for peer in peering.introduced_peers()
            if not peer.stopped and peer.name not in peering.view.suspected and self._election.votes(peer.name)
        }
        mine = {name for name in there if chosen and group_of(name, chosen) == peering.name}
        if self._election.coordinates(self._election.term):
            mine |= there & set(chosen)  # their means are awaited, too
            mine |= {name for name in there if group_of(name, chosen) not in there}  # in place of a lost summer
            mine |= {name for name in there if self.direct.get(name) == self._election.term}
        return mine if peering.final else mine | {peering.name}

    def note(self, submission: Submission, term: Term) -> None:
        """Note who has submitted to this node, the coordinator, instead of to a summer, before the round is reviewed."""
        if isinstance(submission, GroupMean):
            for name in submission.samples:
                self.direct.pop(name, None)
        elif group_of(submission.sender, self.summers() or (self._peering.name,)) != self._peering.name:
            self.direct[submission.sender] = term

    def credible_round(self) -> int:
        return max(self._peering.round, self._newest())

    def later(self, seconds: float, callback: Callable[[], None]) -> None:
        self._peering.later(seconds, callback)

    async def _ask(self, mean: GroupMean, term: Term) -> Assignment | None:
        """Send the group's mean to the coordinator, again after a lost link; return its answer, None without one."""
        peering, loop = self._peering, asyncio.get_running_loop()
        expires = loop.time() + self._deadline
        payload = group_payload(mean)
        while self.sums(term) and (left := expires - loop.time()) > 0:
            peer = peering.peers.get(self._election.coordinator or "")
            if peer is None:
                return None
            if (link := peer.link) is None:
                await peering.until(partial(self._can_ask, peer, term), left)
                continue
            pending = self._pending = _Unanswered(next(peering.numbers), term, loop.create_future())
            peering.tell(peer, m.GroupMean(pending.number, mean.round, *term), payload)

            def over(pending: _Unanswered = pending, peer: Peer = peer, link: Link = link) -> bool:
                return pending.answer.done() or peer.link is not link or not self.sums(term)

            await peering.until(over, left)
            if pending.answer.done():
                return pending.answer.result()
        return None

    def _can_ask(self, peer: Peer, term: Term) -> bool:
        return peer.introduced or not self.sums(term)

    def take_answer(self, peer: Peer, message: m.Assigned, read: Callable[[], Assignment]) -> bool:
        """Handle the coordinator's answer to the group's mean. Return False if the message answers something else.

        Raises:
            ProtocolError: the sender is not the coordinator, or the answer is malformed.
        """
        pending, term = self._pending, Term(message.membership_version, message.term)
        if pending is None or message.request != pending.number or pending.answer.done():
            return False
        if term != pending.term or not self._election.obeys(peer.name, term):
            raise ProtocolError("not asked for", f"an assignment for a group in term {term}")
        try:
            assignment = read() if message.given else None
        except ProtocolError:
            pending.answer.set_result(None)
            self._peering.notify()
            raise
        pending.answer.set_result(assignment)
        self._peering.notify()
        return True

    async def step(self, submissions: Sequence[Submission], term: Term) -> StepResult:
        """Return what the coordinator assigns to this node's group."""
        there = of_members(submissions, self._election.votes)
        if not there:
            return StepResult({}, {}, {})
        run = partial(mean_of_group, there, self._peering.name)
        mean = await asyncio.get_running_loop().run_in_executor(None, run)
        assignment = await self._ask(mean, term)
        given = {} if assignment is None else {each.sender: assignment for each in submissions}
        return StepResult(given, {}, {})

    def begin(self, submissions: Sequence[Submission], then: Callable[[StepResult], None]) -> None:
        """Run `step` in the background."""
        term = self.coordinator.term  # another one may begin before the task does

        async def work() -> None:
            then(await self.step(submissions, term))

        self._peering.begin(work(), f"{self._peering.name}: mean of a group in round {submissions[0].round}")


class _SummerBackend:
    """Services of a machine for the summer of a group; see p2pfl.node.coordination.coordinator.CoordinatorBackend."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups

    def later(self, seconds: float, callback: Callable[[], None]) -> None:
        self._groups.later(seconds, callback)

    def known_participants(self) -> AbstractSet[str]:
        return self._groups.expected()

    def credible_round(self) -> float:
        return self._groups.credible_round()

    def coordinates(self, term: Term) -> bool:
        return self._groups.sums(term)

    def leads(self, term: Term) -> bool:
        return self._groups.sums(term)

    def compute(
        self, submissions: Sequence[Submission], state: Mapping[str, Any], then: Callable[[StepResult], None]
    ) -> None:
        self._groups.begin(submissions, then)
