"""Rotation, translation and noise for images. The area outside of an image is black."""

from __future__ import annotations

from math import isfinite

import numpy as np

from p2pfl.errors import ConfigurationError

Rng = np.random.Generator
_AT_ONCE = 2048  # images in one block


def rotate(x: np.ndarray, degrees: float) -> np.ndarray:
    """Rotate images counter-clockwise about their centre.

    Args:
        x: float32 [n, c, h, w].
        degrees: multiples of 90 are exact; for other angles pixels are interpolated (bilinear).

    Raises:
        ConfigurationError: the images are not square and the angle is an odd multiple of 90.
    """
    if degrees % 90 == 0:
        quarters = int(degrees // 90) % 4
        if quarters % 2 and x.shape[2] != x.shape[3]:
            raise ConfigurationError(
                f"images of {x.shape[2]} x {x.shape[3]} pixels cannot be rotated by {degrees:g} degrees"
            )
        return np.ascontiguousarray(np.rot90(x, quarters, (2, 3)))
    n = len(x)
    return _rotate_and_shift(x, np.full(n, degrees), np.zeros((n, 2)))


def augment(x: np.ndarray, rng: Rng, *, shift: int = 0, rotation: float = 0.0, noise: float = 0.0) -> np.ndarray:
    """Augment each image randomly: rotate and move it, add noise, then clip it to the range 0 to 1.

    Args:
        x: float32 [n, c, h, w], values from 0 to 1.
        rng: the generator of the augmentation.
        shift: maximum translation in whole pixels, in each direction.
        rotation: maximum rotation in degrees.
        noise: standard deviation of the normal noise of each value.
    """
    if shift < 0 or not all(isfinite(value) and value >= 0 for value in (rotation, noise)):
        raise ConfigurationError("task.augment: shift, rotation and noise must be 0 or more, and finite")
    if shift or rotation:
        angles = rng.uniform(-rotation, rotation, len(x))
        x = _rotate_and_shift(x, angles, rng.integers(-shift, shift, (len(x), 2), endpoint=True))
    if noise:
        x = x + rng.standard_normal(x.shape, np.float32) * np.float32(noise)
    result: np.ndarray = np.clip(x, 0, 1)
    return result


def _rotate_and_shift(x: np.ndarray, degrees: np.ndarray, shifts: np.ndarray) -> np.ndarray:
    """Rotate and then move each image, with bilinear interpolation between the four nearest source pixels."""
    blocks = range(0, len(x), _AT_ONCE)
    parts = [_rotate_and_shift_block(*(a[k : k + _AT_ONCE] for a in (x, degrees, shifts))) for k in blocks]
    return np.concatenate(parts) if parts else x


def _rotate_and_shift_block(x: np.ndarray, degrees: np.ndarray, shifts: np.ndarray) -> np.ndarray:
    n, _, h, w = x.shape
    angle = np.radians(degrees)[:, None, None]
    down = np.arange(h)[None, :, None] - (h - 1) / 2 - shifts[:, 0, None, None]
    right = np.arange(w)[None, None, :] - (w - 1) / 2 - shifts[:, 1, None, None]
    rows = np.sin(angle) * right + np.cos(angle) * down + (h - 1) / 2
    columns = np.cos(angle) * right - np.sin(angle) * down + (w - 1) / 2
    padded = np.pad(x, ((0, 0), (0, 0), (1, 2), (1, 2)))  # a black frame, wider at the end for the next pixel
    rows, columns = np.clip(rows, -1, h) + 1, np.clip(columns, -1, w) + 1
    top, left = np.floor(rows).astype(np.int64), np.floor(columns).astype(np.int64)
    image = np.arange(n)[:, None, None]
    result = np.zeros((n, h, w, x.shape[1]), np.float32)
    for below in (0, 1):
        for beside in (0, 1):
            near = np.abs(1 - below - (rows - top)) * np.abs(1 - beside - (columns - left))
            result += near[..., None].astype(np.float32) * padded[image, :, top + below, left + beside]
    return np.ascontiguousarray(result.transpose(0, 3, 1, 2))
