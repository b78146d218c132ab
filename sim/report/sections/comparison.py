"""Section on two folders: the differences of the runs that both have, by seed and by node."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from p2pfl.sim.report.comparison import Comparison, comparisons
from p2pfl.sim.report.sections.outcome import worst
from p2pfl.sim.report.series import Figure, Section, Series, by_key, folder_names


def section(series: Sequence[Series]) -> Section | None:
    """Return the section; None without two folders that have a run in common."""
    found = comparisons(series)
    if not found:
        return None
    first, second = folder_names([found[0].first.folder.path, found[0].second.folder.path])
    figures: list[Figure] = []
    for metric, alike in by_key([each.second for each in found], lambda one: one.metric).items():
        shared = [each for each in found if each.second in alike]
        suffix = "" if metric == found[0].first.metric else f"-{metric}"
        figures += [_of_seeds(suffix, metric, shared), *_of_nodes(suffix, metric, shared)]
    text = [f"Differences are {second} minus {first}, for runs with the same name and the same seed."]
    return {"id": "comparison", "title": f"Comparison of {first} and {second}", "text": text, "figures": figures}


def _of_seeds(suffix: str, metric: str, found: Sequence[Comparison]) -> Figure:
    runs = {
        each.second.name: {"values": each.differences, "worst": np.zeros(len(each.seeds), np.uint8), "mean": each.mean}
        for each in found
    }
    figure: Figure = {"id": f"difference{suffix}", "kind": "distribution", "title": f"Difference in the test {metric}"}
    figure |= {"x_label": f"difference in test {metric}", "note": "One mark per seed: the mean over the nodes."}
    alike = len({each.seeds for each in found}) == 1
    figure |= {"labels": [f"seed {seed}" for seed in found[0].seeds]} if alike else {}
    return figure | {"of": "seed", "zero": True, "runs": runs, "unfiltered": True}


def _of_nodes(suffix: str, metric: str, found: Sequence[Comparison]) -> list[Figure]:
    """Return a figure of the difference of each node with one seed; [] if the folders have other nodes."""
    runs = {}
    for each in found:
        first, second = each.first.shown, each.second.shown
        values = [np.array([np.nan if v is None else v for v in entry.test.nodes], float) for entry in (first, second)]
        if first.seed != second.seed or len(values[0]) != len(values[1]) or not np.isfinite(values[1] - values[0]).any():
            continue
        differences = values[1] - values[0]
        marks = worst(differences, second.better_is_higher)
        runs[each.second.name] = {"values": differences, "worst": marks, "mean": float(np.nanmean(differences))}
    if not runs:
        return []
    labels = next((each.second.shown.labels for each in found if each.second.name in runs), [])
    alike = all(each.second.shown.labels in (labels, []) for each in found)
    figure: Figure = {"id": f"difference-nodes{suffix}", "kind": "distribution"}
    figure |= {"title": f"Difference in the test {metric} of each node", "x_label": f"difference in test {metric}"}
    figure |= {"note": f"One mark per node, seed {found[0].second.shown.seed}; the tenth that loses most is highlighted."}
    return [figure | ({"labels": labels} if labels and alike else {}) | {"zero": True, "runs": runs, "unfiltered": True}]
