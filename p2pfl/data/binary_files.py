"""Readers of published files of numbers that do not trust the sizes in them: IDX, CIFAR's binary form, and .npz.

- IDX (MNIST and similar sets), plain or gzip, big-endian: bytes 0 and 1 are zero, byte 2 is the type, byte 3 the number of
  dimensions; each dimension is four bytes (LeCun, Cortes and Burges, "The MNIST database of handwritten digits").
- CIFAR-10 and CIFAR-100: records of one or two label bytes and 3,072 pixel bytes, 32 rows of 32, red first, then green, then
  blue (Krizhevsky 2009, "binary version").
- .npz: a zip file with a member NAME.npy for each array, with a magic string, a header with type and shape, and the values
  (NumPy enhancement proposal 1). Only the requested members are read, and their headers are checked before memory is
  allocated. Nothing is unpickled.
"""

from __future__ import annotations

import gzip
import os
import struct
import sys
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import IO, NamedTuple, TextIO, cast

import numpy as np

from p2pfl._util.machine import check_memory
from p2pfl.errors import ConfigurationError

MOST_BYTES = 2**31  # of one file, unpacked
LONGEST_LINE = 2**24  # characters of a text
DEFLATE_RATIO = 1032  # maximum number of bytes that one byte of gzip can represent
TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
IDX_DIMENSIONS = 8
SHAPE = (3, 32, 32)
PIXELS = 3072
MOST_RECORDS = 100_000  # of one file; the official ones have 10,000 or 50,000
_PICKLE = b"\x80"  # the first byte of the pickled Python form, greater than any label of the binary form
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


@contextmanager
def reading(path: Path) -> Iterator[tuple[IO[bytes], int]]:
    """Open a file. A gzip file is unpacked while it is read.

    Yields:
        The open file and its maximum content in bytes: the size of a plain file, 1032 times the size of a gzip file.

    Raises:
        ConfigurationError: it cannot be read, or is damaged gzip (also raised while it is read).
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            if not packed:
                yield file, size
                return
            with gzip.open(file) as unpacked:
                yield cast(IO[bytes], unpacked), size * DEFLATE_RATIO
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ConfigurationError(f"{path} is damaged: {error}") from error
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror or error}") from error


def lines_of(path: Path, text: TextIO) -> Iterator[str]:
    """Yield the lines of a text.

    Raises:
        ConfigurationError: a line is too long for a table; the rest of it is not read.
    """
    while line := text.readline(LONGEST_LINE + 1):
        if len(line) > LONGEST_LINE:
            raise ConfigurationError(f"{path} has a line of more than {LONGEST_LINE:,} characters")
        yield line


def read_idx(path: Path, limit: int = MOST_BYTES) -> np.ndarray:
    """Read an IDX file, plain or gzip.

    The header is checked before memory is allocated. From a compressed file, no more is unpacked than the header
    announces.

    Args:
        limit: maximum number of bytes of the values.

    Returns:
        An array of the file's shape and type, in the machine's byte order. It is read-only.

    Raises:
        ConfigurationError: it cannot be read, is not an IDX file, is too large, or its length differs from its header.
    """
    with reading(path) as (file, most):
        start = file.read(4)
        if len(start) < 4 or start[:2] != b"\0\0" or start[2] not in TYPES or not 1 <= start[3] <= IDX_DIMENSIONS:
            raise ConfigurationError(f"{path} is not an IDX file: it begins with {start.hex(' ') or 'nothing'}")
        header = file.read(4 * start[3])
        if len(header) < 4 * start[3]:
            raise ConfigurationError(f"{path} ends within its header")
        shape = struct.unpack(f">{start[3]}I", header)
        kind = np.dtype(TYPES[start[2]])
        size = prod(shape) * kind.itemsize
        if size > limit:
            raise ConfigurationError(f"{path} announces {size:,} bytes, more than the limit of {limit:,}")
        if prod(length for length in shape if length) * kind.itemsize > sys.maxsize:  # NumPy's limit, also if one is 0
            raise ConfigurationError(f"{path}: its dimensions {shape} are more than an array can have")
        if size > most:
            raise ConfigurationError(f"{path} is too short for its header, which announces {size:,} bytes")
        check_memory(f"{path}", size)
        values = file.read(size + 1)
    if len(values) != size:
        found = "more" if len(values) > size else f"{len(values):,}"
        raise ConfigurationError(f"{path}: its header announces {size:,} bytes, but there are {found}")
    return np.frombuffer(values, kind).reshape(shape).astype(kind.newbyteorder("="), copy=False)


def read_cifar(path: Path, label_bytes: int = 1, limit: int = MOST_RECORDS) -> tuple[np.ndarray, np.ndarray]:
    """Read one file, plain or gzip. The number of records follows from its length.

    Args:
        label_bytes: 1 for CIFAR-10, 2 for CIFAR-100 (the superclass, then the class).
        limit: maximum number of records; no more are unpacked from a compressed file.

    Returns:
        Images, uint8 [n, 3, 32, 32], and labels, int64 [n, label_bytes].

    Raises:
        ConfigurationError: it cannot be read, is the pickled Python form, is too long, or ends within a record.
    """
    record = label_bytes + PIXELS
    with reading(path) as (file, most):
        values = file.read(min(limit * record, most) + 1)
    if values[:1] == _PICKLE:
        raise ConfigurationError(
            f"{path} is the pickled Python version, which is not supported; use the binary version (.bin)"
        )
    if len(values) > limit * record:
        raise ConfigurationError(f"{path} has more than {limit:,} records")
    if not values or len(values) % record:
        raise ConfigurationError(
            f"{path} has {len(values):,} bytes, which is not a multiple of the record size of {record:,}"
        )
    records = np.frombuffer(values, np.uint8).reshape(-1, record)
    images = np.ascontiguousarray(records[:, label_bytes:]).reshape(-1, *SHAPE)
    return images, records[:, :label_bytes].astype(np.int64)


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


def read_npz(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
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
