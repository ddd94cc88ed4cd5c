"""What visitors may send: every kind of picture comes out upright and small, everything else in words."""

from __future__ import annotations

import asyncio
import base64
import io

import numpy as np
import pytest
from PIL import Image

from foveate.errors import DataError
from foveate.studio import limits
from foveate.studio.limits import MAX_QUESTION, MAX_SIDE, BodyLimit, read_question, read_upload


def address(image: Image.Image, kind: str = "PNG", **options) -> str:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "LA", "P", "1", "CMYK", "I;16"])
def test_every_kind_of_picture_becomes_rgb(mode):
    kind = "TIFF" if mode == "CMYK" else "PNG"
    pixels = read_upload(address(Image.new(mode, (6, 4)), kind))
    assert pixels.shape == (4, 6, 3)
    assert pixels.dtype == np.uint8


def test_pictures_stand_upright():
    image = Image.new("RGB", (6, 4))
    exif = image.getexif()
    exif[0x0112] = 6
    assert read_upload(address(image, "JPEG", exif=exif)).shape == (6, 4, 3)


def test_large_pictures_are_made_smaller_and_keep_their_shape():
    assert read_upload(address(Image.new("RGB", (2 * MAX_SIDE, MAX_SIDE)))).shape == (MAX_SIDE // 2, MAX_SIDE, 3)


def test_what_is_no_picture_is_told_so(monkeypatch):
    whole = address(Image.effect_noise((64, 64), 50))
    head, _, text = whole.partition(",")
    cut = base64.b64encode(base64.b64decode(text)[:500]).decode()
    for bad, message in (
        (None, "expected a picture, got something else"),
        ({"path": "/etc/passwd"}, "expected a picture, got something else"),
        ("/etc/passwd", "expected a picture, got something else"),
        ("file:///etc/passwd", "expected a picture, got something else"),
        ("https://example.org/a.png", "expected a picture, got something else"),
        ("too large", "expected a picture, got something else"),
        (f"{head},%%%", "expected a whole file, got a cut one"),
        (f"{head},{cut}", "cannot be decoded"),
        (f"{head},", "cannot be decoded"),
        ("data:image/svg+xml;base64," + base64.b64encode(b"<svg/>").decode(), "cannot be decoded"),
    ):
        with pytest.raises(DataError, match=message):
            read_upload(bad)
    monkeypatch.setattr(limits, "MAX_FILE", 100)
    with pytest.raises(DataError, match=r"upload: expected at most 0 MB, got .*; make the picture smaller"):
        read_upload(whole)
    monkeypatch.setattr(limits, "MAX_FILE", 10**7)
    monkeypatch.setattr(limits, "MAX_PIXELS", 100)
    with pytest.raises(DataError, match="expected at most 100 pixels"):
        read_upload(whole)


def test_questions_have_words_and_an_end():
    assert read_question(" why? ") == "why?"
    for empty in ("", "  \n", None, 7):
        with pytest.raises(DataError, match="ask: expected a question, got none; write at least one word"):
            read_question(empty)
    with pytest.raises(DataError, match=f"at most {MAX_QUESTION} characters, got 10000; make the question shorter"):
        read_question("a" * 10_000)


def call(limit: int, headers: list, chunks: list[bytes], kind: str = "http"):
    """What the application behind the limit received, and what was sent."""
    received, sent, waiting = [], [], list(chunks)

    async def app(scope, receive, send):
        while True:
            message = await receive()
            received.append(message)
            if message["type"] == "http.disconnect" or not message.get("more_body"):
                return

    async def receive():
        return {"type": "http.request", "body": waiting.pop(0), "more_body": bool(waiting)}

    async def send(message):
        sent.append(message)

    asyncio.run(BodyLimit(app, limit)({"type": kind, "headers": headers}, receive, send))
    return received, sent


def test_requests_that_are_too_long_are_refused():
    assert call(10, [(b"content-length", b"11")], [b""])[1][0]["status"] == 413
    assert call(10, [(b"content-length", b"-1")], [b""])[1][0]["status"] == 413
    received, sent = call(10, [], [b"12345678", b"90123", b"more"])  # a length that nobody told
    assert [message["type"] for message in received] == ["http.request", "http.disconnect"]
    assert not sent
    assert len(call(10, [(b"content-length", b"10")], [b"1234567890"])[0]) == 1
    assert len(call(1, [], [b"123"], kind="websocket")[0]) == 1
