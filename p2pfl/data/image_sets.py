"""Image data sets by name, with checks of their files.

A name is a folder of the data root, which is the option `root` or else the environment variable P2PFL_DATA. The folder
must contain IDX files, CIFAR's binary files, or the JSON files of LEAF's FEMNIST (p2pfl.data.leaf). IDX files are
`train-images-idx3-ubyte`, `train-labels-idx1-ubyte`, and `t10k-` or `test-` for the test part; a prefix and `.gz` are
allowed. CIFAR's files are `data_batch_*.bin` and `test_batch*.bin`, or `train.bin` and `test.bin`. For the sets in KNOWN,
the numbers and shapes are checked; of the CIFAR sets a part of the batches is sufficient. `digits` needs no file: it is
scikit-learn's set of 1,797 handwritten digits, 8 x 8 pixels from 0 to 16.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from p2pfl._util.shared_work import once
from p2pfl.content import digest_folder
from p2pfl.data import binary_files, leaf
from p2pfl.data_facts import DataFacts
from p2pfl.errors import ConfigurationError, MissingRequirementError
from p2pfl.random_streams import RandomStreams

ROOT = "P2PFL_DATA"
_IDX_FILES = "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte"
_CIFAR_HOME = 'www.cs.toronto.edu/~kriz/cifar.html, the "binary version"'
WRITERS = "github.com/facebookresearch/qmnist"  # the tables of the writers of MNIST's images
PICTURES = {".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".tif", ".tiff"}
ARRAYS = {".npz", ".npy", ".csv", ".parquet", ".arrow", ".h5", ".hdf5", ".mat", ".pt"}
MOST_LISTED = 1000  # paths of one depth, in search of a remedy
FEMNIST_IMAGES = 814_255  # characters of NIST's Special Database 19, all parts together
_PART = {"train": "train", "test": "(?:t10k|test)"}


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
        writers = () if self.train.writers is None else (f"{len(np.unique(self.train.writers)):,} writers",)
        details = (f"{len(self.test.y):,} test images", pixels, classes, *writers)
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


@dataclass(frozen=True, kw_only=True)
class Known:
    """Expected properties of a published image set.

    Attributes:
        home: source of the official files.
        folders: possible folders in the data root.
        files: names of the files.
        shape: shape of an image: channels, height, width.
        train, test: number of images.
        batches: whether it consists of several files and a part of them is sufficient.
        mean, std: of each channel over the training part, with pixels from 0 to 1; computed if empty.
    """

    title: str
    home: str
    folders: tuple[str, ...]
    files: str
    classes: int = 10
    shape: tuple[int, int, int]
    train: int
    test: int = 10_000
    batches: bool = False
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()


KNOWN = {
    "mnist": Known(
        title="MNIST",
        home="yann.lecun.com/exdb/mnist",
        folders=("mnist",),
        files=_IDX_FILES,
        shape=(1, 28, 28),
        train=60_000,
        mean=(0.1307,),
        std=(0.3081,),
    ),
    "fashion-mnist": Known(
        title="Fashion-MNIST",
        home="github.com/zalandoresearch/fashion-mnist",
        folders=("fashion-mnist",),
        files=_IDX_FILES,
        shape=(1, 28, 28),
        train=60_000,
        mean=(0.2860,),
        std=(0.3530,),
    ),
    "cifar10": Known(
        title="CIFAR-10",
        home=_CIFAR_HOME,
        folders=("cifar10", "cifar10/cifar-10-batches-bin", "cifar-10-batches-bin"),
        files="data_batch_1.bin to data_batch_5.bin and test_batch.bin",
        shape=binary_files.SHAPE,
        train=50_000,
        batches=True,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
    ),
    "cifar100": Known(
        title="CIFAR-100",
        home=_CIFAR_HOME,
        folders=("cifar100", "cifar100/cifar-100-binary", "cifar-100-binary"),
        files="train.bin and test.bin",
        classes=100,
        shape=binary_files.SHAPE,
        train=50_000,
        batches=True,
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
    ),
    "femnist": Known(
        title="FEMNIST",
        home="github.com/TalwalkarLab/leaf",
        folders=("femnist", "femnist/data"),
        files=f"the folders train and test that data/femnist/{leaf.COMMAND.removeprefix('./')} makes",
        classes=62,
        shape=(1, 28, 28),
        train=FEMNIST_IMAGES,  # the script divides them; so it may make less of each part
        test=FEMNIST_IMAGES,
        batches=True,
    ),
}
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
            mean, std = (known.mean, known.std) if known.mean else moments(train.x)
            return ImageSet(name, known.classes, 255, mean, std, train, test)
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
        table = binary_files.read_idx(path)
        if table.ndim != 2 or table.shape[1] < 3 or table.dtype.kind not in "iu":
            raise ConfigurationError(f"{path} is not a table of QMNIST; its tables come from {WRITERS}")
        if len(table) < len(images.y) or (table[: len(images.y), 0] != images.y).any():
            raise ConfigurationError(f"{path} does not match the images in the folder mnist: the classes differ")
        joined.append(images._replace(writers=table[: len(images.y), 2].astype(np.int64)))
    return ImageSet("qmnist", mnist.classes, mnist.top, mnist.mean, mnist.std, joined[0], joined[1])


@lru_cache(maxsize=1)
def _digits() -> ImageSet:
    """Return scikit-learn's handwritten digits; a fixed fifth of them is the test part."""
    pixels, labels = read()
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
        x, y = (binary_files.read_idx(path) for path in paths.values() if path)
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
            batches = [[binary_files.read_cifar(path, label_bytes) for path in paths] for paths in found]
            first, second = (
                Images(np.concatenate([x for x, _ in part]), np.concatenate([y[:, -1] for _, y in part])) for part in batches
            )
            return first, second
        if any(found):
            raise ConfigurationError(f"{folder} has no {'test' if found[0] else 'training'} part")
    if any(re.fullmatch(r"data_batch_\d", path.name) for path in files) or {"train", "test"} <= {
        path.name for path in files if path.is_file()
    }:
        raise ConfigurationError(
            f"{folder} contains the pickled Python version, which is not supported; use the binary version"
        )
    return None


def _read_leaf(folder: Path) -> tuple[Images, Images] | None:
    """Read the JSON files of LEAF; None if the folder has none. The writers are numbered by their names, in both parts."""
    parts = leaf.read(folder)
    if parts is None:
        return None
    names = sorted({name for part in parts for name, _ in part.writers})
    numbers = {name: number for number, name in enumerate(names)}
    train, test = (
        Images(x, y, np.repeat([numbers[name] for name, _ in writers], [count for _, count in writers]))
        for x, y, writers in parts
    )
    return train, test


def _without_copies(paths: Iterable[Path]) -> list[Path]:
    """Return files without those .gz files that stand next to the plain file of the same name."""
    names = {path.name: path for path in paths}
    return [path for name, path in names.items() if not (name.endswith(".gz") and name.removesuffix(".gz") in names)]


def read_folder(folder: Path) -> tuple[Images, Images]:
    """Read the data set of a folder.

    Raises:
        ConfigurationError: it has files of no known format, or of several.
    """
    forms = {
        "IDX files": read_idx(folder),
        "binary files of CIFAR": read_cifar(folder),
        "JSON files of LEAF": _read_leaf(folder),
    }
    found = {name: images for name, images in forms.items() if images is not None}
    if len(found) > 1:
        raise ConfigurationError(f"{folder} contains several data sets ({' and '.join(found)}); move each to its own folder")
    if not found:
        raise ConfigurationError(
            f"{folder} contains neither IDX files nor binary files of CIFAR nor JSON files of LEAF{_remedy(folder)}"
        )
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


def read() -> tuple[np.ndarray, np.ndarray]:
    """Return the pixels, [1797, 64], and the labels, [1797].

    They are read from the data file inside scikit-learn, because importing scikit-learn would take a large part of a
    node's start time.

    Raises:
        MissingRequirementError: scikit-learn is not installed.
    """
    path = file()
    if path is None:
        raise MissingRequirementError("the digits need scikit-learn: pip install 'p2pfl-node[metrics]'")
    if not path.exists():  # the file is elsewhere in this version
        from sklearn.datasets import load_digits

        data = load_digits()
        return data.data, data.target
    table = np.loadtxt(path, delimiter=",", dtype=np.int64)
    return table[:, :-1], table[:, -1]


def file() -> Path | None:
    """Return the usual place of the data file inside scikit-learn; None if that is not installed."""
    found = find_spec("sklearn")
    if found is None or found.origin is None:
        return None
    return Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz"
