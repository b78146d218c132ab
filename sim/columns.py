"""Tables that grow by rows, and arrays, which lie on disk once they are large."""

from __future__ import annotations

import mmap
import os
from contextlib import suppress
from os import SEEK_END
from tempfile import TemporaryFile, gettempdir
from typing import IO, Any
from weakref import finalize

import numpy as np

from p2pfl._util.atomic_files import reason
from p2pfl.errors import RunError

Table = dict[str, np.ndarray]

PART = 2**14  # rows that are written together
MAPPED = 2**25  # bytes of a table from which it is mapped into memory, not read; of an array that is on disk


class DiskArray:
    """Array of zeros that is on disk if it is large, and takes memory only while it is used.

    It is in memory if it is small, or if the system or the folder of temporary files cannot give it a file.

    Attributes:
        array: the array, of the given shape and dtype.
    """

    def __init__(self, shape: tuple[int, ...], kind: Any) -> None:
        self._map: mmap.mmap | None = None
        size = int(np.prod(shape)) * np.dtype(kind).itemsize
        if size >= MAPPED and hasattr(os, "posix_fallocate") and hasattr(mmap, "MADV_DONTNEED"):
            with suppress(OSError), TemporaryFile() as file:
                os.posix_fallocate(file.fileno(), 0, size)  # a full disk would end the process at any later write
                self._map = mmap.mmap(file.fileno(), size)
        self.array = np.zeros(shape, kind) if self._map is None else np.frombuffer(self._map, kind).reshape(shape)

    def release(self) -> None:
        """Free the memory, as far as the array is on disk."""
        if self._map is not None:
            self._map.madvise(mmap.MADV_DONTNEED)


class Columns:
    """Table that holds at most `PART` rows in memory. Full parts are in a temporary file without a name.

    The file is in the folder of temporary files (the variable TMPDIR), and disappears with the table, however the
    process ends.

    Args:
        kinds: the dtype of each column by name, in the order of the values of a row.

    Attributes:
        held: number of rows in memory.
    """

    def __init__(self, **kinds: Any) -> None:
        self._kind = np.dtype(list(kinds.items()))
        self._blocks: list[np.ndarray] = []  # rows in memory that came as columns, or before such
        self._rows: list[tuple[Any, ...]] = []  # those that came one by one since
        self._file: IO[bytes] | None = None
        self._written = 0

    def __len__(self) -> int:
        return self._written + self.held

    @property
    def held(self) -> int:
        return sum(map(len, self._blocks)) + len(self._rows)

    def append(self, row: tuple[Any, ...]) -> None:
        """Add a row.

        Raises:
            RunError: the temporary file cannot be written.
        """
        self._rows.append(row)
        if len(self._rows) >= PART:
            self._write()

    def extend(self, **columns: Any) -> None:
        """Add K rows as columns, [K] each, or one value for all rows.

        Raises:
            RunError: the temporary file cannot be written.
        """
        count = max(len(column) for column in columns.values() if np.ndim(column))
        rows = np.empty(count, self._kind)
        for name, column in columns.items():
            rows[name] = column
        self._gather()
        self._blocks.append(rows)
        if self.held >= PART:
            self._write()

    def table(self, first: int = 0) -> Table:
        """Return the rows from number `first` on as columns, [K] each.

        Changes of the columns do not affect this table. A long table is not read: its columns are views of the file.

        Raises:
            RunError: the temporary file cannot be written.
        """
        if self._file is None:
            rows = self._to_array()[first:]
        else:
            self._write()
            rows = self._read(self._file, first)
        return {name: rows[name] for name in rows.dtype.names or ()}

    def _to_array(self) -> np.ndarray:
        """Return the rows in memory as one structured array."""
        self._gather()
        return np.concatenate(self._blocks) if self._blocks else np.empty(0, self._kind)

    def _gather(self) -> None:
        """Make a block of the rows that came one by one."""
        if not self._rows:
            return
        array = np.empty(len(self._rows), self._kind)
        for name, column in zip(self._kind.names or (), zip(*self._rows, strict=True), strict=False):
            array[name] = column
        self._blocks.append(array)
        self._rows.clear()

    def _write(self) -> None:
        try:
            if self._file is None:
                self._file = TemporaryFile()  # noqa: SIM115 - it lives as long as the table
                finalize(self, self._file.close)
            self._file.seek(0, SEEK_END)
            self._file.write(self._to_array().tobytes())
            self._file.flush()
        except OSError as error:
            raise RunError(
                f"cannot write the rows of the run to {gettempdir()}: {reason(error)}; name another folder in TMPDIR"
            ) from error
        self._written += self.held
        self._blocks.clear()

    def _read(self, file: IO[bytes], first: int) -> np.ndarray:
        size, place = self._kind.itemsize, min(first, self._written)
        count = self._written - place
        if count * size >= MAPPED:
            return np.memmap(file, self._kind, "c", place * size, (count,)).view(np.ndarray)
        file.seek(place * size)
        return np.frombuffer(bytearray(file.read(count * size)), self._kind)
