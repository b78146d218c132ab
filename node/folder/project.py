"""Project of a user: a scenario file with the modules that it names, from which a node can be made."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from p2pfl.config import table_changes
from p2pfl.config.binding import split_name
from p2pfl.config.local_options import LOCAL_OPTIONS, check_shared
from p2pfl.config.own_modules import find_module, module_files
from p2pfl.config.registry import root_of
from p2pfl.errors import ConfigurationError, unknown
from p2pfl.node.folder.settings import Settings
from p2pfl.robust.registry import CLIP_LOSS
from p2pfl.system import toml_reader

SCENARIO = "scenario.toml"
KINDS = ("task", "policy")
# Keys that only describe a scenario, its table and its repetitions: they have no meaning for a node.
DESCRIPTIVE = {
    "name", "title", "description", "needs", "duration", "differences", "modules", "against", "target", "source", "table",
    "figure", "claim", "forms", "form", "run", "paper", "seeds", "varied", "pool",
}  # fmt: skip


class Project(NamedTuple):
    """Part of a project that a node uses.

    Attributes:
        scenario: path of its scenario file.
        settings: keys of node.toml that the scenario sets; `task` and `policy` are always among them.
        files: files and packages of the modules that the task and the policy need.
        unused: keys of the scenario that affect a simulation only.
    """

    scenario: Path
    settings: dict[str, Any]
    files: list[Path]
    unused: list[str]

    def describe(self) -> Iterator[str]:
        """Yield lines that state the origin of the settings, the copied modules, and the keys that are not used."""
        task, policy = (self.settings[kind]["name"] for kind in KINDS)
        yield f"task {task} and policy {policy} from {self.scenario}"
        if self.files:
            yield f"copied {', '.join(path.name for path in self.files)}; copy them again after a change"
        if "robust" not in self.settings:
            yield (
                f"the scenario sets no robust rule for all runs, and the node uses {CLIP_LOSS}; see"
                " docs/reference/configuration.md"
            )
        if self.unused:
            yield f"for simulations only, not used by the node: {', '.join(self.unused)}"

    def with_own_data(self, given: str) -> tuple[Project, str]:
        """Return the project for a node with a file of its own, and that file.

        A task with such a file has neither `data` nor a partition of it: both are for simulations.

        Args:
            given: the node's file; "" takes that of the task, if it has one.
        """
        task = dict(self.settings["task"])
        data = str(task.get("data", ""))
        if task["name"] not in LOCAL_OPTIONS or not _is_file_of_machine(task["name"], given or data):
            return self, given
        removed = [key for key in ("data", "partition") if task.pop(key, None)]
        unused = [f"task.{key}" for key in removed if given or key != "data"]
        in_project = self.scenario.parent / data
        own = given or str(in_project if in_project.exists() else data)
        return self._replace(settings=self.settings | {"task": task}, unused=[*self.unused, *unused]), own

    def copy_modules(self, folder: Path) -> None:
        """Copy the modules to a node's folder, unless that is the project's folder.

        Raises:
            ConfigurationError: a file cannot be copied.
        """
        if folder.resolve() == self.scenario.resolve().parent:
            return
        try:
            for path in self.files:
                if path.is_dir():
                    ignored = shutil.ignore_patterns("__pycache__")
                    shutil.copytree(path, folder / path.name, ignore=ignored, dirs_exist_ok=True)
                else:
                    shutil.copy(path, folder / path.name)
        except (OSError, shutil.Error) as error:
            raise ConfigurationError(f"cannot copy the modules of {self.scenario} to {folder}: {error}") from error


def read_project(source: Path, run: str | None = None) -> Project:
    """Read a project. No module of it is imported.

    Args:
        source: the scenario file, or the folder of the project.
        run: name of the `[[run]]` entry to use; by default the keys that all runs share.

    Raises:
        ConfigurationError: the scenario is missing or broken, has no such run, or names no task or no policy; or a
            module is missing, or an installed module of the same name would be imported instead.
    """
    path = source / SCENARIO if source.is_dir() else source
    if not path.is_file():
        raise ConfigurationError(
            f"{source} has no {SCENARIO}; make a project with p2pfl-sim new, or name a scenario file"
            if source.is_dir()
            else f"the scenario file {source} does not exist"
        )
    raw = toml_reader.read(path)
    table = _select_run(path, raw, run)
    for kind in KINDS:
        if not isinstance(table.get(kind), Mapping):
            choose = f", or choose a run with --run: {', '.join(_runs(raw))}" if _runs(raw) and run is None else ""
            raise ConfigurationError(
                f'{path} has no {kind} for all runs; add {kind} = {{ name = "..." }} above the runs{choose}'
            )
    if "seed" not in table and (seeds := raw.get("seeds")) and isinstance(seeds, list):
        table["seed"] = seeds[0]
    known = (*Settings.__struct_fields__, *KINDS, "budget")
    return Project(
        path,
        {key: table[key] for key in known if key in table},
        _own_files(path, table),
        sorted(table.keys() - {*known, *DESCRIPTIVE}),
    )


def _is_file_of_machine(task: str, data: str) -> bool:
    """Return whether the option `data` of a task names a file, and not a published data set or nothing."""
    if not data:
        return False
    try:
        check_shared("task", task, {"data": data})
    except ConfigurationError:
        return True
    return False


def _runs(raw: Mapping[str, Any]) -> list[str]:
    entries = raw.get("run", [])
    return [str(entry.get("name")) for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def _select_run(path: Path, raw: Mapping[str, Any], run: str | None) -> dict[str, Any]:
    """Return the keys of one run, or those of all runs."""
    base = {key: value for key, value in raw.items() if key != "run"}
    if run is None:
        return base
    names = _runs(raw)
    if run not in names:
        raise ConfigurationError(f"{path}: {unknown('run', run, names)}")
    entry = raw["run"][names.index(run)]
    if "each" in entry:
        raise ConfigurationError(f"{path}: the run {run!r} has the key `each`, so it is many runs; choose another one")
    return table_changes.merge(base, entry)


def _own_files(path: Path, table: Mapping[str, Any]) -> list[Path]:
    """Return the files of the modules that a scenario names and its folder contains."""
    folder = path.resolve().parent
    roots = []
    for kind in KINDS:
        name, _ = split_name(f"{path}: {kind}", table[kind])
        if ":" not in name:
            continue
        root = root_of(name)
        places = find_module(str(folder), root)
        if places.in_folder and places.elsewhere:
            raise ConfigurationError(
                f"{path}: a node would import the module {root} from {places.elsewhere}, not from {folder}; rename the"
                f" project's module"
            )
        if not places.in_folder and not places.elsewhere:
            raise ConfigurationError(f"{path}: the {kind} {name!r} needs the module {root}, which is not in {folder}")
        roots.append(root)
    return module_files(folder, roots)
