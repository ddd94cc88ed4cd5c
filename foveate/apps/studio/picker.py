"""Images that visitors choose from a strip or send: bounded, decoded and never stored."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from foveate.apps.studio import widgets
from foveate.apps.studio.catalogue import PHOTOGRAPHS, SCENES, RunCatalogue
from foveate.apps.studio.widgets import script
from foveate.errors import DataError
from foveate.io import FORMATS, open_image
from foveate.lab.data.image_sources import example_photos
from foveate.lab.data.samples import Dataset
from foveate.lab.data.scenes import make_scenes

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


MOST = 60  # images
LONGEST = 320  # pixels of the longer side, to which the browser reduces them
MAX_TEXT = 8_000_000  # characters of all of them


@dataclass(frozen=True)
class OwnImages:
    """Images of a visitor as data URLs, and what they are called in caches."""

    addresses: tuple[str, ...] = ()
    key: str = ""


def read_images(text: Any) -> OwnImages:
    """The images in a JSON list of data URLs; those that cannot be decoded are left out.

    Raises DataError if it is anything else, too long, or if no image is left.

    >>> read_images("[]")
    Traceback (most recent call last):
    foveate.errors.DataError: images: expected images that can be decoded, got none; drop a folder of JPEG or PNG files
    """
    if isinstance(text, str) and len(text) > MAX_TEXT:
        raise DataError(f"images: expected at most {MAX_TEXT / 1e6:.0f} MB, got more; drop fewer images")
    try:
        sent = list(json.loads(text))[:MOST]
    except (TypeError, ValueError, RecursionError):
        sent = []
    kept = []
    for address in sent:
        try:
            read_upload(address)
        except DataError:
            continue
        kept.append(address)
    if not kept:
        raise DataError("images: expected images that can be decoded, got none; drop a folder of JPEG or PNG files")
    return OwnImages(tuple(kept), hashlib.sha256("".join(kept).encode()).hexdigest())


def build_field(gr: Any, page: str) -> Any:
    """Add the field: it sends `upload` with `images`, a JSON list of data URLs; its value is an error, or empty."""
    field = (
        '<label class="fv-upload fv-folder"><span>Search your own images: drop a folder or choose files</span>'
        '<input type="file" accept="image/*" multiple aria-label="your own images"></label>'
        '<p class="fv-error" role="alert" hidden></p>'
    )
    return gr.HTML(
        "", html_template=field, js_on_load=script("folder", most=MOST, longest=LONGEST), elem_id=f"{page}-own"
    )


EXAMPLES = 8  # of Scenes; photographs follow
ROCKET = EXAMPLES + 3  # a photograph with several things to look at
OWN = "own"  # chosen: an uploaded image


@dataclass(frozen=True, eq=False)
class ChosenImage:
    """An image that a visitor chose.

    Attributes:
        pixels: (h, w, 3) uint8.
        example: its number among the examples, None for an uploaded image.
    """

    pixels: np.ndarray
    example: int | None = None

    @property
    def mark(self) -> str:
        """The button of the strip that is marked."""
        return OWN if self.example is None else str(self.example)

    @property
    def domain(self) -> str:
        """SCENES or PHOTOGRAPHS."""
        return SCENES if self.example is not None and self.example < EXAMPLES else PHOTOGRAPHS


@lru_cache(maxsize=1)
def examples() -> Dataset:
    """Images of Scenes that no run has been trained on."""
    return make_scenes(split="test", count=EXAMPLES)


@lru_cache(maxsize=1)
def example_images() -> tuple[np.ndarray, ...]:
    """The images of the strip: Scenes, then the photographs of installed packages, if there are any."""
    return (
        *(image.pixels() for image in examples().images),
        *(_read_photo(path) for path in example_photos().values()),
    )


def _read_photo(path: Path) -> np.ndarray:
    image = open_image(path, max_pixels=MAX_PIXELS)
    image.thumbnail((MAX_SIDE, MAX_SIDE))
    return np.asarray(image)


def choose_example(pick: Any) -> ChosenImage:
    """The example that was picked; raises DataError if there is none of this number."""
    images = example_images()
    number = widgets.picked_number(pick, len(images))
    if number is None:
        raise DataError(f"pick: expected one of {len(images)} examples, got {pick!r:.40}; pick an image")
    return ChosenImage(images[number], number)


def strip_value(mark: str, error: object = "") -> str:
    """The value of the strip: the marked button, and a sentence if something went wrong."""
    return json.dumps({"chosen": mark, "error": str(error)})


def build_strip(gr: Any, page: str, mark: str = "0") -> Any:
    """Add the strip: it sends `select` with `pick`, and `upload` with `address`, a data URL."""
    upload = (
        '<label class="fv-upload"><span>Your own image<br>drop or choose</span>'
        '<input type="file" accept="image/*" aria-label="your own image"></label>'
    )
    thumbs = widgets.thumbnails(example_images(), upload)
    return gr.HTML(
        strip_value(mark),
        html_template=f'{thumbs}<p class="fv-error" role="alert" hidden></p>',
        js_on_load=script("strip", max_file=MAX_FILE),
        elem_id=f"{page}-examples",
    )


def is_without_runs(gr: Any, catalogue: RunCatalogue, task: str, recipe: str) -> bool:
    """True if there is no run of a task; the page then says how to train one."""
    if catalogue.runs(task):
        return False
    advice = f"Train one with foveate train {recipe}, then restart the studio."
    gr.HTML(widgets.error_html(f"There is no run of the task {task} yet. {advice}"))
    return True
