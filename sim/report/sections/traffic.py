"""Section on traffic: bytes by kind, metric by cost, use of budgets, and models received in each round."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from p2pfl.sim.report.factors import label_words
from p2pfl.sim.report.sections.curves import lines
from p2pfl.sim.report.sections.fronts import costs
from p2pfl.sim.report.series import Figure, Section, Series
from p2pfl.sim.report.summary import Entry
from p2pfl.sim.results.learning_curves import grid

LIMITS = {"models": "models in a round", "held": "models held at once", "bytes": "bytes in a round"}


def section(series: Sequence[Series]) -> Section:
    """Return the section; a sweep shows the cost of results elsewhere."""
    figures = [bytes_by_kind(series)]
    if not any(one.folder.summary.varied for one in series):
        figures += costs(series)
    figures += budgets(series)
    figures.append(
        lines(
            series,
            _models,
            id="models",
            title="Models received",
            y_label="models",
            note="Mean over the nodes in each round; a node that has stopped receives none.",
        )
    )
    return {"id": "traffic", "title": "Traffic and budgets", "text": [], "figures": figures}


def bytes_by_kind(series: Sequence[Series]) -> Figure:
    """Return the bytes sent by all nodes, by kind, averaged over the seeds."""
    runs = {}
    for one in series:
        parts = [_parts(entry) for entry in one.entries]
        means = {name: one.mean(part.get(name) for part in parts) for name in ("models", "control", "preparation")}
        if means["models"] is not None:
            runs[one.name] = {"parts": {name: value for name, value in means.items() if value or name == "models"}}
    return {
        "id": "sent",
        "kind": "bars",
        "title": "Bytes sent",
        "note": "Total of all nodes, mean over the seeds. Preparation: bytes that a policy sends before round 1."
        " Control: messages other than models and requests for models."
        if runs
        else "The summary has no numbers of bytes sent.",
        "x_label": "bytes sent",
        "unit": "B",
        "runs": runs,
    }


def _parts(entry: Entry) -> dict[str, float]:
    if (total := entry.traffic.bytes) is None:
        return {}
    control = entry.traffic.control_bytes
    return {"models": total - control, "control": control, "preparation": entry.traffic.preparation.bytes}


def budgets(series: Sequence[Series]) -> list[Figure]:
    """Return for each kind of limit the share that the nodes have used."""
    figures = []
    for kind, what in LIMITS.items():
        shares = {one.name: one.mean(_budget_used(entry, kind) for entry in one.entries) for one in series}
        runs = {run: 100 * share for run, share in shares.items() if share is not None}
        if runs:
            figures.append(
                {
                    "id": f"budget-{kind}",
                    "kind": "bars",
                    "title": f"Use of the budget of {what}",
                    "note": "Share of its limit that a node used, mean over nodes and seeds. Runs without this limit are not"
                    " shown. " + _ranges(series, kind),
                    "x_label": "share of the limit",
                    "unit": "%",
                    "runs": runs,
                    "limit": dict.fromkeys(runs, 100),
                }
            )
    return figures


def _budget_used(entry: Entry, kind: str) -> float | None:
    return entry.traffic.budget[kind].used if kind in entry.traffic.budget else None


def _ranges(series: Sequence[Series], kind: str) -> str:
    """Describe the limits of each run."""
    words = []
    for one in series:
        if found := one.shown.traffic.budget.get(kind):
            most = f" to {found.greatest:g}" if found.greatest != found.least else ""
            before = one.name.removesuffix(one.row)  # with its folder, if there is one
            words.append(f"{before}{', '.join(label_words(one))}: {found.least:g}{most}")
    return f"Limits: {'; '.join(words)}." if len(words) <= 12 else ""


def _models(series: Series, entry: Entry) -> np.ndarray:
    rounds = series.rounds(entry)
    received = np.nan_to_num(grid(rounds, rounds["models_in"]))
    return np.concatenate([received.mean(axis=1), np.zeros(entry.rounds - len(received))]) if received.size else np.zeros(0)
