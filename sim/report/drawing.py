"""Figures of a report as files for a paper, drawn by matplotlib from the data that the page draws; and topologies.

Of a report, lines, points and bars without parts can be drawn; the page has the other kinds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from p2pfl._util.atomic_files import reason
from p2pfl._util.printable import plural
from p2pfl.errors import ConfigurationError, MissingRequirementError, unknown
from p2pfl.sim.formatting import some
from p2pfl.sim.report.collaboration import MOST_EDGES, MOST_GRAPHS, MOST_NODES, graph_to_place, place_nodes
from p2pfl.sim.report.folder import Folder
from p2pfl.sim.report.series import Figure, gather
from p2pfl.sim.report.write import payload
from p2pfl.sim.results.learning_curves import SHADE, add_legend, style
from p2pfl.sim.scenario.scenario import selects
from p2pfl.sim.scenario.topology import schedule_of
from p2pfl.topologies import labels as names_of
from p2pfl.topologies.consensus import EXACT, static_schedule
from p2pfl.topologies.schedules import RoundGraph

if TYPE_CHECKING:
    import networkx as nx
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

KINDS = ("lines", "scatter", "bars")
ENDINGS = (".pdf", ".png", ".svg")
MOST_NAMED = 40  # nodes of a topology that is drawn with their names
ACROSS = 4  # graphs of rounds in a row
SIDE = 2.6  # inches of the graph of a round
NODE = 0.035  # space for a node at the head of an arrow, where the graph takes 1


def figures(folder: Path) -> dict[str, str]:
    """Return the titles of the figures of a finished run that can be drawn, by their names.

    Raises:
        ConfigurationError: the folder has no finished run, or a file of it is damaged.
    """
    with Folder(folder) as read:
        return {name: str(figure["title"]) for name, figure in _drawn(payload(gather([read]))).items()}


def plot(folder: Path, name: str, out: Path, only: Sequence[str] = (), view: str = "") -> None:
    """Draw a figure of a finished run into a file.

    Args:
        out: a file whose name ends with .pdf, .png or .svg.
        only: texts (see p2pfl.sim.scenario.scenario.selects); runs are drawn whose labels or names one selects, by default
            all.
        view: label of the horizontal axis, such as "bytes sent", for a figure with several.

    Raises:
        ConfigurationError: the folder has no finished run, the figure, the view or the runs do not exist, or the file cannot
            be written.
        MissingRequirementError: matplotlib is not installed.
    """
    if out.suffix not in ENDINGS:
        raise ConfigurationError(f"--out must end with {', '.join(ENDINGS)}, got {out}")
    with Folder(folder) as read:
        data = payload(gather([read]))
    known = _drawn(data)
    if name not in known:
        raise unknown("figure", name, known)
    labels = {run: data.get("labels", {}).get(run, run) for run in data["runs"]}
    picked = {run for run, label in labels.items() if any(selects(text, name) for text in only for name in (run, label))}
    chosen = {run: label for run, label in labels.items() if not only or run in picked}
    if not chosen:
        names = some(labels.values(), most=8, sign="; ")
        raise ConfigurationError(f"no run is selected by --only {' --only '.join(only)}; the runs: {names}")
    drawing = _new_drawing("plot")
    axes = drawing.subplots()
    {"lines": _lines, "scatter": _points, "bars": _bars}[known[name]["kind"]](axes, known[name], chosen, view)
    axes.grid(alpha=0.3)
    _save(drawing, out)


def draw_topology(graph: nx.Graph, errors: Sequence[float], error: float, out: Path) -> None:
    """Draw a topology into a file: its graph, or those of its first rounds, and the error of the nodes' averages by round.

    Args:
        graph: as p2pfl.sim.scenario.topology.topology makes it.
        errors: before the first round and after each; see p2pfl.topologies.consensus.consensus_errors.
        error: to which the rounds are counted.
        out: a file whose name ends with .svg.

    Raises:
        ConfigurationError: there are too many nodes, or the file cannot be written.
        MissingRequirementError: matplotlib is not installed.
    """
    if out.suffix != ".svg":
        raise ConfigurationError(f"--svg must name a file that ends with .svg, got {out}")
    n, changing = len(graph), schedule_of(graph)
    if n > MOST_NODES:
        raise ConfigurationError(f"--svg draws at most {MOST_NODES:,} nodes, and there are {n:,}; take fewer --nodes")
    schedule = changing or static_schedule(graph)
    several = changing is not None and schedule.period != 1
    count = min(schedule.period or MOST_GRAPHS // 2, MOST_GRAPHS)
    title = f"{graph.graph['name']}, {plural(n, 'node')}"
    if several:
        title += f": repeats after {schedule.period} rounds" if schedule.period else ": each round has a new random graph"
        title += "" if schedule.period == count else f", the first {count} are drawn"
    title += "; an arrow leads to the node that fetches" if schedule.directed else ""
    x, y = place_nodes(graph_to_place(graph, graph), graph.graph["name"])
    drawing = _new_drawing("topology --svg")
    across = min(count, ACROSS)
    down, side = -(-count // across), SIDE if several else 2 * SIDE
    drawing.set_size_inches(max(2 * SIDE, across * side), down * side + SIDE)
    above, below = drawing.subfigures(2, 1, squeeze=False, height_ratios=[down * side, SIDE])[:, 0]
    for k, axes in enumerate(above.subplots(down, across, squeeze=False).flat):
        axes.set_axis_off()
        if k < count:
            remark = _draw_edges(axes, schedule.graph(k + 1), x, y, schedule.directed)
            _draw_nodes(axes, x, y, names_of(graph) if n <= MOST_NAMED else [])
            axes.set_title((f"round {k + 1}" if several else "") + remark, fontsize="small")
    drawing.suptitle(title, fontsize="medium")
    axes = below.subplots()
    axes.semilogy(range(len(errors)), np.maximum(errors, EXACT), marker="." if len(errors) <= MOST_NAMED else "")
    axes.axhline(error, color="0.5", lw=0.8, ls="--", label=f"{error:g}")
    axes.legend(frameon=False, fontsize="small")
    axes.set(xlabel="round", ylabel="error of the average", xlim=(0, max(1, len(errors) - 1)))
    axes.locator_params(axis="x", integer=True)
    axes.grid(alpha=0.3)
    _save(drawing, out)


def _draw_edges(axes: Axes, graph: RoundGraph, x: np.ndarray, y: np.ndarray, directed: bool) -> str:
    """Draw the edges between nodes at the places x, y in [0, 1]; return a remark if there are too many to be drawn."""
    sources, targets = graph.sources, graph.rows
    if not directed:  # both ends fetch, and the line is drawn once
        sources, targets = sources[sources < targets], targets[sources < targets]
    if len(sources) > MOST_EDGES:
        return f" ({len(sources):,} edges, not drawn)"
    if directed:
        dx, dy = x[targets] - x[sources], y[targets] - y[sources]
        up_to_node = 1 - NODE / np.maximum(np.hypot(dx, dy), 2 * NODE)
        ends = dx * up_to_node, dy * up_to_node
        shape: dict[str, Any] = {"width": 0.0025, "headwidth": 6, "headlength": 8, "color": "0.55"}
        axes.quiver(x[sources], y[sources], *ends, angles="xy", scale_units="xy", scale=1, **shape)
    else:
        axes.plot([x[sources], x[targets]], [y[sources], y[targets]], color="0.6", lw=0.8, zorder=1)
    return ""


def _draw_nodes(axes: Axes, x: np.ndarray, y: np.ndarray, names: Sequence[str]) -> None:
    """Draw nodes at the places x, y in [0, 1], with their names unless these are empty."""
    axes.scatter(x, y, s=90 if names else 14, color="C0", zorder=2)
    for k, name in enumerate(names):
        short = len(name) <= 3  # it fits into the circle of the node
        place, shift = (x[k], y[k]), (0, 0 if short else 9)
        text: dict[str, Any] = {"fontsize": 6, "color": "white" if short else "black", "ha": "center", "va": "center"}
        axes.annotate(name, place, shift, textcoords="offset points", zorder=3, **text)
    axes.set(xlim=(-0.08, 1.08), ylim=(1.08, -0.08), aspect="equal")  # y goes down, as on the page


def _new_drawing(command: str) -> Drawing:
    try:
        from matplotlib.figure import Figure as Drawing
    except ImportError as error:
        raise MissingRequirementError(f"{command} needs matplotlib: pip install 'p2pfl-node[notebook]'") from error
    return Drawing(layout="constrained")


def _save(drawing: Drawing, out: Path) -> None:
    from matplotlib import rc_context

    try:
        with rc_context({"svg.hashsalt": "p2pfl"}):  # the same drawing is the same file
            drawing.savefig(out, bbox_inches="tight", metadata={"Date": None} if out.suffix == ".svg" else None)
    except OSError as error:
        raise ConfigurationError(f"cannot write {out}: {reason(error)}") from error


def _drawn(data: Mapping[str, Any]) -> dict[str, Figure]:
    each = [figure for section in data["sections"] for figure in section["figures"]]
    return {str(figure["id"]): figure for figure in each if figure["kind"] in KINDS and not _has_parts(figure)}


def _has_parts(figure: Figure) -> bool:
    """Return whether bars have parts, which only the page draws."""
    return figure["kind"] == "bars" and any(isinstance(value, Mapping) for value in figure["runs"].values())


def _view(figure: Figure, label: str) -> Mapping[str, Any]:
    views: dict[str, Mapping[str, Any]] = {
        str(view["label"]): view for view in figure.get("views", [figure | {"label": figure.get("x_label", "")}])
    }
    if label and label not in views:
        raise unknown("view", label, views)
    return views[label or next(iter(views))]


def _unit(label: str, unit: str) -> str:
    return f"{label} ({unit})" if unit else label


def _lines(axes: Axes, figure: Figure, runs: Mapping[str, str], label: str) -> None:
    view = _view(figure, label)
    there = [run for run in runs if run in figure["y"]]
    for k, run in enumerate(there):
        axes.plot(view["x"][run], figure["y"][run], label=runs[run], **style(k))
        if run in figure.get("low", {}):
            axes.fill_between(view["x"][run], figure["low"][run], figure["high"][run], color=f"C{k % 10}", alpha=SHADE, lw=0)
    axes.set(xlabel=_unit(view["label"], view["unit"]), ylabel=figure["y_label"])
    if len(there) > 1:
        add_legend(axes, len(there))


def _points(axes: Axes, figure: Figure, runs: Mapping[str, str], label: str) -> None:
    view = _view(figure, label)
    there = [point for point in view["points"] if point["run"] in runs and point["x"] is not None]
    for k, run in enumerate(run for run in runs if any(point["run"] == run for point in there)):
        own = [point for point in there if point["run"] == run]
        deviations = [point.get("y_dev") or 0.0 for point in own]
        marker = "osD^vP*X"[k // 10 % 8]
        places = [point["x"] for point in own], [point["y"] for point in own]
        axes.errorbar(*places, yerr=deviations, fmt=marker, color=f"C{k % 10}", capsize=2, label=runs[run])
    axes.set(xlabel=_unit(view["x_label"], view["x_unit"]), ylabel=view["y_label"])
    if view.get("x_log"):
        axes.set_xscale("log")
    if there:
        add_legend(axes, len(runs))


def _bars(axes: Axes, figure: Figure, runs: Mapping[str, str], label: str) -> None:
    values = {run: figure["runs"][run] for run in runs if run in figure["runs"]}
    axes.barh([runs[run] for run in values], [0 if value is None else value for value in values.values()])
    for k, run in enumerate(values):
        if values[run] is None:
            axes.text(0, k, f" {figure.get('missing', {}).get(run, 'no value')}", va="center")
    axes.invert_yaxis()
    axes.set(xlabel=_unit(figure["x_label"], figure.get("unit", "")))
