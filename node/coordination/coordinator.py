"""The coordinator of a term: it collects each round's submissions, runs the policy's step, and sends the assignments.

Theory of operation
===================

A coordinated policy (see p2pfl.policy.Coordinated) has a step that needs the models of all participants at once. One
member runs it for everybody: the coordinator. Three parts work together, on every node.

**Election** (p2pfl.protocols.election, run by node/coordination/election_runner.py) decides who coordinates. It divides
time into terms, with at most one coordinator each. A coordinator *coordinates* its term until it steps down, because of a
later term or for want of a majority. It *leads* only while it holds a lease from a majority. The difference makes it safe
to act: leases of two coordinators do not overlap, within the limits that are stated there.

**Participants** (`CoordinationClient` in node/coordination/submissions.py) train, and submit their model to the
coordinator that they know. They wait for its assignment, the next model, for one deadline. A round ends for a
participant with an assignment, or without one: then it continues with its own model, and nothing else is lost.

**Coordinator** (this module). Every node has one, which is idle until the node is elected. Per round:

1. *open*: submissions are collected (`take`), at most AT_ONCE of each participant;
2. *working*: when every participant that may still submit has done so, or half a deadline after the first submission,
   the round is closed, and its step runs in another thread. A participant waits for a whole deadline from its own
   submission; the assignments of a round that some members missed therefore reach the others in time;
3. *given*: each sender is answered, and the assignments are kept until the next round closes. A sender that lost its
   connection submits again, and gets the same assignment.

A member that missed a round is *away*: nobody waits for it until it sends something again. A round further ahead than
most participants' rounds is not closed before they reach it, because a liar might claim any round.

What must never be:

- An assignment by a node that does not lead. `_finish` asks for the lease immediately before it sends. Without a lease it
  waits; if the term is over, it tells all senders that there will be no assignment, and they turn to the successor.
- An assignment of one term taken for that of another. Messages carry their term, and participants obey only the
  coordinator of the newest term that they know.
- A participant that costs the others their round. A step that fails runs again with one more submission at a time, the
  coordinator's own first, without those that make it fail (`run_step`). Agreed protection (`protect_submissions`) changes
  the submissions before the policy sees them.

What happens when a coordinator is lost: its lease ends, another member is elected in a later term, and the participants
submit again, now with the model from which they had started. The state of the policy's steps never leaves a coordinator,
so the successor has none; its first step rebuilds it from what participants keep and submit again (see
p2pfl.policy.Submission). If nobody is elected in time, as in the smaller part of a divided network, the round ends
without a step. A former coordinator that is elected again begins anew as well, because others may have coordinated since.

The class does no input or output: it acts through a `CoordinatorBackend`, one for machines and one for the simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
from msgspec.structs import replace

from p2pfl.parameters import Layout, problem, weighted_mean
from p2pfl.policy import Assignment, PolicyStep, Submission
from p2pfl.protocols.election import Term
from p2pfl.robust.candidates import Candidates, MergeRule, Reweighting, cap_samples, distances_from
from p2pfl.robust.clipping import factor_of, lower_median, move_towards, radii_of
from p2pfl.robust.registry import NONE, Robust, coordinator_rule

AT_ONCE = 2  # submissions kept of one participant: for its current round and the one before
LAPSE = 0.1  # seconds until a coordinator without a lease checks again
BLOCK = 2**22  # values of models that are compared at once


class PendingSubmission(NamedTuple):
    """Submission, and the function that answers its sender; the answer None means that there will be no assignment."""

    submission: Submission
    reply: Callable[[Assignment | None], None]


class StepResult(NamedTuple):
    """Result of one step of a coordinated policy; `dropped` maps each rejected sender to the error of its submission."""

    assignments: Mapping[str, Assignment]
    state: Mapping[str, Any]
    dropped: Mapping[str, Exception]


class CoordinatorBackend(Protocol):
    """Environment of a coordinator, which differs between machines and the simulator."""

    def later(self, seconds: float, callback: Callable[[], None]) -> None:
        """Call `callback` after `seconds`."""

    def known_participants(self) -> AbstractSet[str]:
        """Return the names of the known participants: members that are connected and have not stopped."""

    def credible_round(self) -> float:
        """Return the latest credible round: this node is in it, or enough of the participants are."""

    def coordinates(self, term: Term) -> bool:
        """Return whether this node is still the coordinator of a term."""

    def leads(self, term: Term) -> bool:
        """Return whether this node may act as the coordinator of a term now."""

    def compute(
        self, submissions: Sequence[Submission], state: Mapping[str, Any], then: Callable[[StepResult], None]
    ) -> None:
        """Run the policy's step and call `then` with its result; see p2pfl.node.coordination.coordinator."""


class _OpenRound:
    """Submissions for a round that is still open.

    Attributes:
        entries: submissions by sender.
        timed: whether its deadline is set.
        expired: whether its deadline has passed.
    """

    def __init__(self) -> None:
        self.entries: dict[str, PendingSubmission] = {}
        self.timed = self.expired = False


class Coordinator:
    """Collects the submissions of the terms in which this node coordinates; idle otherwise.

    Args:
        backend: what a coordinator needs of its machine.
        deadline: seconds for which participants wait.

    Attributes:
        term: the last term in which this node was the coordinator. Its state ends with it, because others may have
            coordinated since. A later term begins with the data that the participants keep.
        state: state of the policy's steps in this term.
        away: members that missed a round and have not sent anything since. The coordinator does not wait for them.
    """

    def __init__(self, backend: CoordinatorBackend, deadline: float) -> None:
        self._backend = backend
        self._deadline = deadline
        self.term = Term(0, 0)
        self.state: Mapping[str, Any] = {}
        self.away: set[str] = set()
        self._open: dict[int, _OpenRound] = {}  # by round
        self._closed = 0  # rounds up to this one accept no more submissions
        self._working: dict[str, PendingSubmission] | None = None  # submissions of the running step
        self._given: Mapping[str, Assignment] = {}  # assignments of the last closed round

    @property
    def waiting(self) -> int:
        """Number of submissions that are kept for open rounds."""
        return sum(len(opened.entries) for opened in self._open.values())

    def held_of_others(self, sender: str) -> int:
        """Return the number of submissions in memory that come from other members than `sender`."""
        rounds = [*(opened.entries for opened in self._open.values()), self._working or {}]
        return sum(len(entries) - (sender in entries) for entries in rounds)

    def take(self, term: Term, entry: PendingSubmission) -> None:
        """Keep a submission of a term in which this node coordinates, or answer that it is too late.

        A sender that lost its connection may repeat a submission. It replaces the first one, or gets the lost answer.
        """
        if term > self.term:
            self._begin(term)
        sender, round = entry.submission.sender, entry.submission.round
        self.away.discard(sender)
        if round == self._closed and self._working is not None and sender in self._working:
            self._working[sender] = entry
        elif round == self._closed and self._working is None and sender in self._given:
            entry.reply(self._given[sender])
        elif round <= self._closed:
            entry.reply(None)
        else:
            self._open.setdefault(round, _OpenRound()).entries[sender] = entry
            self._drop_older(sender)
            self.review()

    def drop_surplus(self) -> bool:
        """Drop the submission for the latest round of a member that has submitted for an earlier one, too.

        Return False if there is none: no member has more than one submission in open rounds.
        """
        first: dict[str, int] = {}
        for round in sorted(self._open):
            for sender in self._open[round].entries:
                if first.setdefault(sender, round) != round:
                    dropped = self._open[round].entries.pop(sender)
                    self._open = {each: opened for each, opened in self._open.items() if opened.entries}
                    dropped.reply(None)
                    return True
        return False

    def _begin(self, term: Term) -> None:
        self.term, self.state, self._closed = term, {}, 0
        self.away, self._working, self._given = set(), None, {}
        self._open.clear()

    def _drop_older(self, sender: str) -> None:
        """Drop a sender's submissions except the newest AT_ONCE."""
        rounds = sorted(round for round, opened in self._open.items() if sender in opened.entries)
        dropped = [self._open[round].entries.pop(sender) for round in rounds[:-AT_ONCE]]
        self._open = {round: opened for round, opened in self._open.items() if opened.entries}
        for entry in dropped:  # last, because a reply may lead back here
            entry.reply(None)

    def rewind(self, round: int) -> None:
        """Reopen a round and the rounds after it for submissions."""
        if round <= self._closed:
            self._closed, self._given = round - 1, {}

    def refuse(self, term: Term, sender: str) -> None:
        """Stop waiting for a member that sent an unusable submission."""
        if term == self.term:
            self.away.add(sender)
            self.review()

    def review(self) -> None:
        """Close the earliest round that is complete or whose deadline has passed.

        A round that is further ahead than is credible waits until the others reach it.
        """
        if not self._open or self._working is not None:
            return
        if not self._backend.coordinates(self.term):
            self._give_up()
            return
        near = {round: opened for round, opened in self._open.items() if round <= self._backend.credible_round() + 1}
        for round, opened in near.items():
            if not opened.timed:
                opened.timed = True
                self._backend.later(self._deadline / 2, partial(self._expire, round, opened))
        if any(opened.expired or not self._missing(round) for round, opened in near.items()):
            self._close(min(near))  # the step of an earlier round comes first

    def _missing(self, round: int) -> AbstractSet[str]:
        """Return the members whose submission for a round may still arrive: neither away nor at a later round."""
        ahead = {sender for other, opened in self._open.items() if other >= round for sender in opened.entries}
        return self._backend.known_participants() - self.away - ahead

    def _expire(self, round: int, opened: _OpenRound) -> None:
        if self._open.get(round) is opened:
            self.away |= self._missing(round)
            opened.expired = True
            self.review()

    def _close(self, round: int) -> None:
        """Run the step of a round."""
        self._working = entries = self._open.pop(round).entries
        self._closed = round
        submissions = [entry.submission for entry in entries.values()]
        self._backend.compute(submissions, self.state, partial(self._finish, self.term, entries))

    def _finish(self, term: Term, entries: dict[str, PendingSubmission], result: StepResult) -> None:
        """Send the assignments of a step."""
        if self._working is not entries:  # of an earlier term
            return
        if not self._backend.leads(term):  # check immediately before sending
            if self._backend.coordinates(term):
                self._backend.later(LAPSE, partial(self._finish, term, entries, result))
            else:
                self._give_up()
            return
        self._working, self.state, self._given = None, result.state, result.assignments
        for sender in sorted(entries):
            entries[sender].reply(result.assignments.get(sender))
        self.review()

    def _give_up(self) -> None:
        """Answer all submissions that there will be no assignment, because this node no longer coordinates."""
        given_up = [
            *(self._working or {}).values(),
            *(entry for opened in self._open.values() for entry in opened.entries.values()),
        ]
        self._working = None
        self._open.clear()
        for entry in given_up:
            entry.reply(None)


def run_protected_step(
    step: PolicyStep,
    submissions: Sequence[Submission],
    state: Mapping[str, Any],
    layout: Layout,
    *,
    coordinator: str,
    robust: Robust,
    trusted: bool = False,
) -> StepResult:
    """Run a policy's step on submissions, with the protection that the federation has agreed on.

    See p2pfl.node.coordination.coordinator.

    Args:
        coordinator: name of the node that runs the step.
        trusted: whether to raise errors of the step instead of dropping submissions.

    Raises:
        Exception: see `run_step`.
    """
    if robust != NONE:
        submissions = protect_submissions(submissions, coordinator_rule(robust))
    if trusted:
        return StepResult(*_run_checked(step, submissions, state, layout), {})
    return run_step(step, submissions, state, layout, coordinator)


def run_step(
    step: PolicyStep, submissions: Sequence[Submission], state: Mapping[str, Any], layout: Layout, coordinator: str
) -> StepResult:
    """Run a policy's step, if necessary without the submissions that make it raise.

    If the step raises, it runs again with one more submission at a time, the coordinator's own first. Submissions with
    which it raises are dropped. Thus no participant can cost the others their round.

    Args:
        coordinator: name of the node that runs the step.

    Raises:
        Exception: the step raises it with the coordinator's own submission alone: a fault of the policy.
    """
    with suppress(Exception):  # a step is the policy's own code, and may raise anything on invalid data
        return StepResult(*_run_checked(step, submissions, state, layout), {})
    kept: list[Submission] = []
    result: tuple[Mapping[str, Assignment], Mapping[str, Any]] = {}, state
    dropped: dict[str, Exception] = {}
    for submission in sorted(submissions, key=lambda s: (s.sender != coordinator, s.sender)):
        try:
            result = _run_checked(step, [*kept, submission], state, layout)
        except Exception as error:
            if submission.sender == coordinator:
                raise
            dropped[submission.sender] = error
        else:
            kept.append(submission)
    return StepResult(*result, dropped)


def _run_checked(
    step: PolicyStep, submissions: Sequence[Submission], state: Mapping[str, Any], layout: Layout
) -> tuple[Mapping[str, Assignment], Mapping[str, Any]]:
    assignments, after = step(submissions, state, layout)
    for id, assignment in assignments.items():
        if wrong := problem(assignment.params, layout.size):
            raise ValueError(f"the policy's step returned an invalid model for {id}: {wrong}")
    return assignments, after


def without_known_start(submission: Submission, assigned_in: Term | None, term: Term) -> Submission:
    """Return a submission without its start model if the coordinator has assigned that model in the same term.

    Args:
        assigned_in: term of the assignment that answered the last submission, if the node has continued from it.
        term: current term of the coordinator.
    """
    return replace(submission, start=None) if assigned_in == term else submission


def protect_submissions(submissions: Sequence[Submission], rule: MergeRule | None = None) -> list[Submission]:
    """Return submissions for a coordinator's step, with changed models and capped numbers of samples.

    Without a rule, models are clipped towards one of them, as p2pfl.robust.clipping does. With a rule that changes
    weights, x_j becomes z + s_j (x_j - z): z is the merge of the rule, and s_j = w'_j / w_j divided by the largest such
    ratio. With a coordinate-wise rule, x_j is limited to the values that the rule lets through, and all are moved by
    the same vector. In both cases the mean of the changed models by samples is the merge of the rule.

    The own model of the rule is the submission nearest to the coordinate-wise median of all. It does not depend on the
    coordinator, so that a successor makes the same step.

    Args:
        rule: see `p2pfl.robust.registry.coordinator_rule`.
    """
    if len(submissions) < 2:
        return list(submissions)
    centre = _nearest_to_median(submissions)
    capped = cap_samples(0, {s.sender: s.n_samples for s in submissions})
    if rule is None:
        return _clip(submissions, centre, capped)
    centred = [centre, *(s for s in sorted(submissions, key=lambda s: s.sender) if s is not centre)]
    total = sum(capped.values())
    weights = [capped[s.sender] / total if total else 1 / len(centred) for s in centred]
    changed = _change([s.params for s in centred], weights, rule)
    return [replace(s, params=model, n_samples=capped[s.sender]) for s, model in zip(centred, changed, strict=True)]


def _nearest_to_median(submissions: Sequence[Submission]) -> Submission:
    ordered = sorted(submissions, key=lambda s: s.sender)
    models = [s.params for s in ordered]
    step = max(1, BLOCK // len(models))
    parts = range(0, len(models[0]), step)
    with np.errstate(over="ignore"):
        middle = np.concatenate([np.median(np.array([m[k : k + step] for m in models]), axis=0) for k in parts])
    return ordered[int(np.argmin(distances_from(middle.astype(np.float32), models)))]


def _distances(one: Submission, submissions: Sequence[Submission]) -> dict[str, float]:
    """Return the distances of the other submissions from one of them."""
    far = zip(submissions, distances_from(one.params, [s.params for s in submissions]), strict=True)
    return {s.sender: d for s, d in far if s is not one}


def _clip(submissions: Sequence[Submission], centre: Submission, capped: dict[str, int]) -> list[Submission]:
    others = {**_distances(centre, submissions), centre.sender: 0.0}
    radius = lower_median([far for id, far in others.items() if id != centre.sender])
    radii = radii_of(radius, [capped[s.sender] for s in submissions])
    factors = [factor_of(others[s.sender], most) for s, most in zip(submissions, radii, strict=True)]
    return [
        replace(s, params=move_towards(s.params, centre.params, factor), n_samples=capped[s.sender])
        for s, factor in zip(submissions, factors, strict=True)
    ]


def _change(models: Sequence[np.ndarray], weights: list[float], rule: MergeRule) -> list[np.ndarray]:
    """Return the models, the centre first, changed so that their weighted mean is the merge of the rule."""
    candidates = Candidates(models, weights)
    if isinstance(rule, Reweighting):
        after = rule.reweight(candidates)
        merged = weighted_mean(models, after.tolist())
        ratios = np.divide(after, candidates.weights, out=np.zeros_like(after), where=candidates.weights > 0)
        shares = ratios / ratios.max()
        return [
            merged + np.float32(share) * (model - merged) if share else merged
            for model, share in zip(models, shares.tolist(), strict=True)
        ]
    lowest, highest = rule.bounds(np.array(models))
    limited = [np.clip(model, lowest, highest) for model in models]
    moved = rule.combine(candidates).params - weighted_mean(limited, weights)
    return [model + moved for model in limited]
