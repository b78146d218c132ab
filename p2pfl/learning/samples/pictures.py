"""Pixels of Pillow images. Pillow converts every mode that has a fixed range; other modes are refused.

The images of a set are grey (mode L) or have three colours (RGB). A palette, or another mode that may hold only grey, is
either: it is grey in a grey set if it has no other colours. Pillow is no dependency: images are recognised by their
methods.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from p2pfl.errors import ConfigurationError

MODES = {"1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBX", "RGBa", "CMYK", "YCbCr", "HSV", "LAB"}
"""Modes with values from 0 to 255 (or 0 and 1), which Pillow converts to RGB."""

GREY, MAYBE_GREY = {"1", "L", "LA", "La"}, {"P", "PA"}  # a palette may have no other colours than grey
ORIENTATION = 0x0112  # EXIF tag; 1 is upright


def is_picture(value: Any) -> bool:
    """Return whether a value is an image of Pillow, or has its interface."""
    return hasattr(value, "getbands") and hasattr(value, "mode")


class Pictures:
    """Reader of the images of one set. It counts what the user should know of them.

    Attributes:
        modes: number of images of each mode.
        may_be_grey: whether all images so far are palettes without colours, so that the set may still get colours.
    """

    def __init__(self) -> None:
        self.modes: Counter[str] = Counter()
        self.may_be_grey = True
        self._colours = False
        self._opaque = self._turned = self._moving = 0

    def pixels(self, what: str, picture: Any) -> np.ndarray:
        """Return the pixels of the next image, uint8: [1, height, width] if it is grey, otherwise [3, height, width].

        Args:
            what: the name of the image, for errors.

        Raises:
            ConfigurationError: its mode has no fixed range, it has transparent pixels, or Pillow cannot convert it.
        """
        mode = picture.mode
        if mode not in MODES:
            raise ConfigurationError(
                f'{what}: the image has the mode {mode}; convert it to "L" or "RGB" if its values are from 0 to 255, or'
                " return an array, such as np.asarray(image, np.float32) / 65535"
            )
        try:
            found = self._converted(what, picture)
            self._turned += _orientation(picture) not in (None, 1)
        except (OSError, ValueError, SyntaxError) as error:  # of Pillow
            raise ConfigurationError(f"{what}: the image of mode {mode} cannot be converted: {error}") from error
        self.modes[mode] += 1
        self._moving += getattr(picture, "n_frames", 1) > 1
        if mode in GREY or (mode in MAYBE_GREY and not self._colours and (found == found[..., :1]).all()):
            found = found if found.ndim == 2 else found[..., 0]
        self._colours |= found.ndim == 3
        self.may_be_grey &= mode in MAYBE_GREY and found.ndim == 2
        return np.atleast_3d(found).transpose(2, 0, 1)

    def _converted(self, what: str, picture: Any) -> np.ndarray:
        """Return the pixels of an image, uint8: [height, width] of mode L, otherwise [height, width, 3]."""
        if getattr(picture, "has_transparency_data", False):
            straight = picture.convert("LA") if picture.mode == "La" else picture
            colours = np.asarray(straight.convert("RGBA"))
            if colours.size and colours[..., 3].min() < 255:
                raise ConfigurationError(
                    f"{what}: the image has transparent pixels (mode {picture.mode}); choose a background in the transform:"
                    ' PIL.Image.alpha_composite(background, image.convert("RGBA")).convert("RGB")'
                )
            self._opaque += 1
            return colours[..., :3]
        return np.asarray(picture if picture.mode in ("L", "RGB") else picture.convert("RGB"))

    def notes(self, where: str, channels: int) -> list[str]:
        """Return what the user should know of the images that were read.

        Args:
            channels: of the whole set, 1 or 3.
        """
        found = []
        if len(self.modes) > 1:
            found.append(
                f"{where} data: the images have several modes ({self.counts}); all were read as {as_mode(channels)}"
            )
        if self._opaque:
            found.append(f"{where} data: {_images(self._opaque)} an opaque alpha channel, which was left out")
        if self._turned:
            found.append(
                f"{where} data: {_images(self._turned)} an EXIF orientation, which was not applied; for upright images call"
                " PIL.ImageOps.exif_transpose in the dataset"
            )
        if self._moving:
            found.append(f"{where} data: {_images(self._moving)} several frames, of which only the current one was read")
        return found

    @property
    def counts(self) -> str:
        """The modes with their numbers of images, such as "L 150, P 150"."""
        return ", ".join(f"{mode} {count:,}" for mode, count in sorted(self.modes.items()))


def as_mode(channels: int) -> str:
    """Return the mode of a set with so many channels."""
    return "L" if channels == 1 else "RGB"


def _orientation(picture: Any) -> int | None:
    """Return the EXIF orientation of an image; None if it has none."""
    if not hasattr(picture, "getexif"):
        return None
    found: int | None = picture.getexif().get(ORIENTATION)
    return found


def _images(count: int) -> str:
    return f"{count:,} image{'s have' if count > 1 else ' has'}"
