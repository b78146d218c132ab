"""How simulated nodes submit to their coordinator, and what that one does with it (see p2pfl.policy.Coordinated).

As with fetches no message is made; sizes are computed. A round's submissions are gathered until everyone who is expected has
submitted, or until half a deadline after the first of them: the participants wait for a whole one, each from when it has
submitted, so that the assignments of a round that some have missed still come in time for the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from p2pfl.errors import ConfigurationError
from p2pfl.policy import Assignment, Coordinated, Policy, Submission
from protocols.envelope import OVERHEAD
from protocols.payload import encode_extras

if TYPE_CHECKING:
    from sim.scenario import Scenario
    from sim.world import ModelledExchange, _Gathering


def refuse(scenario: Scenario, policy: Policy) -> None:
    """Raise ConfigurationError where a coordinated policy cannot run as a scenario asks."""
    if not isinstance(policy, Coordinated):
        return
    if scenario.mode != "synchronous":
        raise ConfigurationError('a coordinated policy needs mode = "synchronous", as its steps are by rounds')
    if scenario.policy_by_group:
        raise ConfigurationError("a coordinated policy is that of all nodes: it cannot be used with policy_by_group")
    if scenario.fidelity == "wire":
        raise ConfigurationError('a coordinated policy runs with fidelity = "modelled" only, so far')
    if scenario.codec.get("name") != "float32":
        raise ConfigurationError('a coordinated policy sends models as they are: codec.name must be "float32"')


class Leader(NamedTuple):
    """Who coordinates, and in which term: terms only grow."""

    term: int
    id: str


class Entry(NamedTuple):
    """A submission that has come, and where its sender waits for the answer."""

    submission: Submission
    participant: ModelledExchange
    answer: _Gathering


class Desk:
    """What one node does as the coordinator.

    Attributes:
        term: in which it was the coordinator last. The state of a term is forgotten with it: a later one begins with what
            the participants hold, as others may have coordinated in between.
        state: of the policy's steps in this term.
        away: who has missed a round and was not heard since. Nobody waits for them.
        left: who has said that it stops.
    """

    def __init__(self, owner: ModelledExchange) -> None:
        self._owner = owner
        self.term = 0
        self.state: Mapping[str, Any] = {}
        self.away: set[str] = set()
        self.left: set[str] = set()
        self._open: dict[int, dict[str, Entry]] = {}  # by round
        self._closed = 0  # no round up to this one takes submissions any more

    def take(self, term: int, entry: Entry) -> None:
        """A submission has arrived: keep it, or say that it comes too late or to the wrong node."""
        world, submission = self._owner.world, entry.submission
        leader = world.leader()
        if leader is None or leader != (term, self._owner.name):
            self._send(entry, None)
            return
        if term > self.term:
            self.term, self.state, self._closed = term, {}, 0
            self.away, self.left = set(), {id for id, node in world.nodes.items() if node.outbox.final}
            self._open.clear()
        self.away.discard(submission.sender)
        round = submission.round
        if round <= self._closed:
            self._send(entry, None)
            return
        if round not in self._open:
            self._open[round] = {}
            world.loop.call_at(world.loop.now + world.settings.deadline / 2, self._expire, term, round)
        self._open[round][submission.sender] = entry
        self.review()

    def leave(self, id: str) -> None:
        """A node has said that it stops."""
        self.left.add(id)
        self.review()

    def review(self) -> None:
        """Close the rounds for which everyone has submitted who is expected to."""
        for round in sorted(self._open):
            if self._open.get(round) is not None and not self._missing(round):
                self._close(round)

    def _missing(self, round: int) -> set[str]:
        """Return whose submission for a round may still come: not of those who have left, or are at a later round."""
        ahead = {sender for other, entries in self._open.items() if other >= round for sender in entries}
        return self._owner.world.nodes.keys() - self.left - self.away - ahead

    def _expire(self, term: int, round: int) -> None:
        """The coordinator's deadline has come."""
        if term == self.term and round in self._open:
            self.away |= self._missing(round)
            self._close(round)

    def _close(self, round: int) -> None:
        """Make the step of a round, those before it first, and send what it assigns."""
        for earlier in sorted(r for r in self._open if r < round):
            self._close(earlier)
        entries = self._open.pop(round)
        self._closed = round
        step, layout = self._owner.step, self._owner.coding.layout
        assert step is not None  # whoever submits has a coordinated policy, and all have the same
        assignments, self.state = step([entry.submission for entry in entries.values()], self.state, layout)
        for sender in sorted(entries):
            self._send(entries[sender], assignments[sender])

    def _send(self, entry: Entry, assignment: Assignment | None) -> None:
        """Send an assignment, or, for None, that there will be none."""
        owner, participant, now = self._owner, entry.participant, self._owner.world.loop.now
        if participant is owner:
            entry.answer.add(owner.name, assignment, now)
            return
        if assignment is None:
            owner.traffic.sent_control += OVERHEAD
            participant.traffic.received_control += OVERHEAD
            entry.answer.add(owner.name, None, owner.world.links.arrival(owner.name, participant.name, OVERHEAD, now))
            return
        size = OVERHEAD + owner.coding.whole + len(encode_extras(assignment.extras))
        owner.traffic.sent_models += 1
        owner.traffic.sent_assigned += size
        arrives = owner.world.links.arrival(owner.name, participant.name, size, now)
        if arrives is not None:
            participant.traffic.received_models += 1
            participant.traffic.received_assigned += size
            entry.answer.add(owner.name, replace(assignment, size=size), arrives)


def size_of(submission: Submission, model: int) -> int:
    """Return the bytes of the frame of a submission.

    Args:
        model: bytes of one model.
    """
    extras = {**submission.extras, **{f"previous {name}": array for name, array in submission.previous.items()}}
    return OVERHEAD + model * (1 if submission.start is None else 2) + len(encode_extras(extras))
