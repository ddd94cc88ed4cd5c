"""What visitors may send: the size of images and the length of questions; anything else raises DataError."""

from __future__ import annotations

import base64
import binascii
from typing import Any

import numpy as np

from foveate.errors import DataError
from foveate.io import FORMATS, open_image

MAX_FILE = 10_000_000  # bytes of an image
MAX_PIXELS = 25_000_000
MAX_SIDE = 512  # pixels of the longer side, to which images are reduced
MAX_QUESTION = 300  # characters
TOO_LARGE = "too large"  # what the page sends in place of such a file


def read_upload(address: Any) -> np.ndarray:
    """The image in a data URL as uint8 (h, w, 3), upright, its longer side at most MAX_SIDE.

    Args:
        address: "data:<type>;base64,<bytes>", as a browser reads a file.

    Raises DataError, with a sentence for the page, for anything else, for a file of more than MAX_FILE bytes or
    MAX_PIXELS pixels, and for one that cannot be decoded.

    >>> read_upload("C:/secret.png")
    Traceback (most recent call last):
    foveate.errors.DataError: upload: expected an image, got something else; choose a file
    """
    if address == TOO_LARGE:  # the page does not even send such a file
        raise DataError(f"upload: expected at most {MAX_FILE / 1e6:.0f} MB, got more; choose a smaller image")
    kind, comma, text = address.partition(",") if isinstance(address, str) else ("", "", "")
    if not comma or not kind.startswith("data:") or not kind.endswith(";base64"):
        raise DataError("upload: expected an image, got something else; choose a file")
    if len(text) * 3 / 4 > MAX_FILE:
        raise DataError(
            f"upload: expected at most {MAX_FILE / 1e6:.0f} MB, got {len(text) * 3 / 4e6:.1f}; choose a smaller image"
        )
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise DataError("upload: expected a whole file, got an incomplete one; upload it again") from None
    try:
        image = open_image(data, max_pixels=MAX_PIXELS)
    except DataError:  # what it says is about files on the disk and the decoder
        raise DataError(
            f"upload: expected an image ({', '.join(FORMATS)}) of at most {MAX_PIXELS / 1e6:.0f} megapixels, "
            "got a file that cannot be decoded or is larger; choose another file"
        ) from None
    image.thumbnail((MAX_SIDE, MAX_SIDE))
    return np.asarray(image)


def read_question(text: Any, what: str = "question") -> str:
    """The text without surrounding space; raises DataError if it is empty or longer than MAX_QUESTION.

    >>> read_question("  What is red? ")
    'What is red?'
    """
    stripped = text.strip() if isinstance(text, str) else ""
    if not stripped:
        raise DataError(f"ask: expected a {what}, got none; write at least one word")
    if len(stripped) > MAX_QUESTION:
        raise DataError(f"ask: expected at most {MAX_QUESTION} characters, got {len(stripped)}; shorten the {what}")
    return stripped
