"""Opening images: modes, orientation, and every kind of broken file."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from foveate.errors import DataError
from foveate.io import decode_grey, decode_image, image_size, open_image


def encoded(image, kind="PNG", **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def bomb(width, height):
    """A PNG of a few bytes whose header promises many pixels."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def test_rgb_from_path_and_bytes(tmp_path):
    pixels = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    data = encoded(Image.fromarray(pixels))
    (tmp_path / "a.png").write_bytes(data)
    for source in (data, tmp_path / "a.png", str(tmp_path / "a.png")):
        np.testing.assert_array_equal(decode_image(source), pixels)
        assert decode_image(source).flags.writeable
        assert image_size(source) == (3, 2)
        assert open_image(source).mode == "RGB"


@pytest.mark.parametrize(
    ("image", "pixel"),
    [
        (Image.new("L", (2, 2), 100), (100, 100, 100)),
        (Image.new("1", (2, 2), 1), (255, 255, 255)),
        (Image.new("RGBA", (2, 2), (10, 20, 30, 255)), (10, 20, 30)),
        (Image.new("RGBA", (2, 2), (10, 20, 30, 0)), (255, 255, 255)),
        (Image.new("LA", (2, 2), (0, 51)), (204, 204, 204)),
        (Image.new("RGB", (2, 2), (200, 0, 0)).convert("P", palette=Image.Palette.ADAPTIVE), (200, 0, 0)),
        (Image.fromarray(np.full((2, 2), 0x8040, np.uint16)), (128, 128, 128)),
    ],
    ids=["grey", "bits", "opaque", "transparent", "grey-alpha", "palette", "sixteen-bit"],
)
def test_modes_become_rgb(image, pixel):
    assert decode_image(encoded(image)).dtype == np.uint8
    assert open_image(encoded(image)).getpixel((0, 0)) == pixel


def test_transparent_palette_is_laid_on_white():
    image = Image.new("P", (2, 2), 0)
    image.putpalette([9, 9, 9] * 256)
    assert open_image(encoded(image, transparency=0)).getpixel((0, 0)) == (255, 255, 255)
    assert open_image(encoded(image)).getpixel((0, 0)) == (9, 9, 9)


def test_cmyk_jpeg_and_first_image_of_a_film():
    assert open_image(encoded(Image.new("CMYK", (8, 8)), "JPEG")).mode == "RGB"
    film = encoded(Image.new("L", (4, 4), 0), "GIF", save_all=True, append_images=[Image.new("L", (4, 4), 255)])
    assert open_image(film).getpixel((0, 0)) == (0, 0, 0)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_applied(orientation):
    corner = np.zeros((4, 6, 3), np.uint8)
    corner[0, 0] = 255
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(Image.fromarray(corner), exif=exif)
    row = {1: 0, 2: 0, 3: 3, 4: 3, 5: 0, 6: 0, 7: 5, 8: 5}[orientation]
    column = {1: 0, 2: 5, 3: 5, 4: 0, 5: 0, 6: 3, 7: 3, 8: 0}[orientation]
    pixels = decode_image(data)
    assert pixels.shape[1::-1] == image_size(data) == ((6, 4) if orientation < 5 else (4, 6))
    assert np.argwhere(pixels[..., 0]).tolist() == [[row, column]]


def test_grey_is_one_channel():
    assert decode_grey(encoded(Image.new("RGB", (3, 2), (50, 50, 50)))).tolist() == [[50] * 3] * 2


def test_the_cap_is_on_pixels_and_comes_first():
    data = encoded(Image.new("L", (10, 10)))
    assert decode_image(data, max_pixels=100).shape == (10, 10, 3)
    with pytest.raises(DataError, match=r"open_image: expected at most 99 pixels, got 10 x 10 in \d+ bytes; resize"):
        open_image(data, max_pixels=99)
    with pytest.raises(DataError, match="expected at most 99 pixels"):
        image_size(data, max_pixels=99)


@pytest.mark.parametrize("side", [8_000, 12_000, 60_000])
def test_a_bomb_is_refused_before_decoding(tmp_path, side):
    (tmp_path / "bomb.png").write_bytes(bomb(side, side))
    with pytest.raises(DataError, match=r"expected at most 50000000 pixels, got .* in .*bomb.png; resize the image"):
        decode_image(tmp_path / "bomb.png")


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF"])
def test_a_cut_file_is_named(tmp_path, kind):
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    data = encoded(Image.fromarray(noise), kind)
    (tmp_path / "cut.jpg").write_bytes(data[: len(data) // 2])
    with pytest.raises(
        DataError, match=r"open_image: expected a complete image .*, got .*cut.jpg, .*; replace the file"
    ):
        decode_image(tmp_path / "cut.jpg")


@pytest.mark.parametrize("data", [b"", b"not an image", encoded(Image.new("RGB", (2, 2)), "PCX")])
def test_a_foreign_file_is_refused(data):
    with pytest.raises(
        DataError, match=rf"expected a complete image .*, got {len(data)} bytes, which cannot be decoded"
    ):
        open_image(data)


def test_a_missing_file_and_a_directory_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"expected an image at .*none.jpg, got no file; check the directory"):
        decode_image(tmp_path / "none.jpg")
    with pytest.raises(DataError, match="cannot be decoded"):
        decode_image(tmp_path)


def grey(values, dtype, kind="TIFF"):
    file = io.BytesIO()
    Image.fromarray(np.array([values], dtype)).save(file, kind)
    return decode_grey(file.getvalue())[0].tolist()


def test_sixteen_bits_are_scaled():
    assert grey([0, 257, 32896, 65535], np.uint16, "PNG") == [0, 1, 128, 255]
    assert grey([0, 257, 32896, 65535], np.uint16) == [0, 1, 128, 255]
    assert grey([0, 100, 200], np.uint16, "PNG") == [0, 0, 1]  # a dark image stays dark
    data = b"P5 3 1 65535\n" + np.array([0, 32896, 65535], ">u2").tobytes()
    assert decode_grey(data)[0].tolist() == [0, 128, 255]


def test_thirty_two_bits_are_scaled_not_cut():
    assert grey([0, 100, 255], np.int32) == [0, 100, 255]
    assert grey([0, 32896, 65535], np.int32) == [0, 128, 255]
    assert grey([0, 2**30, 2**31 - 1], np.int32) == [0, 64, 127]  # of 32 bits without a sign
    assert grey([-100, 0, 155], np.int32) == [0, 72, 183]
    assert grey([0.0, 0.25, 1.0], np.float32) == [0, 64, 255]
    assert grey([0.0, 100.5, 255.0], np.float32) == [0, 100, 255]
    assert grey([0.5, 1e6], np.float32) == [0, 255]
    assert grey([0.0, 0.0], np.float32) == [0, 0]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_pixels_that_are_not_finite_are_rejected(value):
    with pytest.raises(DataError, match="pixels that are not finite"):
        grey([0.5, value], np.float32)


def test_the_error_of_bytes_names_no_python_object():
    with pytest.raises(DataError, match=r"got 3 bytes, which cannot be decoded \(no known format\)"):
        open_image(b"abc")
