"""Submissions and assignments as messages between a participant and its coordinator."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from p2pfl.parameters import Parameters
from p2pfl.policy import Assignment, Submission
from p2pfl.protocols.errors import ProtocolError
from p2pfl.protocols.wire import messages as m
from p2pfl.protocols.wire.envelope import OVERHEAD, Opened, Payload
from p2pfl.protocols.wire.submission import decode_assignment, decode_submission, encode_assignment, encode_submission

CheckModel = Callable[[Parameters], None]
"""Check that raises ProtocolError for a model that is too large to be useful."""


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
        ProtocolError: the assignment is malformed, or its model is too large.
    """
    content = decode_assignment(opened.payload, size)
    check(content.params)
    if not all(map(has_vote, content.weights)):
        raise ProtocolError("malformed", "an assignment with weights of members that have no vote")
    return Assignment(content.params, content.weights, content.extras, OVERHEAD + len(opened.payload))


def _to_bytes(params: Parameters) -> memoryview:
    """Return a model as little-endian float32."""
    return np.ascontiguousarray(params, "<f4").data.cast("B")
