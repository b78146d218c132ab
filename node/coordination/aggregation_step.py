"""Aggregation step of a policy on members' submissions. One that makes it fail does not cost others the round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from msgspec.structs import replace

from p2pfl.node.coordination.submission_protection import protect_submissions
from p2pfl.parameters import Layout, problem
from p2pfl.policy import Assignment, Step, Submission
from p2pfl.protocols.election.types import Term
from p2pfl.robust.registry import NONE, Robust, coordinator_rule


class StepResult(NamedTuple):
    """Result of one step of a coordinated policy; `dropped` maps each rejected sender to the error of its submission."""

    assignments: Mapping[str, Assignment]
    state: Mapping[str, Any]
    dropped: Mapping[str, Exception]


def run_protected_step(
    step: Step,
    submissions: Sequence[Submission],
    state: Mapping[str, Any],
    layout: Layout,
    *,
    coordinator: str,
    robust: Robust,
    trusted: bool = False,
) -> StepResult:
    """Run a policy's step on submissions, with the protection that the federation has agreed on.

    See p2pfl.node.coordination.submission_protection.

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
    step: Step, submissions: Sequence[Submission], state: Mapping[str, Any], layout: Layout, coordinator: str
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
    step: Step, submissions: Sequence[Submission], state: Mapping[str, Any], layout: Layout
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
