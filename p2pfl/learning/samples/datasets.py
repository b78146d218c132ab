"""Inputs and targets of arrays, tensors, torch datasets, Hugging Face datasets and Pillow images, as two arrays.

Datasets and images are recognised by their methods, so that neither torchvision, Hugging Face's `datasets` nor Pillow is a
dependency. The samples of a dataset are kept for the next node that names the same object; its attributes are compared, to
recognise cheaply that a task function has changed it in between.

Pillow converts every mode that has a fixed range; other modes are refused. The images of a set are grey (mode L) or have
three colours (RGB). A palette, or another mode that may hold only grey, is either: it is grey in a grey set if it has no
other colours.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from numbers import Real
from random import Random
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from p2pfl._util.machine import check_memory
from p2pfl._util.shared_work import once
from p2pfl.content import UnknownContentError, digest_of
from p2pfl.data_facts import DataFacts
from p2pfl.errors import ConfigurationError
from p2pfl.learning.modules import seeded
from p2pfl.learning.samples.numeric import Array, Label, Labels, is_alike, kind_of, numbers

Columns = tuple[str | Sequence[str], str]
"""Names of the column of the inputs (or of several columns of numbers) and of the column of the targets."""
TARGETS = ("label", "labels", "target", "targets", "y")  # usual names of the column of the targets
# Samples of the datasets that were read: many nodes and runs of a simulation share one dataset.
_known: dict[tuple[int, str, tuple[Label, ...]], _Kept] = {}
MOST_ELEMENTS = 64  # of a container whose elements are looked at
DEEPEST = 4  # levels of attributes: a subset, its dataset, its transform, the parts of the transform
Generator = np.random.Generator | np.random.RandomState | torch.Generator | Random
PLAIN = bool | int | float | complex | str | bytes | None
WHOLE = type | FunctionType | BuiltinFunctionType | ModuleType | np.ndarray | torch.Tensor | Generator
MODES = {"1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBX", "RGBa", "CMYK", "YCbCr", "HSV", "LAB"}
"""Modes with values from 0 to 255 (or 0 and 1), which Pillow converts to RGB."""
GREY, MAYBE_GREY = {"1", "L", "LA", "La"}, {"P", "PA"}  # a palette may have no other colours than grey
ORIENTATION = 0x0112  # EXIF tag; 1 is upright


class Source(NamedTuple):
    """Samples of some data.

    Attributes:
        x, y: inputs [n, ...] and targets [n, ...].
        facts: how they were understood; None for tensors, which are taken as they are.
    """

    x: Array
    y: Array
    facts: DataFacts | None = None


class _Kept(NamedTuple):
    """Samples of a dataset, and the digest of the dataset after it was read."""

    source: Source
    digest: bytes


def read_samples(where: str, data: Any, columns: Columns | None = None, labels: Labels | None = None) -> tuple[Array, Array]:
    """Return the inputs [n, ...] and the targets [n, ...] of some data, as arrays or tensors; see `read_source`."""
    source = read_source(where, data, columns, labels)
    return source.x, source.y


def read_source(where: str, data: Any, columns: Columns | None = None, labels: Labels | None = None) -> Source:
    """Return the samples of some data.

    A dataset is read once for all nodes of a run. A later run uses the same samples if the dataset has not changed: its
    attributes, its code, and the global variables and files that it names. During the reading, the global generators of
    Python, NumPy and torch are seeded with 0. Generators that the dataset holds are put back afterwards.

    Args:
        where: the name of the data, for errors, for example "train".
        data: a pair of arrays, tensors or lists; or an object with `len` and integer indices whose samples are pairs
            (input, target), or dicts. Images of Pillow become float32 [channels, height, width] from 0 to 1; see
            p2pfl.learning.samples.datasets.
        columns: names of the columns, for samples that are dicts. By default the targets are the column called label,
            labels, target, targets or y (or the only one with classes), and the inputs are all others.
        labels: labels that stand for classes; by default the targets are numbers.

    Raises:
        ConfigurationError: the data have another form, samples of different shapes or types, or values that are missing
            or no numbers.
    """
    pair = _as_pair(where, data)
    if pair is None:
        return _read_once(where, data, columns, labels)
    x, y = pair.x, pair.y
    if labels is not None:
        y = labels.classes_of(f"{where} data: target", y)
    notes = list(pair.notes)
    x, y = (_array(where, what, part, notes) for what, part in (("input", x), ("target", y)))
    if len(x) != len(y):
        raise ConfigurationError(f"{where} data: {len(x)} inputs, but {len(y)} targets")
    taken = all(isinstance(part, Tensor) for part in pair[:2])
    return Source(x, y, None if taken and not notes else _facts(where, pair.kind, (x, y), notes))


def take(array: Array, index: np.ndarray) -> Array:
    """Return the samples of an array at some positions, int64 [k]."""
    return array[torch.from_numpy(index)] if isinstance(array, Tensor) else array[index]


class _Pair(NamedTuple):
    x: Any
    y: Any
    kind: str
    notes: tuple[str, ...] = ()


def _as_pair(where: str, data: Any) -> _Pair | None:
    """Return data that are a pair of arrays already; None for other data."""
    if isinstance(data, tuple) and len(data) == 2:
        return _Pair(data[0], data[1], "arrays")
    if isinstance(data, list) and len(data) == 2 and not isinstance(data[0], tuple | Mapping):
        if all(isinstance(each, list) and len(each) == 2 for each in data):
            raise ConfigurationError(
                f"{where} is a list of two lists of two, which may be two samples, or inputs and targets; pass samples as"
                " tuples, or the tuple (inputs, targets)"
            )
        return _Pair(data[0], data[1], "arrays")
    if isinstance(data, TensorDataset) and len(data.tensors) == 2:
        return _Pair(data.tensors[0], data.tensors[1], "TensorDataset")
    if isinstance(data, Subset):
        index, notes = _indices(where, data)
        if (base := _as_pair(where, data.dataset)) is not None:
            x, y = (_rows(where, what, part) for what, part in (("inputs", base.x), ("targets", base.y)))
            return _Pair(take(x, index), take(y, index), f"Subset of {base.kind}", (*base.notes, *notes))
    return None


def _rows(where: str, what: str, values: Any) -> Array:
    """Return values of which some are taken; labels may be text."""
    if isinstance(values, Tensor | np.ndarray):
        return values
    found = np.asarray(values)
    return found if found.dtype.kind == "U" else numbers(f"{where} data: {what}", values)


def _indices(where: str, data: Subset[Any]) -> tuple[np.ndarray, list[str]]:
    """Return the positions of a subset's samples, int64 [k], and notes.

    Raises:
        ConfigurationError: they are no positions.
    """
    found, n = np.asarray(data.indices), len(data.dataset)  # type: ignore[arg-type]
    if found.dtype == bool:
        raise ConfigurationError(
            f"{where} data: the indices of the Subset are a mask of booleans, which torch takes for the positions 0 and 1;"
            " pass np.flatnonzero(mask)"
        )
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        form = f"{found.dtype} of shape {list(found.shape)}"
        raise ConfigurationError(f"{where} data: the indices of the Subset must be whole numbers [n], got {form}")
    outside = np.flatnonzero((found < 0) | (found >= n))
    if len(outside):
        raise ConfigurationError(
            f"{where} data: index {outside[0]} of the Subset is {found[outside[0]]}, but the dataset has the positions 0 to"
            f" {n - 1}"
        )
    twice = len(found) - len(np.unique(found))
    notes = [f"{where} data: {twice:,} of the {len(found):,} indices of the Subset repeat an earlier one"] if twice else []
    return found.astype(np.int64), notes


def _read_once(where: str, data: Any, columns: Columns | None, labels: Labels | None) -> Source:
    """Return the samples of a dataset; within a run, read it only once, unless its attributes have changed."""
    how = id(data), where + str(columns), () if labels is None else labels.names
    try:
        weakref.ref(data)
    except TypeError:  # a list, for example
        return _read(where, data, columns, labels)
    states: dict[tuple[Any, ...], _Shared] = once(("samples", *how), dict)
    before, held = attributes_of(data)
    if before not in states:
        source = _read_again(where, data, how, columns, labels)
        after, also = attributes_of(data)  # the reading may have changed counters and caches of the dataset
        states[before] = states[after] = _Shared(source, (*held, *also))
    return states[before].source


class _Shared(NamedTuple):
    """Samples of a run, with the objects whose identities stand for the state of their dataset."""

    source: Source
    held: Sequence[Any]


def _read_again(
    where: str, data: Any, how: tuple[int, str, tuple[Label, ...]], columns: Columns | None, labels: Labels | None
) -> Source:
    """Return the samples of a dataset; read it only if it has changed since it was read."""
    kept = _known.get(how)
    if kept is not None and kept.digest == _digest(data):
        return kept.source
    source = _read(where, data, columns, labels)
    if digest := _digest(data):  # after the reading
        if kept is None:
            weakref.finalize(data, _known.pop, how, None)
        _known[how] = _Kept(source, digest)
    return source


def _digest(data: Any) -> bytes:
    try:
        return digest_of(data)
    except UnknownContentError:
        return b""


def _read(where: str, data: Any, columns: Columns | None, labels: Labels | None) -> Source:
    if isinstance(data, Mapping):
        names = ", ".join(map(str, data))
        raise ConfigurationError(f"{where} is a dict with the keys {names}; pass one of its entries, or (inputs, targets)")
    if hasattr(data, "columns") and hasattr(data, "iloc" if hasattr(data, "iloc") else "get_column"):
        columns_of = list(data.columns)
        raise ConfigurationError(
            f"{where} is a table with the columns {', '.join(map(str, columns_of))}; pass (inputs, targets), such as"
            f" (table[{columns_of[:-1]!r}], table[{columns_of[-1]!r}])"
        )
    if not hasattr(data, "__getitem__") or not hasattr(data, "__len__"):
        raise ConfigurationError(
            f"{where} must be (inputs, targets), or a dataset with a length and indices, got {type(data).__name__}; collect"
            " the samples of an iterable dataset in a list"
        )
    n = len(data)
    if not n:
        raise ConfigurationError(f"{where} data: there are no samples")
    notes = _notes_of_subsets(where, data)
    back = put_back(data)
    try:
        with seeded(0):
            first = _sample(where, data, 0)
            parts = _splitter(where, first, getattr(data, "features", None), columns)
            x, y = (_Stack(where, what, n) for what in ("input", "target"))
            for k in range(n):
                one = parts(k, first if k == 0 else _sample(where, data, k))
                x.put(k, one[0])
                y.put(k, one[1] if labels is None else labels.class_of(f"{where} data: target {k}", one[1]))
    finally:
        back()
    notes += x.notes()
    kind = "list of samples" if isinstance(data, list | tuple) else f"dataset {type(data).__name__}"
    return Source(x.values, y.values, _facts(where, kind, (x.values, y.values), notes, x.details()))


def _notes_of_subsets(where: str, data: Any) -> list[str]:
    """Check the indices of subsets in a dataset, also of those in a ConcatDataset, and return notes."""
    notes = _indices(where, data)[1] if isinstance(data, Subset) else []
    inner = data.datasets if isinstance(data, ConcatDataset) else [data.dataset] if isinstance(data, Subset) else []
    return [*notes, *(note for each in inner for note in _notes_of_subsets(where, each))]


def _sample(where: str, data: Any, k: int) -> Any:
    try:
        return data[k]
    except Exception as error:  # of the user's dataset or transform
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConfigurationError(f"{where} data: sample {k} cannot be read: {reason}") from error


def _splitter(where: str, first: Any, features: Any, columns: Columns | None) -> Callable[[int, Any], tuple[Any, Any]]:
    """Return the function that splits a sample, given with its number, into its input and its target."""
    if isinstance(first, Mapping):
        inputs, target = _columns(where, list(first), features if isinstance(features, Mapping) else {}, columns)
        names = {*first}

        def of_columns(k: int, sample: Any) -> tuple[Any, Any]:
            if not isinstance(sample, Mapping) or {*sample} != names:
                raise ConfigurationError(f"{where} data: sample {k} has other columns than number 0: {_form(sample)}")
            return sample[inputs[0]] if len(inputs) == 1 else _row(where, k, sample, inputs), sample[target]

        return of_columns

    def of_pair(k: int, sample: Any) -> tuple[Any, Any]:
        if not isinstance(sample, tuple | list) or len(sample) != 2:
            raise ConfigurationError(
                f"{where} data: a sample must be (input, target) or a dict, got {_form(sample)} as number {k}"
            )
        return sample[0], sample[1]

    of_pair(0, first)
    return of_pair


def _form(sample: Any) -> str:
    if isinstance(sample, Mapping):
        return ", ".join(map(str, sample))
    name = type(sample).__name__
    return f"{name} of {len(sample)}" if isinstance(sample, tuple | list) else name


def _row(where: str, k: int, sample: Mapping[str, Any], names: Sequence[str]) -> list[float]:
    for name in names:
        value = sample[name]
        if not (isinstance(value, Real) or (hasattr(value, "dtype") and getattr(value, "ndim", 1) == 0)):
            raise ConfigurationError(
                f"{where} data: the columns {', '.join(names)} are not all numbers; name those of the inputs and of the"
                f" targets with `columns` ({name} of sample {k} is {value!r:.40})"
            )
    return [float(sample[name]) for name in names]


def _columns(
    where: str, names: Sequence[str], features: Mapping[str, Any], columns: Columns | None
) -> tuple[list[str], str]:
    """Return the names of the columns of the inputs, and of the column of the targets."""
    if columns is None:
        classes = [name for name in names if type(features.get(name)).__name__ == "ClassLabel"]
        found = [name for name in names if name.lower() in TARGETS] or classes
        if len(found) != 1 or len(names) < 2:
            raise ConfigurationError(
                f"{where} data: the columns are {', '.join(names)}; name those of the inputs and of the targets, such as"
                f' columns=("{names[0]}", "{names[-1]}")'
            )
        return [name for name in names if name != found[0]], found[0]
    inputs = [columns[0]] if isinstance(columns[0], str) else list(columns[0])
    for name in (*inputs, columns[1]):
        if name not in names:
            raise ConfigurationError(f"{where} data: there is no column {name!r}; the columns are {', '.join(names)}")
    return inputs, columns[1]


class _Stack:
    """Tensor of n samples that are put one by one.

    Attributes:
        values: [n, ...]; allocated with the first sample, if there is enough memory.
    """

    values: Tensor

    def __init__(self, where: str, what: str, n: int) -> None:
        self._where = where
        self._what = f"{where} data: {what}"
        self._n = n
        self._kinds = self._type = ""
        self._pictures: Pictures | None = None

    def put(self, k: int, value: Any) -> None:
        """Put sample number k; all samples must have one shape, and one kind of numbers."""
        what = f"{self._what} {k}"
        one = self._picture(k, what, value) if is_picture(value) else self._numbers(k, what, value)
        if k == 0:
            self._allocate(one)
        if one.shape != self.values.shape[1:]:
            remedy = "" if self._pictures is None else '; resize the images, and convert them to one mode, "L" or "RGB"'
            raise ConfigurationError(
                f"{what} has the shape {list(one.shape)}, but number 0 has {list(self.values.shape[1:])}; all samples need"
                f" one shape{remedy}"
            )
        kind = torch.promote_types(self.values.dtype, one.dtype)
        if kind != self.values.dtype:
            self.values = self.values.to(kind)
        self.values[k] = one

    def _allocate(self, one: Tensor) -> None:
        check_memory(f"{self._what}s in memory", self._n * one.numel() * one.element_size())
        self.values = torch.empty((self._n, *one.shape), dtype=one.dtype)

    def _picture(self, k: int, what: str, picture: Any) -> Tensor:
        """Return an image as float32 [1 or 3, height, width] from 0 to 1."""
        if k == 0:
            self._pictures = Pictures()
        if self._pictures is None:
            raise ConfigurationError(f"{what} is an image, but number 0 is not; all samples need one type")
        was_open = self._pictures.may_be_grey
        pixels = self._pictures.pixels(what, picture)
        if (
            k and was_open and len(pixels) == 3 and len(self.values[0]) == 1
        ):  # the first with colours: the others get them too
            self.values = self.values.repeat(1, 3, 1, 1)
        return torch.from_numpy(pixels.astype(np.float32) / 255)

    def _numbers(self, k: int, what: str, value: Any) -> Tensor:
        if self._pictures is not None:
            raise ConfigurationError(f"{what} is no image, but number 0 is; all samples need one type")
        found = torch.as_tensor(numbers(what, value))
        kind = kind_of(value)
        if not is_alike(kind, self._kinds):
            raise ConfigurationError(
                f"{what} is of {_type(value)}, but earlier ones of {self._type}; all samples need one type"
            )
        if not self._kinds:
            self._kinds, self._type = kind, _type(value) if kind else ""
        return found.float() if found.is_floating_point() else found

    def notes(self) -> list[str]:
        """Return what the user should know of the images."""
        return [] if self._pictures is None else self._pictures.notes(self._where, self.values.shape[1])

    def details(self) -> list[str]:
        if self._pictures is None:
            return []
        return [f"images of mode {self._pictures.counts} read as {as_mode(self.values.shape[1])}"]


def _type(values: Any) -> str:
    return str(values.dtype).removeprefix("torch.")


def _array(where: str, what: str, values: Any, notes: list[str]) -> Array:
    """Return an array, a tensor or a list as an array or a tensor of one dimension or more; images are read."""
    name = f"{where} data: {what}s"
    listed = isinstance(values, list | tuple) or (isinstance(values, np.ndarray) and values.dtype == object)
    if listed and len(values) and is_picture(values[0]):
        stack = _Stack(where, what, len(values))
        for k, value in enumerate(values):
            stack.put(k, value)
        notes += stack.notes()
        return stack.values
    array = numbers(name, values)
    if not array.ndim:
        raise ConfigurationError(f"{name} must be an array [n, ...], got a single number")
    if len(array) and what == "input" and isinstance(array, np.ndarray) and array.dtype == np.float64:
        notes += once(("precision", name, id(array)), lambda: (_precision(name, array), array))[0]
    return array


def _precision(name: str, values: np.ndarray) -> list[str]:
    """Return a note if float32 cannot tell apart values of an input that differ."""
    flat = values.reshape(len(values), -1)
    step = max(1, 2**22 // max(1, len(flat)))
    for first in range(0, flat.shape[1], step):
        part = flat[:, first : first + step]
        with np.errstate(all="ignore"):
            lost = np.abs(part - part.astype(np.float32)).max(0)
            coarse = np.flatnonzero(np.isfinite(lost) & (part.std(0) > 0) & (lost > part.std(0) / 50))
        if len(coarse):
            place = first + int(coarse[0])
            return [
                f"{name}: feature {place} varies too little for its size ({flat[:, place].min():g} to"
                f" {flat[:, place].max():g}), and loses precision as float32; subtract its mean"
            ]
    return []


def _facts(
    where: str, kind: str, samples: tuple[Array, Array], notes: Sequence[str], details: Sequence[str] = ()
) -> DataFacts:
    """Return how samples were understood."""
    shown = (*details, *map(_describe, ("inputs", "targets"), samples))
    return DataFacts(f"{where} data", kind, len(samples[0]), notes=tuple(notes), details=shown)


def _describe(what: str, values: Array) -> str:
    """Return the type, the shape and the range of values."""
    shape = ", ".join(["n", *map(str, values.shape[1:])])
    if not len(values) or not np.prod(values.shape):
        return f"{what} {_type(values)} [{shape}]"
    least, greatest = once(("range", id(values)), lambda: (_range(values), values))[0]
    return f"{what} {_type(values)} [{shape}] from {least:g} to {greatest:g}"


def _range(values: Array) -> tuple[float, float]:
    return float(values.min()), float(values.max())


def attributes_of(data: Any) -> tuple[tuple[Any, ...], list[Any]]:
    """Return the attributes of a dataset and of the objects that it holds: plain values, and identities of others.

    Also return these objects. While they are kept, no other object gets their identity.
    """
    held = _held_by(data)
    return tuple([value if isinstance(value, PLAIN) else id(value) for value in held]), held


def put_back(data: Any) -> Callable[[], None]:
    """Return a function that puts the random generators that a dataset holds back into their present state."""
    steps = [_step_back(value) for value in _held_by(data) if isinstance(value, Generator)]

    def back() -> None:
        for step in steps:
            step()

    return back


def _held_by(data: Any) -> list[Any]:
    """Return the objects that a dataset holds: its attributes, their elements, and their attributes."""
    found: dict[int, Any] = {}
    level = [data]
    for _ in range(DEEPEST + 1):
        inner: list[Any] = []
        for value in level:
            if id(value) not in found:
                found[id(value)] = value
                inner += _parts(value)
        level = inner
    return [*found.values()]


def _step_back(generator: Generator) -> Callable[[], object]:
    if isinstance(generator, np.random.Generator):
        bits = generator.bit_generator
        return partial(setattr, bits, "state", bits.state)
    if isinstance(generator, Random):
        return partial(generator.setstate, generator.getstate())
    return partial(generator.set_state, generator.get_state())  # type: ignore[arg-type]


def _parts(value: Any) -> list[Any]:
    if isinstance(value, PLAIN | WHOLE):
        return []
    if isinstance(value, list | tuple | Mapping):
        return [] if len(value) > MOST_ELEMENTS else [*(value.values() if isinstance(value, Mapping) else value)]
    return [*vars(value).values()] if hasattr(value, "__dict__") else []


def is_picture(value: Any) -> bool:
    """Return whether a value is an image of Pillow, or has its interface."""
    return hasattr(value, "getbands") and hasattr(value, "mode")


class Pictures:
    """Reader of the images of one set. It counts what the user should know of them.

    Attributes:
        modes: number of images of each mode.
        may_be_grey: whether all images so far are palettes without colours, so that the set may still get colours.
    """

    def __init__(self) -> None:
        self.modes: Counter[str] = Counter()
        self.may_be_grey = True
        self._colours = False
        self._opaque = self._turned = self._moving = 0

    def pixels(self, what: str, picture: Any) -> np.ndarray:
        """Return the pixels of the next image, uint8: [1, height, width] if it is grey, otherwise [3, height, width].

        Args:
            what: the name of the image, for errors.

        Raises:
            ConfigurationError: its mode has no fixed range, it has transparent pixels, or Pillow cannot convert it.
        """
        mode = picture.mode
        if mode not in MODES:
            raise ConfigurationError(
                f'{what}: the image has the mode {mode}; convert it to "L" or "RGB" if its values are from 0 to 255, or'
                " return an array, such as np.asarray(image, np.float32) / 65535"
            )
        try:
            found = self._converted(what, picture)
            self._turned += _orientation(picture) not in (None, 1)
        except (OSError, ValueError, SyntaxError) as error:  # of Pillow
            raise ConfigurationError(f"{what}: the image of mode {mode} cannot be converted: {error}") from error
        self.modes[mode] += 1
        self._moving += getattr(picture, "n_frames", 1) > 1
        if mode in GREY or (mode in MAYBE_GREY and not self._colours and (found == found[..., :1]).all()):
            found = found if found.ndim == 2 else found[..., 0]
        self._colours |= found.ndim == 3
        self.may_be_grey &= mode in MAYBE_GREY and found.ndim == 2
        return np.atleast_3d(found).transpose(2, 0, 1)

    def _converted(self, what: str, picture: Any) -> np.ndarray:
        """Return the pixels of an image, uint8: [height, width] of mode L, otherwise [height, width, 3]."""
        if getattr(picture, "has_transparency_data", False):
            straight = picture.convert("LA") if picture.mode == "La" else picture
            colours = np.asarray(straight.convert("RGBA"))
            if colours.size and colours[..., 3].min() < 255:
                raise ConfigurationError(
                    f"{what}: the image has transparent pixels (mode {picture.mode}); choose a background in the transform:"
                    ' PIL.Image.alpha_composite(background, image.convert("RGBA")).convert("RGB")'
                )
            self._opaque += 1
            return colours[..., :3]
        return np.asarray(picture if picture.mode in ("L", "RGB") else picture.convert("RGB"))

    def notes(self, where: str, channels: int) -> list[str]:
        """Return what the user should know of the images that were read.

        Args:
            channels: of the whole set, 1 or 3.
        """
        found = []
        if len(self.modes) > 1:
            found.append(
                f"{where} data: the images have several modes ({self.counts}); all were read as {as_mode(channels)}"
            )
        if self._opaque:
            found.append(f"{where} data: {_images(self._opaque)} an opaque alpha channel, which was left out")
        if self._turned:
            found.append(
                f"{where} data: {_images(self._turned)} an EXIF orientation, which was not applied; for upright images call"
                " PIL.ImageOps.exif_transpose in the dataset"
            )
        if self._moving:
            found.append(f"{where} data: {_images(self._moving)} several frames, of which only the current one was read")
        return found

    @property
    def counts(self) -> str:
        """The modes with their numbers of images, such as "L 150, P 150"."""
        return ", ".join(f"{mode} {count:,}" for mode, count in sorted(self.modes.items()))


def as_mode(channels: int) -> str:
    """Return the mode of a set with so many channels."""
    return "L" if channels == 1 else "RGB"


def _orientation(picture: Any) -> int | None:
    """Return the EXIF orientation of an image; None if it has none."""
    if not hasattr(picture, "getexif"):
        return None
    found: int | None = picture.getexif().get(ORIENTATION)
    return found


def _images(count: int) -> str:
    return f"{count:,} image{'s have' if count > 1 else ' has'}"
