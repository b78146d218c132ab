"""Decisions that the message exchange and the simulator's exchange share."""

from __future__ import annotations

from p2pfl.robust.guards import coarse
from p2pfl.robust.registry import NONE, Robust


def late_answer(round: int) -> str:
    """Return the reason for the suspicion of a peer that did not answer a request in time."""
    return f"missed the deadline of round {round}"


def late_round(round: int) -> str:
    """Return the reason for the suspicion of a peer that did not reach a round in time."""
    return f"did not reach round {round} in time"


def disclosed_loss(loss: float, robust: Robust) -> float:
    """Return the loss that a peer receives for its model. It is less precise if members may be malicious.

    See p2pfl.robust.guards.
    """
    return loss if robust == NONE else coarse(loss)
