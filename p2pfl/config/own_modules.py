"""Modules with a user's own code: their places, and the files that they consist of."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterable, Iterator
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
