"""Digests of content, and the files and folders that a task or a policy reads.

Digests are of files, folders, and objects with the code of their functions.

Two things with equal digests have the same content. A digest never contains a path, a time or an identity in its place,
so it stays the same after a copy to another folder or machine. Results that are kept for later use (parts of a run,
samples in memory) are compared by these digests.

An object consists of its type and of what `pickle` would keep of it. A function consists of its code, its defaults, the
values of its closure, and the globals that it uses, recursively. The same holds for the methods of a class. Code of an
installed distribution and of Python itself counts by its name. A text that is the path of an existing file counts with
the content of the file.

Some objects have content that cannot be seen, such as an open file, a generator or a lock. They have no digest:
`UnknownContentError` says so.

`inputs_of` finds the files and folders that a task or a policy reads, as far as they can be known before it runs. An
option whose value is the path of an existing file or folder is an input. A factory of one's own can name its inputs
in an attribute `inputs`, for example the files that its module opens by a constant name:

    def task(part, seed, *, data): ...

    task.inputs = ["scaling.npz"]                    # paths, or a function of the options that returns paths

Paths are looked up as a task would open them: absolute, from the home folder (~), from the current folder, and from the
folder of the scenario.
"""

from __future__ import annotations

import builtins
import dis
import os
import sys
import time
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePath
from typing import Any, NamedTuple
from weakref import ReferenceType

import numpy as np
from blake3 import blake3

from p2pfl._util.registry import is_installed
from p2pfl.errors import ConfigurationError, P2pflError

SIZE = 16  # bytes of a digest
MOST_FILES = 100_000  # in a folder that an object names
_BLOCK = 2**20
_SETTLED = 2 * 10**9  # nanoseconds after which a change of a file also changes its times, on every file system
_LONGEST_PATH = 4096
_WRITTEN_BY_SYSTEMS = frozenset({".DS_Store", "Thumbs.db", "desktop.ini", "__pycache__", ".ipynb_checkpoints", ".git"})
_WITHOUT_EFFECT = frozenset({"__dict__", "__weakref__", "__module__", "__doc__", "__slotnames__", "_abc_impl"})  # of classes
_NUMBERS = frozenset({bool, int, float, complex})
_OWN = __name__.partition(".")[0]
_Identity = tuple[int, int, int, int, int]
_files: dict[str, tuple[_Identity, bytes]] = {}  # digests of this process, by absolute path
ATTRIBUTE = "inputs"
_LONGEST = 4096  # characters of a path
Declared = Callable[[Mapping[str, Any]], Iterable[str | PurePath]]
"""Function from the options of a factory to the paths that it reads."""


class UnknownContentError(P2pflError):
    """Object that has no digest, because not all of its content can be seen; the text names it."""


def digest_file(path: Path) -> bytes:
    """Return the digest of a file's content. It is computed again only if the file's size, times or inode have changed.

    Raises:
        OSError: the file cannot be read.
    """
    name = str(path.absolute())
    known = _files.get(name)
    if known is not None and known[0] == _identity(path.stat()):
        return known[1]
    hash = blake3()
    with path.open("rb") as file:
        before = os.fstat(file.fileno())
        while block := file.read(_BLOCK):
            hash.update(block)
    digest = hash.digest(SIZE)
    _files.pop(name, None)
    if time.time_ns() - max(before.st_mtime_ns, before.st_ctime_ns) > _SETTLED:  # otherwise times may hide a change
        _files[name] = _identity(before), digest
    return digest


def digest_folder(path: Path, without: Path | None = None) -> bytes:
    """Return the digest of the names and contents of all files below a folder.

    Files that systems write by themselves, such as .DS_Store, do not count.

    Args:
        without: a folder inside whose files do not count.

    Raises:
        OSError: a file or a folder cannot be read.
    """
    hash = blake3()
    for name, file in _below(path, None if without is None else without.resolve()):
        hash.update(_framed(name.encode("utf-8", "surrogateescape")) + (b"" if file is None else digest_file(file)))
    return hash.digest(SIZE)


def digest_path(path: Path) -> bytes:
    """Return the digest of a file or of a folder. Raises OSError if it cannot be read."""
    return digest_folder(path) if path.is_dir() else digest_file(path)


def _identity(found: os.stat_result) -> _Identity:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _below(folder: Path, without: Path | None = None) -> Iterator[tuple[str, Path | None]]:
    """Yield the relative name and the path of each file below a folder, in order; the path of a folder is None."""
    seen: set[str] = set()
    waiting = [""]
    while waiting:
        inner = waiting.pop()
        place = folder / inner
        if (real := os.path.realpath(place)) in seen or Path(real) == without:  # links that form a circle
            continue
        seen.add(real)
        if inner:
            yield f"{inner}/", None
        folders = []
        for path in sorted(place.iterdir()):
            if path.name in _WRITTEN_BY_SYSTEMS:
                continue
            relative = f"{inner}/{path.name}" if inner else path.name
            if path.is_dir():
                folders.append(relative)
            elif path.is_file():  # no socket, no broken link
                yield relative, path
        waiting += reversed(folders)


def _framed(data: bytes) -> bytes:
    return len(data).to_bytes(8, "little") + data


def digest_of(value: object, known: Mapping[int, str] = types.MappingProxyType({})) -> bytes:
    """Return the digest of an object's content.

    Digests of functions are comparable within one version of Python.

    Args:
        known: names for objects inside that count by their name only, by `id`.

    Raises:
        UnknownContentError: a part of the object has content that cannot be seen.
    """
    hash = _ObjectHash(known)
    try:
        hash.add(value)
    except RecursionError as error:
        raise UnknownContentError(f"{_describe(value)} is nested too deeply for a digest") from error
    return hash.digest()


class _ObjectHash:
    """Hash of objects. An object that occurs again counts by the number of its first occurrence."""

    def __init__(self, known: Mapping[int, str]) -> None:
        self._hash = blake3()
        self._known = known
        self._seen: dict[int, tuple[int, object]] = {}  # keeps objects alive, so that no other one gets their identity

    def digest(self) -> bytes:
        return self._hash.digest(SIZE)

    def add(self, value: object) -> None:
        kind = type(value)
        if (name := self._known.get(id(value))) is not None:
            self._put("known", name.encode())
        elif value is None or value is Ellipsis or value is NotImplemented:
            self._put(repr(value))
        elif kind in _NUMBERS:
            self._put(kind.__name__, (f"{value:x}" if kind is int else repr(value)).encode())
        elif isinstance(value, str) and kind is str:
            self._put("str", value.encode("utf-8", "surrogatepass"))
            self._add_path(value)
        elif isinstance(value, bytes | bytearray) and kind in (bytes, bytearray):
            self._put(kind.__name__, bytes(value))
        elif isinstance(value, tuple) and kind is tuple:
            self._add_all("tuple", value)
        elif isinstance(value, set | frozenset) and kind in (set, frozenset):
            self._put(kind.__name__, b"".join(sorted(digest_of(each, self._known) for each in value)))
        elif isinstance(value, types.CodeType):  # here, because several objects can have equal code
            self._add_code(value)
        elif id(value) in self._seen:
            self._put("again", str(self._seen[id(value)][0]).encode())
        else:
            self._seen[id(value)] = len(self._seen), value
            self._add_object(value)

    def _put(self, tag: str, data: bytes = b"") -> None:
        self._hash.update(tag.encode() + b"\0" + _framed(data))

    def _add_all(self, tag: str, parts: Sequence[object]) -> None:
        self._put(tag, str(len(parts)).encode())
        for part in parts:
            self.add(part)

    def _add_object(self, value: object) -> None:
        torch = sys.modules.get("torch")
        if type(value) is list:
            self._add_all("list", value)
        elif isinstance(value, types.MappingProxyType) or type(value) is dict:
            self._add_all("dict", [each for pair in value.items() for each in pair])
        elif isinstance(value, PurePath):
            self._put(type(value).__name__, str(value).encode("utf-8", "surrogateescape"))
            self._add_path(str(value), sure=True)
        elif isinstance(value, np.ndarray):
            self._add_array(value)
        elif torch is not None and isinstance(value, torch.Tensor):
            self._add_tensor(value)
        elif isinstance(value, types.ModuleType):
            self._add_module(value)
        elif isinstance(value, type):
            self._add_class(value)
        elif isinstance(value, types.FunctionType):
            self._add_function(value)
        elif (parts := _parts_of(value)) is not None:
            self._add_all(type(value).__name__, parts)
        else:
            self._add_reduced(value)

    def _add_path(self, text: str, sure: bool = False) -> None:
        """Add the content of the file or the folder that a text names, if there is one.

        A folder counts by the names, sizes and times of its files, because it may be large.
        """
        like_a_path = 1 < len(text) < _LONGEST_PATH and not {"\0", "\n"} & set(text) and bool({"/", os.sep, "."} & set(text))
        if not (sure or like_a_path):
            return
        try:
            path = Path(text).expanduser()
            if path.is_file():
                self._put("file", digest_file(path))
            elif path.is_dir() and path.name not in ("", ".."):
                for count, (name, file) in enumerate(_below(path)):
                    if count == MOST_FILES:
                        raise UnknownContentError(f"the folder {path} has more than {MOST_FILES:,} files")
                    self._put(name, b"" if file is None else repr(_identity(file.stat())).encode())
        except OSError as error:  # a file without the permission to read it
            raise UnknownContentError(f"{text} cannot be read: {error.strerror}") from error
        except (RuntimeError, ValueError):  # no such user, or no such name of a file
            return

    def _add_array(self, array: np.ndarray) -> None:
        self._add_all("array", [type(array), repr(array.dtype), array.shape, getattr(array, "__dict__", None)])
        if array.dtype.hasobject:
            self._add_all("elements", array.ravel().tolist())
        elif array.dtype.kind in "biufc":
            self._hash.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        else:
            self._put("values", array.tobytes())

    def _add_tensor(self, tensor: Any) -> None:
        import torch

        settings = str(tensor.dtype), tuple(tensor.shape), tensor.requires_grad, str(tensor.device)
        self._add_all("tensor", [type(tensor), settings, vars(tensor)])
        try:
            values = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
            self._hash.update(values.view(torch.uint8).numpy().data)
        except (NotImplementedError, RuntimeError, TypeError) as error:  # sparse, quantised, or without values
            raise UnknownContentError(f"the values of a tensor cannot be seen: {error}") from error

    def _add_module(self, module: types.ModuleType) -> None:
        self._put("module", module.__name__.encode())
        if not _is_installed(module.__name__):
            self.add({name: value for name, value in vars(module).items() if not name.startswith("__")})

    def _add_class(self, kind: type) -> None:
        module = kind.__module__ if isinstance(kind.__module__, str) else ""  # some compiled types have a descriptor there
        self._put("class", f"{module}:{kind.__qualname__}".encode())
        if not _is_installed(module) or _lookup(module, kind.__qualname__) is not kind:
            self._add_all("bases", [*kind.__bases__, type(kind)])
            self.add({name: value for name, value in vars(kind).items() if name not in _WITHOUT_EFFECT})

    def _add_function(self, function: types.FunctionType) -> None:
        code = function.__code__
        module, name = str(function.__globals__.get("__name__")), code.co_qualname  # its own name may be another's
        if _is_installed(module) and getattr(_lookup(module, name), "__code__", None) is code:
            self._put("function", f"{module}:{name}".encode())
            return
        self.add(code)
        self._add_all("defaults", [function.__defaults__, function.__kwdefaults__, vars(function)])
        for cell in function.__closure__ or ():
            self._add_all("cell", _content_of(cell))
        for name in _globals_of(code):
            self._put("global", name.encode())
            if name in function.__globals__:
                self.add(function.__globals__[name])
            elif not hasattr(builtins, name):
                self._put("missing")

    def _add_code(self, code: types.CodeType) -> None:
        """Add what code does, without the places of its lines."""
        names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
        counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
        self._add_all("code", [code.co_code, code.co_exceptiontable, *names, counts, code.co_consts])

    def _add_reduced(self, value: object) -> None:
        """Add what `pickle` would keep of an object."""
        if _is_installed(str(type(value).__module__)) and hasattr(value, "__wrapped__"):  # functools.cache, for example
            self._add_all("wrapper", [type(value), value.__wrapped__])
            return
        try:
            reduced = value.__reduce_ex__(4)
        except Exception as error:  # of the object's own code
            raise UnknownContentError(f"the content of {_describe(value)} cannot be seen: {error}") from error
        if isinstance(reduced, str):  # the name of a global
            self._add_all("named", [type(value), reduced, getattr(value, "__module__", "")])
            return
        function, arguments, state, items, pairs, *_ = (*reduced, None, None, None)
        self._add_all("object", [type(value), function, arguments, state, *([] if items is None else items)])
        self._add_all("items", [] if pairs is None else list(pairs))


def _parts_of(value: object) -> list[object] | None:
    """Return what a method, a partial function, a reference or a descriptor consists of; None for other objects."""
    match value:
        case types.MethodType():
            return [value.__func__, value.__self__]
        case partial():
            return [value.func, value.args, value.keywords, vars(value)]
        case staticmethod() | classmethod():
            return [value.__func__]
        case property():
            return [value.fget, value.fset, value.fdel]
        case ReferenceType():
            return [value()]
        case types.BuiltinFunctionType() | types.MethodWrapperType():
            home = value.__self__
            return [value.__name__, home.__name__ if isinstance(home, types.ModuleType) else home]
        case (
            types.WrapperDescriptorType()
            | types.MethodDescriptorType()
            | types.GetSetDescriptorType()
            | types.MemberDescriptorType()
        ):
            return [value.__name__, value.__objclass__.__qualname__]
    return None


def _content_of(cell: types.CellType) -> list[object]:
    """Return the value of a cell of a closure; nothing if it has none yet."""
    try:
        return [cell.cell_contents]
    except ValueError:
        return []


def _globals_of(code: types.CodeType) -> list[str]:
    """Return the names of the globals that code uses, also in functions and classes inside."""
    found = {step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            found.update(_globals_of(inner))
    return sorted(found)


def _is_installed(module: str) -> bool:
    """Return whether a module belongs to Python, to an installed distribution or to this program."""
    root = module.partition(".")[0]
    if root == _OWN or root in sys.stdlib_module_names:
        return True
    spec = getattr(sys.modules.get(root), "__spec__", None)
    if spec is None:
        return False
    origin = spec.origin or next(iter(spec.submodule_search_locations or []), "")
    return is_installed(origin)


def _lookup(module: str, name: str) -> object:
    """Return the object of a module with a qualified name; None if there is none."""
    found: object = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _describe(value: object) -> str:
    """Return a short name of an object for an error."""
    name = getattr(value, "__qualname__", None)
    return name if isinstance(name, str) else f"an object of {type(value).__module__}.{type(value).__qualname__}"


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


def found_paths(find: Callable[[str, str], list[Path]], name: str, root: str) -> list[Path]:
    """Return the files of a data set that `find` looks up in a folder; [] if there is none, which its task reports."""
    try:
        return find(name, root)
    except (ConfigurationError, OSError):
        return []


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
