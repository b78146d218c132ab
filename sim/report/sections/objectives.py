"""Section on several objectives: the value of each node's model in each, and the fronts of the runs.

The fronts correspond to figure 13 of Hartmann et al. (FedPref, 2024), and their measures to its tables 3 to 6.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from p2pfl.pareto_metrics import non_dominated
from p2pfl.sim.formatting import number, some
from p2pfl.sim.markup import table
from p2pfl.sim.report.sections.solutions import Space, points_of, space_of
from p2pfl.sim.report.series import MOST_RUNS, Figure, Front, Section, Series, by_key

MOST_VIEWS = 15  # pairs of objectives
MOST_NAMED = 6  # nodes named at a point
MOST_FRONTS = 10  # fronts in a figure that always shows all of its runs
MEASURES = (("hypervolume", "hypervolume"), ("igd", "IGD"), ("sparsity", "sparsity"), ("cardinality", "solutions"))


class Solution(NamedTuple):
    """Models with the same objectives: the values, the models' places, and whether no model of the run is better.

    Attributes:
        places: places of the nodes, or of the solutions of a pool.
        counts: the task has not left them out.
    """

    values: list[float]
    places: list[int]
    on_front: bool
    counts: bool


def section(series: Sequence[Series]) -> Section | None:
    """Return the section; runs with other objectives have separate figures."""
    found = spaces(series)
    figures = []
    for k, (space, alike) in enumerate(found):
        figures.append(fronts(f"fronts-{k}" if k else "fronts", space, alike, several=len(found) > 1))
        if len(series) > MOST_RUNS and len(alike) <= MOST_FRONTS:
            # else the page hides most of them at first, although the figure compares them
            figures[-1]["unfiltered"] = True
    return {"id": "objectives", "title": "Objectives", "text": [], "figures": figures} if figures else None


def spaces(series: Sequence[Series]) -> list[tuple[Space, list[Series]]]:
    """Return runs with the same objectives, and the space in which their fronts are measured."""
    several = [one for one in series if len(one.fronts()) == len(one.seeds)]
    alike = by_key(several, _terms).values()
    return [(space_of([(front.seed, front.objectives) for one in runs for front in one.fronts()]), runs) for runs in alike]


def shown_front(series: Series) -> Front:
    """Return the solutions with the seed that is shown."""
    return next(front for front in series.fronts() if front.seed == series.shown.seed)


def _terms(series: Series) -> tuple[Any, ...]:
    front = shown_front(series)
    objectives = front.objectives
    of = front.of if series.shown.pool else ""  # different kinds of pools get separate figures
    return (
        of,
        tuple(objectives.higher_is_better.items()),
        tuple(objectives.reference or ()),
        tuple(map(tuple, objectives.front)),
    )


def fronts(id: str, space: Space, series: Sequence[Series], several: bool = False) -> Figure:
    """Return the objectives of the nodes' models as points, each pair of objectives in its own view.

    Args:
        several: whether there are other runs with other objectives.
    """
    names = list(shown_front(series[0]).objectives.higher_is_better)
    pairs = list(combinations(range(len(names)), 2))[:MOST_VIEWS]
    models = {one.name: (one, solutions(one, space)) for one in series}
    known = [] if space.known is None else space.with_reported_signs(space.known)
    views = []
    for a, b in pairs:
        points = [point(one, model, names, a, b) for one, found in models.values() for model in found]
        view: dict[str, Any] = {"label": f"{names[a]} and {names[b]}", "x_unit": "", "x_log": False, "points": points}
        view |= {"x_label": meant(names[a], space.signs[a] > 0), "y_label": meant(names[b], space.signs[b] > 0)}
        view |= {"fronts": {"x": bool(space.signs[a] > 0), "stepped": len(names) == 2}}
        views.append(view | {"known": [[values[a], values[b]] for values in known]})
    pool = series[0].shown.pool
    means = pool and shown_front(series[0]).of == "means"
    title = (
        "Mean objectives of each run" if means else f"Objectives of the {shown_front(series[0]).objectives.each}s' models"
    )
    title += f", and the front of each {'pool' if pool else 'run'}"
    title += f": {some(names)}" if several else ""
    figure: Figure = {"id": id, "kind": "scatter", "title": title, "note": _note(series, len(names) > 2)}
    return figure | (views[0] if views else {"points": []}) | ({"views": views} if len(views) > 1 else {})


def point(series: Series, model: Solution, names: Sequence[str], a: int, b: int) -> dict[str, Any]:
    """Return a point in the view of objectives a and b; its tooltip has the others."""
    of = shown_front(series)
    labels = of.labels if len(of.labels) == len(of.objectives.nodes) else []
    numbers = of.objectives.of_nodes or range(len(of.objectives.nodes))
    called = some((labels[place] if labels else str(numbers[place]) for place in model.places), MOST_NAMED)
    called = called if series.shown.pool else f"{of.objectives.each}{'s' * (len(model.places) > 1)} {called}"
    called += "" if model.counts else " (excluded: not converged)"
    found = {"run": series.name, "x": model.values[a], "y": model.values[b], "on_front": model.on_front}
    found |= {"label": called, "size": len(model.places)}
    more = [[names[k], value] for k, value in enumerate(model.values) if k not in (a, b)]
    return found | ({"more": more} if more else {})


def meant(name: str, higher: bool) -> str:
    """Return the label of an objective's axis."""
    return f"{name} ({'more' if higher else 'less'} is better)"


def solutions(series: Series, space: Space) -> list[Solution]:
    """Return the different solutions of a run's models, for the seed that is shown."""
    of = shown_front(series).objectives
    rows = np.array(of.nodes, np.float64).reshape(len(of.nodes), len(space.signs))
    there = np.flatnonzero(np.isfinite(rows).all(1))
    points, which = np.unique(rows[there], axis=0, return_inverse=True)
    front = {tuple(best) for best in space.with_reported_signs(non_dominated(points_of(of)))}
    places = [there[which.reshape(-1) == k].tolist() for k in range(len(points))]
    values = (points + 0.0).tolist()
    left_out = set(of.left_out)
    counts = [not left_out.issuperset(of_it) for of_it in places]
    return [
        Solution(each, of_it, counted and tuple(each) in front, counted)
        for each, of_it, counted in zip(values, places, counts, strict=True)
    ]


def _note(series: Sequence[Series], several: bool) -> str:
    seeds = sorted({one.shown.seed for one in series})
    pool = series[0].shown.pool
    run, model = ("pool", "solution") if pool else ("run", "model")
    what = "Mean objectives over the nodes of each run" if pool and shown_front(series[0]).of == "means" else "Models"
    words = f"{what}, {f'seed {seeds[0]}' if len(seeds) == 1 else f'one seed of each {run}'}."
    words += f" Filled marks are on the front of their {run}: no other {model} of the {run} is at least as good in every"
    words += " objective, and better in one."
    words += " Each view shows two objectives; the front is that of all objectives." if several else ""
    owners = "solutions" if pool else f"{shown_front(series[0]).objectives.each}s"
    return (
        words + f" Larger marks stand for several {owners} with the same objectives; marks at the same place are spread out."
    )


def measure_tables(series: Sequence[Series]) -> str:
    """Return tables of the fronts' measures, one for each set of objectives; "" if there are none."""
    html, said = "", ""  # the meaning of the last table, printed once below the tables that share it
    for space, alike in spaces(series):
        seeds = max(len(one.seeds) for one in alike)
        papers = [_papers(one) for one in alike]
        means = [one.mean(one.means()) for one in alike]
        # a search has no weighted mean: each candidate has its own weights
        weighed = any(mean is not None for mean in means)
        heads = ["Run", *([f"mean {' / '.join(dict.fromkeys(one.metric for one in alike))}"] if weighed else [])]
        for key, head in MEASURES:
            heads += [head, "±"] if seeds > 1 else [head]
            heads += ["paper"] if any(key in paper for paper in papers) else []
        rows = []
        for one, mean, paper in zip(alike, means, papers, strict=True):
            row = [one.name, *([number(mean)] if weighed else [])]
            found = [space.measures(front.seed, front.objectives) for front in one.fronts()]
            for key, _ in MEASURES:
                values = [each[key] for each in found]
                row.append(f"{np.mean(values):.1f}" if key == "cardinality" else number(float(np.mean(values))))
                row += [number(float(np.std(values, ddof=1))) if len(values) > 1 else ""] if seeds > 1 else []
                row += [number(paper.get(key))] if any(key in each for each in papers) else []
            rows.append(row)
        of = (
            "all solutions of a pool"
            if alike[0].shown.pool
            else f"the models of all {shown_front(alike[0]).objectives.each}s"
        )
        meaning = _meaning(space, of, any(front.objectives.left_out for one in alike for front in one.fronts()))
        html += (said if meaning != said else "") + table(heads, rows)
        said = meaning
    return f"<h3>Fronts</h3>\n{html}{said}" if html else ""


def _papers(series: Series) -> dict[str, float]:
    """Return a paper's measures of a row, by name."""
    figure = next((row.paper for row in series.folder.summary.table if row.name == series.row), None)
    return {} if figure is None else {series.folder.summary.figure.removeprefix("objectives."): figure}


def _meaning(space: Space, of: str, left_out: bool) -> str:
    reference = ", ".join(number(value) for value in space.with_reported_signs(space.reference[None])[0])
    where = "set by the task" if space.given else "a tenth of each objective's range beyond its worst value in these runs"
    front = "the front of all models of these runs with the same seed" if space.known is None else "the known front"
    words = (
        f"Means over seeds, for {of}; ±: standard deviation over seeds. Hypervolume: volume that they dominate"
        f" above the reference point ({reference}: {where}); more is better. IGD: mean distance from the points"
        f" of {front} to the nearest model; less is better. Sparsity: mean squared distance of neighbours on the front;"
        " less is better if fronts are equally wide. Solutions: number of different models on the front."
    )
    words += " Models that the task does not count are excluded; if none is left, the hypervolume is 0." if left_out else ""
    return f'<p class="meaning">{escape(words)}</p>\n'
