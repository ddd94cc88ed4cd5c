"""What visitors may send: how large a picture, how long a question; everything else gets an answer in words."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import numpy as np

from foveate.data.pictures import open_picture
from foveate.errors import DataError

MAX_FILE = 10_000_000  # bytes of a picture
MAX_BODY = 16_000_000  # bytes of a request: the picture in base64, and a little more
MAX_PIXELS = 25_000_000
MAX_SIDE = 512  # pixels that are kept of the longer side
MAX_QUESTION = 300  # characters
Message = MutableMapping[str, Any]


def read_upload(address: Any) -> np.ndarray:
    """The picture in a data address, (h, w, 3) uint8, upright, its longer side at most MAX_SIDE.

    Args:
        address: "data:<type>;base64,<bytes>", as a browser reads a file.

    Anything else, a file above MAX_FILE bytes or MAX_PIXELS pixels, and a broken picture raise DataError.

    >>> read_upload("C:/secret.png")
    Traceback (most recent call last):
    foveate.errors.DataError: upload: expected a picture, got something else; choose a file
    """
    kind, comma, text = address.partition(",") if isinstance(address, str) else ("", "", "")
    if not comma or not kind.startswith("data:") or not kind.endswith(";base64"):
        raise DataError("upload: expected a picture, got something else; choose a file")
    if len(text) * 3 / 4 > MAX_FILE:
        raise DataError(
            f"upload: expected at most {MAX_FILE / 1e6:.0f} MB, got {len(text) * 3 / 4e6:.1f}; make the picture smaller"
        )
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise DataError("upload: expected a whole file, got a cut one; send it again") from None
    picture = open_picture(data, max_pixels=MAX_PIXELS)
    picture.thumbnail((MAX_SIDE, MAX_SIDE))
    return np.asarray(picture)


def read_question(text: Any, what: str = "question") -> str:
    """The text without the space around it; DataError when it is empty or longer than MAX_QUESTION.

    >>> read_question("  What is red? ")
    'What is red?'
    """
    asked = text.strip() if isinstance(text, str) else ""
    if not asked:
        raise DataError(f"ask: expected a {what}, got none; write at least one word")
    if len(asked) > MAX_QUESTION:
        raise DataError(f"ask: expected at most {MAX_QUESTION} characters, got {len(asked)}; make the {what} shorter")
    return asked


class BodyLimit:
    """ASGI middleware that answers 413 as soon as a request is longer than allowed, whatever its header says."""

    def __init__(self, app: Callable[..., Awaitable[None]], limit: int = MAX_BODY) -> None:
        self.app, self.limit = app, limit

    async def __call__(self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        told = dict(scope["headers"]).get(b"content-length", b"0")
        if not told.isdigit() or int(told) > self.limit:
            await _refuse(send)
            return
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            # to the application it is as if the visitor had gone
            return {"type": "http.disconnect"} if seen > self.limit else message

        await self.app(scope, counted, send)


async def _refuse(send: Callable[[Message], Awaitable[None]]) -> None:
    headers = [(b"content-type", b"text/plain"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 413, "headers": headers})
    await send({"type": "http.response.body", "body": b"too large"})
