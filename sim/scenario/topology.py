"""Topology of a scenario: a named graph, a rule with a graph for each round, or a graph from a file, and its properties.

1. While a scenario is resolved, files of graphs get full paths, so that the resolved scenario means the same graph in every
   folder: `with_files` does this for a table of the scenario, and `full_changes` for changes to one. A graph from a file
   sets the number of nodes.
2. When a run begins, `topology` makes or reads the graph, and `measure` gives its properties to the summary. A rule of
   p2pfl.topologies.schedules, also one from a file with a graph for each round, is in the graph: see `schedule_of`.
3. If latencies come from geography, `placement_graph` and `locate_nodes` give each node its place.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from inspect import signature
from math import expm1
from pathlib import Path
from typing import Any

import networkx as nx

from p2pfl._util.binding import build, split_name
from p2pfl.errors import ConfigurationError, must_be, unknown
from p2pfl.sim.scenario.names import named_changes
from p2pfl.sim.scenario.network import Network
from p2pfl.task_specs import TASKS
from p2pfl.topologies import BUILDERS, SCHEDULES, GraphSchedule, labels, places, properties, read
from p2pfl.topologies.consensus import schedule_properties
from p2pfl.topologies.geography import Point, coordinates
from p2pfl.topologies.rows import LIMIT, ROWS, Rows

EDGE = 150  # minimum bytes of one edge in a graph and in a simulation; 200 were measured
FILE = "file"  # name of a topology from a file in a resolved scenario
GRAPH = "topology.graphml"  # file of a graph that a Python program has given, in the folder of a run
GRAPHS = Path(__file__).parent.parent / "scenarios"  # folder of the shipped graphs
COMPLETE = "complete"
MOST_NAMED = 20  # nodes in a note
FACTORIES: dict[str, Callable[..., Any]] = {**BUILDERS, **SCHEDULES}
"""All named topologies: functions of (number of nodes, seed, options) that return a graph, or a rule for all rounds."""


def shipped_graphs() -> dict[str, Path]:
    """Return the graphs that come with p2pfl-sim, by name."""
    return {path.stem: path for path in sorted(GRAPHS.glob("*.graphml"))}


def topology(table: Mapping[str, Any], nodes: int, seed: int, *, dense: bool = True) -> nx.Graph:
    """Return the graph that a scenario's table `topology` names; that of a named rule has no edges, see `schedule_of`.

    Args:
        dense: whether a complete graph has its edges, whose memory grows with the square of the nodes.

    Raises:
        ConfigurationError: there is no such graph, or it has another number of nodes.
    """
    name, options = split_name("topology", table)
    if name == FILE:
        graph: nx.Graph = build("topology", read, options)
        if len(graph) != nodes:
            raise ConfigurationError(
                f"nodes must be {len(graph)}, as in {Path(options['file']).name}, got {nodes}; remove the key nodes"
            )
        return graph
    if name not in FACTORIES:
        raise unknown("topology", name, [*FACTORIES, *shipped_graphs(), FILE])
    if options and not options_of(name):
        raise ConfigurationError(f"unknown key 'topology.{next(iter(options))}'; the topology {name!r} has no options")
    if name == COMPLETE and not dense:
        graph = nx.empty_graph(nodes)
    elif name in SCHEDULES:
        schedule: GraphSchedule = build("topology", SCHEDULES[name], options, n=nodes, seed=seed)
        schedule.name = name
        graph = nx.empty_graph(nodes, nx.DiGraph if schedule.directed else nx.Graph)
        graph.graph["schedule"] = schedule
    else:
        graph = build("topology", BUILDERS[name], options, n=nodes, seed=seed)
    graph.graph["name"] = name
    return graph


def schedule_of(graph: nx.Graph) -> GraphSchedule | None:
    """Return the rule with a graph for each round that `topology` has made or read; None for a static graph."""
    schedule = graph.graph.get("schedule")
    return schedule if isinstance(schedule, GraphSchedule) else None


def topology_rows(table: Mapping[str, Any], nodes: int, seed: int, network: Network) -> Rows | None:
    """Return the neighbours of the nodes in a large graph that a scenario's table `topology` names.

    None if the graph is needed itself: it is small enough to be measured in full, has no form as rows, or the network reads
    its places.

    Raises:
        ConfigurationError: there is no such graph.
    """
    name, options = split_name("topology", table)
    if name not in ROWS or nodes <= LIMIT or network.latency == "geography" or "edges" in (network.latency, network.loss):
        return None
    found: Rows = build("topology", ROWS[name], options, n=nodes, seed=seed)
    return found


def options_of(name: str) -> list[str]:
    """Return the options of a generated topology."""
    return [option for option in signature(FACTORIES[name]).parameters if option not in ("n", "seed")]


def from_file(table: Mapping[str, Any], folder: str) -> tuple[dict[str, Any], int] | None:
    """Return the table and the number of nodes of a `topology` table that has the key `file`, or names a shipped graph.

    The file is looked up in the scenario's folder, in the current folder, in that of the environment variable
    P2PFL_DATA, and among the shipped graphs.

    Returns:
        None if the table has no `file`, or also has the name of a generated graph.

    Raises:
        ConfigurationError: the file does not exist, or cannot be read.
    """
    name = table.get("name", FILE)
    if FILE not in table and name in shipped_graphs():
        file = name
    elif FILE in table and name == FILE:
        file = table[FILE]
    else:
        return None
    whole = {**table, "name": FILE, FILE: path_of("topology.file", file, folder)}
    graph: nx.Graph = build("topology", read, split_name("topology", whole)[1])
    return whole, len(graph)


def path_of(key: str, file: Any, folder: str) -> str:
    """Return the full path of a topology file or of a shipped graph that a key of a scenario names; see `from_file`.

    Raises:
        ConfigurationError: the file does not exist.
    """
    if not isinstance(file, str):
        raise must_be(key, "a string", file)
    folders = [Path(folder), Path.cwd(), *([Path(os.environ["P2PFL_DATA"])] if os.environ.get("P2PFL_DATA") else [])]
    shipped = shipped_graphs()
    found = next((path for path in (place / file for place in folders) if path.is_file()), None)
    found = found or shipped.get(file.removesuffix(".graphml"))
    if found is None:
        where = ", ".join(dict.fromkeys(str(place.resolve()) for place in folders))
        raise ConfigurationError(
            f"{key}: the file {file} does not exist; searched in {where}, and among the shipped graphs:"
            f" {', '.join(shipped)}",
            key,
        )
    return str(found.resolve())


def with_files(table: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """Return one layer of a scenario with full paths.

    A topology from a file sets `nodes`, unless the same layer does.
    """
    layer = deepcopy(dict(table))
    if isinstance(network := layer.get("network"), dict) and network.get("places"):
        network["places"] = path_of("network.places", network["places"], folder)
    if isinstance(present := layer.get("availability"), dict) and isinstance(file := present.get("file"), str) and file:
        present["file"] = interval_file(file, folder)
    graph = layer.get("topology")
    if isinstance(graph, Mapping) and (found := from_file(graph, folder)):
        layer["topology"], nodes = found
        layer.setdefault("nodes", nodes)
    return layer


def interval_file(file: str, folder: str) -> str:
    """Return the full path of a file of intervals: in the scenario's folder or, if it is only there, in the current one."""
    home, here = (Path(place).resolve() / Path(file).expanduser() for place in (folder, Path.cwd()))
    return str(here if here.is_file() and not home.is_file() else home)


OF_RESULTS = "parts", "summary.json"  # one of which a folder of results has


def with_data(run: Mapping[str, Any], folder: str) -> tuple[dict[str, Any], str]:
    """Return a run of a file with the full path of its task's data, if the file's folder has it, and a note or "".

    A name of a data set is no path. If only the current folder has the data, the note says so.
    """
    task = run.get("task")
    data = task.get("data") if isinstance(task, Mapping) else None
    if (
        not isinstance(task, Mapping)
        or not isinstance(data, str)
        or not data
        or Path(data).is_absolute()
        or data.startswith("~")
    ):
        return dict(run), ""
    spec = TASKS.get(str(task["name"]))
    path = (spec is not None and spec.local.get("data") == "own") or "/" in data or bool(Path(data).suffix)
    home, here = Path(folder).resolve(), Path.cwd()
    if not path or home == here or any((home / name).exists() for name in OF_RESULTS):
        return dict(run), ""  # the scenario of a folder of results names the data as they were found
    if (home / data).exists():
        return {**run, "task": {**task, "data": str(home / data)}}, ""
    return dict(run), f"task.data: {data} is not in the scenario's folder {home}; that of the current folder is used" * (
        here / data
    ).exists()


def with_absolute_file(run: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return a resolved run whose topology file is not relative to a folder."""
    topology = run.get("topology")
    if not isinstance(topology, Mapping) or not isinstance(file := topology.get(FILE), str):
        return dict(run)
    return {**run, "topology": {**topology, FILE: str(folder.resolve() / file)}}


def full_changes(changes: Iterable[tuple[str, Any]], folder: str) -> list[tuple[str, Any]]:
    """Return changes without short forms of names, and with full paths.

    A topology from a file or a shipped graph gets its full table, and sets `nodes`, unless the changes do so themselves.
    """
    given = named_changes(changes)
    sets_nodes = any(key == "nodes" for key, _ in given)
    result: list[tuple[str, Any]] = []
    for key, value in given:
        option = key.removeprefix("topology.")
        table = {option: value} if key in ("topology.file", "topology.name") else value if key == "topology" else None
        if key == "network.places" and value:
            result.append((key, path_of(key, value, folder)))
        elif key == "availability.file" and isinstance(value, str) and value:
            result.append((key, interval_file(value, folder)))
        elif key == "availability" and isinstance(value, Mapping):
            result.append((key, with_files({key: value}, folder)[key]))
        elif isinstance(table, Mapping) and (found := from_file(table, folder)):
            result += [("topology", found[0]), *([] if sets_nodes else [("nodes", found[1])])]
        else:
            result.append((key, value))
    return result


def measure(graph: nx.Graph) -> dict[str, Any]:
    """Return the properties of a graph; see p2pfl.topologies.properties and schedule_properties.

    Raises:
        ConfigurationError: a weight or a coordinate of it is invalid.
    """
    try:
        if schedule := schedule_of(graph):
            with_places = sum(point is not None for point in coordinates(graph))
            return schedule_properties(schedule) | {"coordinates": with_places}
        return properties(graph)
    except ValueError as error:
        raise ConfigurationError(f"topology: {error}") from error


def placement_graph(network: Network, graph: nx.Graph) -> nx.Graph:
    """Return the graph with the coordinates of a topology's nodes: that of `network.places`, or the topology itself.

    Raises:
        ConfigurationError: the file cannot be read, or has another number of nodes.
    """
    if not network.places:
        return graph
    there: nx.Graph = build("network.places", read, {FILE: network.places})
    if len(there) != len(graph):
        raise ConfigurationError(
            f"network.places: {Path(network.places).name} has {len(there)} places, but the topology has {len(graph)} nodes;"
            f" set nodes = {len(there)}, or a network without places"
        )
    return there


def locate_nodes(graph: nx.Graph, names: Sequence[str]) -> tuple[dict[str, Point | None], list[str]]:
    """Return the coordinates of each node, and notes for the user about nodes without coordinates.

    Raises:
        ConfigurationError: the topology has no coordinates.
    """
    try:
        found = places(graph)
    except ValueError as error:
        raise ConfigurationError(f'network.latency = "geography" needs coordinates of the nodes: {error}') from error
    called = labels(graph)
    notes = []
    for missing, how in (
        (found.estimated, "placed at the mean of their neighbours"),
        (found.unknown, "no neighbour has any; their latency is the mean of all other pairs"),
    ):
        if missing:
            nodes = ", ".join(f"{names[k]} ({called[k]})" for k in missing[:MOST_NAMED])
            more = f" and {len(missing) - MOST_NAMED} more" if len(missing) > MOST_NAMED else ""
            notes.append(f"nodes without coordinates ({how}): {nodes}{more}")
    return dict(zip(names, found.points, strict=True)), notes


def edges_of(topology: Mapping[str, Any], nodes: int) -> float:
    """Return a lower bound of a topology's edges; 0 if it is not known before the graph is built.

    It serves the estimate of memory. A topology without a case here is only estimated lower.
    """

    def option(name: str, default: float, most: float) -> float:
        value = topology.get(name, default)
        return max(0.0, min(value, most)) if isinstance(value, int | float) else 0.0

    pairs = nodes * (nodes - 1) / 2
    match topology.get("name"):
        case str(name) if name == COMPLETE:
            return pairs
        case "ring" | "star" | "torus":
            return nodes - 1
        case "k-regular" | "small-world" | "watts-strogatz":
            return nodes * option("degree", 4, nodes - 1) / 2
        case "barabasi-albert" | "scale-free":
            return option("edges", 2, nodes / 2) * nodes / 2
        case "erdos-renyi":
            return 0.9 * pairs * option("p", 0.1, 1)
        case "rings":  # two rings share a few edges, more of them in a small graph
            return max(nodes - 1.0, 0.8 * pairs * -expm1(-option("degree", 8, nodes) / max(1, nodes - 1)))
        case "clusters":
            groups = max(1.0, option("groups", 3, nodes))
            return 0.9 * option("within", 1.0, 1) * nodes * max(0, nodes / groups - 1) / 2
        case str(name) if name in SCHEDULES:  # of one round, of which the first is kept
            return (nodes - 1) * option("degree", 1, nodes - 1) / 2
    return 0
