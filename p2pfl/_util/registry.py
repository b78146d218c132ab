"""Resolve a name in a configuration to an object: from a table, an entry point, or the user's `package.module:factory`.

Only names from the user's own configuration are resolved, never names that arrive from a peer. A Python program may give
an object in place of a name (`ObjectName`). A user's own modules may lie beside the configuration (`ModulePlaces`). What a
computation returns depends on them, so `used_modules` lists their files.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import pkgutil
import re
import site
import sys
import sysconfig
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from p2pfl.errors import ConfigurationError, needs_extra, unknown

_DOTTED = r"[^\W\d]\w*(\.[^\W\d]\w*)*"
_PATH = re.compile(f"{_DOTTED}:{_DOTTED}")
PREFIX = "object:"


def locate(what: str, name: str, table: Mapping[str, str], group: str) -> str:
    """Return the "package.module:attribute" of the factory called `name`, without importing it.

    Args:
        what: the kind of object, for the error ("policy", "task").
        name: a key of `table`, an entry point of `group`, or "package.module:factory".
        table: built-in names, each with its "package.module:attribute".
        group: the entry point group in which other distributions register names.

    Raises:
        ConfigurationError: the name is unknown or malformed, or its module belongs to Python's standard library.
    """
    if name in table:
        return table[name]
    if name.startswith(PREFIX):
        raise ConfigurationError(
            f"{what} {name!r} was an object of a Python program; run that program again, or name a package.module:factory"
        )
    if ":" in name:
        module, _, attribute = name.partition(":")
        if module.endswith(".py"):
            raise ConfigurationError(f"{what} {name!r}: write {module.removesuffix('.py')}:{attribute}, without .py")
        if not _PATH.fullmatch(name):
            raise ConfigurationError(f"{what} {name!r} is not of the form package.module:factory")
        if (module := root_of(name)) in sys.stdlib_module_names:
            raise ConfigurationError(
                f"{what} {name!r}: {module} is a module of Python's standard library; rename your module"
            )
        return name
    from importlib.metadata import entry_points  # with the modules of e-mail, 2 MiB that built-in names do not need

    others = {point.name: point.value for point in entry_points(group=group)}
    if name not in others:
        raise unknown(what, name, {*table, *others})
    return others[name]


def resolve(what: str, name: str, table: Mapping[str, str], group: str, methods: Sequence[str] = ()) -> Callable[..., Any]:
    """Import the factory called `name` and check it without calling it. See `locate`.

    An ObjectName resolves to the object that it carries.

    Args:
        methods: required methods of a class. The result of a function can only be checked after its call.

    Raises:
        ConfigurationError: the name is unknown, its module cannot be imported, or the object is not valid: it belongs
            to Python's standard library, is neither a class nor a function, or lacks a method.
        MissingRequirementError: its module needs PyTorch, which is not installed.
    """
    factory = name.factory if isinstance(name, ObjectName) else _import(what, name, locate(what, name, table, group))
    if missing := _lacks(factory, methods):
        raise ConfigurationError(f"{what} {name!r} is not a valid {what}: it lacks {', '.join(missing)}")
    return factory


def _import(what: str, name: str, path: str) -> Callable[..., Any]:
    try:
        with needs_extra(f"{what} {name!r}"):
            factory = pkgutil.resolve_name(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(f"{what} {name!r} cannot be imported: {error}{_remedy(path, error)}") from error
    defined = inspect.unwrap(factory)
    if not (inspect.isclass(defined) or inspect.isroutine(defined)):
        raise ConfigurationError(f"{what} {name!r} is neither a class nor a function")
    if (home := root_of(defined.__module__ or "")) in sys.stdlib_module_names:
        raise ConfigurationError(f"{what} {name!r} is not a valid {what}: it belongs to {home} in Python's standard library")
    return typing.cast(Callable[..., Any], factory)


def _remedy(path: str, error: Exception) -> str:
    """Return the end of an error about a "package.module:attribute" that cannot be imported; "" if nothing is known."""
    module, _, attribute = path.partition(":")
    if isinstance(error, ModuleNotFoundError) and error.name == root_of(path):
        return f"; its file {error.name}.py must be in the folder of the scenario or of the node"
    if isinstance(error, AttributeError) and module in sys.modules:
        import difflib

        names = [name for name, value in vars(sys.modules[module]).items() if callable(value)]
        if near := difflib.get_close_matches(attribute, names, n=1):
            return f"; did you mean {module}:{near[0]}?"
    return ""


def _lacks(factory: Callable[..., Any], methods: Sequence[str]) -> list[str]:
    """Return the methods that a class lacks, as far as it can be inspected; none for a function."""
    if not inspect.isclass(factory) or hasattr(factory, "__getattr__"):  # __getattr__ may provide missing methods
        return []
    return [method for method in methods if not callable(getattr(factory, method, None))]


def root_of(path: str) -> str:
    """Return the top-level module of a "package.module:attribute"."""
    return path.partition(":")[0].partition(".")[0]


class ObjectName(str):
    """Name that carries the factory it stands for, so that tables with names can hold objects.

    In a file only the text remains, and nothing resolves it. Worker processes of the simulator get a copy of the factory;
    see p2pfl.sim.simulation.workers.

    Args:
        text: name of the factory, for messages.
        factory: object that is called to make a task or a policy.
    """

    factory: Callable[..., Any]

    def __new__(cls, text: str, factory: Callable[..., Any]) -> ObjectName:
        name = super().__new__(cls, PREFIX + text)
        name.factory = factory
        return name

    def __copy__(self) -> ObjectName:
        return self

    def __deepcopy__(self, memo: object) -> ObjectName:
        return self  # a factory may hold large data


class ModulePlaces(NamedTuple):
    """Where Python finds a top-level module of a name.

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
    """Modules on which a computation depends besides p2pfl.

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
            yield from _imported_by(file.read_bytes(), file)
        except OSError as error:
            raise ConfigurationError(f"cannot read {file}: {error.strerror}") from error
        except (SyntaxError, ValueError) as error:
            raise ConfigurationError(f"{file} is not valid Python: {error}") from error


@lru_cache(maxsize=1024)  # a sweep or a notebook asks for the same modules again and again
def _imported_by(content: bytes, file: Path) -> frozenset[str]:
    names: set[str] = set()
    for each in ast.walk(ast.parse(content, file)):
        if isinstance(each, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in each.names)
        elif isinstance(each, ast.ImportFrom) and each.module and not each.level:
            names.add(each.module.partition(".")[0])
    return frozenset(names)
