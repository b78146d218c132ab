"""Sentences computed from the results."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from p2pfl.sim.formatting import number, some
from p2pfl.sim.report.comparison import comparisons, sentences
from p2pfl.sim.report.coordination import of_clusters
from p2pfl.sim.report.folder import Folder
from p2pfl.sim.report.insights import findings as of_summary
from p2pfl.sim.report.recommendations import in_words, recommendations
from p2pfl.sim.report.series import Series, by_key, folder_names

MOST_PROBLEMS = 4  # with more, the table shows this better


def findings(folders: Sequence[Folder], series: Sequence[Series]) -> list[str]:
    """Return the sentences for the head of a report."""
    problems = by_key(series, lambda one: (one.metric, one.problem))
    names = folder_names([folder.path for folder in folders])
    found = sentences(comparisons(series), names)
    recommended = len(folders) == 1 and bool(recommendations(folders[0].raw))
    if len(problems) <= MOST_PROBLEMS and not recommended:
        found += [sentence for (metric, _), alike in problems.items() for sentence in best(metric, alike, len(problems) > 1)]
    found += of_clusters(series)
    for folder, name in zip(folders, names, strict=True):
        runs = folder.scenario.get("run")
        try:
            insights = of_summary(folder.raw, runs if isinstance(runs, list) else [])
        except (KeyError, TypeError, ValueError, AttributeError):
            continue  # a summary of an older version lacks some figures for sentences
        found += insights if len(folders) == 1 else [f"{name}: {sentence}" for sentence in insights]
    return found


def best(metric: str, series: Sequence[Series], several: bool = False) -> list[str]:
    """Return the best run and its distance from the next one, relative to the deviation between seeds.

    Args:
        several: whether there are other runs with another learning problem.
    """
    found = []
    for one in series:
        if means := one.means():
            found.append((float(np.mean(means)), float(np.std(means, ddof=1)) if len(means) > 1 else None, in_words(one)))
    if len(found) < 2:
        return []
    sign = -1 if series[0].shown.better_is_higher else 1
    (mean, deviation, name), (other, other_deviation, second), *_ = sorted(found, key=lambda each: sign * each[0])
    tied = [each for value, _, each in found if value == mean]
    best_is = f"Best test {metric} (mean over nodes and seeds):"
    among = f" among {len(found)} runs with the same problem" if several else ""
    if len(tied) > 1:
        return [f"{best_is} {some(tied)}{among}, with {number(mean)} each."]
    words = f"{best_is} {name}{among}, with {number(mean)}; next: {second}, with {number(other)}."
    if deviation is None or other_deviation is None:
        return [words + " With one seed, the effect of chance is unknown."]
    if abs(mean - other) <= deviation + other_deviation:
        words += " The difference is within the sum of their standard deviations over seeds."
    return [words]
