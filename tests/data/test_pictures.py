"""Opening pictures: modes, orientation, and every kind of broken file."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from foveate.data.pictures import open_picture, picture_size, read_grey, read_picture
from foveate.errors import DataError


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
        np.testing.assert_array_equal(read_picture(source), pixels)
        assert read_picture(source).flags.writeable
        assert picture_size(source) == (3, 2)
        assert open_picture(source).mode == "RGB"


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
    assert read_picture(encoded(image)).dtype == np.uint8
    assert open_picture(encoded(image)).getpixel((0, 0)) == pixel


def test_transparent_palette_is_laid_on_white():
    image = Image.new("P", (2, 2), 0)
    image.putpalette([9, 9, 9] * 256)
    assert open_picture(encoded(image, transparency=0)).getpixel((0, 0)) == (255, 255, 255)
    assert open_picture(encoded(image)).getpixel((0, 0)) == (9, 9, 9)


def test_cmyk_jpeg_and_first_picture_of_a_film():
    assert open_picture(encoded(Image.new("CMYK", (8, 8)), "JPEG")).mode == "RGB"
    film = encoded(Image.new("L", (4, 4), 0), "GIF", save_all=True, append_images=[Image.new("L", (4, 4), 255)])
    assert open_picture(film).getpixel((0, 0)) == (0, 0, 0)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_applied(orientation):
    corner = np.zeros((4, 6, 3), np.uint8)
    corner[0, 0] = 255
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(Image.fromarray(corner), exif=exif)
    row = {1: 0, 2: 0, 3: 3, 4: 3, 5: 0, 6: 0, 7: 5, 8: 5}[orientation]
    column = {1: 0, 2: 5, 3: 5, 4: 0, 5: 0, 6: 3, 7: 3, 8: 0}[orientation]
    pixels = read_picture(data)
    assert pixels.shape[1::-1] == picture_size(data) == ((6, 4) if orientation < 5 else (4, 6))
    assert np.argwhere(pixels[..., 0]).tolist() == [[row, column]]


def test_grey_is_one_channel():
    assert read_grey(encoded(Image.new("RGB", (3, 2), (50, 50, 50)))).tolist() == [[50] * 3] * 2


def test_the_cap_is_on_pixels_and_comes_first():
    data = encoded(Image.new("L", (10, 10)))
    assert read_picture(data, max_pixels=100).shape == (10, 10, 3)
    with pytest.raises(DataError, match=r"open_picture: expected at most 99 pixels, got 10 x 10 in \d+ bytes; make"):
        open_picture(data, max_pixels=99)
    with pytest.raises(DataError, match="expected at most 99 pixels"):
        picture_size(data, max_pixels=99)


@pytest.mark.parametrize("side", [8_000, 12_000, 60_000])
def test_a_bomb_is_refused_before_decoding(tmp_path, side):
    (tmp_path / "bomb.png").write_bytes(bomb(side, side))
    with pytest.raises(
        DataError, match=r"expected at most 50000000 pixels, got .* in .*bomb.png; make the picture smaller"
    ):
        read_picture(tmp_path / "bomb.png")


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF"])
def test_a_cut_file_is_named(tmp_path, kind):
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    data = encoded(Image.fromarray(noise), kind)
    (tmp_path / "cut.jpg").write_bytes(data[: len(data) // 2])
    with pytest.raises(
        DataError, match=r"open_picture: expected a whole picture .*, got .*cut.jpg, .*; replace the file"
    ):
        read_picture(tmp_path / "cut.jpg")


@pytest.mark.parametrize("data", [b"", b"not a picture", encoded(Image.new("RGB", (2, 2)), "PCX")])
def test_a_foreign_file_is_refused(data):
    with pytest.raises(
        DataError, match=rf"expected a whole picture .*, got {len(data)} bytes, which cannot be decoded"
    ):
        open_picture(data)


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"expected a picture at .*none.jpg, got no file; check the folder"):
        read_picture(tmp_path / "none.jpg")
    with pytest.raises(DataError, match="cannot be decoded"):
        read_picture(tmp_path)
