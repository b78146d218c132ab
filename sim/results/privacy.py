"""Epsilon that the nodes of a run have spent of their privacy budgets, by round; see p2pfl.privacy."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from p2pfl.privacy import PrivacyTracker
from p2pfl.sim.simulation.simulation import Run
from p2pfl.update_rules import EdgeNoise

TIMES = 10  # rounds, at equal distances, of which the spent epsilon is reported


def of_run(run: Run) -> dict[str, Any]:
    """Return the key `privacy` of a run in summary.json; {} if no node has a privacy budget.

    It has the number of nodes with a budget; of these the least and the greatest budget, delta, noise and rate; whether
    their validation data are `private` or `public`; `epsilon`, spent in the whole run: the greatest of a node, and the mean;
    and the same after some rounds, `by_round`. `refused` are trainings that budgets have refused. `correlated` is there if
    neighbours add noise together, `central` if noise adds up in secure sums, and epsilon then is that of `colluding`
    members; see `_of_edges` and `_of_sums`.
    """
    if not run.scenario.privacy.wanted:
        return {}
    trackers = {k: node.me.privacy for k, node in enumerate(run.nodes.values()) if node.me.privacy is not None}
    if not trackers:
        return {}
    plans = {k: tracker.plan for k, tracker in trackers.items()}

    def bounds(values: Sequence[float]) -> dict[str, float]:
        return {"least": min(values), "greatest": max(values)}

    rounds = run.recorder.private_steps(len(run.tasks))
    last = len(rounds) - 1
    shown = sorted({round(last * part / TIMES) for part in range(1, TIMES + 1)} - {0}) if last > 0 else []
    by_round: dict[str, list[Any]] = {"round": shown, "greatest": [], "mean": []}
    for at in shown:
        spent = [plan.epsilon(int(rounds[at, k])) for k, plan in plans.items()]
        by_round["greatest"].append(max(spent))
        by_round["mean"].append(float(np.mean(spent)))
    spent = [tracker.epsilon for tracker in trackers.values()]
    found: dict[str, Any] = {
        "nodes": len(trackers),
        "budget": bounds([plan.privacy.epsilon for plan in plans.values()]),
        "delta": bounds([plan.privacy.delta for plan in plans.values()]),
        "noise": bounds([plan.mechanism.noise for plan in plans.values()]),
        "rate": bounds([plan.rate for plan in plans.values()]),
        "validation": sorted({plan.privacy.validation for plan in plans.values()}),
        "epsilon": {"greatest": max(spent), "mean": float(np.mean(spent))},
        "by_round": by_round,
    }
    if any(plan.mechanism.edges is not None for plan in plans.values()):
        found["correlated"] = _of_edges(trackers.values())
    if any(plan.share for plan in plans.values()):
        found["central"] = _of_sums(trackers.values())
    if refused := sum(tracker.refused for tracker in trackers.values()):
        found["refused"] = refused
    return found


def _of_edges(trackers: Collection[PrivacyTracker]) -> dict[str, Any]:
    """Return figures of noise that neighbours add together; see p2pfl.correlated_noise.

    These are the standard deviation of an edge's noise divided by that of the own noise (`scale`), the number of members who
    may collude (`colluding`), the least and the greatest noise that protects a node against them (`hidden`, divided by the
    clip), and the greatest epsilon against observers who are no members (`outside`).
    """
    plans = [tracker.plan for tracker in trackers]
    scale = next(edges.scale for plan in plans if isinstance(edges := plan.mechanism.edges, EdgeNoise))
    return {
        "scale": scale,
        "colluding": plans[0].privacy.colluding,
        "hidden": {"least": min(plan.hidden for plan in plans), "greatest": max(plan.hidden for plan in plans)},
        "outside": max(tracker.plan.epsilon_outside(tracker.steps) for tracker in trackers),
    }


def _of_sums(trackers: Collection[PrivacyTracker]) -> dict[str, Any]:
    """Return figures of noise that adds up in secure sums; see p2pfl.central_noise.

    These are the least and the greatest noise of a submission, divided by the clip (`share`), the least number of members
    of a sum (`threshold`), the number of members who may collude, the coordinator included (`colluding`), the least and the
    greatest noise that protects a node against them (`hidden`, divided by the clip), and the greatest epsilon against
    observers of the means who are no members (`outside`).
    """
    plans = [tracker.plan for tracker in trackers]
    return {
        "share": {"least": min(plan.share for plan in plans), "greatest": max(plan.share for plan in plans)},
        "threshold": plans[0].threshold,
        "colluding": plans[0].privacy.colluding,
        "hidden": {"least": min(plan.hidden for plan in plans), "greatest": max(plan.hidden for plan in plans)},
        "outside": max(tracker.plan.epsilon_outside(tracker.steps) for tracker in trackers),
    }


def over_seeds(runs: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the greatest epsilon that a node has spent in a run of a row; None if a run has no node with a budget."""
    spent = [run["privacy"]["epsilon"]["greatest"] for run in runs if "privacy" in run]
    return max(spent) if spent and len(spent) == len(runs) else None
