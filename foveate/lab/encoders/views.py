"""Several views of an image: mirrored, and cropped. More data to train on, at the cost of extraction and space."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from foveate.checks import check_number
from foveate.lab.data.feature_store import view_id
from foveate.lab.data.samples import ImageRecord

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
        pixels = self.image.pixels()
        if self.view > 1:
            (x, y), (H, W) = PLACES[self.view // 2 - 1], pixels.shape[:2]
            h, w = max(1, round(SIDE * H)), max(1, round(SIDE * W))
            top, left = round(y * (H - h)), round(x * (W - w))
            pixels = pixels[top : top + h, left : left + w]
        return np.ascontiguousarray(pixels[:, ::-1]) if self.view % 2 else pixels

    @property
    def file(self) -> Path | None:
        """The file of the image, if it has one."""
        return self.image.source if isinstance(self.image.source, Path) else None


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
        raise ValueError(f"extract: expected at most {MOST} views, got {count}; 4 is a good start")
    return [
        image if view == 0 else ImageRecord(view_id(image.id, view), ImageView(image, view))
        for image in images
        for view in range(count)
    ]
