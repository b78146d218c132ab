"""Reader of numeric arrays from a NumPy archive (.npz) that does not trust the sizes in it.

An archive is a zip file with a member NAME.npy for each array: a magic string, a header with type and shape, the values
(NumPy enhancement proposal 1). Only the requested members are read, and their headers are checked before memory is
allocated. Nothing is unpickled.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from p2pfl.data.formats.reading import DEFLATE_RATIO
from p2pfl.errors import ConfigurationError
from p2pfl.system.available_memory import check_memory

MOST_DIMENSIONS = 32
KINDS = "biuf"  # of dtypes: bool, int, unsigned int, float
_REMEDIES = {  # by the kind of a dtype
    "O": "save it with a numeric dtype, such as numpy.stack(array).astype(numpy.float32)",
    "U": "number the labels, or write a .csv file with task.labels",
    "S": "number the labels, or write a .csv file with task.labels",
    "c": "save its real and imaginary parts as columns",
    "V": "save its fields as columns of one array",
    "M": "save a number, such as days since a fixed date",
    "m": "save a number, such as days",
}
_NOT_PLAIN = "is damaged, or not a file of plain arrays written by numpy.savez"
_BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, struct.error, ValueError, OverflowError, RuntimeError)


class _Array(NamedTuple):
    dtype: np.dtype
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of bytes of the values."""
        return prod(self.shape) * self.dtype.itemsize


def names(path: Path) -> list[str]:
    """Return the names of the arrays of an archive, in their order.

    Raises:
        ConfigurationError: it is damaged or not an archive of arrays.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                return [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
        except _BROKEN as error:
            raise ConfigurationError(f"{path} {_NOT_PLAIN}") from error


def read(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the named arrays that the archive contains.

    Raises:
        ConfigurationError: it is damaged or not an archive of plain arrays, an array is not numeric, or the arrays do
            not fit into memory together.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                there = {*archive.namelist()}
                members = {name: archive.getinfo(f"{name}.npy") for name in names if f"{name}.npy" in there}
                found = {name: _header(path, name, archive, member) for name, member in members.items()}
                # The arrays are converted to float32 later.
                check_memory(f"{path}", sum(array.size + 4 * prod(array.shape) for array in found.values()))
                return {name: _values(archive, member) for name, member in members.items()}
        except _BROKEN as error:
            raise ConfigurationError(f"{path} {_NOT_PLAIN}") from error


def _header(path: Path, name: str, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> _Array:
    """Return the type and shape of an array, after checking that the archive's directory and the header agree."""
    if member.file_size > DEFLATE_RATIO * member.compress_size or member.compress_type not in (
        zipfile.ZIP_STORED,
        zipfile.ZIP_DEFLATED,
    ):
        raise zipfile.BadZipFile
    with archive.open(member) as content:
        array = _read_header(content)
        begin = content.tell()
    if array.dtype.kind not in KINDS:
        kind, remedy = array.dtype, _REMEDIES.get(array.dtype.kind, "convert it")
        raise ConfigurationError(f"{path}: {name} must be of numbers, got {kind}; {remedy}")
    if begin + array.size != member.file_size:
        raise ConfigurationError(
            f"{path}: the header of {name} announces {array.size:,} bytes, but there are {member.file_size - begin:,}"
        )
    return array


def _read_header(content: IO[bytes]) -> _Array:
    version = np.lib.format.read_magic(content)
    if version != (1, 0):  # later versions are for headers of more than 64 kB, which numeric arrays do not have
        raise ValueError
    try:
        shape, _, dtype = np.lib.format.read_array_header_1_0(content)
    except Exception as error:  # the header is a Python literal, and the parser raises various exceptions
        raise ValueError from error
    if len(shape) > MOST_DIMENSIONS or min(shape, default=0) < 0:
        raise ValueError
    return _Array(dtype, shape)


def _values(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(member) as content:
        array: np.ndarray = np.lib.format.read_array(content, allow_pickle=False)
        return array
