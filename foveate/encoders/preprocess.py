"""From a picture to the tensor an encoder reads: one object for extraction, training and inference."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from foveate.errors import DataError, ShapeError

if TYPE_CHECKING:
    from PIL import Image


@dataclass(frozen=True)
class Preprocess:
    """Stretch a picture to a fixed size and normalise it: `(pixel / 255 − mean) / std`.

    The picture is stretched, never cropped: the unit square of the features is the whole picture, and a box in
    fractions of the picture is a box in fractions of the feature grid.

    Attributes:
        size: rows and columns of the result.
        mean, std: of the three colours, on the scale of 0 to 1.
        resample: how Pillow interpolates.

    >>> prepare = Preprocess((2, 2), mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    >>> prepare(np.full((4, 6, 3), 255, np.uint8)).shape
    torch.Size([3, 2, 2])
    >>> Preprocess.from_description(prepare.describe()) == prepare
    True
    """

    size: tuple[int, int]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    resample: Literal["bilinear", "bicubic"] = "bicubic"

    def __call__(self, picture: np.ndarray | Image.Image) -> Tensor:
        """The picture, (H, W, 3) uint8, as (3, rows, columns) float32."""
        return self.normalise(self.pixels(picture))

    def pixels(self, picture: np.ndarray | Image.Image) -> Tensor:
        """The first half, for worker processes: the stretched picture as (3, rows, columns) uint8."""
        from PIL import Image

        array = np.asarray(picture)
        if array.ndim != 3 or array.shape[2] != 3 or array.dtype != np.uint8 or not array.size:
            raise ShapeError(
                f"Preprocess: expected a picture (H, W, 3) of uint8, got {array.shape} of {array.dtype}; "
                "convert it to RGB"
            )
        image = Image.fromarray(np.ascontiguousarray(array))
        image = image.resize(self.size[::-1], Image.Resampling[self.resample.upper()])
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()

    def normalise(self, pixels: Tensor) -> Tensor:
        """The second half, on any device: (..., 3, rows, columns) uint8 as float32."""
        mean, std = (pixels.new_tensor(x, dtype=torch.float32)[:, None, None] for x in (self.mean, self.std))
        return (pixels.float() / 255 - mean) / std

    def describe(self) -> str:
        """The settings as JSON, kept beside the features made with them."""
        return json.dumps(asdict(self))

    @classmethod
    def from_description(cls, text: str) -> Preprocess:
        """The object that `describe` wrote down."""
        try:
            fields: dict[str, Any] = json.loads(text)
            tuples: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
            return cls(**tuples)
        except (ValueError, TypeError, AttributeError):
            raise DataError(
                f"Preprocess: expected the JSON that describe() writes, got {text!r:.80}; extract the features again"
            ) from None
