"""Images of a visitor to search in: a folder that was dropped on the page, reduced by the browser and never stored."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from foveate.apps.studio.assets import script
from foveate.apps.studio.limits import read_upload
from foveate.errors import DataError

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
