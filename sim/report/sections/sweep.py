"""Section on a sweep: the test metric against each varied key, and against cost."""

from __future__ import annotations

from collections.abc import Sequence

from p2pfl.sim.formatting import LIMITS, setting
from p2pfl.sim.report.factors import label_words, title_of
from p2pfl.sim.report.sections.fronts import costs, points, scatter
from p2pfl.sim.report.series import Figure, Section, Series


def section(series: Sequence[Series]) -> Section | None:
    """Return the section; None if no summary comes from a sweep."""
    swept = [one for one in series if one.folder.summary.varied]
    if not swept:
        return None
    keys = list(dict.fromkeys(key for one in swept for key in one.folder.summary.varied))
    figures = [figure for key in keys if (figure := against(key, swept)) is not None]
    words = [title_of(key) for key in keys if not any(figure["x_label"] == key for figure in figures)]
    text = [f"Varied: {', '.join(_values(key, swept) for key in keys)}."]
    if words:
        text.append(f"No figure for values that are not numbers: {', '.join(words)}; see the table.")
    return {
        "id": "sweep",
        "title": "Sweep",
        "text": text,
        "figures": [_of_all(each) for each in (*figures, *costs(swept))],
    }


def _of_all(figure: Figure) -> Figure:
    """Return a figure that always shows all runs, because its purpose is to compare them."""
    return figure | {"unfiltered": True}


def against(key: str, series: Sequence[Series]) -> Figure | None:
    """Return the metric against a numeric key; None if there are no numbers, or only one.

    Labels of points have the other varied keys; points with equal labels are joined.
    """
    there = [one for one in series if _number(one.shown.varied.get(key)) and one.metric == series[0].metric]
    if len({one.shown.varied[key] for one in there}) < 2:
        return None
    found = scatter(there, key, "", lambda entry: entry.varied[key], front=False)
    others = {one.name: _without(key, one) for one in there}
    joined = len(set(others.values())) < len(others)
    for point in found["points"]:
        point["label"] = others[point["run"]]
        if key in LIMITS and point["x"] == 0:
            point |= {"x": None, "no_limit": True}  # drawn as "none", at the right
    return {
        "id": f"against-{''.join(c if c.isalnum() else '-' for c in key)}",
        "kind": "scatter",
        "title": f"Test {series[0].metric} against {key}",
        "note": points(found["points"]) + (" Lines connect runs that differ in this key only." if joined else ""),
        "joined": joined,
        **found,
    }


def _without(key: str, series: Series) -> str:
    """Return the label of a run without the value of a key, which the place of its point shows."""
    before = series.name.removesuffix(series.row)  # with its folder, if there is one
    return before + ", ".join(label_words(series, [key]))


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _values(key: str, series: Sequence[Series]) -> str:
    values = dict.fromkeys(setting(key, value) for one in series for value in one.folder.summary.varied.get(key, []))
    return f"{title_of(key)} ({', '.join(values)})"
