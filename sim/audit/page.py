"""Page and table of an audit: what attacks found in each row, privacy against accuracy and bytes, and pictures.

Pictures are SVG in the page itself: a path for each of LEVELS levels of grey, with a square for each pixel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import inf
from typing import Any

import numpy as np

from p2pfl.sim.audit.inversion import FOUND, Picture
from p2pfl.sim.formatting import bullets, number, size, table, terms
from p2pfl.sim.report.page import render

LEVELS = 16
PIXELS = 72  # width of a picture on the page


def columns(summary: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the table of an audit: texts by heading, one for each row."""
    rows = summary["rows"]
    several = len({row["seed"] for row in rows}) > 1
    metrics = list(dict.fromkeys(row["metric"] for row in rows))
    found: dict[str, list[str]] = {"run": [_name(row, several) for row in rows]}
    found[" / ".join(metrics)] = [number(row["test"]["mean"]) for row in rows]
    found["sent"] = [size(row["bytes"]) for row in rows]
    if any("privacy" in row for row in rows):
        found["epsilon"] = [_spent(row) for row in rows]
    if any("canaries" in row for row in rows):
        for head, key in (("at least", "at_least"), ("by curve", "by_curve")):
            found[head] = [number(row.get("canaries", {}).get(key), 2) for row in rows]
        found["mechanism"] = [_mechanism(row) for row in rows]
    if any("membership" in row for row in rows):
        attacked = [row.get("membership") for row in rows]
        found["AUC"] = [_with_interval(each, "auc") for each in attacked]
        found["TPR at 1 %"] = [_with_interval(each, "tpr_at_0.01") for each in attacked]
        found["TPR at 0.1 %"] = [_with_interval(each, "tpr_at_0.001") for each in attacked]
    for how in ("rows", "optimisation"):
        if any(how in row["inversion"] for row in rows):
            each = [row["inversion"].get(how) for row in rows]
            found[f"found by {how}"] = ["" if one is None else _percent(one["found"]) for one in each]
            found["by chance" if how == "rows" else "by chance, optimisation"] = [
                "" if one is None else _percent(one["found_by_chance"]) for one in each
            ]
    return found


def meaning(summary: Mapping[str, Any]) -> list[str]:
    """Return sentences on what the columns of the table say."""
    heads = columns(summary)
    said = []
    if "epsilon" in heads:
        said.append("epsilon: promised, the greatest that a node has spent.")
    if "at least" in heads:
        said.append(
            "at least: what guesses about canaries prove of epsilon, with 95 % confidence; by curve: the same if only the"
            " noise is in doubt. The bounds are loose; one above the promised epsilon shows a fault."
        )
        said.append(
            "mechanism: whether tests of noise, sensitivity and sampling contradict the plan; without: tests that could not"
            " be made."
        )
    if "AUC" in heads:
        row = next(row["membership"] for row in summary["rows"] if "membership" in row)
        said.append(
            f"AUC: membership by likelihood ratio, with {row['shadows']} shadows, {row['members']:,} judgements of members"
            f" and {row['others']:,} of others; 0.5 is a guess. TPR: share of the members that are found while 1 % or 0.1 %"
            " of the others are taken for members. Intervals at 95 % confidence."
        )
    if "found by rows" in heads:
        said.append(
            f"found: training images whose correlation with a guess from the first model exceeds {FOUND:g}; by chance: the"
            " same for images that the node did not train on."
        )
    return said


def contradictions(summary: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each fault that the audit has found."""
    said = []
    for row in summary["rows"]:
        for each in row.get("mechanism", {}).get("contradictions", ()):
            said.append(f"{row['name']}, seed {row['seed']}: {each['test']}: {each['text']}")
        canaries = row.get("canaries")
        proved = max(canaries["at_least"], canaries.get("by_curve", 0.0)) if canaries is not None else 0.0
        if canaries is not None and proved > canaries["promised"]:
            said.append(
                f"{row['name']}, seed {row['seed']}: epsilon is at least {proved:.2f}, more than the promised"
                f" {canaries['promised']:.2f} (tensor: {canaries['tensor']})"
            )
    return said


def page(summary: Mapping[str, Any], pictures: Sequence[Sequence[Picture]]) -> str:
    """Return the page of an audit.

    Args:
        pictures: of each row.
    """
    heads = columns(summary)
    faults = contradictions(summary)
    findings = faults or ["No attack and no test has contradicted a budget."] * ("epsilon" in heads)
    shown = "".join(map(_pictures, summary["rows"], pictures))
    parts = {
        "facts": _facts(summary),
        "findings": bullets([*findings, *(f"Note: {note}" for note in summary["notes"])]),
        "table": table(list(heads), zip(*heads.values(), strict=True))
        + "".join(f'<p class="meaning">{escape(each)}</p>\n' for each in meaning(summary)),
        "pictures": shown,
        "versions": terms(summary["versions"]),
    }
    return render(f"Audit of {summary['scenario']}", _payload(summary), parts)


def _facts(summary: Mapping[str, Any]) -> str:
    seeds = summary["seeds"]
    pairs = {
        "Scenario": summary["scenario"],
        "Runs": str(len(summary["rows"])),
        "Seed" if len(seeds) == 1 else "Seeds": ", ".join(map(str, seeds)),
        "Shadows": str(summary["attacks"]["shadows"]),
    }
    rows = "".join(f"<div><dt>{escape(key)}</dt><dd>{escape(value)}</dd></div>" for key, value in pairs.items())
    return f'<dl class="facts">{rows}</dl>\n'


def _payload(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figure of privacy against accuracy and bytes; a run has the points of all of its seeds."""
    rows = summary["rows"]
    views = []
    for label, unit, of in (
        ("epsilon", "", _epsilon),
        ("AUC of membership", "", lambda row: row.get("membership", {}).get("auc")),
        ("images found", "%", _found),
        ("bytes sent", "B", lambda row: row["bytes"]),
    ):
        points = [
            {"run": row["name"], "label": row["name"], "y": row["test"]["mean"], "on_front": False}
            | ({"x": 0, "no_limit": True} if x == inf else {"x": x})
            for row in rows
            if (x := of(row)) is not None
        ]
        if points and not all(point.get("no_limit") for point in points):
            views.append(
                {"label": label, "x_label": label, "x_unit": unit, "x_log": label == "epsilon", "y_label": "test metric"}
                | {"points": points}
            )
    note = "Each point is a run with one seed. Better is to the left and, with accuracy, above."
    figure = {"id": "privacy", "kind": "scatter", "title": "Privacy against the test metric and bytes", "note": note}
    sections = [{"id": "privacy", "title": "Privacy", "text": [], "figures": [figure | views[0] | {"views": views}]}]
    return {"runs": list(dict.fromkeys(row["name"] for row in rows)), "sections": sections}


def _epsilon(row: Mapping[str, Any]) -> float:
    return float(row["privacy"]["epsilon"]["greatest"]) if "privacy" in row else inf


def _found(row: Mapping[str, Any]) -> float | None:
    found = [of["found"] for of in row["inversion"].values()]
    return 100 * max(found) if found else None


def _name(row: Mapping[str, Any], several: bool) -> str:
    return f"{row['name']}, seed {row['seed']}" if several else str(row["name"])


def _spent(row: Mapping[str, Any]) -> str:
    return number(row["privacy"]["epsilon"]["greatest"], 2) if "privacy" in row else "none"


def _mechanism(row: Mapping[str, Any]) -> str:
    tests = row.get("mechanism")
    if tests is None:
        return ""
    if "untested" in tests:
        return "not tested"
    found = ", ".join(dict.fromkeys(each["test"] for each in tests["contradictions"])) or "as planned"
    left = [name for name in ("sensitivity", "sampling") if "unread" in tests[name]]
    return f"{found}, without {' and '.join(left)}" if left else found


def _with_interval(found: Mapping[str, Any] | None, key: str) -> str:
    if found is None:
        return ""
    low, high = found[f"{key}_interval"]
    return f"{found[key]:.3f} ({low:.3f}-{high:.3f})"


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


# Pictures


def _pictures(row: Mapping[str, Any], pictures: Sequence[Picture]) -> str:
    if not pictures:
        return ""
    each = "".join(
        f"<figure>{svg(one.own)}{svg(one.guess)}<figcaption>{one.correlation:.2f}</figcaption></figure>" for one in pictures
    )
    head = escape(f"{row['name']}, seed {row['seed']}")
    return (
        f'<h3>{head}</h3><div class="pictures">{each}</div><p class="meaning">Left: training images of the node whose'
        " images are found best. Right: the closest guess. Below: their correlation.</p>\n"
    )


def svg(picture: np.ndarray) -> str:
    """Return a picture, [height, width] from 0 (black) to 1 (white), as an SVG element."""
    height, width = picture.shape
    levels = np.minimum((picture * LEVELS).astype(int), LEVELS - 1)
    paths = []
    for level in np.unique(levels).tolist():
        squares = "".join(f"M{x} {y}h1v1h-1z" for y, x in np.argwhere(levels == level).tolist())
        shade = round(255 * level / (LEVELS - 1))
        paths.append(f'<path fill="#{shade:02x}{shade:02x}{shade:02x}" d="{squares}"/>')
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{PIXELS}" height="{round(PIXELS * height / width)}" role="img"'
        f' aria-label="picture" shape-rendering="crispEdges">{"".join(paths)}</svg>'
    )
