"""Reader of the training and test part of an image set from the files in a folder."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from p2pfl.data.formats import cifar, idx
from p2pfl.errors import ConfigurationError

PICTURES = {".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".tif", ".tiff"}
ARRAYS = {".npz", ".npy", ".csv", ".parquet", ".arrow", ".h5", ".hdf5", ".mat", ".pt"}
MOST_LISTED = 1000  # paths of one depth, in search of a remedy
_PART = {"train": "train", "test": "(?:t10k|test)"}


class Images(NamedTuple):
    """One part of a data set.

    Attributes:
        x: uint8 [n, c, h, w].
        y: int64 [n].
        writers: the writer of each image, int64 [n], if known.
    """

    x: np.ndarray
    y: np.ndarray
    writers: np.ndarray | None = None


def read_idx(folder: Path) -> tuple[Images, Images] | None:
    """Read the four IDX files of a folder; None if it has none."""
    kinds = {"images": "idx[34]", "labels": "idx1"}
    parts = {}
    for part, word in _PART.items():
        paths = {kind: the_one(folder, rf"(?:.*[-_])?{word}-{kind}[-.]{idx_}-ubyte") for kind, idx_ in kinds.items()}
        if not any(paths.values()):
            continue
        for kind, path in paths.items():
            if path is None:
                raise ConfigurationError(f"{folder} has no file of the {kind} of the {part} part")
        x, y = (idx.read(path) for path in paths.values() if path)
        x = x[:, None] if x.ndim == 3 else x
        if x.dtype != np.uint8 or x.ndim != 4 or y.ndim != 1 or y.dtype.kind not in "iu":
            raise ConfigurationError(f"{folder}: the {part} part must have images of bytes, and whole numbers as labels")
        parts[part] = Images(x, y.astype(np.int64))
    if not parts:
        return None
    if len(parts) < 2:
        raise ConfigurationError(f"{folder} has no {'test' if 'train' in parts else 'training'} part")
    return parts["train"], parts["test"]


def read_cifar(folder: Path) -> tuple[Images, Images] | None:
    """Read all available binary files of a CIFAR set; None if the folder has none."""
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    for label_bytes, train, test in (
        (1, r"data_batch_.*\.bin(\.gz)?", r"test_batch.*\.bin(\.gz)?"),
        (2, r"train\.bin(\.gz)?", r"test\.bin(\.gz)?"),
    ):
        found = [_without_copies(path for path in files if re.fullmatch(pattern, path.name)) for pattern in (train, test)]
        if all(found):
            batches = [[cifar.read(path, label_bytes) for path in paths] for paths in found]
            first, second = (
                Images(np.concatenate([x for x, _ in part]), np.concatenate([y[:, -1] for _, y in part])) for part in batches
            )
            return first, second
        if any(found):
            raise ConfigurationError(f"{folder} has no {'test' if found[0] else 'training'} part")
    if any(re.fullmatch(r"data_batch_\d", path.name) for path in files) or {"train", "test"} <= {p.name for p in files}:
        raise ConfigurationError(
            f"{folder} contains the pickled Python version, which is not supported; use the binary version"
        )
    return None


def _without_copies(paths: Iterable[Path]) -> list[Path]:
    """Return files without those .gz files that stand next to the plain file of the same name."""
    names = {path.name: path for path in paths}
    return [path for name, path in names.items() if not (name.endswith(".gz") and name.removesuffix(".gz") in names)]


def read_folder(folder: Path) -> tuple[Images, Images]:
    """Read the data set of a folder.

    Raises:
        ConfigurationError: it has files of no known format, or of several.
    """
    forms = {"IDX files": read_idx(folder), "binary files of CIFAR": read_cifar(folder)}
    found = {name: images for name, images in forms.items() if images is not None}
    if len(found) > 1:
        raise ConfigurationError(f"{folder} contains several data sets ({' and '.join(found)}); move each to its own folder")
    if not found:
        raise ConfigurationError(f"{folder} contains neither IDX files nor binary files of CIFAR{_remedy(folder)}")
    return next(iter(found.values()))


def _remedy(folder: Path) -> str:
    """Return what to do with a folder of other files; "" if that is unknown."""
    paths = [path for depth in ("*", "*/*", "*/*/*") for path in islice(folder.glob(depth), MOST_LISTED)]
    if any(path.suffix.lower() in PICTURES for path in paths):
        return (
            "; for a folder of pictures, write a task with p2pfl.classification and a Dataset, such as torchvision's"
            " ImageFolder"
        )
    inner = next((path.parent for path in paths if re.search(r"(-idx[134]-ubyte|_batch.*\.bin)(\.gz)?$", path.name)), None)
    if inner is not None:
        return f", but {inner.relative_to(folder)} does; move its files to {folder.name}"
    if any(path.suffix.lower() in ARRAYS for path in paths):
        return "; for arrays and tables, use the task classification, or write a task with p2pfl.classification"
    return ""


def the_one(folder: Path, pattern: str) -> Path | None:
    """Return the one file that matches the pattern; a plain file is preferred to a .gz file of the same name."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    found = sorted(name for name in names if re.fullmatch(rf"{pattern}(\.gz)?", name))
    plain = sorted({name.removesuffix(".gz") for name in found})
    if len(plain) > 1:
        raise ConfigurationError(f"{folder} contains several data sets ({', '.join(plain)}); move each to its own folder")
    return folder / found[0] if found else None


def check(folder: Path, train: Images, test: Images) -> None:
    for part, (x, y, _) in (("training", train), ("test", test)):
        if len(x) != len(y):
            raise ConfigurationError(f"{folder}: the {part} part has {len(x):,} images, but {len(y):,} labels")
        if not x.size:
            raise ConfigurationError(f"{folder}: the {part} part is empty")
        if y.min() < 0:
            raise ConfigurationError(f"{folder}: the {part} part has the label {y.min()}; labels must be 0 or more")
    if train.x.shape[1:] != test.x.shape[1:]:
        raise ConfigurationError(f"{folder}: training and test images have different shapes")
