"""Decisions that an exchange of messages and the simulator's exchange take alike."""

from __future__ import annotations

from p2pfl.algorithms.robust_aggregation import coarse
from p2pfl.node.folder.settings import Settings
from p2pfl.policy import Robust, Update


def late_answer(round: int) -> str:
    """Return why a peer is suspected that did not answer a request in time."""
    return f"missed the deadline of round {round}"


def late_round(round: int) -> str:
    """Return why a peer is suspected that others waited for in vain."""
    return f"did not reach round {round} in time"


def without_stale(updates: list[Update], settings: Settings) -> list[Update]:
    """Return the updates that an asynchronous node may use: those of at most `max_staleness` seconds."""
    if settings.mode == "synchronous":
        return updates
    return [update for update in updates if update.age <= settings.max_staleness]


def disclosed_loss(loss: float, robust: Robust) -> float:
    """Return what a peer learns of the loss of its model: less than all, where members may lie.

    See p2pfl.algorithms.robust_aggregation.
    """
    return loss if robust == "none" else coarse(loss)
