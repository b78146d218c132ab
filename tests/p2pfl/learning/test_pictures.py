"""Pillow images as samples: every mode is read right, or refused with its name and a remedy."""

import io

import numpy as np
import pytest
from torch import nn

import p2pfl
from p2pfl.errors import ConfigurationError
from p2pfl.learning.samples.datasets import read_samples, read_source

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")

RNG = np.random.default_rng(0)
COLOURS = Image.fromarray(RNG.integers(0, 256, (6, 5, 3), np.uint8))
GREY = Image.fromarray(RNG.integers(0, 256, (6, 5), np.uint8))
LOSSLESS = {"RGBX", "RGB", "RGBA", "RGBa"}


def read(*pictures):
    return read_samples("train", [(picture, 0) for picture in pictures])[0].numpy()


def notes(*pictures):
    return read_source("train", [(picture, 0) for picture in pictures]).facts.notes


def pixels(picture):
    return np.atleast_3d(np.asarray(picture)).transpose(2, 0, 1).astype(np.float32) / 255


@pytest.mark.parametrize("mode", ["RGB", "RGBX", "RGBA", "RGBa", "CMYK", "YCbCr", "HSV", "LAB", "P", "PA"])
def test_modes_with_colours_are_read_as_pillow_converts_them(mode):
    picture = COLOURS.convert("RGBA").convert(mode) if mode == "RGBa" else COLOURS.convert(mode)
    expected = pixels(picture.convert("RGBA" if mode == "RGBa" else "RGB"))[:3]
    assert np.array_equal(read(picture)[0], expected)
    if mode in LOSSLESS:
        assert np.array_equal(expected, pixels(COLOURS))


@pytest.mark.parametrize("mode", ["L", "LA", "La", "1", "P", "PA"])
def test_grey_modes_are_read_as_grey(mode):
    picture = GREY.convert("RGB").quantize(64) if mode in ("P", "PA") else GREY
    picture = picture.convert("LA").convert(mode) if mode == "La" else picture.convert(mode)
    straight = picture.convert("LA") if mode == "La" else picture
    assert np.array_equal(read(picture)[0], pixels(straight.convert("RGB"))[:1])


@pytest.mark.parametrize("mode", ["I", "I;16", "I;16B", "F"])
def test_modes_without_a_fixed_range_are_refused(mode):
    with pytest.raises(
        ConfigurationError, match=f"input 1: the image has the mode {mode}; convert it .*, or return an array"
    ):
        read(GREY, Image.new(mode, (5, 6)))


@pytest.mark.parametrize("format", ["PNG", "GIF"])
def test_palettes_from_files_are_read_as_their_colours(format):
    def saved(picture):
        file = io.BytesIO()
        picture.quantize(256).save(file, format)
        return Image.open(file)

    grey, colours = saved(GREY.convert("RGB")), saved(COLOURS)
    assert np.allclose(read(grey)[0], pixels(GREY), atol=1 / 255)
    assert np.allclose(read(colours)[0], pixels(COLOURS), atol=1 / 255)


def test_palettes_take_the_form_of_their_set():
    palette, of_colours = GREY.convert("RGB").quantize(64), COLOURS.quantize(64)
    grey = pixels(palette.convert("RGB"))
    assert np.array_equal(read(GREY, palette)[1], grey[:1])
    assert np.array_equal(read(COLOURS, palette)[1], grey)
    late = read(palette, palette, of_colours, palette)
    assert np.array_equal(late[1], grey)
    assert np.array_equal(late[2], pixels(of_colours.convert("RGB")))
    assert notes(GREY, palette) == ("train data: the images have several modes (L 1, P 1); all were read as L",)


@pytest.mark.parametrize(
    "others",
    [(GREY, COLOURS), (COLOURS, GREY), (GREY, COLOURS.quantize(64))],
    ids=["grey first", "colours first", "palette"],
)
def test_grey_images_among_coloured_ones_are_refused(others):
    with pytest.raises(ConfigurationError, match=r"input 1 has the shape .* convert them to one mode, \"L\" or \"RGB\"$"):
        read(*others)


def transparent(mode):
    if mode == "P":
        picture = COLOURS.quantize(8)
        picture.info["transparency"] = picture.getpixel((0, 0))
        return picture
    if mode in ("L", "RGB"):
        picture = (GREY if mode == "L" else COLOURS).copy()
        picture.info["transparency"] = picture.getpixel((0, 0))
        return picture
    picture = COLOURS.convert("LA" if mode in ("LA", "La") else "RGBA")
    picture.putpixel((2, 2), (9, 100) if picture.mode == "LA" else (1, 2, 3, 100))
    return picture.convert(mode)


@pytest.mark.parametrize("mode", ["P", "L", "RGB", "LA", "La", "RGBA", "RGBa"])
def test_transparent_pixels_are_refused_with_a_remedy(mode):
    with pytest.raises(
        ConfigurationError, match=rf"input 0: the image has transparent pixels \(mode {mode}\); .*alpha_comp"
    ):
        read(transparent(mode))


def test_opaque_alpha_is_left_out_with_a_note():
    assert read(COLOURS, COLOURS.convert("RGBA")).shape == (2, 3, 6, 5)
    assert "train data: 1 image has an opaque alpha channel, which was left out" in notes(COLOURS, COLOURS.convert("RGBA"))


def test_orientation_and_frames_are_noted():
    turned, moving = io.BytesIO(), io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6
    COLOURS.save(turned, "JPEG", exif=exif)
    COLOURS.quantize(64).save(moving, "GIF", save_all=True, append_images=[COLOURS.rotate(180).quantize(64)])
    assert notes(Image.open(turned))[0].startswith("train data: 1 image has an EXIF orientation, which was not applied")
    assert notes(Image.open(moving))[0].startswith("train data: 1 image has several frames, of which only the current")
    assert notes(COLOURS) == ()


def test_images_in_a_pair_are_read_like_those_of_a_dataset():
    palette = COLOURS.quantize(64)
    pictures = np.empty(2, object)
    pictures[:] = [palette, palette]
    for inputs in ([palette, palette], pictures):
        assert np.array_equal(read_samples("train", (inputs, [0, 1]))[0][1].numpy(), read(palette)[0])


@pytest.mark.parametrize("other", [np.zeros((6, 5), np.float32), [[0.5] * 5] * 6])
def test_images_and_arrays_in_one_set_are_refused(other):
    for samples in ((GREY, other), (other, GREY)):
        with pytest.raises(ConfigurationError, match=r"input 1 is (an|no) image, but number 0 is"):
            read(*samples)


@pytest.mark.slow
def test_run_names_the_modes_of_images(tmp_path):
    pictures = [(Image.fromarray(np.full((2, 2), 200 * (k % 2), np.uint8)), k % 2) for k in range(20)]
    mixed = [(p.convert("RGB").quantize(4) if k < 5 else p, y) for k, (p, y) in enumerate(pictures)]

    def task(part, seed):
        rule = p2pfl.partition("iid")
        network = lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 2))  # noqa: E731
        return p2pfl.classification(network, train=mixed, test=0.2, partition=rule, part=part, seed=seed)

    (run,) = p2pfl.simulate({"nodes": 2, "rounds": 1, "task": task, "policy": "local"}, progress=False)
    assert "train data: the images have several modes (L 15, P 5); all were read as L" in run.notes
    assert "images of mode L 15, P 5 read as L" in run.summary["data"][0]["line"]
