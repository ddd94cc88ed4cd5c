"""What visitors may send: every kind of image comes out upright and small, everything else in words."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from PIL import Image

from foveate.apps.studio import picker
from foveate.apps.studio.picker import MAX_QUESTION, MAX_SIDE, read_question, read_upload
from foveate.errors import DataError


def address(image: Image.Image, kind: str = "PNG", **options) -> str:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "LA", "P", "1", "CMYK", "I;16"])
def test_every_kind_of_image_becomes_rgb(mode):
    kind = "TIFF" if mode == "CMYK" else "PNG"
    pixels = read_upload(address(Image.new(mode, (6, 4)), kind))
    assert pixels.shape == (4, 6, 3)
    assert pixels.dtype == np.uint8


def test_images_stand_upright():
    image = Image.new("RGB", (6, 4))
    exif = image.getexif()
    exif[0x0112] = 6
    assert read_upload(address(image, "JPEG", exif=exif)).shape == (6, 4, 3)


def test_large_images_are_made_smaller_and_keep_their_shape():
    assert read_upload(address(Image.new("RGB", (2 * MAX_SIDE, MAX_SIDE)))).shape == (MAX_SIDE // 2, MAX_SIDE, 3)


def test_what_is_no_image_raises_data_error(monkeypatch):
    whole = address(Image.effect_noise((64, 64), 50))
    head, _, text = whole.partition(",")
    cut = base64.b64encode(base64.b64decode(text)[:500]).decode()
    for bad, message in (
        (None, "expected an image, got something else"),
        ({"path": "/etc/passwd"}, "expected an image, got something else"),
        ("/etc/passwd", "expected an image, got something else"),
        ("file:///etc/passwd", "expected an image, got something else"),
        ("https://example.org/a.png", "expected an image, got something else"),
        ("too large", "expected at most 10 MB, got more"),
        (f"{head},%%%", "expected a whole file, got an incomplete one"),
        (f"{head},{cut}", "cannot be decoded"),
        (f"{head},", "cannot be decoded"),
        ("data:image/svg+xml;base64," + base64.b64encode(b"<svg/>").decode(), "cannot be decoded"),
    ):
        with pytest.raises(DataError, match=message) as raised:
            read_upload(bad)
        assert "BytesIO" not in str(raised.value)
        assert "open_image" not in str(raised.value)
    monkeypatch.setattr(picker, "MAX_FILE", 100)
    with pytest.raises(DataError, match=r"upload: expected at most 0 MB, got .*; choose a smaller image"):
        read_upload(whole)
    monkeypatch.setattr(picker, "MAX_FILE", 10**7)
    monkeypatch.setattr(picker, "MAX_PIXELS", 100)
    with pytest.raises(DataError, match="of at most 0 megapixels, got a file that cannot be decoded or is larger"):
        read_upload(whole)


def test_questions_have_words_and_an_end():
    assert read_question(" why? ") == "why?"
    for empty in ("", "  \n", None, 7):
        with pytest.raises(DataError, match="ask: expected a question, got none; write at least one word"):
            read_question(empty)
    with pytest.raises(DataError, match=f"at most {MAX_QUESTION} characters, got 10000; shorten the question"):
        read_question("a" * 10_000)
