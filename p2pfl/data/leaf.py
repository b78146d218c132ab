"""LEAF's FEMNIST: handwritten characters with their writers, in the JSON files that LEAF's own script makes.

`preprocess.sh -s niid --sf 1.0 -k 0 -t sample` of LEAF (Caldas et al., 2018, arXiv 1812.01097) makes a folder with the
subfolders `train` and `test`. Each has files of about a hundred writers:

    {"users": ["f0_1", ...], "num_samples": [120, ...],
     "user_data": {"f0_1": {"x": [[784 numbers from 0 to 1], ...], "y": [labels from 0 to 61]}, ...}}

A pixel was a byte, which the script divided by 255; the byte is restored, so that an image takes 784 bytes instead of
784 texts. With `-t sample` a writer has images in both parts; with `-t user` each writer is in one of them.

The files of one part are read one after the other, and the writers of a file one by one: the most memory that reading
takes, besides the result, is the text of one file and the numbers of one writer. It is compared with the free memory first.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isqrt
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from p2pfl._util.machine import check_memory
from p2pfl.errors import ConfigurationError

PARTS = ("train", "test")
COMMAND = "./preprocess.sh -s niid --sf 1.0 -k 0 -t sample"
MOST_FILES = 10_000  # in one part
MOST_PIXELS = 2**16  # of one image
_AS_TEXT = 2  # bytes of one number, at least: "0,"
_AS_FLOAT = 40  # bytes of one number in a list of Python
_TOLERANCE = 1e-3  # of a pixel's byte


class Written(NamedTuple):
    """Images of one part, in the order of the files.

    Attributes:
        x: uint8 [n, 1, side, side].
        y: int64 [n].
        writers: the name of each writer and the number of its images.
    """

    x: np.ndarray
    y: np.ndarray
    writers: list[tuple[str, int]]


class _File(msgspec.Struct):
    users: list[str]
    num_samples: list[int]
    user_data: dict[str, msgspec.Raw]


class _Samples(msgspec.Struct):
    x: list[list[float]]
    y: list[int]


def read(folder: Path) -> tuple[Written, Written] | None:
    """Return the training and the test part of a folder; None if it has no files of this form.

    Raises:
        ConfigurationError: a file is damaged or of another of LEAF's data sets, a part is missing, or the memory does not
            suffice.
    """
    files = [_files(folder / part) for part in PARTS]
    if not any(files):
        return None
    for part, found in zip(PARTS, files, strict=True):
        if not found:
            raise ConfigurationError(f"{folder / part} has no JSON files; LEAF makes both parts with {COMMAND}")
    train, test = (_read_part(found) for found in files)
    return train, test


def _files(folder: Path) -> list[Path]:
    found = sorted(folder.glob("*.json")) if folder.is_dir() else []
    if len(found) > MOST_FILES:
        raise ConfigurationError(f"{folder} has more than {MOST_FILES:,} files")
    return found


def _read_part(files: list[Path]) -> Written:
    images: list[np.ndarray] = []
    labels: list[np.ndarray] = []
    writers: list[tuple[str, int]] = []
    known: dict[str, Path] = {}
    for path in files:
        for name, x, y in _read_file(path):
            if name in known:
                raise ConfigurationError(
                    f"{path}: the writer {name!r} is also in {known[name].name}; remove one of the files"
                )
            if images and x.shape[1:] != images[0].shape[1:]:
                raise ConfigurationError(
                    f"{path}: the images of {name!r} have {x.shape[1:]} pixels, the first {images[0].shape[1:]}"
                )
            known[name] = path
            images.append(x)
            labels.append(y)
            writers.append((name, len(y)))
    if not images:
        raise ConfigurationError(f"{files[0].parent}: no writer of its files has an image")
    return Written(np.concatenate(images)[:, None], np.concatenate(labels), writers)


def _read_file(path: Path) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield the name, the images, uint8 [n, side, side], and the labels, int64 [n], of each writer with images."""
    try:
        check_memory(f"{path}", 2 * path.stat().st_size)  # the file, and the texts of its writers
        content = msgspec.json.decode(path.read_bytes(), type=_File)
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror or error}") from error
    except msgspec.DecodeError as error:  # also a ValidationError
        raise ConfigurationError(f"{path} is not a file of LEAF: {error}") from error
    if set(content.users) != set(content.user_data) or len(content.users) != len(content.num_samples):
        raise ConfigurationError(f"{path}: users, num_samples and user_data do not list the same writers")
    for name, count in zip(content.users, content.num_samples, strict=True):
        raw = content.user_data.pop(name, None)
        if raw is None:
            raise ConfigurationError(f"{path}: users lists {name!r} twice")
        check_memory(f"{path}: the writer {name!r}", len(memoryview(raw)) // _AS_TEXT * _AS_FLOAT)
        try:
            samples = msgspec.json.decode(raw, type=_Samples)
        except msgspec.DecodeError as error:
            raise ConfigurationError(
                f"{path}: the writer {name!r} has no lists of pixels ({error}); of LEAF's data sets, FEMNIST is read"
            ) from error
        sizes = len(samples.x), len(samples.y)
        if sizes != (count, count):
            raise ConfigurationError(
                f"{path}: the writer {name!r} has {sizes[0]:,} images and {sizes[1]:,} labels, but num_samples is {count:,}"
            )
        if count:
            yield name, _pixels(f"{path}: the writer {name!r}", samples.x), np.array(samples.y, np.int64)


def _pixels(where: str, rows: list[list[float]]) -> np.ndarray:
    """Return the bytes of images, uint8 [n, side, side]."""
    lengths = {len(row) for row in rows}
    side = isqrt(max(lengths))
    if lengths != {side * side} or not 0 < side * side <= MOST_PIXELS:
        raise ConfigurationError(
            f"{where} has images that are not square: {', '.join(map(str, sorted(lengths)[:5]))} numbers"
        )
    values = np.array(rows, np.float64) * 255
    found = np.rint(values)
    if not ((values >= 0) & (values <= 255) & (abs(values - found) <= _TOLERANCE)).all():
        raise ConfigurationError(
            f"{where} has pixels that are not multiples of 1/255 from 0 to 1, as LEAF's FEMNIST has them"
        )
    return found.astype(np.uint8).reshape(-1, side, side)
