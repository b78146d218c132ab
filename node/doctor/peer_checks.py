"""Checks of a running node and of its links with the other members, from its status."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from p2pfl.node.doctor.checks import Finding
from p2pfl.node.status.reader import RUNNING
from p2pfl.node.status.snapshot import is_of_broker
from p2pfl.node.status.text import STALE, duration, headline

REMEDIES = {  # by a part of the reason why a peer is not connected; the first match applies
    "because its membership was revoked": "ask the owner of the admission key",
    "differs": "use the same settings on both nodes: compare p2pfl-node federation show, and the files of the task",
    "version": "upgrade the older of the two nodes",
    "stranger": "connect this node or the peer to the node with the admission key, so that it receives the newest members",
    "no address known": "run the peer; if it runs, add its address to [addresses] in node.toml, or use a broker",
    "not connected yet": "run the peer; if it runs, add its address to [addresses] in node.toml, or use a broker",
    "messages do not arrive": "run p2pfl-node doctor at the peer, and compare the limits and rules of the broker",
    "not present at the broker": "run the peer with the same broker",
    "connection refused": "run the peer, or correct its address: it does not listen there",
    "does not answer": "run the peer, and open its port in the firewall, or use a broker",
    "unreachable": "use an address in a network that both machines can reach, or use a broker",
    "no route to host": "use an address in a network that both machines can reach, or use a broker",
    "has left": "run the peer again",
}
BROKER_FIRST = "correct the problem of the broker first"
OTHERWISE = "run p2pfl-node doctor at the peer"
FATAL = ("because its membership was revoked", "differs", "version")  # reasons that end only when a person acts


def is_running(state: Mapping[str, Any]) -> bool:
    """Return whether a status is that of a running process."""
    return state.get("state") in RUNNING


def check_node(state: Mapping[str, Any]) -> Finding:
    """Check whether the node runs.

    Args:
        state: status of the node; empty if it never ran.
    """
    if not state:
        return Finding("node", None, "it has never run")
    if is_running(state) and state["state"] != "starting" and state.get("age", 0.0) > STALE:
        result = f"it runs, but has not answered or written its status for {duration(state['age'])}"
        return Finding("node", False, result, "free some space on the disk, or stop it and run it again")
    if is_running(state):
        return Finding("node", True, headline(state))
    ago = f", {duration(state['age'])} ago" if "age" in state else ""
    if state["state"] in ("failed", "gone"):
        reason = state.get("reason") or "it has ended unexpectedly"
        return Finding("node", False, f"{headline(state)}{ago}: {reason}", "correct this, and run it again")
    return Finding("node", None, f"it does not run ({headline(state)}{ago})")


def check_peers(state: Mapping[str, Any]) -> list[Finding]:
    """Return how each neighbour is reached: directly, through the broker, or not at all and why.

    Args:
        state: status of a running node.
    """
    broker, rounds = state.get("broker", ""), state.get("rounds", 0)
    return [_check_peer(peer, broker, rounds) for peer in state.get("peers", [])]


def _check_peer(peer: Mapping[str, Any], broker: str, rounds: int) -> Finding:
    check, link, reason = f"peer {peer['name']}", peer["link"], peer["reason"]
    if link == "broker" and "packets of" in broker:
        return Finding(check, None, "connected through the broker, but large messages do not arrive", BROKER_FIRST)
    if link == "broker" and broker:
        return Finding(check, None, "was connected through the broker, which does not work now")
    if link:
        way = "through the broker" if link == "broker" else f"directly, at {peer['remote']}"
        problems = {"behind": f", but it is {reason}", "suspected": f", but it is suspected ({reason})"}
        problem = problems.get(peer["state"], "")
        return Finding(check, None if problem else True, f"connected {way}{problem}")
    lost = is_of_broker(reason) or bool(broker and "messages do not arrive" in reason)
    if peer["state"] == "done" and not lost:
        if peer.get("round", rounds) < rounds:  # it stopped early, or does not know of an extension
            result = f"not connected, because it has finished and left, in round {peer['round']} of {rounds}"
            return Finding(check, None, result, "if the federation was extended, run the peer: it then continues")
        return Finding(check, True, "not connected, because it has finished its rounds and left")
    reason = reason.partition("; ")[0] if lost else reason or "no address known yet"
    result = f"not connected ({reason}){_addresses(peer['addresses'])}"
    if lost:
        return Finding(check, None, result, BROKER_FIRST)
    remedy = next((remedy for part, remedy in REMEDIES.items() if part in reason.lower()), OTHERWISE)
    return Finding(check, False if any(part in reason for part in FATAL) else None, result, remedy)


def _addresses(addresses: Mapping[str, str]) -> str:
    """Return the known direct addresses of a peer with their sources."""
    known = {address.removeprefix("tcp://"): source for address, source in addresses.items() if address != "mqtt:"}
    listed = ", ".join(f"{address} from {source}" for address, source in known.items())
    return f", known addresses: {listed}" if listed else ""
