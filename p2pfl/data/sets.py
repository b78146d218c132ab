"""Image data sets by name: where their files are, and whether these are what they should be.

A name is a folder of the data root, which is the option `root` or else the environment variable P2PFL_DATA. Any folder will
do that holds IDX files (`train-images-idx3-ubyte`, `train-labels-idx1-ubyte`, and `t10k-` or `test-` for the test part; a
prefix and `.gz` are allowed) or CIFAR's binary files (`data_batch_*.bin` and `test_batch*.bin`, or `train.bin` and
`test.bin`). Of the sets in KNOWN the numbers and shapes are checked; of the CIFAR sets fewer batches than all will do.
`digits` needs no file.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from p2pfl.data import cifar, digits, idx
from p2pfl.data.files import Missing
from p2pfl.errors import ConfigurationError
from p2pfl.randomness import Draws

ROOT = "P2PFL_DATA"


class Images(NamedTuple):
    """One part of a data set.

    Attributes:
        x: uint8 [n, c, h, w].
        y: int64 [n].
        writers: who wrote each, int64 [n], if that is known.
    """

    x: np.ndarray
    y: np.ndarray
    writers: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class ImageSet:
    """
    Attributes:
        classes: how many; labels are below it.
        top: the greatest value that a pixel can have.
        mean, std: of each channel over the training part, with pixels from 0 to 1.
    """

    name: str
    classes: int
    top: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    train: Images
    test: Images


class Known(NamedTuple):
    """What is known of a published set: where it comes from, and its numbers."""

    title: str
    home: str
    folders: tuple[str, ...]
    files: str
    classes: int
    shape: tuple[int, int, int]
    train: int
    test: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


_IDX_FILES = "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte"
_GREY = (1, 28, 28)
KNOWN = {
    "mnist": Known(
        "MNIST", "yann.lecun.com/exdb/mnist", ("mnist",), _IDX_FILES, 10, _GREY, 60_000, 10_000, (0.1307,), (0.3081,)
    ),
    "fashion-mnist": Known(
        "Fashion-MNIST",
        "github.com/zalandoresearch/fashion-mnist",
        ("fashion-mnist",),
        _IDX_FILES,
        10,
        _GREY,
        60_000,
        10_000,
        (0.2860,),
        (0.3530,),
    ),
    "cifar10": Known(
        "CIFAR-10",
        'www.cs.toronto.edu/~kriz/cifar.html, the "binary version"',
        ("cifar10", "cifar10/cifar-10-batches-bin", "cifar-10-batches-bin"),
        "data_batch_1.bin to data_batch_5.bin and test_batch.bin",
        10,
        cifar.SHAPE,
        50_000,
        10_000,
        (0.4914, 0.4822, 0.4465),
        (0.2470, 0.2435, 0.2616),
    ),
    "cifar100": Known(
        "CIFAR-100",
        'www.cs.toronto.edu/~kriz/cifar.html, the "binary version"',
        ("cifar100", "cifar100/cifar-100-binary", "cifar-100-binary"),
        "train.bin and test.bin",
        100,
        cifar.SHAPE,
        50_000,
        10_000,
        (0.5071, 0.4865, 0.4409),
        (0.2673, 0.2564, 0.2762),
    ),
}
WRITERS = "github.com/facebookresearch/qmnist"
NAMES = ("digits", *KNOWN, "qmnist")

_PART = {"train": "train", "test": "(?:t10k|test)"}


def data_root(root: str, needed_by: str) -> Path:
    """Return the folder that holds the data sets.

    Raises:
        ConfigurationError: none is named, or it is no folder.
    """
    name = root or os.environ.get(ROOT, "")
    if not name:
        raise ConfigurationError(
            f"{needed_by} needs the folder that holds it: name it by the environment variable {ROOT}, or the option `root`"
        )
    path = Path(name).expanduser()
    if not path.is_dir():
        raise ConfigurationError(f"{'root' if root else ROOT} names {name}, which is no folder")
    return path


def load(name: str, root: str = "") -> ImageSet:
    """Return a data set: one of NAMES, or any folder of the data root. It is read once per process, and not to be written.

    Raises:
        ConfigurationError: it is missing, damaged or not what it should be; the text says where the official files come
            from.
    """
    if name == "digits":
        return _digits()
    return _load(name, data_root(root, f"the data set {name!r}"))


@lru_cache(maxsize=8)
def _load(name: str, root: Path) -> ImageSet:
    if name == "qmnist":
        return _with_writers(_load("mnist", root), root)
    known = KNOWN.get(name)
    folder = next((root / f for f in (known.folders if known else (name,)) if (root / f).is_dir()), root / name)
    where = f"; {known.title} comes from {known.home}: {known.files}" if known else ""
    try:
        train, test = _read_idx(folder) or _read_cifar(folder) or (None, None)
        if train is None or test is None:
            if not folder.is_dir():
                raise Missing(f"there is no {folder}")
            raise ConfigurationError(f"{folder} holds neither IDX files nor CIFAR's binary files")
        _check(folder, train, test)
        if known:
            _check_known(folder, known, train, test)
            return ImageSet(name, known.classes, 255, known.mean, known.std, train, test)
    except ConfigurationError as error:
        raise type(error)(f"{error}{where}") from error
    except OSError as error:
        raise ConfigurationError(f"{folder}: {error.strerror}") from error
    mean, std = _moments(train.x)
    return ImageSet(name, int(max(train.y.max(), test.y.max())) + 1, 255, mean, std, train, test)


def _read_idx(folder: Path) -> tuple[Images, Images] | None:
    """Read the four IDX files of a folder; None if it has no such files."""
    kinds = {"images": "idx[34]", "labels": "idx1"}
    parts = {}
    for part, word in _PART.items():
        paths = {kind: _only(folder, rf"(?:.*[-_])?{word}-{kind}[-.]{idx_}-ubyte") for kind, idx_ in kinds.items()}
        if not any(paths.values()):
            continue
        for kind, path in paths.items():
            if path is None:
                raise ConfigurationError(f"{folder} has no file of the {kind} of the {part} part")
        x, y = (idx.read(path) for path in paths.values() if path)
        x = x[:, None] if x.ndim == 3 else x
        if x.dtype != np.uint8 or x.ndim != 4 or y.ndim != 1 or y.dtype.kind not in "iu":
            raise ConfigurationError(f"{folder}: the {part} part is not of byte images and whole labels")
        parts[part] = Images(x, y.astype(np.int64))
    if not parts:
        return None
    if len(parts) < 2:
        raise ConfigurationError(f"{folder} has no {'test' if 'train' in parts else 'training'} part")
    return parts["train"], parts["test"]


def _read_cifar(folder: Path) -> tuple[Images, Images] | None:
    """Read the binary files of a CIFAR set, as many batches as there are; None if the folder has none."""
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    for label_bytes, train, test in (
        (1, r"data_batch_.*\.bin(\.gz)?", r"test_batch.*\.bin(\.gz)?"),
        (2, r"train\.bin(\.gz)?", r"test\.bin(\.gz)?"),
    ):
        found = [[path for path in files if re.fullmatch(pattern, path.name)] for pattern in (train, test)]
        if all(found):
            batches = [[cifar.read(path, label_bytes) for path in paths] for paths in found]
            first, second = (
                Images(np.concatenate([x for x, _ in part]), np.concatenate([y[:, -1] for _, y in part])) for part in batches
            )
            return first, second
        if any(found):
            raise ConfigurationError(f"{folder} has no {'test' if found[0] else 'training'} part")
    if any(re.fullmatch(r"data_batch_\d", path.name) for path in files) or {"train", "test"} <= {p.name for p in files}:
        raise ConfigurationError(f"{folder} holds the pickled Python form, which is not read; take the binary version")
    return None


def _only(folder: Path, pattern: str) -> Path | None:
    """Return the one file with such a name, preferring a plain one to a packed one of the same name."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    found = sorted(name for name in names if re.fullmatch(rf"{pattern}(\.gz)?", name))
    plain = sorted({name.removesuffix(".gz") for name in found})
    if len(plain) > 1:
        raise ConfigurationError(f"{folder} holds several sets ({', '.join(plain)}); give each a folder of its own")
    return folder / found[0] if found else None


def _check(folder: Path, train: Images, test: Images) -> None:
    for part, (x, y, _) in (("training", train), ("test", test)):
        if len(x) != len(y):
            raise ConfigurationError(f"{folder}: the {part} part has {len(x):,} images, but {len(y):,} labels")
        if not x.size:
            raise ConfigurationError(f"{folder}: the {part} part is empty")
        if y.min() < 0:
            raise ConfigurationError(f"{folder}: the {part} part has the label {y.min()}")
    if train.x.shape[1:] != test.x.shape[1:]:
        raise ConfigurationError(f"{folder}: training and test images differ in shape")


def _check_known(folder: Path, known: Known, train: Images, test: Images) -> None:
    if train.x.shape[1:] != known.shape:
        raise ConfigurationError(
            f"{folder}: images are {list(train.x.shape[1:])}, those of {known.title} {list(known.shape)}"
        )
    for part, (_, y, _), count in (("training", train, known.train), ("test", test, known.test)):
        if len(y) > count or (len(y) < count and known.shape == _GREY):
            raise ConfigurationError(f"{folder}: {len(y):,} {part} images, {known.title} has {count:,}")
        if y.max() >= known.classes:
            raise ConfigurationError(
                f"{folder}: the label {y.max()} of a {part} image; {known.title} has {known.classes} classes"
            )


def _with_writers(mnist: ImageSet, root: Path) -> ImageSet:
    """Join QMNIST's tables to MNIST's images, row by row: column 0 is the class, column 2 the writer.

    MNIST's test images are the first 10,000 of QMNIST's.
    """
    folder = next((root / f for f in ("qmnist_writers", "qmnist") if (root / f).is_dir()), root / "qmnist")
    joined = []
    for part, images in (("train", mnist.train), ("test", mnist.test)):
        path = _only(folder, rf"qmnist-{part}-labels-idx2-int")
        if path is None:
            raise Missing(f"{folder} lacks qmnist-{part}-labels-idx2-int.gz; QMNIST's tables come from {WRITERS}")
        table = idx.read(path)
        if table.ndim != 2 or table.shape[1] < 3 or table.dtype.kind not in "iu":
            raise ConfigurationError(f"{path} is no table of QMNIST; its tables come from {WRITERS}")
        if len(table) < len(images.y) or (table[: len(images.y), 0] != images.y).any():
            raise ConfigurationError(f"{path} is not of the images in the folder mnist: classes differ")
        joined.append(images._replace(writers=table[: len(images.y), 2].astype(np.int64)))
    return ImageSet("qmnist", mnist.classes, mnist.top, mnist.mean, mnist.std, joined[0], joined[1])


@lru_cache(maxsize=1)
def _digits() -> ImageSet:
    """scikit-learn's handwritten digits; a fifth of them, always the same, is the test part."""
    pixels, labels = digits.read()
    x, y = pixels.reshape(-1, 1, 8, 8).astype(np.uint8), labels.astype(np.int64)
    order = Draws(0, "data/digits").generator(0, "test part").permutation(len(y))
    test, train = np.sort(order[: len(y) // 5]), np.sort(order[len(y) // 5 :])
    return ImageSet("digits", 10, 16, (0.3053,), (0.3760,), Images(x[train], y[train]), Images(x[test], y[test]))


def _moments(x: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and the deviation of each channel, from how often each value occurs; rounded to four places."""
    mean, std = [], []
    values = np.arange(256) / 255
    for channel in range(x.shape[1]):
        counts = np.bincount(x[:, channel].reshape(-1), minlength=256)
        average = (counts * values).sum() / counts.sum()
        deviation = np.sqrt((counts * (values - average) ** 2).sum() / counts.sum())
        mean.append(round(float(average), 4))
        std.append(max(round(float(deviation), 4), 1e-4))
    return tuple(mean), tuple(std)
