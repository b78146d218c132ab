"""Sections on the results of the nodes: the metric of each node and group, the learning curves, and the traffic."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from p2pfl.sim.report.figures import costs, distribution, lines, of_nodes, reported_curve, worst_tenth
from p2pfl.sim.report.folder import Entry
from p2pfl.sim.report.series import (
    LAST_MODEL,
    Figure,
    Section,
    Series,
    by_key,
    places_of,
    reported_model,
    shown_seeds,
)
from p2pfl.sim.results.learning_curves import grid, mean

MOST_MARKS = 40_000  # of all runs of a distribution
LEAST_MARKS = 200  # of a run
MOST_GROUPS = 8  # a figure with more bars would be less readable than the table
LIMITS = {
    **{"models": "models in a round", "held": "models held at once", "bytes": "bytes in a round"},
    **{"trainings": "trainings in the run", "joules": "joules of trainings in the run"},
}


def results_section(series: Sequence[Series]) -> Section:
    """Return the section: a distribution for each metric, and bars for each group."""
    figures: list[Figure] = []
    for metric, alike in by_key(series, lambda one: one.metric).items():
        suffix = "" if metric == series[0].metric else f"-{metric}"
        figures += [nodes(f"nodes{suffix}", metric, alike), *groups(f"group{suffix}", metric, alike)]
    return {"id": "results", "title": "Results", "text": [], "figures": figures}


def nodes(id: str, metric: str, series: Sequence[Series]) -> Figure:
    """Return each node's test metric for one seed, with a mark on the worst tenth of the nodes, at least one.

    With too many nodes in all runs together, each run shows a part of its nodes: their values have equal distances in the
    order of all values, from the least to the greatest.
    """
    values = {one.name: one.shown.node_values for one in series}
    which = reported_model(series)
    figure = distribution(
        series,
        values,
        series[0].shown.higher_is_better,
        id=id,
        title=f"Test {metric} of each node",
        note=f"One mark per node, {shown_seeds(series)}: {which}. The worst tenth of the nodes is highlighted.",
        decimals=places_of(series)[metric],
        x_label=f"test {metric}",
    )
    if sum(map(len, values.values())) > MOST_MARKS:
        marks = max(MOST_MARKS // len(series), LEAST_MARKS)
        for run in figure["runs"].values():
            kept = spread(run["values"], marks)
            run |= {"values": run["values"][kept], "worst": run["worst"][kept]}
        figure |= {"of": "value", "labels": [f"value {k + 1}" for k in range(marks)]}
        figure["note"] += f" A run has at most {marks:,} marks, from the least to the greatest value, at equal distances"
        figure["note"] += " in order."
    return figure


def spread(values: np.ndarray, most: int) -> np.ndarray:
    """Return the places of at most `most` values, from the least to the greatest at equal distances in their order."""
    there = np.flatnonzero(np.isfinite(values))
    order = there[np.argsort(values[there], kind="stable")]
    kept: np.ndarray = order[np.linspace(0, len(order) - 1, min(most, len(order))).round().astype(int)]
    return kept


def groups(id: str, metric: str, series: Sequence[Series]) -> list[Figure]:
    """Return a bar figure for each group of nodes: the mean over its nodes and over seeds."""
    names = list(dict.fromkeys(group for one in series for entry in one.entries for group in entry.test.per_group))
    if not 1 < len(names) <= MOST_GROUPS:
        return []
    figures = []
    for number, group in enumerate(names):
        means = {one.name: one.mean(entry.test.per_group.get(group) for entry in one.entries) for one in series}
        figures.append(
            {
                "id": f"{id}-{number}",
                "kind": "bars",
                "title": f"Test {metric} in group {group}",
                "note": f"Mean over the nodes of the group, then over the seeds, of {reported_model(series)}.",
                "decimals": places_of(series)[metric],
                "x_label": f"test {metric}",
                "unit": "",
                "runs": {run: mean for run, mean in means.items() if mean is not None},
            }
        )
    return figures


def learning_section(series: Sequence[Series]) -> Section:
    """Return the section; runs with another metric have separate figures."""
    figures: list[Figure] = []
    for metric, alike in by_key(series, lambda one: one.metric).items():
        suffix = "" if metric == series[0].metric else f"-{metric}"
        figures += curves(suffix, metric, alike)
        title = "Validation loss" + (f" of the runs with a test {metric}" if len(alike) < len(series) else "")
        note = "Mean over the nodes in each round, for each node's model of the round."
        figures.append(lines(alike, _loss, id=f"loss{suffix}", title=title, y_label="validation loss", note=note))
    return {"id": "learning-curves", "title": "Learning", "text": [], "figures": [each for each in figures if each["y"]]}


def curves(suffix: str, metric: str, series: Sequence[Series]) -> list[Figure]:
    """Return figures of the test metric, for runs with the same metric."""
    stages = {one.stage() for one in series}
    which = {"trained": "after training, before aggregation", "merged": "after aggregation"}
    which["auto"] = "the trained or the aggregated one, whichever has the lower validation loss"
    of = "each node's model of the round" + (
        f" ({which[stages.pop()]})" if len(stages) == 1 and stages <= set(which) else ""
    )
    shown = reported_model(series)
    last = shown == LAST_MODEL
    table = (
        "The table shows the ends of the curves" if last else f"The table shows {shown}, and the last round if it differs"
    )
    places = places_of(series)[metric]
    target = next((target for one in series if (target := one.folder.summary.target) is not None), None)
    label = f"test {metric}"
    return [
        lines(
            series,
            _mean,
            id=f"learning{suffix}",
            title=f"Test {metric}",
            y_label=label,
            note=f"Mean over the nodes, for {of}. {table}.",
            target=target,
            decimals=places,
        ),
        lines(
            series,
            _worst,
            id=f"worst{suffix}",
            title=f"Test {metric} of the worst tenth of the nodes",
            y_label=label,
            note=f"Mean of the worst tenth of the nodes in each round, for {of}.",
            decimals=places,
        ),
        lines(
            series,
            _gain,
            id=f"gain{suffix}",
            title=f"Effect of aggregation on the test {metric}",
            y_label=f"difference in test {metric}",
            note="Model after aggregation minus the trained model before it in the same round, mean over the nodes."
            f" {'Above' if series[0].shown.higher_is_better else 'Below'} 0 is an improvement."
            " The columns trained and merged in the terminal's table take each its own best round instead.",
        ),
    ]


def _mean(series: Series, entry: Entry) -> np.ndarray:
    return mean(reported_curve(series, entry))


def _worst(series: Series, entry: Entry) -> np.ndarray:
    return worst_tenth(reported_curve(series, entry), entry.higher_is_better)


def _gain(series: Series, entry: Entry) -> np.ndarray | None:
    what = f"test_{series.metric}"
    if not {f"trained_{what}", f"merged_{what}"} <= set(series.metrics()):
        return None
    merged, trained = of_nodes(series, entry, "merged", what), of_nodes(series, entry, "trained", what)
    return mean(merged - trained)


def _loss(series: Series, entry: Entry) -> np.ndarray:
    return mean(of_nodes(series, entry, series.stage(), "validation_loss"))


def traffic_section(series: Sequence[Series]) -> Section:
    """Return the section; a sweep shows the cost of results elsewhere."""
    figures = [bytes_by_kind(series)]
    if not any(one.folder.summary.varied for one in series):
        figures += costs(series)
    figures += budgets(series)
    figures.append(
        lines(
            series,
            _models,
            by_round=True,
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
        control, prepared = (
            float(np.mean([entry.traffic.control_bytes for entry in one.entries])),
            float(np.mean([entry.traffic.preparation.bytes for entry in one.entries])),
        )
        models = float(np.mean([entry.traffic.bytes for entry in one.entries])) - control
        rest = {"control": control, "preparation": prepared}
        runs[one.name] = {"parts": {"models": models} | {name: value for name, value in rest.items() if value}}
    return {
        "id": "sent",
        "kind": "bars",
        "title": "Bytes sent",
        "note": "Total of all nodes, mean over the seeds. Preparation: bytes that a policy sends before round 1."
        " Control: messages other than models and requests for models.",
        "x_label": "bytes sent",
        "unit": "B",
        "runs": runs,
    }


def budgets(series: Sequence[Series]) -> list[Figure]:
    """Return for each kind of limit the share that the nodes have used."""
    figures = []
    for kind, what in LIMITS.items():
        uses = {one.name: [entry.traffic.budget.get(kind) for entry in one.entries] for one in series}
        shares = {one.name: one.mean(use.used for use in uses[one.name] if use is not None) for one in series}
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


def _ranges(series: Sequence[Series], kind: str) -> str:
    """Describe the limits of each run."""
    words = []
    for one in series:
        if found := one.shown.traffic.budget.get(kind):
            most = f" to {found.greatest:g}" if found.greatest != found.least else ""
            words.append(f"{one.words}: {found.least:g}{most}")
    return f"Limits: {'; '.join(words)}." if len(words) <= 12 else ""


def _models(series: Series, entry: Entry) -> np.ndarray:
    rounds = series.rounds(entry)
    received = np.nan_to_num(grid(rounds, rounds["models_in"]))
    return np.concatenate([received.mean(axis=1), np.zeros(entry.rounds - len(received))]) if received.size else np.zeros(0)
