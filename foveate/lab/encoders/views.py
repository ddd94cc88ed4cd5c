"""Several views of an image, mirrored and cropped, and what is known about places in them.

More data to train on, at the cost of extraction and space.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from foveate.checks import check_number
from foveate.errors import WrongValue
from foveate.lab.data.feature_store import view_id
from foveate.lab.data.samples import Caption, ImageRecord
from foveate.ops.boxes import Box

SIDE = 0.8  # of a crop, as a fraction of the sides of the image
# Where a crop begins, as a fraction of the room that it leaves: the centre, then the corners.
PLACES = ((0.5, 0.5), (0.0, 0.0), (1.0, 1.0), (1.0, 0.0), (0.0, 1.0))
MOST = 2 + 2 * len(PLACES)


@dataclass(frozen=True)
class ImageView:
    """Loader of a view of an image.

    Attributes:
        image: the whole image.
        view: 1 is the mirrored image, 2 and 3 the central crop and its mirror image, 4 to 11 those at the corners.
    """

    image: ImageRecord
    view: int

    def __call__(self) -> np.ndarray:
        """The pixels (H, W, 3) uint8."""
        return array_of_view(self.image.pixels(), self.view)

    @property
    def file(self) -> Path | None:
        """The file of the image, if it has one."""
        return self.image.source if isinstance(self.image.source, Path) else None


def array_of_view(pixels: np.ndarray, view: int) -> np.ndarray:
    """The part of an array (H, W, ...) of pixels that a view shows; a mask of the image becomes that of the view."""
    if view > 1:
        (x, y), (H, W) = PLACES[view // 2 - 1], pixels.shape[:2]
        h, w = max(1, round(SIDE * H)), max(1, round(SIDE * W))
        top, left = round(y * (H - h)), round(x * (W - w))
        pixels = pixels[top : top + h, left : left + w]
    return np.ascontiguousarray(pixels[:, ::-1]) if view % 2 else pixels


def boxes_of_view(boxes: Sequence[Box], view: int) -> tuple[Box, ...]:
    """Boxes of the image in fractions of a view; those that lie outside of it are left out.

    >>> boxes_of_view([Box(0.0, 0.0, 0.25, 1.0)], 1), boxes_of_view([Box(0.0, 0.0, 0.05, 1.0)], 2)
    ((Box(x0=0.75, y0=0.0, x1=1.0, y1=1.0),), ())
    """
    found = []
    for left, top, right, bottom in boxes:
        if view > 1:
            x, y = (place * (1 - SIDE) for place in PLACES[view // 2 - 1])
            left, right = (min(max((side - x) / SIDE, 0.0), 1.0) for side in (left, right))
            top, bottom = (min(max((side - y) / SIDE, 0.0), 1.0) for side in (top, bottom))
        if view % 2:
            left, right = 1 - right, 1 - left
        if left < right and top < bottom:
            found.append(Box(left, top, right, bottom))
    return tuple(found)


def caption_of_view(caption: Caption, view: int) -> Caption:
    """A caption whose phrases have the boxes of a view of its image."""
    if not view or not any(phrase.boxes for phrase in caption.phrases):
        return caption
    phrases = []
    for phrase in caption.phrases:
        boxes = boxes_of_view(phrase.boxes, view)
        unlinked = phrase.unlinked if boxes or phrase.unlinked else "outside of the view"
        phrases.append(replace(phrase, boxes=boxes, unlinked=unlinked))
    return replace(caption, phrases=tuple(phrases))


def image_views(images: Sequence[ImageRecord], count: int) -> list[ImageRecord]:
    """Each image followed by its other views.

    Args:
        images: with different ids.
        count: views per image: 1 is the image alone, 2 adds the mirrored image, 4 also a crop of 80 % and its mirror
            image, up to 12 crops at the corners.

    >>> blank = ImageRecord("cat", lambda: np.zeros((10, 20, 3), np.uint8))
    >>> [(view.id, view.pixels().shape) for view in image_views([blank], 3)]
    [('cat', (10, 20, 3)), ('cat#1', (10, 20, 3)), ('cat#2', (8, 16, 3))]
    """
    check_number("extract", "views", count, least=1, advice="use 1 for the image alone, 4 for flips and crops")
    if count > MOST:
        raise WrongValue(f"extract: expected at most {MOST} views, got {count}; 4 is a good start")
    return [
        image if view == 0 else ImageRecord(view_id(image.id, view), ImageView(image, view))
        for image in images
        for view in range(count)
    ]
