"""Files of a finished search: a summary as JSON, its candidates as Parquet, and the models of each front."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from p2pfl._version import __version__
from p2pfl.errors import RunError
from p2pfl.pareto_metrics import hypervolume
from p2pfl.sim.columns import Table
from p2pfl.sim.pareto.evaluation import front_of_search
from p2pfl.sim.pareto.search import FrontSearch
from p2pfl.sim.results import objectives
from p2pfl.sim.results.artifacts import MODELS, SUMMARY
from p2pfl.sim.results.results import versions
from p2pfl.sim.results.tables import write_parquet
from p2pfl.sim.scenario.claims import MEAN
from p2pfl.sim.scenario.scenario import ScenarioFile
from p2pfl.sim.simulation.sharding import task_of
from p2pfl.system.atomic_files import reason, replace_file
from p2pfl.system.json_output import to_json
from p2pfl.task import excluded_solutions, reference_of, tensors_of


def summarise(file: ScenarioFile, searches: Sequence[FrontSearch], notes: Sequence[str] = ()) -> dict[str, Any]:
    """Return the contents of summary.json.

    The key `search` distinguishes it from the summary of a run. `runs` has an entry for each row and seed, and the
    measures of the `table` are averaged over seeds.

    In an entry, `objectives` are those of all candidates in order (see p2pfl.sim.results.objectives.of_points).
    `preferences` are their preferences, `front` has the numbers of the candidates on the front, and `hypervolumes` the
    hypervolume after each iteration.
    """
    runs = objectives.with_distances([_entry(search) for search in searches])
    table = []
    for scenario in file.runs:
        repeated = [run for run in runs if run["name"] == scenario.name]
        measures = objectives.over_seeds(repeated)
        found = [run["objectives"].get("hypervolume") for run in repeated]
        row: dict[str, Any] = {"name": scenario.name, "seeds": len(repeated), "objectives": measures}
        if len(found) > 1 and None not in found:
            row["std"] = float(np.std(found, ddof=1))
        row["candidates"] = len(repeated[0]["preferences"])
        row["seconds"] = float(np.mean([run["time"]["wall_s"] for run in repeated]))
        if scenario.paper is not None:
            row["paper"] = scenario.paper
        table.append(row)
    return {
        "scenario": file.name,
        "search": True,
        "version": __version__,
        "versions": versions(),
        **({} if file.figure == MEAN else {"figure": file.figure}),
        "seeds": sorted({run["seed"] for run in runs}),
        "runs": runs,
        "table": table,
        "notes": list(dict.fromkeys([*file.notes, *notes])),
    }


def _entry(search: FrontSearch) -> dict[str, Any]:
    task, points = task_of(search.scenario, 0), search.points()
    reached = [hypervolume_of(search, k) for k in range(1, search.settings.iterations + 1)]
    return {
        "name": search.scenario.name,
        "seed": search.scenario.seed,
        "nodes": search.scenario.nodes,
        "rounds": search.scenario.rounds,
        "metric": task.metric,
        "higher_is_better": task.higher_is_better,
        "preferences": [each.preference.tolist() for each in search.candidates],
        "labels": [_preference_label(k, each.preference) for k, each in enumerate(search.candidates)],
        "front": front_of_search(points, excluded_solutions(task, points)),
        "objectives": objectives.of_points(task, points, search.goals) | {"each": "candidate"},
        "hypervolumes": [] if None in reached else reached,
        "time": {"wall_s": round(sum(each.seconds for each in search.candidates), 3)},
    }


def _preference_label(number: int, preference: np.ndarray) -> str:
    return f"{number} ({' : '.join(f'{weight:.2f}' for weight in preference)})"


def hypervolume_of(search: FrontSearch, iterations: int) -> float | None:
    """Return the hypervolume of a search after some iterations; None if there is no reference point."""
    task = task_of(search.scenario, 0)
    reference = reference_of(task)
    if not len(reference):
        return None
    points = search.points()[: iterations * search.settings.samples]
    signs = np.array([1 if higher else -1 for higher in search.goals.values()])
    counted = np.delete(points, excluded_solutions(task, points), axis=0)
    return hypervolume(counted, (np.array(reference) * signs).tolist())


def write(path: Path, searches: Sequence[FrontSearch], summary: Mapping[str, Any]) -> None:
    """Write all files of searches; summary.json comes last, so a folder with a summary.json is complete.

    Raises:
        RunError: the files cannot be written.
    """
    try:
        write_parquet(
            path / "candidates.parquet", [(run, _columns(s, run)) for s, run in zip(searches, summary["runs"], strict=True)]
        )
        shutil.rmtree(path / MODELS, ignore_errors=True)
        for search, run in zip(searches, summary["runs"], strict=True):
            _write_models(path / model_folder(run["name"], run["seed"]), search, run)
        replace_file(path / SUMMARY, [to_json(summary, indent=1).encode() + b"\n"])
    except OSError as error:
        raise RunError(f"cannot write to {path}: {reason(error)}") from error


def model_folder(row: str, seed: int) -> str:
    """Return the subfolder for the models of a search's front."""
    return f"{MODELS}/{re.sub(r'[^A-Za-z0-9.-]+', '-', row)}/seed-{seed}"


def _columns(search: FrontSearch, run: Mapping[str, Any]) -> Table:
    found = search.candidates
    front = set(run["front"])
    preferences, values = np.array(run["preferences"]), np.array(run["objectives"]["nodes"])
    return {
        "candidate": np.arange(len(found)),
        "iteration": np.array([each.iteration for each in found]),
        "started_from": np.array([each.start for each in found]),
        "generating": np.array([each.generating for each in found]),
        "on_front": np.array([k in front for k in range(len(found))]),
        **{f"preference_{name}": preferences[:, k] for k, name in enumerate(search.goals)},
        **{f"test_{name}": values[:, k] for k, name in enumerate(search.goals)},
    }


def _write_models(folder: Path, search: FrontSearch, run: Mapping[str, Any]) -> None:
    """Write the models of the front. A model's facts are one metadata entry, because several have no fixed order."""
    from safetensors.numpy import save

    task = task_of(search.scenario, 0)
    folder.mkdir(parents=True, exist_ok=True)
    for k in run["front"]:
        about = {
            "run": run["name"],
            "seed": run["seed"],
            "candidate": k,
            "preference": dict(zip(search.goals, run["preferences"][k], strict=True)),
            "test": dict(zip(search.goals, run["objectives"]["nodes"][k], strict=True)),
            "fingerprint": task.layout.fingerprint.hex(),
        }
        tensors = tensors_of(task, search.candidates[k].params, search.scenario.seed)
        content = save(tensors, {"p2pfl": json.dumps(about)})
        replace_file(folder / f"candidate-{k}.safetensors", [content])
