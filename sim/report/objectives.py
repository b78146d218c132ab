"""Sections on several objectives: the models of the nodes, solutions by preference, and a search.

The fronts correspond to figure 13 of Hartmann et al. (FedPref, 2024), and their measures to its tables 3 to 6. All runs
with the same objectives share a `Space`: the reference point and the best front against which each front is measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from p2pfl.pareto_metrics import Points, measures, non_dominated
from p2pfl.sim.formatting import as_printed, bullets, number, of_paper, some, table
from p2pfl.sim.report.figures import with_band
from p2pfl.sim.report.folder import AllAnswers, Folder, Objectives, Row
from p2pfl.sim.report.series import MOST_RUNS, Figure, Front, Section, Series, by_key, reported_model, shown_seeds
from p2pfl.sim.scenario.questions import surroundings

MOST_VIEWS = 15  # pairs of objectives
MOST_NAMED = 6  # nodes named at a point
MOST_FRONTS = 10  # fronts in a figure that always shows all of its runs
MEASURES = (("hypervolume", "hypervolume"), ("igd", "IGD"), ("sparsity", "sparsity"), ("cardinality", "solutions"))
BEYOND = 0.1  # distance of the default reference point beyond an objective's worst value, as a share of its range


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


def objectives_section(series: Sequence[Series]) -> Section | None:
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
        surroundings(series.shown.varied),
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
        view = {"label": f"{names[a]} and {names[b]}"} | _axes(points, names, space.signs, a, b)
        views.append(view | {"known": [[values[a], values[b]] for values in known]})
    pool = series[0].shown.pool
    means = pool and shown_front(series[0]).of == "means"
    title = (
        "Mean objectives of each run" if means else f"Objectives of the {shown_front(series[0]).objectives.each}s' models"
    )
    title += f", and the front of each {'pool' if pool else 'run'}"
    level = surroundings(series[0].shown.varied)
    title += f": {some(names)}{f'; {level}' if level else ''}" if several else ""
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


def _axes(points: Sequence[Any], names: Sequence[str], signs: np.ndarray, a: int, b: int) -> dict[str, Any]:
    """Return the points and the axes of a view of objectives a and b."""
    x, y = (f"{names[k]} ({'more' if signs[k] > 0 else 'less'} is better)" for k in (a, b))
    front = {"x": bool(signs[a] > 0), "stepped": len(names) == 2}
    return {"points": points, "x_label": x, "y_label": y, "x_unit": "", "x_log": False, "fronts": front}


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
    pool = series[0].shown.pool
    run, model = ("pool", "solution") if pool else ("run", "model")
    means = pool and shown_front(series[0]).of == "means"
    what = "Mean objectives over the nodes of each run" if means else "Objectives of models"
    of = f": {reported_model(series)}" if shown_front(series[0]).objectives.each == "node" else ""
    words = f"{what}, {shown_seeds(series, run)}{of}. Filled marks are on the front of their {run}: no other {model} of the"
    words += f" {run} is at least as good in every objective, and better in one."
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


@dataclass(frozen=True)
class Space:
    """Reference point and best front of some runs; signs are such that more is better.

    Attributes:
        signs: 1 for an objective if more of it is better, else -1; [m].
        reference: of the hypervolume, [m].
        given: the task sets the reference; else it is a tenth of the range beyond the worst value of each objective.
        known: the front of attainable solutions, [k, m]; None if the task does not provide it.
        found: if `known` is None, the front of all models of a seed; [k, m].
    """

    signs: np.ndarray
    reference: Points
    given: bool
    known: Points | None
    found: Mapping[int, Points]

    def measures(self, seed: int, objectives: Objectives) -> dict[str, float]:
        """Return hypervolume, sparsity, cardinality and igd of a run's models."""
        front = self.found[seed] if self.known is None else self.known
        return measures(points_of(objectives), self.reference.tolist(), front)

    def with_reported_signs(self, points: Points) -> list[list[float]]:
        """Return points with the signs that nodes report."""
        rows: list[list[float]] = (points * self.signs + 0.0).tolist()  # no -0.0
        return rows


def space_of(runs: Sequence[tuple[int, Objectives]]) -> Space:
    """Return the space in which the fronts of runs are measured.

    An unknown front is replaced by that of all models of the same seed, because problems may differ between seeds.

    Args:
        runs: one or more with the same objectives, each with its seed.
    """
    first = runs[0][1]
    signs = signs_of(first)
    by_seed: dict[int, list[Points]] = {}
    for seed, objectives in runs:
        by_seed.setdefault(seed, []).append(non_dominated(points_of(objectives)))  # all at once would need too much memory
    models = np.concatenate([points_of(objectives) for _, objectives in runs])
    return Space(
        signs,
        np.array(first.reference) * signs if first.reference else beyond(models),
        bool(first.reference),
        np.array(first.front, np.float64) * signs if first.front else None,
        {seed: non_dominated(np.concatenate(points)) for seed, points in by_seed.items()},
    )


def beyond(points: Points) -> Points:
    """Return the point a tenth of each column's range below its least value; 0 for no points."""
    if not len(points):
        return np.zeros(points.shape[1])
    least = points.min(0)
    found: Points = least - BEYOND * (points.max(0) - least)
    return found


def points_of(objectives: Objectives) -> Points:
    """Return the objectives of a run's valid models, [n, m], so that more is better.

    Models with NaN values, and models that the task has left out, are omitted.
    """
    signs = signs_of(objectives)
    rows = np.array(objectives.nodes, np.float64).reshape(len(objectives.nodes), len(signs))
    rows[objectives.left_out] = np.nan
    kept: Points = rows[np.isfinite(rows).all(1)] * signs
    return kept


def signs_of(objectives: Objectives) -> np.ndarray:
    return np.array([1.0 if higher else -1.0 for higher in objectives.higher_is_better.values()])


def answers_section(series: Sequence[Series]) -> Section | None:
    """Return the section; runs with other objectives have separate figures."""
    having = [(one, one.shown.answers) for one in series if one.shown.answers is not None]
    if not any(any(node.preferences) for _, answers in having for node in answers.nodes):
        return None
    alike = by_key(
        having, lambda each: (surroundings(each[0].shown.varied), tuple(each[1].higher_is_better.items()))
    ).values()
    figures = [answers_figure(f"solutions-{k}" if k else "solutions", runs) for k, runs in enumerate(alike)]
    text = [
        "The model of each node has a solution for every preference. The figure shows the Pareto-optimal ones of each run."
        " Those that no solution of another run dominates are on the front."
    ]
    return {"id": "answers", "title": "Solutions by preference", "text": text, "figures": figures}


def answers_figure(id: str, having: Sequence[tuple[Series, AllAnswers]]) -> Figure:
    """Return the solutions of each node as points, with a view for each node and pair of objectives."""
    goals = having[0][1].higher_is_better
    names, signs = list(goals), np.where(list(goals.values()), 1, -1)
    views = []
    for node in range(max(len(answers.nodes) for _, answers in having)):
        there = [(one.name, answers.nodes[node]) for one, answers in having if node < len(answers.nodes)]
        rivals = np.concatenate([np.array(of.points).reshape(-1, len(signs)) * signs for _, of in there])
        for a, b in combinations(range(len(names)), 2):
            points = [
                {
                    "run": run,
                    "x": point[a],
                    "y": point[b],
                    "on_front": not _dominated(np.array(point) * signs, rivals),
                    "label": f"preference {', '.join(map(number, preference))}" if preference else "single model",
                }
                for run, of in there
                for preference, point in zip(of.preferences, of.points, strict=True)
            ]
            called = having[0][0].shown.labels
            owner = called[node] if node < len(called) else f"node {node}"
            label = owner + (f": {names[a]} and {names[b]}" if len(names) > 2 else "")
            views.append({"label": label} | _axes(points, names, signs, a, b) | {"known": []})
    runs = [one for one, _ in having]
    note = f"On the node's own test data, {shown_seeds(runs)}: {reported_model(runs)}."
    level = surroundings(having[0][0].shown.varied)
    title = f"Objectives of a node's solutions: {some(names)}{f'; {level}' if level else ''}"
    return {"id": id, "kind": "scatter", "title": title, "note": note} | views[0] | {"views": views}


def _dominated(point: np.ndarray, others: np.ndarray) -> bool:
    return bool(((others >= point).all(1) & (others > point).any(1)).any())


def search_section(series: Sequence[Series]) -> Section | None:
    """Return the section on the hypervolume by iterations and candidates; None if the task has no reference point.

    Seeds of a run can differ in their number of iterations, for example after a change of the scenario. The curve ends
    with the shortest.
    """
    tables: dict[str, np.ndarray] = {}
    x: dict[str, dict[str, np.ndarray]] = {"iterations": {}, "candidates": {}}
    for one in series:
        shortest = min(len(entry.hypervolumes) for entry in one.entries)
        if not shortest:
            continue
        tables[one.name] = np.array([entry.hypervolumes[:shortest] for entry in one.entries])
        iterations = np.arange(1, shortest + 1)
        found = one.shown.objectives
        each = len(found.nodes) // len(one.shown.hypervolumes) if found is not None else 1
        x["iterations"][one.name], x["candidates"][one.name] = iterations, iterations * each
    if not tables:
        return None
    note = "Front of all candidates so far, relative to the reference point of the task; mean over seeds."
    figure: Figure = {"id": "hypervolume", "kind": "lines", "title": "Hypervolume of the front", "y_label": "hypervolume"}
    figure |= {"views": [{"label": label, "unit": "", "x": values} for label, values in x.items()]}
    return {"id": "search", "title": "Search", "text": [], "figures": [figure | with_band(tables, note)]}


def search_table(folders: Sequence[Folder], series: Sequence[Series]) -> str:
    """Return a table for each folder with the number of candidates and the time, next to a paper's figure."""
    html = ""
    for folder in folders:
        rows = {row.name: row for row in folder.summary.table}
        papers = any(row.paper is not None for row in rows.values())
        heads = ["Run", "nodes", "rounds per candidate", "candidates", "seconds per seed"]
        heads += [of_paper(folder.summary.figure)] if papers else []
        cells, own = [], [each for each in series if each.folder is folder]
        found = [rows.get(one.shown.name, Row(one.shown.name)) for one in own]
        for one, row, paper in zip(own, found, as_printed(row.paper for row in found), strict=True):
            cells.append([one.name, str(one.shown.nodes), str(one.shown.rounds), str(row.candidates or "")])
            cells[-1] += [number(row.seconds), *([paper] if papers else [])]
        html += f"<h3>{escape(str(folder.path))}</h3>\n" if len(folders) > 1 else ""
        html += table(heads, cells) + bullets([f"Note: {note}" for note in folder.summary.notes])
    return html
