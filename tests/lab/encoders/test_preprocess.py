"""One preprocessing for extraction and inference."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from foveate.errors import DataError, ShapeError
from foveate.lab.encoders.image_encoder import Preprocess

HALF = (0.5, 0.5, 0.5)


def image(height: int = 5, width: int = 8) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)


def test_formula_without_resizing() -> None:
    prepare = Preprocess((5, 8), mean=(0.1, 0.2, 0.3), std=(0.5, 0.25, 2.0))
    expected = (image() / 255.0 - np.array([0.1, 0.2, 0.3])) / np.array([0.5, 0.25, 2.0])
    torch.testing.assert_close(prepare(image()), torch.from_numpy(expected.transpose(2, 0, 1)).float())


def test_rows_then_columns() -> None:
    assert Preprocess((3, 7), HALF, HALF)(image()).shape == (3, 3, 7)


def test_the_whole_image_is_stretched_never_cropped() -> None:
    array = np.zeros((10, 40, 3), np.uint8)
    array[:, :20], array[5:, :, 1] = (200, 0, 0), 100
    small = Preprocess((4, 4), HALF, HALF, "bilinear").pixels(array)
    assert small[0, 0, 0] == 200
    assert small[0, 0, 3] == 0
    assert small[1, 3, 0] == 100
    assert small[1, 0, 0] == 0


@pytest.mark.parametrize("resample", ["bilinear", "bicubic"])
def test_resampling_is_pillows(resample: str) -> None:
    wanted = Image.fromarray(image(31, 17)).resize((6, 9), Image.Resampling[resample.upper()])
    pixels = Preprocess((9, 6), HALF, HALF, resample).pixels(image(31, 17))
    assert np.array_equal(pixels.permute(1, 2, 0).numpy(), np.asarray(wanted))


def test_a_pillow_image_is_the_same_as_its_array() -> None:
    prepare = Preprocess((4, 4), HALF, HALF)
    assert torch.equal(prepare(Image.fromarray(image())), prepare(image()))


def test_a_batch_is_normalised_as_its_images() -> None:
    prepare = Preprocess((4, 4), mean=(0.1, 0.2, 0.3), std=HALF)
    pixels = [prepare.pixels(image(n + 3, 6)) for n in range(3)]
    batch = prepare.normalise(torch.stack(pixels))
    assert all(torch.equal(row, prepare.normalise(p)) for row, p in zip(batch, pixels, strict=True))
    assert batch.dtype == torch.float32


def test_description_round_trip() -> None:
    prepare = Preprocess((4, 6), mean=(0.1, 0.2, 1 / 3), std=HALF, resample="bilinear")
    again = Preprocess.from_description(prepare.describe())
    assert again == prepare
    assert torch.equal(again(image()), prepare(image()))


@pytest.mark.parametrize("text", ["", "[]", '{"size": 3}', "{"])
def test_a_foreign_description(text: str) -> None:
    with pytest.raises(DataError, match=r"Preprocess: expected the JSON written by describe\(\)"):
        Preprocess.from_description(text)


@pytest.mark.parametrize(
    "bad",
    [np.zeros((4, 4), np.uint8), np.zeros((4, 4, 4), np.uint8), np.zeros((4, 4, 3)), np.zeros((0, 4, 3), np.uint8)],
)
def test_only_rgb_images(bad: np.ndarray) -> None:
    with pytest.raises(ShapeError, match=r"Preprocess: expected an image \(H, W, 3\) of uint8, got"):
        Preprocess((2, 2), HALF, HALF)(bad)
