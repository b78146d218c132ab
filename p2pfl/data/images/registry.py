"""Image data sets by name, with checks of their files.

A name is a folder of the data root, which is the option `root` or else the environment variable P2PFL_DATA. The folder
must contain IDX files or CIFAR's binary files. IDX files are `train-images-idx3-ubyte`, `train-labels-idx1-ubyte`, and
`t10k-` or `test-` for the test part; a prefix and `.gz` are allowed. CIFAR's files are `data_batch_*.bin` and
`test_batch*.bin`, or `train.bin` and `test.bin`. For the sets in KNOWN, the numbers and shapes are checked; of the
CIFAR sets a part of the batches is sufficient. `digits` needs no file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np

from p2pfl.content.digests import digest_folder
from p2pfl.data.formats import idx
from p2pfl.data.images import digits
from p2pfl.data.images.catalog import KNOWN, WRITERS, Known
from p2pfl.data.images.folders import Images, check, read_folder, the_one
from p2pfl.data_facts import DataFacts
from p2pfl.errors import ConfigurationError, MissingRequirementError
from p2pfl.random_streams import RandomStreams
from p2pfl.system.shared_work import once

ROOT = "P2PFL_DATA"


@dataclass(frozen=True, eq=False)
class ImageSet:
    """An image data set.

    Attributes:
        classes: number of classes; labels are below it.
        top: the greatest possible value of a pixel.
        mean, std: of each channel over the training part (for the digits over both parts), with pixels from 0 to 1.
    """

    name: str
    classes: int
    top: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    train: Images
    test: Images

    @cached_property
    def facts(self) -> DataFacts:
        """The files as they were understood."""
        shape = " x ".join(map(str, self.train.x.shape[1:]))
        missing = np.setdiff1d(np.arange(self.classes), self.train.y)
        notes = []
        if len(missing):
            notes.append(
                f"{self.name}: no training image has the label {missing[0]}; the model has {self.classes} classes, 0 to"
                f" {self.classes - 1}"
            )
        if self.name not in KNOWN:
            notes += [f"{self.name}: {note}" for note in _notes_on_own(self.train, self.test)]
        pixels = f"{shape} pixels from {self.train.x.min()} to {self.train.x.max()}"
        classes = f"{self.classes} class{'es' * (self.classes != 1)}"
        details = (f"{len(self.test.y):,} test images", pixels, classes)
        return DataFacts(self.name, "images", len(self.train.y), notes=tuple(notes), details=details)


def _notes_on_own(train: Images, test: Images) -> list[str]:
    """Return what the owner of an image set should look at."""
    labels, notes = np.unique(train.y), []
    if len(labels) == 1:
        notes.append(f"all training images have the label {labels[0]}")
    if len(untested := np.setdiff1d(labels, test.y)):
        notes.append(f"no test image has the label {untested[0]}, which training images have")
    if train.x.min() == train.x.max():
        notes.append(f"all pixels of the training images are {train.x.min()}")
    seen = {*_hashes(train)}
    if shared := sum(key in seen for key in _hashes(test)):
        notes.append(f"{shared:,} of {len(test.y):,} test images are also training images with the same label")
    return notes


def _hashes(images: Images) -> Iterator[int]:
    for x, y in zip(images.x, images.y.tolist(), strict=True):
        yield hash((x.tobytes(), y))


NAMES = ("digits", *KNOWN, "qmnist")


def data_root(root: str, needed_by: str) -> Path:
    """Return the folder of the data sets.

    Raises:
        MissingRequirementError: no folder is configured.
        ConfigurationError: it is not a folder.
    """
    name = root or os.environ.get(ROOT, "")
    if not name:
        raise MissingRequirementError(
            f"{needed_by} needs the folder of the data sets: set the environment variable {ROOT}, or the option root"
        )
    path = Path(name).expanduser()
    if not path.is_dir():
        raise ConfigurationError(f"{'root' if root else ROOT} is {name}, which is not a folder")
    return path


def load(name: str, root: str = "") -> ImageSet:
    """Return a data set: one of NAMES, or a folder of the data root.

    It is read once per process as long as its files do not change, and must not be modified.

    Raises:
        ConfigurationError: the name is a path, or the set is missing, damaged or not as expected; the text names the
            source of the official files.
    """
    if name == "digits":
        return _digits()
    if not name or "/" in name or "\\" in name or name in (".", ".."):
        raise ConfigurationError(f"the data set {name!r} must be the name of a folder in the data root, not a path")
    folders = folders_of(name, root)
    content = once(("image set", *folders), lambda: tuple(digest_folder(each) for each in folders if each.is_dir()))
    return _load(name, data_root(root, f"the data set {name!r}"), content)


def folders_of(name: str, root: str) -> list[Path]:
    """Return the folders whose files make up a data set of the data root.

    Raises:
        ConfigurationError: there is no data root.
    """
    home = data_root(root, f"the data set {name!r}")
    return [_folder(each, home) for each in ([name] if name != "qmnist" else ["mnist", name])]


def _folder(name: str, root: Path) -> Path:
    known = KNOWN[name].folders if name in KNOWN else ("qmnist_writers", name) if name == "qmnist" else (name,)
    return next((root / folder for folder in known if (root / folder).is_dir()), root / name)


@lru_cache(maxsize=8)
def _load(name: str, root: Path, content: tuple[bytes, ...]) -> ImageSet:
    if name == "qmnist":
        return _with_writers(_load("mnist", root, content[:1]), root)
    known, folder = KNOWN.get(name), _folder(name, root)
    where = f"; {known.title} comes from {known.home}: {known.files}" if known else ""
    try:
        if not folder.is_dir():
            raise MissingRequirementError(f"there is no folder {folder}")
        train, test = read_folder(folder)
        check(folder, train, test)
        if known:
            _check_known(folder, known, train, test)
            return ImageSet(name, known.classes, 255, known.mean, known.std, train, test)
    except ConfigurationError as error:
        raise type(error)(f"{error}{where}") from error
    except OSError as error:
        raise ConfigurationError(f"{folder}: {error.strerror}") from error
    mean, std = moments(train.x)
    return ImageSet(name, int(max(train.y.max(), test.y.max())) + 1, 255, mean, std, train, test)


def _check_known(folder: Path, known: Known, train: Images, test: Images) -> None:
    if train.x.shape[1:] != known.shape:
        raise ConfigurationError(
            f"{folder}: images have the shape {list(train.x.shape[1:])}, but those of {known.title} {list(known.shape)}"
        )
    for part, (_, y, _), count in (("training", train, known.train), ("test", test, known.test)):
        if len(y) > count or (len(y) < count and not known.batches):
            raise ConfigurationError(f"{folder}: {len(y):,} {part} images, but {known.title} has {count:,}")
        if y.max() >= known.classes:
            raise ConfigurationError(
                f"{folder}: a {part} image has the label {y.max()}, but {known.title} has {known.classes} classes"
            )


def _with_writers(mnist: ImageSet, root: Path) -> ImageSet:
    """Join QMNIST's tables with MNIST's images, row by row: column 0 is the class, column 2 the writer.

    MNIST's test images are the first 10,000 of QMNIST's.
    """
    folder = _folder("qmnist", root)
    joined = []
    for part, images in (("train", mnist.train), ("test", mnist.test)):
        path = the_one(folder, rf"qmnist-{part}-labels-idx2-int")
        if path is None:
            raise MissingRequirementError(
                f"{folder} lacks qmnist-{part}-labels-idx2-int.gz; QMNIST's tables come from {WRITERS}"
            )
        table = idx.read(path)
        if table.ndim != 2 or table.shape[1] < 3 or table.dtype.kind not in "iu":
            raise ConfigurationError(f"{path} is not a table of QMNIST; its tables come from {WRITERS}")
        if len(table) < len(images.y) or (table[: len(images.y), 0] != images.y).any():
            raise ConfigurationError(f"{path} does not match the images in the folder mnist: the classes differ")
        joined.append(images._replace(writers=table[: len(images.y), 2].astype(np.int64)))
    return ImageSet("qmnist", mnist.classes, mnist.top, mnist.mean, mnist.std, joined[0], joined[1])


@lru_cache(maxsize=1)
def _digits() -> ImageSet:
    """Return scikit-learn's handwritten digits; a fixed fifth of them is the test part."""
    pixels, labels = digits.read()
    x, y = pixels.reshape(-1, 1, 8, 8).astype(np.uint8), labels.astype(np.int64)
    order = RandomStreams(0, "data/digits").generator(0, "test part").permutation(len(y))
    test, train = np.sort(order[: len(y) // 5]), np.sort(order[len(y) // 5 :])
    return ImageSet("digits", 10, 16, (0.3053,), (0.3760,), Images(x[train], y[train]), Images(x[test], y[test]))


def moments(x: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and standard deviation of each channel, computed from a histogram; rounded to four places."""
    mean, std = [], []
    values = np.arange(256) / 255
    for channel in range(x.shape[1]):
        counts = np.bincount(x[:, channel].reshape(-1), minlength=256)
        average = (counts * values).sum() / counts.sum()
        deviation = np.sqrt((counts * (values - average) ** 2).sum() / counts.sum())
        mean.append(round(float(average), 4))
        std.append(max(round(float(deviation), 4), 1e-4))
    return tuple(mean), tuple(std)
