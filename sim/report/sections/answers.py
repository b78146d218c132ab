"""Section on models with a solution for every preference: the front of each node's solutions in each run."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np

from p2pfl.sim.formatting import number, some
from p2pfl.sim.report.sections.objectives import meant
from p2pfl.sim.report.series import Figure, Section, Series, by_key
from p2pfl.sim.report.summary import AllAnswers


def section(series: Sequence[Series]) -> Section | None:
    """Return the section; runs with other objectives have separate figures."""
    having = [one for one in series if one.shown.answers is not None]
    if not any(any(node.preferences) for one in having for node in answers_of(one).nodes):
        return None
    alike = list(by_key(having, lambda one: tuple(answers_of(one).higher_is_better.items())).values())
    figures = [figure(f"solutions-{k}" if k else "solutions", runs) for k, runs in enumerate(alike)]
    text = [
        "The model of each node has a solution for every preference. The figure shows the Pareto-optimal ones of each run."
        " Those that no solution of another run dominates are on the front."
    ]
    return {"id": "answers", "title": "Solutions by preference", "text": text, "figures": figures} if figures else None


def answers_of(series: Series) -> AllAnswers:
    found = series.shown.answers
    assert found is not None  # see section
    return found


def figure(id: str, series: Sequence[Series]) -> Figure:
    """Return the solutions of each node as points, with a view for each node and pair of objectives."""
    goals = answers_of(series[0]).higher_is_better
    names = list(goals)
    views = []
    for node in range(max(len(answers_of(one).nodes) for one in series)):
        having = [one for one in series if node < len(answers_of(one).nodes)]
        for a, b in combinations(range(len(names)), 2):
            points = [point for one in having for point in points_of(one, node, a, b, dominated(one, node, having))]
            label = f"node {node}" + (f": {names[a]} and {names[b]}" if len(names) > 2 else "")
            view: dict[str, Any] = {"label": label, "x_unit": "", "x_log": False, "points": points, "known": []}
            view |= {"x_label": meant(names[a], goals[names[a]]), "y_label": meant(names[b], goals[names[b]])}
            views.append(view | {"fronts": {"x": goals[names[a]], "stepped": len(names) == 2}})
    seeds = sorted({one.shown.seed for one in series})
    note = f"On the node's own test data, {f'seed {seeds[0]}' if len(seeds) == 1 else 'one seed of each run'}."
    title = f"Objectives of a node's solutions: {some(names)}"
    return {"id": id, "kind": "scatter", "title": title, "note": note} | views[0] | {"views": views}


def dominated(series: Series, node: int, others: Sequence[Series]) -> list[bool]:
    """Return whether each solution of a node is dominated by one of the same node in another run."""
    signs = np.where(list(answers_of(series).higher_is_better.values()), 1, -1)
    found = [np.array(answers_of(one).nodes[node].points).reshape(-1, len(signs)) * signs for one in others]
    all_points = np.concatenate(found)
    own = np.array(answers_of(series).nodes[node].points).reshape(-1, len(signs)) * signs
    return [bool(((all_points >= point).all(1) & (all_points > point).any(1)).any()) for point in own]


def points_of(series: Series, node: int, a: int, b: int, worse: Sequence[bool]) -> list[dict[str, Any]]:
    """Return the points of a node's solutions by objectives a and b, each with its preference.

    Args:
        worse: whether each solution is dominated.
    """
    of = answers_of(series).nodes[node]
    return [
        {
            "run": series.name,
            "x": point[a],
            "y": point[b],
            "on_front": not beaten,
            "label": f"preference {format_preference(preference)}" if preference else "single model",
        }
        for preference, point, beaten in zip(of.preferences, of.points, worse, strict=True)
    ]


def format_preference(preference: Sequence[float]) -> str:
    return ", ".join(number(weight) for weight in preference)
