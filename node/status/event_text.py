"""Text of the events that a running node logs: its start, its rounds, its result."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from p2pfl.node.exchange.rounds.start_wait import Waiting
from p2pfl.protocols.addresses import split_address
from p2pfl.system.printable import byte_size, plural


def describe_start(name: str, folder: Path, federation: str, broker: str = "") -> str:
    """Return one line about a node that starts.

    Args:
        federation: name and short id of its federation; "" if it belongs to none.
        broker: its configured broker, which a node without a federation does not use; "" for none.
    """
    alone = "it belongs to no federation and trains alone" + (f", without its broker {broker}" if broker else "")
    about = f"federation {federation}" if federation else alone
    return f"node {name}, folder {folder}: {about}"


def federation_title(name: str, id: str) -> str:
    """Return a federation's name with the beginning of its id, in hexadecimal."""
    return f"{name} ({id[:8]})"


def describe_network(network: Mapping[str, Any]) -> str:
    """Return one line about how peers can connect to a node.

    Args:
        network: see p2pfl.node.runtime.connectivity.Connectivity.describe.
    """
    listen, broker = network["listen"], network["broker"].partition("#")[0]  # without a fingerprint
    parts = [f"listening on {describe_address(listen)}"] if listen else []
    if broker:
        parts.append(f"using the broker {broker}" + ("" if listen else " only"))
    return ", ".join(parts)


def describe_address(address: str) -> str:
    """Return an address to listen on, in words if it has no host."""
    host, port = split_address(address)
    return address if host else f"port {port} of all addresses"


def describe_wait(waiting: Waiting) -> str:
    """Return one line about the members for which a node waits at its start."""
    limit = f" (for at most {waiting.seconds:g} s)" if isfinite(waiting.seconds) else ""
    return f"waiting for members: {waiting.present} of {waiting.needed}{limit}"


def describe_progress(round: int, rounds: int) -> str:
    """Return a round and the total. A round beyond it, of an earlier federation, is shown without the total."""
    return f"{round} of {rounds}" if round <= rounds else str(round)


def describe_round(row: Mapping[str, Any], rounds: int, metric: str) -> str:
    """Return one line about a finished round.

    Args:
        row: row of the status's history.
        rounds: total number of rounds.
    """
    parts = [f"round {describe_progress(row['round'], rounds)}"]
    if row.get("validation") is not None:
        parts.append(f"validation {metric} {row['validation']:.3f}")
    if "models" in row:
        models = plural(row["models"], "model")
        parts.append(f"{models}, {byte_size(row['bytes_in'])} in, {byte_size(row['bytes_out'])} out")
    return ", ".join(parts)


def round_fields(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that `describe_round` shows, by name."""
    return {
        name: row[name] for name in ("round", "validation", "models", "bytes_in", "bytes_out") if row.get(name) is not None
    }


def describe_result(result: Mapping[str, float], best_round: int, stage: str) -> str:
    """Return one line about a node's result.

    Args:
        result: metrics of the best model, by name.
        best_round: round of that model.
        stage: its stage; "" if rounds have only one.
    """
    figures = ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in result.items())
    best = "was best on validation" if "validation_loss" in result else "is the result, because there is no validation data"
    return f"finished; the {f'{stage} ' if stage else ''}model of round {best_round} {best}: {figures or 'not evaluated'}"
