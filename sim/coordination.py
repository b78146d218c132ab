"""How simulated nodes submit to their coordinator where no messages are made (see p2pfl.policy.Coordinated).

As with fetches sizes are computed. Nobody is elected: the lowest name coordinates (see sim.world.World.leader). What a
coordinator does with submissions stands in node/desk.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from node.desk import Desk, Entry
from node.policy_step import StepResult, run_protected_step
from node.settings import check_coordinated
from p2pfl.errors import ConfigurationError
from p2pfl.policy import Assignment, Coordinated, Policy, Submission
from protocols.envelope import OVERHEAD
from protocols.submission import encode_assignment, encode_submission
from protocols.terms import Term

if TYPE_CHECKING:
    from sim.scenario import Scenario
    from sim.world import ModelledExchange, _Gathering


def refuse(scenario: Scenario, policy: Policy) -> None:
    """Raise ConfigurationError where a coordinated policy cannot run as a scenario asks."""
    if not isinstance(policy, Coordinated):
        return
    check_coordinated(scenario)
    if scenario.policy_by_group:
        raise ConfigurationError("a coordinated policy is that of all nodes: it cannot be used with policy_by_group")


class Leader(NamedTuple):
    """Who coordinates, and in which term: terms only grow."""

    term: Term
    id: str


class ModelledOffice:
    """Where a modelled node works as the coordinator (see node.desk.Office).

    Attributes:
        left: who has said that it stops.
    """

    def __init__(self, owner: ModelledExchange) -> None:
        self._owner = owner
        self.desk = Desk(self, owner.world.settings.deadline)
        self.left: set[str] = set()

    def take(self, term: Term, submission: Submission, participant: ModelledExchange, answer: _Gathering) -> None:
        """A submission has arrived: keep it, or say that it comes to the wrong node."""
        reply = partial(self._send, participant, answer)
        if not self.coordinates(term):
            reply(None)
            return
        if term > self.desk.term:
            self.left = {id for id, node in self._owner.world.nodes.items() if node.outbox.final}
        self.desk.take(term, Entry(submission, reply))

    def leave(self, id: str) -> None:
        """A node has said that it stops."""
        self.left.add(id)
        self.desk.review()

    def later(self, seconds: float, callback: Callable[[], None]) -> None:
        self._owner.world.loop.call_later(seconds, callback)

    def expected(self) -> AbstractSet[str]:
        return self._owner.world.nodes.keys() - self.left

    def reached(self) -> float:
        return inf  # nobody lies here

    def coordinates(self, term: Term) -> bool:
        return self._owner.world.leader() == (term, self._owner.name)

    leads = coordinates

    def compute(
        self, submissions: Sequence[Submission], state: Mapping[str, Any], then: Callable[[StepResult], None]
    ) -> None:
        step = self._owner.step
        assert step is not None  # whoever submits has a coordinated policy, and all have the same
        layout, settings = self._owner.coding.layout, self._owner.world.settings
        name, robust = self._owner.name, settings.robust
        then(run_protected_step(step, submissions, state, layout, coordinator=name, robust=robust, trusted=True))

    def _send(self, participant: ModelledExchange, answer: _Gathering, assignment: Assignment | None) -> None:
        """Send an assignment, or, for None, that there will be none."""
        owner, now = self._owner, self._owner.world.loop.now
        if participant is owner:
            answer.add(owner.name, assignment, now)
            return
        if assignment is None:
            owner.traffic.sent_assigned += OVERHEAD
            participant.traffic.received_assigned += OVERHEAD
            answer.add(owner.name, None, owner.world.links.arrival(owner.name, participant.name, OVERHEAD, now))
            return
        size = OVERHEAD + owner.coding.whole + len(encode_assignment(assignment.weights, assignment.extras))
        owner.traffic.sent_models += 1
        owner.traffic.sent_assigned += size
        arrives = owner.world.links.arrival(owner.name, participant.name, size, now)
        if arrives is not None:
            participant.traffic.received_models += 1
            participant.traffic.received_assigned += size
            answer.add(owner.name, replace(assignment, size=size), arrives)


def size_of(submission: Submission, model: int) -> int:
    """Return the bytes of the frame of a submission.

    Args:
        model: bytes of one model.
    """
    rest = encode_submission(submission.extras, submission.previous)
    return OVERHEAD + model * (1 if submission.start is None else 2) + len(rest)
