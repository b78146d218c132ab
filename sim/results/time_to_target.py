"""Cost of a run until it reached the target of its scenario: round, virtual time, and bytes sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from p2pfl.sim.results.learning_curves import Columns, bytes_sent, mean, of_nodes, round_ends

COSTS = ("round", "virtual_s", "bytes")


def time_to_target(rounds: Columns, run: Mapping[str, Any], target: float) -> dict[str, Any] | None:
    """Return the cost until the mean over the nodes reached the target; None if it never did.

    round: the first such round.
    virtual_s: the time at which the last node ended it, in virtual seconds.
    bytes: total sent by all nodes up to and including that round, and in the preparation.

    Args:
        rounds: see p2pfl.sim.simulation.recorder.Recorder.rounds_table.
        run: an entry of `runs` in summary.json.
    """
    curve = mean(of_nodes(rounds, run["reported_stage"], f"test_{run['metric']}"))
    good = curve >= target if run["higher_is_better"] else curve <= target
    if not good.any():
        return None
    first = int(np.argmax(good))
    total = bytes_sent(rounds, run["traffic"]["preparation"]["bytes"])[first]
    return {"round": first + 1, "virtual_s": float(round_ends(rounds)[first]), "bytes": int(total)}


def mean_reached(each: Sequence[Mapping[str, Any] | None]) -> dict[str, Any] | None:
    """Return the means over the seeds that reached the target, and the number of these seeds; None if none did."""
    there = [one for one in each if one is not None]
    if not there:
        return None
    return {**{cost: float(np.mean([one[cost] for one in there])) for cost in COSTS}, "seeds": len(there)}
