"""Reader of the IDX format of MNIST and similar sets: a header of types and dimensions, then the values, big-endian.

Bytes 0 and 1 are zero, byte 2 is the type, byte 3 the number of dimensions; each dimension is four bytes
(LeCun, Cortes and Burges, "The MNIST database of handwritten digits", file formats).
"""

from __future__ import annotations

import struct
import sys
from math import prod
from pathlib import Path

import numpy as np

from p2pfl.data.formats.reading import MOST_BYTES, reading
from p2pfl.errors import ConfigurationError
from p2pfl.system.available_memory import check_memory

TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
MOST_DIMENSIONS = 8


def read(path: Path, limit: int = MOST_BYTES) -> np.ndarray:
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
        if len(start) < 4 or start[:2] != b"\0\0" or start[2] not in TYPES or not 1 <= start[3] <= MOST_DIMENSIONS:
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
