"""Reader of published files, plain or gzip, that does not trust the sizes in them."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TextIO, cast

from p2pfl.errors import ConfigurationError

MOST_BYTES = 2**31  # of one file, unpacked
LONGEST_LINE = 2**24  # characters of a text
DEFLATE_RATIO = 1032  # maximum number of bytes that one byte of gzip can represent


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
