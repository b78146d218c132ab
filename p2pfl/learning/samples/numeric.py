"""Numbers and labels of a user's values: arrays, tensors, lists, columns of pandas and polars.

A value is taken as it is, converted without loss, or refused by its place. Nothing is filled in, and no text is parsed.
Labels stand for the classes 0 to K - 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from p2pfl.errors import ConfigurationError

Array = np.ndarray | Tensor
WIDER: dict[Any, Any] = {np.dtype(np.uint16): np.int32, np.dtype(np.uint32): np.int64, np.dtype(np.uint64): np.int64}
"""Types that torch hardly supports, and those that hold their values."""
PLAIN = {int, float, bool, str, list, tuple, type(None)}  # of Python, which NumPy checks itself
TEXT = "text; number the classes from 0, or list `labels`"
TEXT_INPUT = "text; convert it to numbers"
GREATEST = 2**63 - 1
MISSING = "a missing value; fill it in, or remove the sample"
Label = int | float | str
MOST_NAMED = 8  # labels that a message lists


def numbers(what: str, values: Any) -> Array:
    """Return values as an array or a tensor of numbers or booleans, on the CPU.

    Args:
        what: the name of the values, for errors, for example "train data: inputs".

    Raises:
        ConfigurationError: a value is missing or is no number, or the values have several shapes or types.
    """
    if isinstance(values, Tensor):
        return _plain(what, values)
    if hasattr(values, "toarray") and hasattr(values, "nnz"):  # of scipy.sparse
        raise ConfigurationError(f"{what}: a sparse matrix ({type(values).__name__}); pass its toarray()")
    if isinstance(values, np.ma.MaskedArray):
        if values.count() < values.size:
            place = np.argwhere(np.ma.getmaskarray(values))[0].tolist()
            raise ConfigurationError(f"{what}: {_at(place)} is masked; {MISSING}")
        values = values.data
    if isinstance(values, list | tuple) and not {*map(type, values)} <= PLAIN:
        check_alike(what, values)
        values = [_plain(what, value) if isinstance(value, Tensor) else value for value in values]
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, RuntimeError) as error:
        if isinstance(values, list | tuple):
            check_alike(what, values)
        raise ConfigurationError(f"{what} must be numbers, got {type(values).__name__}: {_first_line(error)}") from error
    if array.dtype.kind == "O":
        array = _from_objects(what, array, getattr(values, "columns", None))
    if array.dtype.kind not in "biuf":
        raise ConfigurationError(f"{what} must be numbers, got {_kind(what, array.dtype)}")
    if array.dtype.kind == "u" and array.size and int(array.max()) > GREATEST:
        raise ConfigurationError(f"{what}: a value is {array.max()}, more than the greatest int64")
    if array.dtype.kind == "f" and array.itemsize > 8:
        array = array.astype(np.float64)
    array = array.astype(WIDER.get(array.dtype, array.dtype), copy=False)
    # torch takes no reversed arrays and no foreign byte order, and warns of arrays that cannot be written
    return np.require(array, array.dtype.newbyteorder("="), ["C", "W"])


def check_alike(what: str, values: Sequence[Any]) -> None:
    """Check a list of samples: arrays and tensors in it need one shape and one kind of numbers.

    Raises:
        ConfigurationError: they differ; the text names the first that does.
    """
    first: tuple[list[int], str] | None = None
    for k, value in enumerate(values):
        if not hasattr(value, "shape") and not isinstance(value, list | tuple):
            shape: list[int] = []
        elif isinstance(value, np.ma.MaskedArray) and value.count() < value.size:
            raise ConfigurationError(f"{what}: number {k} has masked values; {MISSING}")
        else:
            shape = _shape(value)
        kind = kind_of(value)
        if first is None:
            first = shape, kind
        if shape != first[0]:
            raise ConfigurationError(
                f"{what}: number {k} has the shape {shape}, but number 0 has {first[0]}; all samples need one shape"
            )
        if not is_alike(kind, first[1]):
            raise ConfigurationError(
                f"{what}: number {k} is of {_name(value)}, but number 0 of {_name(values[0])}; all samples need one type"
            )


def kind_of(value: Any) -> str:
    """Return the kind of numbers of an array or a tensor: "b", "i" or "f", or "u" with a number of bytes.

    It is "" for a number or a list of Python, which may be mixed: 1 and 2.5 are values of one column.
    """
    dtype = getattr(value, "dtype", None)
    if isinstance(dtype, torch.dtype):
        unsigned = not dtype.is_floating_point and not dtype.is_complex and not dtype.is_signed and dtype != torch.bool
        return f"u{dtype.itemsize}" if unsigned else "f" if dtype.is_floating_point else "b" if dtype == torch.bool else "i"
    kind = getattr(dtype, "kind", "")
    return f"u{dtype.itemsize}" if dtype is not None and kind == "u" else kind


def is_alike(one: str, other: str) -> bool:
    """Return whether numbers of two kinds may be samples of one set; see `kind_of`.

    Unsigned numbers of different sizes, such as pixels of 8 and of 16 bits, have different ranges.
    """
    return one == other or "" in (one, other) or (one[0] in "iu" and other[0] in "iu" and "i" in (one, other))


def _text(what: str) -> str:
    return TEXT_INPUT if " input" in what else TEXT


def _plain(what: str, values: Tensor) -> Tensor:
    """Return a tensor of numbers without gradient, on the CPU."""
    if values.layout != torch.strided or values.is_nested:
        raise ConfigurationError(f"{what}: a tensor of layout {values.layout}; pass its to_dense()")
    if values.is_quantized or values.is_complex() or values.is_meta:
        raise ConfigurationError(f"{what} must be numbers, got a tensor of {values.dtype} on {values.device}")
    if values.dtype in (torch.uint16, torch.uint32, torch.uint64):
        return torch.from_numpy(numbers(what, values.cpu().numpy()))
    return (values.detach() if values.requires_grad else values).cpu()


def _from_objects(what: str, array: np.ndarray, columns: Any) -> np.ndarray:
    """Return an array of Python objects as numbers, if each of them is one.

    Args:
        columns: names of the columns, for errors; None if they have none.
    """
    for place, value in np.ndenumerate(array):
        if isinstance(value, Real):
            continue
        column = "" if columns is None or len(place) != 2 else f" (column {columns[place[1]]!r})"
        if value is None or type(value).__name__ in ("NAType", "NaTType"):
            raise ConfigurationError(f"{what}: {_at(place)}{column} is {value!r}; {MISSING}")
        got = _text(what) if isinstance(value, str) else type(value).__name__
        raise ConfigurationError(f"{what} must be numbers; {_at(place)}{column} is {value!r:.40}, {got}")
    integers = all(isinstance(value, int | np.integer | np.bool_) for value in array.flat)
    try:
        return array.astype(np.int64 if integers and array.size else np.float64)
    except OverflowError as error:
        raise ConfigurationError(f"{what}: a number is too large for 64 bits") from error


def _shape(value: Any) -> list[int]:
    try:
        return list(np.shape(value))
    except ValueError:  # lists of different lengths
        return [len(value), -1]


def _at(place: Sequence[int]) -> str:
    """Return the name of a place, such as "number 3" or "[3, 1]"."""
    return f"number {place[0]}" if len(place) == 1 else "it" if not len(place) else str(list(place))


def _name(value: Any) -> str:
    return str(value.dtype).removeprefix("torch.")


def _kind(what: str, dtype: np.dtype) -> str:
    """Return what an array has that is not numbers."""
    if dtype.kind in "UST":
        return _text(what)
    if dtype.kind in "mM":
        return f"dates ({dtype}); convert them to numbers, such as days"
    if dtype.kind == "V":
        return "a structured array; make a column of each field"
    return str(dtype)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


class Labels:
    """Labels in the order of their classes. All nodes of a federation must use the same.

    Args:
        labels: the label of each class, two or more.

    Raises:
        ConfigurationError: there are fewer than two labels, or one of them is listed twice.
    """

    def __init__(self, labels: Sequence[Label]) -> None:
        self.names = tuple(labels)
        self._classes = {label: k for k, label in enumerate(self.names)}
        if isinstance(labels, str) or len(self._classes) < max(2, len(self.names)):
            raise ConfigurationError(f"labels must list two different labels or more, got {labels!r}")

    def class_of(self, what: str, label: Any) -> int:
        """Return the class of a label, which may be a value of NumPy or torch.

        Args:
            what: the name of the value, for errors, for example "train data: target 3".

        Raises:
            ConfigurationError: it is not one of the labels.
        """
        value = label.item() if getattr(label, "shape", None) == () else label
        found = self._classes.get(value) if isinstance(value, Label) else None
        if found is None:
            shown = ", ".join(map(repr, self.names[:MOST_NAMED])) + (", ..." if len(self.names) > MOST_NAMED else "")
            raise ConfigurationError(f"{what} is {value!r}; a label must be one of {shown}")
        return found

    def classes_of(self, what: str, labels: Any) -> np.ndarray:
        """Return the classes of labels, int64 [n]; see `class_of`."""
        return np.array([self.class_of(f"{what} {k}", label) for k, label in enumerate(labels)], np.int64)
