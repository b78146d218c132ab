"""What the models of a run's nodes are worth in each of several objectives, and measures of the front that they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from p2pfl.pareto_metrics import (
    Points,
    cardinality,
    hypervolume,
    inverted_generational_distance,
    non_dominated,
    sparsity,
    to_maximisation,
)
from p2pfl.sim.simulation.simulation import Run
from p2pfl.task import POINT, Task, excluded_solutions, front_of, reference_of


def of_run(run: Run, goals: Mapping[str, bool]) -> dict[str, Any]:
    """Return the objectives of each node's result on the test data, and measures of all of them; see `of_points`.

    mean: of the objectives over the nodes, the one solution that the run is in a pool of means; mean_left_out: if it does
        not count.
    """
    task = next(iter(run.nodes.values())).task
    points = to_maximisation([run.recorder.results[name] for name in run.nodes], goals)
    mean = points.mean(0, keepdims=True)
    figures = of_points(task, points, goals) | {"mean": (mean * _signs(goals))[0].tolist()}
    return figures | ({"mean_left_out": True} if excluded_solutions(task, mean) else {})


def of_points(task: Task, points: Points, goals: Mapping[str, bool]) -> dict[str, Any]:
    """Return solutions of a task, [n, m] so that more is better, and measures of all of them.

    higher_is_better: by the name of each objective, in their order.
    nodes: the objectives of each solution, such as that of each node, as they are reported.
    left_out: the places of solutions that the task does not count, if there are any.
    And the measures; see `_measured`.
    """
    signs = _signs(goals)
    figures: dict[str, Any] = {"higher_is_better": dict(goals), "nodes": (points * signs).tolist()}
    if left_out := excluded_solutions(task, points):
        figures["left_out"] = left_out
    counted = np.delete(points, left_out, axis=0)
    return figures | _measure(counted, signs, reference_of(task), front_of(task))


def _measure(points: Points, signs: np.ndarray, reference: Sequence[float], front: Any) -> dict[str, Any]:
    """Return the measures of solutions, [n, m], of which more is better.

    cardinality, sparsity: see p2pfl.pareto_metrics.
    reference, hypervolume: only where there is a reference point.
    front, igd: only where the front is known; else see `with_distances`.
    """
    figures: dict[str, Any] = {"cardinality": cardinality(points), "sparsity": sparsity(points)}
    if len(reference):
        worst = np.array(reference, np.float64)
        figures |= {"reference": worst.tolist(), "hypervolume": hypervolume(points, (worst * signs).tolist())}
    if len(front):
        best = np.array(front, np.float64)
        figures |= {"front": best.tolist(), "igd": inverted_generational_distance(points, best * signs)}
    return figures


def pool_results(name: str, of: str, members: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what the runs of a pool are worth together, for each seed that they have.

    labels: of each solution, what its run is called beside the name of the pool, and the node that has it.
    objectives: as of `of_run`; its `nodes` are the solutions.

    Args:
        of: what a run gives; see p2pfl.sim.scenario.scenario.Pool.
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
            told = run["objectives"]
            called = str(run["name"]).removeprefix(name).removeprefix(", ") or str(run["name"])
            if of == "means":
                left_out += [len(solutions)] if told.get("mean_left_out") else []
                labels.append(called)
                solutions.append(told["mean"])
            else:
                left_out += [len(solutions) + node for node in told.get("left_out", ())]
                labels += [f"{called}, node {node}" for node in range(len(told["nodes"]))]
                solutions += told["nodes"]
        figures = {"higher_is_better": first["higher_is_better"], "nodes": solutions}
        figures |= {"left_out": left_out} if left_out else {}
        signs = _signs(first["higher_is_better"])
        points = np.delete(np.array(solutions, np.float64) * signs, left_out, axis=0)
        figures |= _measure(points, signs, first.get("reference", ()), first.get("front", ()))
        found.append({"name": name, "seed": seed, "of": of, "labels": labels, "objectives": figures})
    return found


def own_fronts(members: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return what the models that each node has from the runs of a pool are worth together, for each seed of the pool.

    It is the hypervolume of their errors and disparities with the reference point (1, 1), averaged over the nodes, as PraFFL
    measures.
    """
    found = []
    for seed in dict.fromkeys(run["seed"] for run in members):
        runs = [[run["extra_metrics"][name]["nodes"] for name in sorted(POINT)] for run in members if run["seed"] == seed]
        nodes = np.array(runs, np.float64).transpose(2, 0, 1)  # [nodes, runs, 2]
        found.append(float(np.mean([hypervolume(-points, [-1.0, -1.0]) for points in nodes])))
    return found


def with_distances(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add `igd` to the objectives of runs whose task does not know its front: the distance from the front of all runs here.

    Those count that have the same objectives, each seed for itself, as seeds differ in their problem; and runs, pools of
    means and pools of all models each for themselves, as in the report.
    """
    points: dict[Any, list[np.ndarray]] = {}
    for run in runs:
        if _unknown(run):
            points.setdefault(_problem(run), []).append(non_dominated(_points(run)))  # all at once: too much memory
    fronts = {key: non_dominated(np.concatenate(found)) for key, found in points.items()}

    def with_distance(run: dict[str, Any]) -> dict[str, Any]:
        distance = inverted_generational_distance(_points(run), fronts[_problem(run)])
        return run | {"objectives": run["objectives"] | {"igd": distance}}

    return [with_distance(run) if _unknown(run) else run for run in runs]


def over_seeds(runs: Sequence[Mapping[str, Any]]) -> dict[str, float] | None:
    """Return the measures of a row of the table, averaged over seeds; None without objectives.

    Args:
        runs: one for each seed, or what their pool has together.
    """
    found = [run["objectives"] for run in runs if "objectives" in run]
    names = ("hypervolume", "igd", "sparsity", "cardinality")
    return {name: float(np.mean([f[name] for f in found])) for name in names if name in found[0]} if found else None


def _unknown(run: Mapping[str, Any]) -> bool:
    return "objectives" in run and "igd" not in run["objectives"]


def _problem(run: Mapping[str, Any]) -> Any:
    return run["seed"], run.get("of"), tuple(run["objectives"]["higher_is_better"].items())


def _points(run: Mapping[str, Any]) -> np.ndarray:
    objectives = run["objectives"]
    points: np.ndarray = np.array(objectives["nodes"], np.float64) * _signs(objectives["higher_is_better"])
    return np.delete(points, objectives.get("left_out", []), axis=0)


def _signs(goals: Mapping[str, bool]) -> np.ndarray:
    return np.array([1 if higher else -1 for higher in goals.values()])
