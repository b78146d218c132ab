"""Reader of the binary form of CIFAR-10 and CIFAR-100: records of one or two label bytes and 3,072 pixel bytes.

A record's pixels are 32 rows of 32, red first, then green, then blue (Krizhevsky 2009, "binary version").
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from p2pfl.data.formats.reading import reading
from p2pfl.errors import ConfigurationError

SHAPE = (3, 32, 32)
PIXELS = 3072
MOST_RECORDS = 100_000  # of one file; the official ones have 10,000 or 50,000
_PICKLE = b"\x80"  # the first byte of the pickled Python form, greater than any label of the binary form


def read(path: Path, label_bytes: int = 1, limit: int = MOST_RECORDS) -> tuple[np.ndarray, np.ndarray]:
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
