"""Objectives of a run's models, and the fronts that they form.

Three kinds of solutions have a front: the results of the nodes of a run, or of the runs of a pool, in the objectives of
their task; the models of one node that holds one for every preference; and any two figures, such as accuracy and bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from math import nan
from typing import TYPE_CHECKING, Any

import numpy as np

from p2pfl._util.printable import plural
from p2pfl.pareto_metrics import (
    Points,
    cardinality,
    hypervolume,
    inverted_generational_distance,
    non_dominated,
    sparsity,
    to_maximisation,
)
from p2pfl.task import POINT, Task, excluded_solutions

if TYPE_CHECKING:  # a report needs no torch
    from p2pfl.sim.simulation.simulation import Run

MOST_NODES = 15  # nodes in the summary


def objective_measures(run: Run, goals: Mapping[str, bool]) -> dict[str, Any]:
    """Return the objectives of each node's result on the test data, and their measures; see `of_points`.

    of_nodes: the numbers of the nodes if some are attackers, which have no results.
    mean: of the objectives over the nodes; it is the solution of the run in a pool of means; mean_left_out: if it does
        not count.
    constants, constant: the objectives of each node's constant model, and their hypervolume, if the task has them.
    """
    found = [
        (place, task, run.recorder.results[name])
        for place, (name, task) in enumerate(zip(run.plan.names, run.tasks, strict=True))
    ]
    honest = [each for each in found if each[2]]
    task = run.tasks[0]
    points = to_maximisation([result for *_, result in honest], goals)
    mean = points.mean(0, keepdims=True)
    figures = of_points(task, points, goals) | {"mean": (mean * _signs(goals))[0].tolist()}
    if len(honest) < len(found):
        figures["of_nodes"] = [place for place, *_ in honest]
    constants = [list(of.constant) for _, of, _ in honest]
    if "reference" in figures and all(constants):
        figures |= {"constants": constants} | _of_constants(constants, figures["reference"], _signs(goals))
    return figures | ({"mean_left_out": True} if excluded_solutions(task, mean) else {})


def of_points(task: Task, points: Points, goals: Mapping[str, bool]) -> dict[str, Any]:
    """Return solutions of a task, [n, m] so that more is better, and their measures.

    higher_is_better: by the name of each objective, in order.
    nodes: the objectives of each solution, with the signs that nodes report.
    left_out: the places of solutions that the task does not count, if any. Others: see `_measure`.
    """
    signs = _signs(goals)
    figures: dict[str, Any] = {"higher_is_better": dict(goals), "nodes": (points * signs).tolist()}
    if left_out := excluded_solutions(task, points):
        figures["left_out"] = left_out
    counted = np.delete(points, left_out, axis=0)
    return figures | _measure(counted, signs, task.reference, task.front)


def _measure(points: Points, signs: np.ndarray, reference: Sequence[float], front: Any) -> dict[str, Any]:
    """Return the measures of solutions, [n, m], where more is better.

    cardinality, sparsity: see p2pfl.pareto_metrics.
    reference, hypervolume: only if there is a reference point.
    front, igd: only if the front is known; else see `with_distances`.
    """
    figures: dict[str, Any] = {"cardinality": cardinality(points), "sparsity": sparsity(points)}
    if len(reference):
        worst = np.array(reference, np.float64)
        figures |= {"reference": worst.tolist(), "hypervolume": hypervolume(points, (worst * signs).tolist())}
    if len(front):
        best = np.array(front, np.float64)
        figures |= {"front": best.tolist(), "igd": inverted_generational_distance(points, best * signs)}
    return figures


def _of_constants(constants: Sequence[Sequence[float]], reference: Sequence[float], signs: np.ndarray) -> dict[str, float]:
    """Return the hypervolume of constant models, [n, m] as reported."""
    return {"constant": hypervolume(np.array(constants, np.float64) * signs, (np.array(reference) * signs).tolist())}


def pool_results(name: str, of: str, members: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the combined solutions of the runs of a pool and their measures, for each seed.

    labels: of each solution, the name of its run without that of the pool, and its node.
    objectives: as for `of_points`; its `nodes` are the solutions.

    Args:
        of: the solutions of a run; see p2pfl.sim.scenario.scenario.Pool.
        members: entries of `runs` in summary.json.
    """
    found = []
    for seed in dict.fromkeys(run["seed"] for run in members):
        runs = [run for run in members if run["seed"] == seed]
        first = runs[0]["objectives"]
        labels: list[str] = []
        solutions: list[list[float]] = []
        left_out: list[int] = []
        for run in runs:
            objectives = run["objectives"]
            called = str(run["name"]).removeprefix(name).removeprefix(", ") or str(run["name"])
            if of == "means":
                left_out += [len(solutions)] if objectives.get("mean_left_out") else []
                labels.append(called)
                solutions.append(objectives["mean"])
            else:
                left_out += [len(solutions) + node for node in objectives.get("left_out", ())]
                labels += [f"{called}, node {node}" for node in objectives.get("of_nodes", range(len(objectives["nodes"])))]
                solutions += objectives["nodes"]
        figures = {"higher_is_better": first["higher_is_better"], "nodes": solutions}
        figures |= {"left_out": left_out} if left_out else {}
        signs = _signs(first["higher_is_better"])
        points = np.delete(np.array(solutions, np.float64) * signs, left_out, axis=0)
        figures |= _measure(points, signs, first.get("reference", ()), first.get("front", ()))
        if constants := first.get("constants"):
            of_pool = np.mean(constants, axis=0, keepdims=True).tolist() if of == "means" else constants
            figures |= _of_constants(of_pool, figures["reference"], signs)
        found.append({"name": name, "seed": seed, "of": of, "labels": labels, "objectives": figures})
    return found


def own_fronts(members: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the mean hypervolume of the nodes' fronts over the runs of a pool, for each seed of the pool.

    The points are the models' errors and disparities, the reference point is (1, 1), and the mean is over the nodes, as
    in PraFFL. Nodes without figures, such as attackers, do not count.
    """
    found = []
    for seed in dict.fromkeys(run["seed"] for run in members):
        runs = [[run["extra_metrics"][name]["nodes"] for name in sorted(POINT)] for run in members if run["seed"] == seed]
        nodes = np.array(runs, np.float64).transpose(2, 0, 1)  # [nodes, runs, 2]
        known = [points for points in nodes if not np.isnan(points).all()]
        found.append(float(np.mean([hypervolume(-points, [-1.0, -1.0]) for points in known])) if known else nan)
    return found


def with_distances(runs: Sequence[dict[str, Any]], levels: Mapping[str, str]) -> list[dict[str, Any]]:
    """Add `igd` to the objectives of runs whose task has no known front: the distance from the front of all runs here.

    That front is computed from runs with the same objectives, separately for each seed, because seeds differ in their
    problem. Runs, pools of means and pools of all models are also separate, as in the report.

    Args:
        levels: by the name of a run or a pool, what else separates it; see p2pfl.sim.scenario.questions.surroundings.
    """
    points: dict[Any, list[np.ndarray]] = {}
    for run in runs:
        if _unknown(run):
            # all at once would need too much memory
            points.setdefault(_problem(run, levels), []).append(non_dominated(_points(run)))
    fronts = {key: non_dominated(np.concatenate(found)) for key, found in points.items()}

    def with_distance(run: dict[str, Any]) -> dict[str, Any]:
        distance = inverted_generational_distance(_points(run), fronts[_problem(run, levels)])
        return run | {"objectives": run["objectives"] | {"igd": distance}}

    return [with_distance(run) if _unknown(run) else run for run in runs]


def over_seeds(runs: Sequence[Mapping[str, Any]]) -> dict[str, float] | None:
    """Return the measures of a row of the table, averaged over seeds; None without objectives.

    If the task has a constant model, or solutions were left out, it also has `left_out`, their number, and `solutions`,
    the number of all.

    Args:
        runs: one for each seed, or the combined entries of a pool.
    """
    found = [run["objectives"] for run in runs if "objectives" in run]
    if not found:
        return None
    names = ("hypervolume", "constant", "igd", "sparsity", "cardinality")
    figures = {name: float(np.mean([f[name] for f in found])) for name in names if name in found[0]}
    if "constant" in found[0] or any(f.get("left_out") for f in found):
        figures["left_out"] = float(np.mean([len(f.get("left_out", ())) for f in found]))
        figures["solutions"] = float(np.mean([len(f["nodes"]) for f in found]))
    return figures


def collapses(table: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each row of the table whose solutions were all left out, with the cure."""
    rows = [(row["name"], row.get("objectives", {})) for row in table]
    return [
        f"none of the {figures['solutions']:.0f} solutions{f' of {name!r}' if name else ''} counts, because each is almost a"
        " constant model: give the first objective more weight in task.preference, train for more rounds, or set"
        " task.normalise = false"
        for name, figures in rows
        if "left_out" in figures and figures["left_out"] == figures["solutions"]
    ]


def _unknown(run: Mapping[str, Any]) -> bool:
    return "objectives" in run and "igd" not in run["objectives"]


def _problem(run: Mapping[str, Any], levels: Mapping[str, str]) -> Any:
    return levels.get(run["name"], ""), run["seed"], run.get("of"), tuple(run["objectives"]["higher_is_better"].items())


def _points(run: Mapping[str, Any]) -> np.ndarray:
    objectives = run["objectives"]
    points: np.ndarray = np.array(objectives["nodes"], np.float64) * _signs(objectives["higher_is_better"])
    return np.delete(points, objectives.get("left_out", []), axis=0)


def _signs(goals: Mapping[str, bool]) -> np.ndarray:
    return np.array([1 if higher else -1 for higher in goals.values()])


def solution_measures(run: Run) -> dict[str, Any] | None:
    """Return each of the first nodes' non-dominated solutions on its test data; None if there are none.

    higher_is_better: by the name of each objective.
    nodes: of each, preferences and points [k, m]; a node without test data has none.
    dead: number of all nodes whose solutions are all the same, or all constant; left out if there are none.
    """
    found = [task.solutions(params) for task, params in islice(zip(run.tasks, run.state.models, strict=True), MOST_NODES)]
    there = [each for each in found if each is not None]
    if not there:
        return None
    answers = [
        {"preferences": [], "points": []}
        if each is None
        else {"preferences": each.preferences.tolist(), "points": each.points.tolist()}
        for each in found
    ]
    dead = int((run.recorder.result("test_dead").filled(0.0) > 0).sum())
    return {
        "higher_is_better": dict(there[0].higher_is_better),
        "nodes": answers,
        **({"dead": dead} if dead else {}),
    }


def died(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each run with nodes whose model ignores the preference, with the cure.

    Args:
        runs: entries of `runs` in summary.json.
    """
    return [
        f"{plural(run['answers']['dead'], 'node')} of {run['name']!r}, seed {run['seed']}: its solutions do not depend on"
        " the preference, or are constant, probably because all ReLU units of the shared part give 0: train for more"
        " rounds, or lower task.optimizer.lr"
        for run in runs
        if run.get("answers", {}).get("dead")
    ]


def on_front(costs: Sequence[float], values: Sequence[float], higher_is_better: bool) -> list[bool]:
    """Return for each point whether no other is better in one criterion and at least as good in the other.

    A point without a figure (NaN) is not on the front, and dominates no other.
    """
    points = np.column_stack([-np.array(costs, float), np.array(values, float) * (1 if higher_is_better else -1)]) + 0.0
    complete = ~np.isnan(points).any(axis=1)
    front = {tuple(point) for point in non_dominated(points[complete]).tolist()}
    return [tuple(point) in front for point in points.tolist()]
