"""Files and folders that a task or a policy reads, as far as they can be known before it runs.

An option whose value is the path of an existing file or folder is an input. A factory of one's own can name its inputs
in an attribute `inputs`, for example the files that its module opens by a constant name:

    def task(part, seed, *, data): ...

    task.inputs = ["scaling.npz"]                    # paths, or a function of the options that returns paths

Paths are looked up as a task would open them: absolute, from the home folder (~), from the current folder, and from the
folder of the scenario.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from p2pfl.errors import ConfigurationError

ATTRIBUTE = "inputs"
_LONGEST = 4096  # characters of a path

Declared = Callable[[Mapping[str, Any]], Iterable[str | PurePath]]
"""Function from the options of a factory to the paths that it reads."""


class Input(NamedTuple):
    """A file or a folder.

    Attributes:
        key: the option that names it, such as "task.data"; "" if a factory declares it.
        declared: whether it is known to be read, instead of guessed from an option.
    """

    path: Path
    key: str = ""
    declared: bool = True


def inputs_of(
    what: str, factory: object, options: Mapping[str, Any], folders: Iterable[Path], declared: Declared | None = None
) -> list[Input]:
    """Return the inputs of a task or a policy.

    Args:
        what: name of its table, such as "task".
        factory: the object that makes it; its attribute `inputs` counts.
        folders: folders in which relative paths are looked up.
        declared: replaces both its attribute and the search in the options.

    Raises:
        ConfigurationError: the attribute has another form.
    """
    places = list(folders)
    if declared is not None:
        keys = {path.resolve(): key for key, path in _paths_in(what, options, places[:1])}
        paths = dict.fromkeys(Path(path).expanduser() for path in declared(options))
        return [Input(path, keys.get(path.resolve(), "")) for path in paths]
    found = [Input(path, key, False) for key, path in _paths_in(what, options, places)]
    home = [*places, *_folder_of(factory)]
    return found + [Input(next(_found(path, home), path)) for path in _attribute(what, factory, options)]


def _attribute(what: str, factory: object, options: Mapping[str, Any]) -> list[Path]:
    own = getattr(factory, ATTRIBUTE, ())
    try:
        paths = own(options) if callable(own) else own
        return [Path(path) for path in ([paths] if isinstance(paths, str | PurePath) else paths)]
    except TypeError as error:
        raise ConfigurationError(
            f"{what}: the attribute `inputs` of {getattr(factory, '__qualname__', factory)} must be a list of paths, or a"
            f" function of the options that returns one: {error}"
        ) from error


def _folder_of(factory: object) -> list[Path]:
    code = getattr(factory, "__code__", None)
    return [] if code is None else [Path(code.co_filename).parent]


def _paths_in(key: str, value: object, folders: list[Path]) -> Iterator[tuple[str, Path]]:
    """Yield each existing file or folder that an option names, also inside tables and lists, with its key."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from _paths_in(f"{key}.{name}", part, folders)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _paths_in(key, part, folders)
    elif isinstance(value, str | PurePath) and 0 < len(str(value)) < _LONGEST and "\0" not in str(value):
        yield from ((key, path) for path in _found(Path(value), folders))


def _found(path: Path, folders: list[Path]) -> Iterator[Path]:
    """Yield the existing files and folders that a path leads to."""
    try:
        path = path.expanduser()
    except RuntimeError:  # no such user
        return
    seen = set()
    for place in folders:
        whole = place / path
        try:
            real = whole.resolve()
            if real not in seen and whole.exists():
                seen.add(real)
                yield whole
        except OSError:  # no permission, or no such name of a file
            continue
