"""Images of every form become the same pixels, and files that cannot be read are named."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from qkv.data.processors.images import ImageProcessor
from qkv.data.records.values import Unusable
from qkv.spec.signals.images import Images
from qkv.system.errors import UserError

RNG = np.random.default_rng(0)
COLOURS = RNG.integers(0, 256, (6, 8, 3), dtype=np.uint8)
SPEC = Images(height=6, width=8, channels=3, mean=(0.5, 0.4, 0.3), deviation=(0.2, 0.25, 0.3))


def saved(folder: Path, name: str, image: Image.Image, **options: Any) -> str:
    image.save(folder / name, **options)
    return str(folder / name)


def test_a_file_an_array_an_image_and_a_uri_give_the_same_pixels(tmp_path: Path) -> None:
    image = Image.fromarray(COLOURS)
    held = io.BytesIO()
    image.save(held, "PNG")
    uri = "data:image/png;base64," + base64.b64encode(held.getvalue()).decode()
    for value in (saved(tmp_path, "a.png", image), COLOURS, COLOURS / 255, COLOURS.tolist(), image, uri):
        np.testing.assert_array_equal(ImageProcessor(SPEC).encode(value), COLOURS.transpose(2, 0, 1))


def test_pixels_are_standardised_by_channel() -> None:
    processor = ImageProcessor(SPEC)
    found = processor.signal([processor.encode(COLOURS)]).values[0]
    expected = (COLOURS / 255 - np.array(SPEC.mean)) / np.array(SPEC.deviation)
    np.testing.assert_allclose(found.numpy(), expected.transpose(2, 0, 1), rtol=0, atol=1e-5)


def test_size_channels_mean_and_deviation_are_those_of_the_training_images() -> None:
    grey = [RNG.integers(0, 256, (30, 22), dtype=np.uint8) for _ in range(4)]
    found = ImageProcessor(Images()).fitted(grey)
    assert (found.height, found.width, found.channels) == (28, 20, 1)
    pixels = np.stack([np.asarray(Image.fromarray(each).resize((20, 28), Image.Resampling.BILINEAR)) for each in grey])
    assert found.mean == pytest.approx((pixels.mean() / 255,), abs=1e-4)
    assert found.deviation == pytest.approx((pixels.std() / 255,), abs=1e-4)
    mixed = ImageProcessor(Images()).fitted([COLOURS.repeat(20, 0).repeat(20, 1), grey[0]])
    assert (mixed.height, mixed.width, mixed.channels) == (64, 64, 3)


@pytest.mark.parametrize(("dtype", "scale"), [(np.uint16, 257), (np.int32, 257), (np.uint8, 1)])
def test_deep_pixels_keep_their_brightness(tmp_path: Path, dtype: Any, scale: int) -> None:
    grey = COLOURS[..., 0]
    image = Image.fromarray(grey.astype(dtype) * dtype(scale))
    spec = Images(height=6, width=8, channels=1, mean=(0,), deviation=(1,))
    np.testing.assert_array_equal(ImageProcessor(spec).encode(saved(tmp_path, "deep.tif", image))[0], grey)


def test_cmyk_palettes_transparency_animations_and_rotations(tmp_path: Path) -> None:
    encode = ImageProcessor(SPEC).encode
    red = Image.new("RGB", (8, 6), (255, 0, 0))
    assert encode(saved(tmp_path, "c.jpg", red.convert("CMYK"), quality=100))[0].min() > 240
    assert encode(saved(tmp_path, "p.png", red.convert("P")))[1].max() < 10
    clear = Image.new("RGBA", (8, 6), (0, 0, 0, 0))
    assert encode(saved(tmp_path, "t.png", clear)).min() == 255
    frames = [Image.new("P", (8, 6), colour) for colour in (0, 1)]
    frames[0].putpalette([9, 9, 9, 200, 200, 200])
    frames[1].putpalette([9, 9, 9, 200, 200, 200])
    moving = saved(tmp_path, "m.gif", frames[0], save_all=True, append_images=frames[1:])
    assert encode(moving).max() == 9
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    turned = saved(tmp_path, "r.png", Image.fromarray(COLOURS), exif=exif)
    np.testing.assert_array_equal(encode(turned), COLOURS[::-1, ::-1].transpose(2, 0, 1))


def test_a_crop_takes_the_centre(tmp_path: Path) -> None:
    spec = SPEC.changed(resize="crop", height=4, width=4, resized=6)
    np.testing.assert_array_equal(ImageProcessor(spec).encode(COLOURS), COLOURS[1:5, 2:6].transpose(2, 0, 1))


def test_unreadable_values_are_named(tmp_path: Path) -> None:
    whole = Path(saved(tmp_path, "a.png", Image.fromarray(RNG.integers(0, 256, (64, 64, 3), dtype=np.uint8))))
    cut = tmp_path / "cut.png"
    cut.write_bytes(whole.read_bytes()[:2000])
    text = tmp_path / "text.png"
    text.write_text("no image")
    bomb = tmp_path / "bomb.png"
    header = Image.new("1", (30_000, 30_000))
    header.save(bomb)
    cases = {
        str(cut): "cut.png cannot be decoded",
        str(text): "text.png is not an image",
        str(bomb): "30,000 × 30,000 pixels|more than 100,000,000 pixels",
        str(tmp_path / "none.png"): "there is no file .*none.png",
        str(tmp_path): "it is a directory",
    }
    for value, message in cases.items():
        with pytest.raises(Unusable, match=message):
            ImageProcessor(SPEC).encode(value)
    for array, message in (
        (np.zeros((2, 2, 2)), r"its shape is \(2, 2, 2\)"),
        (np.full((2, 2), -1.0), "from -1 to -1"),
        (np.full((2, 2), np.nan), "not all pixels are finite"),
        ([[1, 2], [3]], "shape"),
    ):
        with pytest.raises(Unusable, match=message):
            ImageProcessor(SPEC).encode(array)
    with pytest.raises(UserError, match="no image can be read: there is no file"):
        ImageProcessor(Images()).fitted([str(tmp_path / "none.png")])


def test_the_simple_features_are_averages_of_pixels() -> None:
    spec = Images(height=32, width=32, channels=1, mean=(0,), deviation=(1,))
    pixels = RNG.integers(0, 256, (32, 32), dtype=np.uint8)
    found = ImageProcessor(spec).features(ImageProcessor(spec).encode(pixels))
    blocks = torch.from_numpy(pixels).double().unfold(0, 2, 2).unfold(1, 2, 2).mean((2, 3))
    np.testing.assert_allclose(found, blocks.flatten().numpy(), rtol=1e-5)
