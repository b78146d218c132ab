"""Import rules for the modules that a scenario names.

Scenario files are shared between people, and a name such as `module:factory` in one is code that runs. By itself, a
scenario therefore imports only modules in its own folder, and entry points that an installed distribution registers.
Names that the user gives, on the command line or in a dict from Python, are trusted.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from p2pfl.config.own_modules import find_module
from p2pfl.config.registry import locate, root_of
from p2pfl.errors import ConfigurationError
from p2pfl.policies import POLICIES
from p2pfl.task import TASKS

KINDS = {"task": (TASKS, "p2pfl.tasks"), "policy": (POLICIES, "p2pfl.policies")}


def given_names(changes: Iterable[tuple[str, Any]]) -> frozenset[str]:
    """Return the names of modules in changes such as ("policy.name", "mine:Heed")."""
    found = set()
    for key, value in changes:
        if key in KINDS and isinstance(value, dict):
            key, value = f"{key}.name", value.get("name")
        if key in {f"{kind}.name" for kind in KINDS} and isinstance(value, str) and ":" in value:
            found.add(value)
    return frozenset(found)


def module_folders(
    name: str, used: Iterable[tuple[str, str]], *, home: str, modules: str, given: frozenset[str], trust: bool
) -> tuple[str, ...]:
    """Return the folders to search, after all others, for the modules of a scenario's runs; () if none is needed.

    Nothing is imported.

    Args:
        name: name of the scenario, for the error.
        used: the kind and name of each task and policy of its runs.
        home: the folder of its file.
        modules: the folder that its key `modules` names.
        given: names that the user has given, not the scenario.
        trust: import every module that the scenario names.

    Raises:
        ConfigurationError: a name is malformed, or its module is neither in the scenario's folder nor registered nor
            trusted.
    """
    own = sorted((kind, path) for kind, path in used if ":" in path and path not in KINDS[kind][0].values())
    if not own:
        return ()
    if not Path(modules).is_relative_to(home) and not trust:
        modules = home  # a user of someone else's results may have put them there
    folders = (modules, home, str(Path.cwd())) if trust or any(path in given for _, path in own) else (modules,)
    for kind, path in own:
        locate(kind, path, *KINDS[kind])
        if trust or path in given or path in {point.value for point in entry_points(group=KINDS[kind][1])}:
            continue
        if not (places := find_module(modules, root_of(path))).used:
            remedy = (
                "if you trust its code, add --trust"
                if places.elsewhere
                else "put it there, or add --trust to import it from elsewhere"
            )
            elsewhere = f" but in {places.elsewhere}" if places.elsewhere else ""
            raise ConfigurationError(
                f"{name}: the {kind} {path!r} needs the module {root_of(path)}, which is not in the scenario's folder"
                f" {modules}{elsewhere}; {remedy} (in Python: trust=True)"
            )
    return tuple(dict.fromkeys(folders))
