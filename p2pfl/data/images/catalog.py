"""Catalog of published image sets: their sources, and the expected properties of their files."""

from __future__ import annotations

from dataclasses import dataclass

from p2pfl.data.formats import cifar


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
        mean, std: of each channel over the training part, with pixels from 0 to 1.
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
    mean: tuple[float, ...]
    std: tuple[float, ...]


_IDX_FILES = "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte"
_CIFAR_HOME = 'www.cs.toronto.edu/~kriz/cifar.html, the "binary version"'

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
        shape=cifar.SHAPE,
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
        shape=cifar.SHAPE,
        train=50_000,
        batches=True,
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
    ),
}
WRITERS = "github.com/facebookresearch/qmnist"  # the tables of the writers of MNIST's images
