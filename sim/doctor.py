"""Checks of `p2pfl-sim doctor`: what would stop the next simulation, with the remedy in one line.

They go from the installation to the scenario: the package that runs, the libraries that p2pfl-sim and the scenario need, the
scenario itself, the data of its tasks, the memory, and the folder for the results.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from p2pfl._util import toml_tables
from p2pfl._util.atomic_files import reason
from p2pfl.errors import ConfigurationError, MissingRequirementError
from p2pfl.installation import Finding, Need, check_extras, check_installation, needs_of_task

if TYPE_CHECKING:
    from p2pfl.sim.scenario.scenario import Scenario, ScenarioFile

LIBRARIES = ("torch", "duckdb", "moocore", "networkx", "scipy", "sklearn", "threadpoolctl", "xxhash")  # of the extra sim
LEAST_FREE = 100_000_000  # bytes for results
CORRECT = "correct it in the scenario"


def run_checks(scenario: str | None, here: Path) -> list[Finding]:
    """Return the findings of all checks.

    Args:
        scenario: name of a shipped scenario, or a file; None takes `scenario.toml` of the current folder, if it is there.
        here: the current folder, in which results are written.
    """
    if scenario is None and (here / "scenario.toml").is_file():
        scenario = str(here / "scenario.toml")
    found = check_installation(here, "p2pfl-sim")
    needs = [Need("p2pfl-sim", module, "sim") for module in LIBRARIES]
    extras = check_extras([*needs, *_needs_of(scenario)])
    found += [*extras, check_disk(here)]
    if scenario is None:
        return [*found, Finding("scenario", None, "none was checked", "name one: p2pfl-sim doctor SCENARIO")]
    if any(each.ok is False and each.remedy.endswith("[sim]'") for each in extras):
        return [*found, Finding("scenario", None, "not checked, because the extra sim is missing")]
    return [*found, *check_scenario(scenario)]


def _needs_of(scenario: str | None) -> list[Need]:
    """Return what the tasks of a scenario file need; its runs are not resolved, so that nothing has to be installed."""
    if scenario is None or not scenario.endswith(".toml") or not Path(scenario).is_file():
        return []
    try:
        raw = toml_tables.read(Path(scenario))
    except ConfigurationError:
        return []
    runs = raw.get("run")
    tables = [raw, *(each for each in (runs if isinstance(runs, list) else ()) if isinstance(each, Mapping))]
    tasks = [each.get("task") for each in tables]
    return [need for task in tasks if isinstance(task, Mapping) for need in needs_of_task(task)]


def check_disk(folder: Path) -> Finding:
    """Check whether results can be written to a folder."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0")
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return Finding("disk", False, f"cannot write to {folder}: {reason(error)}", "use another folder, or free some space")
    if free < LEAST_FREE:
        return Finding("disk", False, f"only {free / 1e6:,.0f} MB are free in {folder}", "free some space")
    return Finding("disk", True, f"{free / 1e9:,.1f} GB are free")


def check_scenario(name: str) -> list[Finding]:
    """Check a scenario: its keys, its memory, and the data of each of its tasks, as the first node reads them."""
    from p2pfl.sim.execution.memory_estimate import check_runs
    from p2pfl.sim.scenario.scenario import load
    from p2pfl.sim.simulation.workers import prepared_process

    try:
        file = load(name, [])
        check_runs(file.runs, 1, 1)
    except ConfigurationError as error:
        return [Finding("scenario", False, str(error), "" if ";" in str(error) else CORRECT)]
    found = [Finding("scenario", True, f"{name}, {len(file.runs)} runs")]
    with prepared_process(file.path):
        return [*found, *_check_data(file)]


def _check_data(file: ScenarioFile) -> list[Finding]:
    """Check the data of each different task of a scenario."""
    from p2pfl._util.binding import split_name
    from p2pfl.task import Part, make_task

    tasks: dict[str, Scenario] = {}
    for run in file.runs:
        tasks.setdefault(json.dumps([run.task, run.nodes], sort_keys=True, default=str), run)
    found = []
    for run in tasks.values():
        task: dict[str, Any] = run.task
        name, options = split_name("task", task)
        try:
            made = make_task(name, options, Part(0, run.nodes), run.seed)
        except MissingRequirementError as error:
            found.append(
                Finding("data", False, f"run {run.name!r}: {error}", "" if "pip install" in str(error) else CORRECT)
            )
        except ConfigurationError as error:
            found.append(Finding("data", False, f"run {run.name!r}: {error}", "" if ";" in str(error) else CORRECT))
        else:
            facts = made.data_facts[0].line if made.data_facts else f"{made.n_samples:,} training samples of the first node"
            found.append(Finding("data", True, f"task {name}: {facts}"))
    return found
