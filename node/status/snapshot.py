"""Parts of a node's status, read from the node, as values that JSON supports."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from math import isfinite
from typing import Any, NamedTuple

from p2pfl._version import __version__
from p2pfl.budget import BudgetTracker, TrainingTracker
from p2pfl.node.evaluations import counted_stage
from p2pfl.node.exchange.message_exchange import MessageExchange
from p2pfl.node.exchange.rounds import Waiting
from p2pfl.node.node import SPLITS, Node
from p2pfl.node.peering.peers import Peer, Traffic, is_only_behind
from p2pfl.node.policy_api import NodePeers
from p2pfl.node.settings import UNITS
from p2pfl.policy import Merge, Stage
from p2pfl.privacy import claimed

MOST_PEERS = 256  # peers that a status lists; it counts all
ATTENTION = ("left out", "suspected", "behind", "connecting", "connected", "done")  # states in the order of the choice


def node_facts(node: Node) -> dict[str, Any]:
    """Return the facts about a node that do not change between rounds."""
    return {
        "version": __version__,
        "name": node.name,
        "rounds": node.settings.rounds,
        "metric": node.task.metric,
        "higher_is_better": node.task.higher_is_better,
        "reported_stage": node.policy.reported_stage,
        "best_by": node.task.metric if node.settings.best_by == "metric" else "loss",
    }


def exchange_state(exchange: MessageExchange) -> dict[str, Any]:
    """Return the state of a node's peers, and counts of the data exchanged with them."""
    conditions = {
        name: condition_of(peer, exchange.view.suspected.get(name, ""), exchange.view.left_out.get(name, ""))
        for name, peer in exchange.peers.items()
    }
    shown = shown_peers(conditions)
    state: dict[str, Any] = {
        "peers": [
            peer_state(peer, exchange.view.suspected.get(name, ""), exchange.view.left_out.get(name, ""))
            | {"staleness": _staleness(peer)}
            | claim_state(peer)
            | exchange.conduct.score_state(name)
            for name, peer in exchange.peers.items()
            if name in shown
        ],
        "peer_counts": {
            "total": len(conditions),
            "linked": sum(peer.introduced for peer in exchange.peers.values()),
            "states": dict(Counter(now for now, _ in conditions.values())),
        },
        "distrust": exchange.conduct.distrust,
        "proofs": len(exchange.conduct.proofs),
        "traffic": exchange.traffic.as_dict(),
        "rejected": dict(exchange.rejected),
        "revoked_by": [name for name, peer in exchange.peers.items() if peer.revoked],
        "broker": exchange.peering.broker,
        "deadlines_expired": exchange.expired,
        "waiting": wait_state(exchange.start_wait.waiting),
    }
    if exchange.election is not None:
        seen = exchange.election.seen
        state["election"] = {"coordinator": seen.coordinator, "term": str(seen.term), "problem": seen.problem}
    if exchange.coordination is not None and (sums := exchange.coordination.sums) is not None:
        latest = None if sums.latest is None else sums.latest._asdict()
        state["secure_sums"] = {
            "assigned": sums.assigned,
            "missed": sums.missed,
            "problem": sums.problem,
            "threshold": sums.threshold,
            "latest": latest,
        }
    return state


def wait_state(waiting: Waiting | None) -> dict[str, Any] | None:
    """Return the members for which a node waits at its start; None if it does not wait."""
    if waiting is None:
        return None
    seconds = waiting.seconds if isfinite(waiting.seconds) else None
    return {"present": waiting.present, "needed": waiting.needed, "seconds": seconds}


def shown_peers(conditions: Mapping[str, tuple[str, str]]) -> Collection[str]:
    """Return the names of the peers that a status lists: all, or MOST_PEERS of them.

    Those that need attention come first, then those that are connected. The status counts all.

    Args:
        conditions: state of each peer, and its reason.
    """
    if len(conditions) <= MOST_PEERS:
        return conditions
    ranks = {state: rank for rank, state in enumerate(ATTENTION)}
    return set(sorted(conditions, key=lambda name: ranks.get(conditions[name][0], len(ranks)))[:MOST_PEERS])


def condition_of(peer: Peer, reason: str, left_out: str = "") -> tuple[str, str]:
    """Return the state of a peer as one word or two, and the reason for it; see `peer_state`.

    Args:
        reason: why it is suspected; "" if it is not.
        left_out: why it is left out for good; "" if it is not.
    """
    if left_out:
        state, reason = "left out", left_out
    elif peer.revoked and not peer.introduced:
        state = "not connected"
    elif reason:
        if peer.stopped:
            state = "done"
            if peer.introduced:
                reason = ""  # it is not waited for, so the reason is an old one
            elif not is_of_broker(reason):
                reason = "has finished and left"  # so it refuses connections
        elif is_only_behind(peer, reason):
            state = "behind"
        else:
            state = "suspected" if peer.introduced or peer.known else "not connected"
    else:
        state = "connected" if peer.introduced else "connecting"
    return state, reason or ("" if peer.introduced else peer.dial_problem)


def peer_state(peer: Peer, reason: str, left_out: str = "") -> dict[str, Any]:
    """Return the state of a peer.

    Args:
        reason: why it is suspected; "" if it is not.
        left_out: why it is left out for good; "" if it is not.
    """
    state, why = condition_of(peer, reason, left_out)
    return {
        "name": peer.name,
        "state": state,
        "reason": why,
        "round": peer.round,
        "link": link_kind(peer),
        "remote": remote_of(peer),
        "addresses": dict(peer.addresses),
        "offences": dict(peer.offences),
        "bytes_in": peer.bytes_in,
        "bytes_out": peer.bytes_out,
    }


def is_of_broker(reason: str) -> bool:
    """Return whether a peer is not connected for a reason of the broker."""
    return reason.startswith("the broker at")


def _staleness(peer: Peer) -> float | None:
    """Return the present age in seconds of the last model received from a peer; None without one."""
    if peer.published is None:
        return None
    return round(asyncio.get_running_loop().time() - peer.published, 3)


def link_kind(peer: Peer) -> str:
    """Return the kind of the link with a peer, "direct" or "broker"; "" without a link."""
    return "" if peer.link is None else "direct" if peer.link.direct else "broker"


def remote_of(peer: Peer) -> str:
    """Return the address of a directly connected peer; only its host if it has dialled; "" without a direct link."""
    link = peer.link
    if link is None or not link.direct:
        return ""
    return link.remote if link.dialled else link.remote.rpartition(":")[0] or link.remote


def budget_state(tracker: BudgetTracker, training: TrainingTracker) -> dict[str, Any]:
    """Return the limits that are set, and their use in the current or the last round; of trainings, in the whole run."""
    used: dict[str, float] = {"models": tracker.models, "held": tracker.held, "bytes": tracker.bytes}
    used |= {"trainings": training.trainings, "joules": training.effort.joules or 0.0}
    limits = {what: getattr(tracker.budget, what) for what in used}
    budget = {what: {"limit": limit, "used": used[what]} for what, limit in limits.items() if limit}
    return {"budget": budget, "refused_by_budget": tracker.refused, "refused_trainings": training.refused}


def privacy_state(node: Node) -> dict[str, Any]:
    """Return the privacy budget of a node and what it has spent of it in its life; {} without one.

    `epsilon` is spent of `budget`, at `delta`; `steps` are made of the `most` that fit; `refused` trainings were left out
    since the start; `then` is what the node does without training. `central` is there if noise adds up in secure sums,
    `correlated` if neighbours add noise that cancels, with the number of them and the own noise in the last training.
    `colluding` is the number of colluding members against whom what is spent holds; null if any number may.
    """
    tracker = node.me.privacy
    if tracker is None:
        return {}
    plan, edges = tracker.plan, node.me.edges
    return {
        "privacy": {
            "epsilon": round(tracker.epsilon, 4),
            "budget": plan.privacy.epsilon,
            "delta": plan.privacy.delta,
            "clip": plan.privacy.clip,
            "noise": plan.share or plan.mechanism.noise,
            "validation": plan.privacy.validation,
            "steps": tracker.steps,
            "most": plan.steps,
            "earlier": tracker.made - tracker.steps,
            "refused": tracker.refused,
            "then": plan.privacy.when_spent,
            "colluding": None if node.me.ledger is None else node.me.ledger.colluding,
        }
        | ({"central": {"colluding": plan.privacy.colluding, "threshold": plan.threshold}} if plan.share else {})
        | ({} if edges is None else {"correlated": {"neighbours": edges.joined, "noise": round(edges.noise, 4)}})
    }


def claim_state(peer: Peer) -> dict[str, Any]:
    """Return the privacy budget that a peer claims, which nobody can check; null if it claims none."""
    claim = claimed(peer.public_info)
    return {"claims": None if claim is None else {"epsilon": claim[0], "delta": claim[1]}}


def end_state(node: Node) -> dict[str, Any]:
    """Return the limits of the node's seconds and bytes that are set, their use, and why it has ended early, if it has."""
    used = node.used
    end = {
        what: {"limit": limit, "used": round(getattr(used, what), 3)}
        for what in UNITS
        if (limit := getattr(node.limits, what))
    }
    return {"end": end, "ended_early": node.why_early}


def cost_state(node: Node) -> dict[str, Any]:
    """Return what the node's trainings have cost in all rounds so far, and what measures their energy, or why nothing does.

    Joules are null without a counter; see p2pfl.node.energy.
    """
    training, meter = node.me.training, getattr(node.trainer, "meter", None)
    effort = training.effort
    cost: dict[str, Any] = {
        "trainings": training.trainings,
        "samples": training.samples,
        "train_s": round(effort.seconds, 3),
        "joules": None if effort.joules is None else round(effort.joules, 3),
        "energy_from": "",
        "no_energy": "",
    }
    if meter is not None:
        cost |= {"energy_from": meter.source, "no_energy": meter.problem}
    return {"cost": cost}


def suspicious_state(exchange: MessageExchange, peers: NodePeers, discarded: Mapping[str, int]) -> dict[str, Any]:
    """Return counts of suspicious behaviour of peers, by kind and by name.

    Args:
        discarded: models that were not finite, by the name of the peer.
    """
    counts: dict[str, Mapping[str, int]] = {
        "outliers": peers.clip.outliers if peers.clip is not None else {},
        "capped samples": peers.capped,
        "refused assignments": peers.refused,
        "over the budget": peers.budget_tracker.oversized,
        "not finite": discarded,
        "losses told": exchange.losses.given,
        "far ahead": exchange.pacer.far_ahead,
        "weight 0": exchange.conduct.unweighted,
        "same models": exchange.conduct.shared,
    }
    return {"suspicious": {what: dict(by_name) for what, by_name in counts.items() if by_name}}


class RoundCost(NamedTuple):
    """Time and traffic of one round.

    Attributes:
        seconds: seconds since the end of the previous round, to a millisecond.
        bytes_in, bytes_out: bytes that carried learning.
    """

    seconds: float
    bytes_in: int
    bytes_out: int


class RoundMeter:
    """Measures the cost of each round of a node from its clock and its traffic.

    Args:
        clock: returns seconds of a monotonic clock.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._in = self._out = 0  # totals at the end of the last round
        self.start()

    def start(self) -> None:
        """Begin the first round."""
        self._ended = self._clock()

    def measure(self, traffic: Traffic) -> RoundCost:
        """Return the cost of the round that ends now."""
        begun, bytes_in, bytes_out = self._ended, self._in, self._out
        self._ended, self._in, self._out = self._clock(), traffic.received_in_rounds, traffic.sent_in_rounds
        return RoundCost(round(self._ended - begun, 3), self._in - bytes_in, self._out - bytes_out)


def round_row(node: Node, merge: Merge, *, at: float, cost: RoundCost) -> dict[str, Any]:
    """Return the row of a finished round.

    Args:
        at: seconds since 1970.
    """
    row: dict[str, Any] = {
        "round": node.round,
        "at": round(at, 3),
        "seconds": cost.seconds,
        "models": node.peers.models_in,
        "bytes_in": cost.bytes_in,
        "bytes_out": cost.bytes_out,
        "weights": {id: round(weight, 4) for id, weight in merge.weights.items()},
    }
    if node.me.budget.bytes:
        row["budget_bytes"] = node.peers.budget_tracker.bytes
    return row


def best_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics of the model that was best on validation, from the row of its round."""
    return {key: row.get(key) for key in ("round", "stage", *SPLITS)}


def evaluation(node: Node, stages: Mapping[Stage, Mapping[str, float]]) -> dict[str, Any]:
    """Return the metrics of an evaluated round, for the stage that counts and for every stage."""
    stage, metric = counted_stage(node.policy.reported_stage, stages), node.task.metric
    reported = stages[stage]
    return {
        "stage": stage,
        "validation": reported.get(f"validation_{metric}"),
        "test": reported.get(f"test_{metric}"),
        "stages": {
            stage: {split: metrics.get(f"{split}_{metric}") for split in SPLITS} for stage, metrics in stages.items()
        },
    }


def best_by_stage(
    node: Node, history: Sequence[Mapping[str, Any]], earlier: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return for each stage the round with the lowest validation loss, that loss, and the metrics of that round.

    Args:
        history: rows of the last rounds.
        earlier: the previous result, for rounds that the history no longer has.
    """
    rows = {row["round"]: row.get("stages", {}) for row in history}
    found: dict[str, dict[str, Any]] = {}
    for stage, (loss, round) in node.early_stopping.by_stage.items():
        before = earlier.get(stage, {})
        kept = before if before.get("round") == round else {}
        found[stage] = {**kept, "round": round, "validation_loss": loss, **rows.get(round, {}).get(stage, {})}
    return found
