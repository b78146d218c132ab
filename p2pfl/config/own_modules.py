"""Modules with a user's own code: their places, and the files that they consist of."""

from __future__ import annotations

import ast
import importlib
import os
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from p2pfl.errors import ConfigurationError


class ModulePlaces(NamedTuple):
    """Places that provide a top-level module.

    Attributes:
        in_folder: whether the folder provides it.
        elsewhere: place of another module of that name, which Python imports instead of the folder's; "" is none.
    """

    in_folder: bool
    elsewhere: str

    @property
    def used(self) -> bool:
        """Return whether Python imports the module of the folder."""
        return self.in_folder and not self.elsewhere


def find_module(folder: str, module: str) -> ModulePlaces:
    """Find a top-level module in a folder at the end of Python's path, and elsewhere. Nothing is imported.

    Args:
        folder: an absolute path.
    """
    importlib.invalidate_caches()
    there = PathFinder.find_spec(module, [folder])
    try:
        found = find_spec(module)
    except ValueError:  # a module without a spec, such as __main__
        return ModulePlaces(False, "")
    if found is None or (there is not None and _places(found) == _places(there)):
        return ModulePlaces(there is not None, "")
    return ModulePlaces(there is not None, found.origin or ", ".join(found.submodule_search_locations or ["?"]))


def _places(spec: ModuleSpec) -> tuple[str | None, list[str]]:
    return spec.origin, list(spec.submodule_search_locations or [])


def module_files(folder: Path, modules: Iterable[str]) -> list[Path]:
    """Return the files of top-level modules in a folder, and of the modules of that folder that they import.

    Returns:
        Python files, and folders of packages, in the order of their names. Modules that the folder lacks are left out.

    Raises:
        ConfigurationError: a file cannot be read, or is not valid Python.
    """
    waiting, found = list(modules), dict[str, Path]()
    while waiting:
        module = waiting.pop()
        path = next((path for path in (folder / module, folder / f"{module}.py") if _is_module(path)), None)
        if path is not None and module not in found:
            found[module] = path
            waiting += _imported(path)
    return sorted(found.values())


class UsedModules(NamedTuple):
    """Modules that a computation uses.

    Attributes:
        files: files of modules that belong to no installed distribution, by a name such as "mine.py" or "mine/nets.py".
        own: top-level names of these modules.
        installed: top-level names of the modules of distributions that they import.
    """

    files: dict[str, Path]
    own: set[str]
    installed: set[str]


def used_modules(modules: Iterable[str]) -> UsedModules:
    """Return the files of top-level modules and of all modules that they import, wherever Python finds them.

    No module is imported. Modules of Python itself and modules that do not exist are left out.

    Raises:
        ConfigurationError: a file cannot be read, or is not valid Python.
    """
    importlib.invalidate_caches()
    waiting, seen, found = list(modules), set[str](), UsedModules({}, set(), set())
    while waiting:
        module = waiting.pop()
        if module in seen or module in sys.stdlib_module_names:
            continue
        seen.add(module)
        places = _source_places(module)
        if any(is_installed(str(place)) for place in places):
            found.installed.add(module)
            continue
        for place in places:
            found.own.add(module)
            found.files.update(_files_at(place))
            if place.suffix in ("", ".py"):
                waiting += _imported(place)
    return found


def _source_places(module: str) -> list[Path]:
    """Return the file or the folders of a top-level module; [] if it does not exist."""
    try:
        spec = find_spec(module)
        if spec is not None and spec.origin and not Path(spec.origin).exists():
            spec = PathFinder.find_spec(module)  # it has been moved since it was imported; built-in modules have no file
    except (ImportError, ValueError):  # a module without a spec, such as __main__
        return []
    if spec is None:
        return []
    if spec.submodule_search_locations:
        return [Path(folder) for folder in spec.submodule_search_locations]
    return [Path(spec.origin)] if spec.origin and Path(spec.origin).is_file() else []


def _files_at(place: Path) -> Iterator[tuple[str, Path]]:
    if place.is_file():
        yield place.name, place
        return
    for file in sorted(place.rglob("*.py")):
        yield (place.name / file.relative_to(place)).as_posix(), file


@cache
def _installed_folders() -> tuple[str, ...]:
    folders = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders += [*site.getsitepackages(), site.getusersitepackages()]
    folders.append(str(Path(__file__).parents[1]))  # this program
    return tuple({os.path.realpath(folder) + os.sep for folder in folders if folder})


def is_installed(place: str) -> bool:
    """Return whether a file or a folder belongs to Python, to an installed distribution or to this program."""
    return (os.path.realpath(place) + os.sep).startswith(_installed_folders())


def _is_module(path: Path) -> bool:
    return path.is_file() if path.suffix == ".py" else (path / "__init__.py").is_file()


def _imported(path: Path) -> Iterator[str]:
    """Yield the top-level names that a module or a package imports, also inside functions."""
    for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
        try:
            tree = ast.parse(file.read_bytes(), file)
        except OSError as error:
            raise ConfigurationError(f"cannot read {file}: {error.strerror}") from error
        except (SyntaxError, ValueError) as error:
            raise ConfigurationError(f"{file} is not valid Python: {error}") from error
        for each in ast.walk(tree):
            if isinstance(each, ast.Import):
                yield from (alias.name.partition(".")[0] for alias in each.names)
            elif isinstance(each, ast.ImportFrom) and each.module and not each.level:
                yield each.module.partition(".")[0]
