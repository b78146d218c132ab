"""Folders that hold a user's samples: images with a subfolder for each label, and saved datasets of Hugging Face.

Images: `photos/cat/1.jpg` has the label `cat`. Each image is turned upright by its EXIF orientation, cropped around its
centre to a square, scaled, and converted to grey or to colours; transparent pixels become white. Pillow reads a fixed list
of formats.

Datasets: the folder that `save_to_disk` writes, of one dataset or with a subfolder for each split. pyarrow reads its Arrow
files as plain columns. The library `datasets` is not needed, and no type that a file names is imported.

Both libraries are imported when they are needed. Sizes are checked before memory is taken.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from p2pfl._util.machine import check_memory
from p2pfl.errors import ConfigurationError, needs_extra

SIZE = 32  # pixels of the height and the width of an image
MOST_PIXELS = 2**26  # of one image, before it is scaled
MOST_IMAGES = 2**22
MOST_NAMED = 5  # images that an error names
SPLITS = {
    "train": "train", "training": "train", "val": "validation", "valid": "validation", "validation": "validation",
    "test": "test", "testing": "test",
}  # fmt: skip
"""The split that a folder of this name has."""
SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
MODES = ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr")  # with values from 0 to 255
STATE, INFO, PARTS = "state.json", "dataset_info.json", "dataset_dict.json"
_MOST_JSON = 2**24  # bytes
Opener = Callable[[], Any]
"""Opens the file of an image, or its bytes, for Pillow."""


class Columns(NamedTuple):
    """One split of a saved dataset.

    Attributes:
        table: a pyarrow.Table.
        names: the texts of each column of class numbers, by its name.
        pictures: the columns of images.
    """

    table: Any
    names: Mapping[str, Sequence[str]]
    pictures: tuple[str, ...]

    @property
    def plain(self) -> list[str]:
        """The columns of numbers, truth values and texts, in order."""
        import pyarrow.types as types

        kinds = (types.is_integer, types.is_floating, types.is_boolean, types.is_string, types.is_large_string)
        return [field.name for field in self.table.schema if any(kind(field.type) for kind in kinds)]

    def texts(self, column: str) -> Iterator[str]:
        """Yield the values of a plain column as texts; "" for a missing one."""
        names = self.names.get(column)
        for chunk in self.table.column(column).chunks:
            for value in chunk.to_pylist():
                if value is None:
                    yield ""
                elif names is not None:
                    yield names[value] if 0 <= value < len(names) else str(value)
                else:
                    yield str(int(value)) if isinstance(value, bool) else str(value)

    def rows(self, columns: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
        """Yield the number of each row, from 1, and its values as texts."""
        for number, row in enumerate(zip(*map(self.texts, columns), strict=True), 1):
            yield number, list(row)

    def images(self, column: str) -> Iterator[tuple[str, Opener]]:
        """Yield the name of each image and how to open it."""
        for number, value in enumerate(self.table.column(column).to_pylist(), 1):
            content = value.get("bytes") if isinstance(value, Mapping) else None
            if not content:
                raise ConfigurationError(f"row {number}: {column} has no image; save the dataset with its images embedded")
            yield f"row {number}", partial(io.BytesIO, content)


def is_dataset(folder: Path) -> bool:
    """Return whether a folder is one that `save_to_disk` of Hugging Face's datasets has written."""
    return any((folder / name).is_file() for name in (STATE, PARTS))


def image_splits(folder: Path) -> dict[str, dict[str, list[Path]]]:
    """Return the images of each label by split; {} if there are none.

    The subfolders are the labels; or they are splits, one of them `train`, and have subfolders that are the labels.

    Raises:
        ConfigurationError: there are too many images.
    """
    subs = {SPLITS[each.name.lower()]: each for each in folder.iterdir() if each.is_dir() and each.name.lower() in SPLITS}
    if "train" in subs and (images := image_files(subs["train"])):
        return {"train": images} | {split: image_files(subs[split]) for split in sorted(subs) if split != "train"}
    images = image_files(folder)
    return {"train": images} if images else {}


def image_files(folder: Path) -> dict[str, list[Path]]:
    """Return the images of each label, both sorted; {} if no subfolder has any.

    Raises:
        ConfigurationError: there are too many.
    """
    found: dict[str, list[Path]] = {}
    for sub in sorted(folder.iterdir()):
        if sub.is_dir() and not sub.name.startswith("."):
            files = sorted(path for path in sub.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
            if files:
                found[sub.name] = files
    if sum(map(len, found.values())) > MOST_IMAGES:
        raise ConfigurationError(f"{folder} has more than {MOST_IMAGES:,} images")
    return found


def open_file(path: Path) -> tuple[str, Opener]:
    """Return the name of an image file and how to open it."""
    return str(path), lambda: path.open("rb")


def read_images(where: Path, images: Iterable[tuple[str, Opener]], count: int, size: int, channels: int) -> np.ndarray:
    """Return images as uint8 [count, channels, size, size].

    Args:
        where: their folder, for errors.
        channels: 1 for grey, 3 for colours.

    Raises:
        ConfigurationError: they do not fit into memory, or some cannot be read; the text names them.
        MissingRequirementError: Pillow is not installed.
    """
    if not 4 <= size <= 1024 or channels not in (1, 3):
        raise ConfigurationError("task.size must be from 4 to 1024, and task.channels 1 or 3")
    check_memory(f"{where}: {count:,} images of {size} x {size} pixels", 9 * count * channels * size**2)
    found = np.empty((count, channels, size, size), np.uint8)
    wrong: list[str] = []
    for k, (name, opener) in enumerate(images):
        try:
            found[k] = _pixels(opener, size, channels)
        except _UnreadableError as error:
            wrong.append(f"{name}: {error}")
    if wrong:
        more = f"; and {len(wrong) - MOST_NAMED:,} more" if len(wrong) > MOST_NAMED else ""
        raise ConfigurationError(
            f"{where}: {len(wrong):,} of {count:,} images cannot be read; remove or convert them: "
            f"{'; '.join(wrong[:MOST_NAMED])}{more}"
        )
    return found


def look_at(images: Iterable[tuple[str, Opener]]) -> tuple[int, int, bool]:
    """Return the least height or width of some images, the greatest, and whether all are grey; nothing is decoded."""
    with needs_extra("a folder of images", "images"):
        from PIL import Image, UnidentifiedImageError
    sides: list[int] = []
    grey = True
    for _, opener in images:
        try:
            with opener() as file, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                picture = Image.open(file, formats=FORMATS)
                sides += picture.size
                grey &= picture.mode in ("1", "L", "LA", "La")
        except (OSError, ValueError, SyntaxError, UnidentifiedImageError, Image.DecompressionBombError):
            continue  # the reader names it
    return min(sides, default=0), max(sides, default=0), grey and bool(sides)


class _UnreadableError(Exception):
    """Reason why an image cannot be read."""


def _pixels(opener: Opener, size: int, channels: int) -> np.ndarray:
    """Return an image as uint8 [channels, size, size]."""
    with needs_extra("a folder of images", "images"):
        from PIL import Image, ImageOps
    try:
        with opener() as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            picture: Image.Image = Image.open(file, formats=FORMATS)
            if picture.width * picture.height > MOST_PIXELS:
                raise _UnreadableError(f"it has more than {MOST_PIXELS:,} pixels")
            if picture.mode not in MODES:
                raise _UnreadableError(f"its mode {picture.mode} has no fixed range; convert it to 8 bits")
            picture = ImageOps.exif_transpose(picture)
            if picture.has_transparency_data:
                picture = picture.convert("RGBA")
                picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
            picture = picture.convert("L" if channels == 1 else "RGB")
            scaled = np.asarray(ImageOps.fit(picture, (size, size), Image.Resampling.BILINEAR), np.uint8)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        text = str(error).partition("<_io")[0].strip() or type(error).__name__
        raise _UnreadableError(text) from error
    return scaled.reshape(size, size, channels).transpose(2, 0, 1)


def read_dataset(folder: Path) -> dict[str, Columns]:
    """Return the splits of a saved dataset by name; a dataset without splits is "train".

    Raises:
        ConfigurationError: a file is missing, damaged, or names one outside of the folder.
        MissingRequirementError: pyarrow is not installed.
    """
    if (folder / PARTS).is_file():
        splits = _json(folder / PARTS).get("splits")
        if not isinstance(splits, list) or not splits or not all(map(_is_plain_name, splits)):
            raise ConfigurationError(f"{folder / PARTS} lists no splits; save the dataset again with save_to_disk")
        return {name: _read_split(folder / name) for name in splits}
    return {"train": _read_split(folder)}


def _read_split(folder: Path) -> Columns:
    with needs_extra("a Hugging Face dataset", "arrow"):
        import pyarrow
        import pyarrow.ipc
    state = _json(folder / STATE)
    files = [str(each.get("filename")) for each in state.get("_data_files") or [] if isinstance(each, dict)]
    if not files or not all(map(_is_plain_name, files)) or state.get("_indices_data_files"):
        raise ConfigurationError(f"{folder / STATE} lists no data files; save the dataset again with save_to_disk")
    tables = []
    for name in files:
        try:
            with pyarrow.memory_map(str(folder / name)) as source:
                tables.append(pyarrow.ipc.open_stream(source).read_all())
        except (OSError, pyarrow.ArrowException) as error:
            text = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ConfigurationError(f"{folder / name} cannot be read: {text}") from error
    try:
        table = pyarrow.concat_tables(tables)
    except pyarrow.ArrowException as error:
        raise ConfigurationError(f"{folder}: its files have different columns") from error
    features = _json(folder / INFO).get("features") if (folder / INFO).is_file() else {}
    names, pictures = {}, []
    for column, about in features.items() if isinstance(features, dict) else ():
        kind = about.get("_type") if isinstance(about, dict) else None
        if kind == "ClassLabel" and isinstance(about.get("names"), list) and column in table.column_names:
            names[column] = list(map(str, about["names"]))
        elif kind == "Image" and column in table.column_names:
            pictures.append(column)
    return Columns(table, names, tuple(pictures))


def _is_plain_name(name: object) -> bool:
    return isinstance(name, str) and name not in ("", ".", "..") and not set("/\\:\0") & set(name)


def _json(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MOST_JSON:
            raise ConfigurationError(f"{path} has more than {_MOST_JSON:,} bytes")
        found = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror or error}") from error
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"{path} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigurationError(f"{path} has no JSON object")
    return found
