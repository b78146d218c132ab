"""The command `p2pfl-sim topology`: the properties of a topology, and how fast nodes agree on it.

Every node begins with a random number and averages once a round with the weights of the graph, as models do without
training. The error is the distance of the numbers from their mean, relative to that at the start
(p2pfl.topologies.consensus). For a graph that never changes the weights are those of p2pfl.topologies.properties.
"""

from __future__ import annotations

import argparse
from math import log10
from typing import Any

import numpy as np

from p2pfl._util import toml_tables
from p2pfl._util.machine import check_memory
from p2pfl._util.printable import byte_size, plural, to_json
from p2pfl.errors import ConfigurationError
from p2pfl.sim.scenario.topology import EDGE, FACTORIES, FILE, edges_of, from_file, measure, schedule_of, topology
from p2pfl.topologies import GraphSchedule, labels
from p2pfl.topologies.consensus import EXACT, consensus_errors, static_schedule
from p2pfl.topologies.graph_facts import facts_of

ALONE = "a single node has no neighbours, so it trains alone"
ERROR = 0.001  # to which the rounds are counted
MODEL_BYTES = 1_000_000
MOST_ROUNDS = 1_000
MOST_LINES = 32  # rounds in the table
WIDTH = 40  # characters of the longest bar


def show(options: argparse.Namespace) -> None:
    """Print the properties of a named topology or of a file.

    Raises:
        ConfigurationError: there is no such topology.
    """
    name, nodes = options.topology, options.nodes
    if nodes is not None and nodes < 1:
        raise ConfigurationError(f"nodes must be 1 or more, got {nodes}")
    if options.error is not None and not 0 < options.error < 1:
        raise ConfigurationError(f"--error must be above 0 and below 1, got {options.error:g}")
    if options.model_bytes < 1:
        raise ConfigurationError(f"--model-bytes must be 1 or more, got {options.model_bytes}")
    is_file = name not in FACTORIES and ("." in name or "/" in name)
    table = toml_tables.with_changes({FILE: name} if is_file else {"name": name}, options.changes)
    if found := from_file(table, "."):
        table, count = found
        nodes = count if nodes is None else nodes
    nodes = 10 if nodes is None else nodes
    check_memory(f"a topology of {nodes:,} nodes", int(EDGE * (nodes + edges_of(table, nodes))))
    graph = topology(table, nodes, options.seed)
    notes = [*graph.graph.get("notes", []), *([ALONE] if len(graph) == 1 else [])]
    facts, schedule = facts_of(graph), schedule_of(graph)
    shown = {"topology": graph.graph["name"], **measure(graph), "notes": notes}
    speed: dict[str, Any] | None = None
    error = options.error or ERROR
    if schedule is not None or options.error is not None or options.svg is not None:
        speed = _speed(schedule or static_schedule(graph), error, options.model_bytes)
    if options.svg is not None and speed is not None:
        from p2pfl.sim.report.drawing import draw_topology  # matplotlib takes a second

        draw_topology(graph, speed["errors"], error, options.svg)
    if options.json:
        shown |= {"labels": labels(graph), **({"graph": [facts.to_json()]} if facts else {})}
        print(to_json({**shown, **({"agreement": speed} if speed else {})}))
        return
    if facts:
        print(f"graph: {facts.line}")
    for key, value in shown.items():
        print(f"{key.replace('_', ' ')}: {_words(value)}")
    if speed is not None:
        print("\n".join(_lines(speed)))
    if options.svg is not None:
        print(f"drawing: {options.svg}")


def _speed(schedule: GraphSchedule, error: float, model_bytes: int) -> dict[str, Any]:
    """Return the error by round, and the rounds, models and bytes per node until it is at most `error`.

    There are as many rounds as it takes, and at least a period, but at most MOST_ROUNDS.
    """
    rounds = min(MOST_ROUNDS, max(schedule.period, 8))
    errors = consensus_errors(schedule, rounds)
    while errors[-1] > error and rounds < MOST_ROUNDS:
        rounds = min(MOST_ROUNDS, 2 * rounds)
        errors = consensus_errors(schedule, rounds)
    reached = np.flatnonzero(errors <= error)
    needed = int(reached[0]) if len(reached) else None
    last = min(rounds, max(schedule.period, rounds if needed is None else needed))
    models = np.cumsum([0, *(len(schedule.graph(round).sources) / schedule.n for round in range(1, last + 1))])
    return {
        "error": error,
        "rounds": needed,
        "models": None if needed is None else float(models[needed]),
        "bytes": None if needed is None else float(models[needed] * model_bytes),
        "model_bytes": model_bytes,
        "errors": errors[: last + 1].tolist(),
        "models_by_round": models.tolist(),
    }


def _lines(speed: dict[str, Any]) -> list[str]:
    """Return the figures as text, and the error by round as bars on a logarithmic scale."""
    errors, error = speed["errors"], speed["error"]
    if speed["rounds"] is None:
        reached = f"error of {error:g}: not reached in {MOST_ROUNDS:,} rounds"
    else:
        reached = (
            f"error of {error:g}: reached after {plural(speed['rounds'], 'round')}, {speed['models']:.4g} models and"
            f" {byte_size(speed['bytes'])} per node, at {byte_size(speed['model_bytes'])} a model"
        )
    lines = [reached, "round  models  error of the average"]
    lowest = log10(max(min(errors), 1e-6))
    for number, each in enumerate(errors[:MOST_LINES]):
        length = round(WIDTH * (1 - log10(max(each, 1e-6)) / lowest)) if lowest < 0 else WIDTH
        shown = "0" if each < EXACT else f"{each:.2g}"
        lines.append(f"{number:5}  {speed['models_by_round'][number]:6.4g}  {shown:>8}  {'█' * length}".rstrip())
    if len(errors) > MOST_LINES:
        lines.append(f"and {len(errors) - MOST_LINES} more rounds, down to {errors[-1]:.2g}")
    return lines


def _words(value: Any) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.4g}"
        case dict():
            return ", ".join(f"{key.replace('_', ' ')} {_words(item)}" for key, item in value.items())
        case list():
            return "; ".join(value) or "none"
        case None:
            return "none"
    return str(value)
