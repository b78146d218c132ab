"""Figures of a report as files for a paper, drawn by matplotlib from the data that the page draws.

Lines, points and bars without parts can be drawn; the page has the other kinds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from p2pfl._util.atomic_files import reason
from p2pfl.errors import ConfigurationError, MissingRequirementError, unknown
from p2pfl.sim.report.folder import Folder
from p2pfl.sim.report.series import Figure, gather
from p2pfl.sim.report.write import payload
from p2pfl.sim.results.learning_curves import SHADE, add_legend, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KINDS = ("lines", "scatter", "bars")
ENDINGS = (".pdf", ".png", ".svg")


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
        only: texts; runs whose labels or names contain one are drawn, by default all.
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
    chosen = {run: label for run, label in labels.items() if not only or any(text in run or text in label for text in only)}
    if not chosen:
        raise ConfigurationError(f"no run has {' or '.join(map(repr, only))} in its name")
    try:
        from matplotlib.figure import Figure as Drawing
    except ImportError as error:
        raise MissingRequirementError("plot needs matplotlib: pip install 'p2pfl-node[notebook]'") from error
    drawing = Drawing(layout="constrained")
    axes = drawing.subplots()
    {"lines": _lines, "scatter": _points, "bars": _bars}[known[name]["kind"]](axes, known[name], chosen, view)
    axes.grid(alpha=0.3)
    try:
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
