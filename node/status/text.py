"""Text form of a node's status and its rounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from p2pfl.node.peering.traffic import KINDS
from p2pfl.node.status.reader import RUNNING
from p2pfl.system.printable import plural, printable

STALE = 30.0  # seconds after which the status of a running node is overdue (see p2pfl.node.runtime.run.FRESH)


def describe(state: Mapping[str, Any]) -> list[str]:
    """Return a node's status as lines."""
    lines = [f"{state.get('name', '?')}: {state['state']}, round {state.get('round', 0)} of {state.get('rounds', '?')}"]
    for part in (_age, _problems, _election, _figures, _peers, _traffic, _counts):
        lines += (f"  {line}" for line in part(state))
    return [printable(line) for line in lines]


def _age(state: Mapping[str, Any]) -> Iterator[str]:
    """Yield the age of a status that comes from the file."""
    if "age" not in state:
        return
    ago = f"as of {duration(state['age'])} ago"
    if state["state"] == "gone":
        yield f"{ago}: the node has ended unexpectedly since then"
    elif state["state"] in RUNNING and state["age"] > STALE:
        yield (
            f"{ago}: the node runs, but it neither answers nor writes its status; the disk may be full, or the node may hang"
        )
    else:
        yield ago


def _problems(state: Mapping[str, Any]) -> Iterator[str]:
    if state.get("reason"):
        yield f"reason: {state['reason']}"
    if state.get("disk"):
        yield f"disk: cannot write: {state['disk']}"
    if state.get("stored", state.get("round", 0)) < state.get("round", 0):
        yield f"round {state['round']} is in memory, round {state['stored']} is on the disk"
    if state.get("broker"):
        yield f"broker: {state['broker']}"


def _election(state: Mapping[str, Any]) -> Iterator[str]:
    election = state.get("election")
    if not election or state["state"] not in RUNNING:
        return
    if election["coordinator"] is not None:
        yield f"coordinator: {election['coordinator']}, in term {election['term']}"
    elif state["state"] != "serving":  # it has stopped learning, and needs no coordinator
        yield f"degraded: {election['problem']}; until there is one, this node learns alone"


def _figures(state: Mapping[str, Any]) -> Iterator[str]:
    for row in state["history"][-1:]:
        for split in ("validation", "test"):
            if row.get(split) is not None:
                yield f"{split} {state['metric']}: {row[split]:.3f}"
    for name, value in state.get("result", {}).items():  # a result for each of several objectives
        split, _, figure = name.partition("_")
        if split == "test" and figure not in ("loss", state["metric"]) and value is not None:
            yield f"test {figure.replace('_', ' ')} of the result: {value:.3f}"


def _peers(state: Mapping[str, Any]) -> Iterator[str]:
    for peer in state.get("peers", []):
        parts = [peer["state"] + (f" ({peer['reason']})" if peer["reason"] else ""), f"round {peer['round']}"]
        if peer["link"]:
            parts.append("through the broker" if peer["link"] == "broker" else "directly")
        if peer["staleness"] is not None:
            parts.append(f"last model {peer['staleness']:.1f} s old")
        parts.append(f"{peer['bytes_in']} bytes in, {peer['bytes_out']} out")
        yield f"{peer['name']}: {', '.join(parts)}"


def _traffic(state: Mapping[str, Any]) -> Iterator[str]:
    for direction, counts in state.get("traffic", {}).items():
        learning = sum(counts[kind] for kind in KINDS)
        models, control = plural(counts["models"], "model"), counts["control"]
        yield f"{direction}: {models}, {learning} bytes of models and requests, {control} bytes of control messages"


def _counts(state: Mapping[str, Any]) -> Iterator[str]:
    """Yield counts of refused models and messages, of suspicious peers, and of faults."""
    if state.get("refused_by_budget"):
        yield f"left out by the budget: {plural(state['refused_by_budget'], 'model')}"
    for what, counts in state.get("suspicious", {}).items():
        yield f"{what}: " + ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
    for cause, count in sorted(state.get("rejected", {}).items()):
        yield f"rejected, {cause}: {count}"
    for part, count in sorted(state.get("faults", {}).items()):
        yield f"errors in {part}: {count}"


def describe_round(row: Mapping[str, Any], rounds: int, metric: str) -> str:
    """Return one line about a finished round.

    Args:
        row: row of the status's history.
        rounds: total number of rounds.
    """
    parts = [f"round {row['round']} of {rounds}"]
    if row.get("validation") is not None:
        parts.append(f"validation {metric} {row['validation']:.3f}")
    if "models" in row:
        parts.append(
            f"{plural(row['models'], 'model')}, {row['bytes_in'] / 1000:.1f} kB in, {row['bytes_out'] / 1000:.1f} kB out"
        )
    return ", ".join(parts)


def round_fields(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that `describe_round` shows, by name."""
    return {
        name: row[name] for name in ("round", "validation", "models", "bytes_in", "bytes_out") if row.get(name) is not None
    }


def describe_result(result: Mapping[str, float], best_round: int) -> str:
    """Return one line about a node's result.

    Args:
        result: metrics of the best model, by name.
        best_round: round of that model.
    """
    figures = ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in result.items())
    best = "was best on validation" if "validation_loss" in result else "is the result, because there is no validation data"
    return f"finished; the model of round {best_round} {best}: {figures or 'not evaluated'}"


def duration(seconds: float) -> str:
    """Return a duration in its largest unit with a value of two or more: "8 s", "3 min", "2 h", "5 days"."""
    for size, unit in ((86_400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
