"""What trained models that read people's pictures have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor

from foveate.attention import Attended
from foveate.data.features import ImageFeatures, StoreDescription
from foveate.data.pictures import read_picture
from foveate.encoders import PictureEncoder, encoder_of
from foveate.errors import DataError
from foveate.tasks.task import Predictor

if TYPE_CHECKING:
    from PIL import Image

PictureInput: TypeAlias = "str | Path | bytes | np.ndarray | Image.Image"


@dataclass(frozen=True)
class PicturePredictor(Predictor):
    """A trained model that reads pictures; its task says in `store` what features it was trained on, if any."""

    def read_pictures(self, images: Sequence[PictureInput]) -> Tensor | ImageFeatures:
        """What a batch holds: pixels, or features made by the encoder of the store, on the model's device."""
        pixels = [to_pixels(image) for image in images]
        if self._encoder is not None:
            return self._encoder.encode(pixels).to(self.device)
        prepare = cast(PictureEncoder, self.model.image).preprocess
        return torch.stack([prepare.pixels(picture) for picture in pixels]).to(self.device)

    @cached_property
    def _encoder(self) -> PictureEncoder | None:
        store = cast(StoreDescription | None, getattr(self.task, "store", None))
        return None if store is None else encoder_of(store).to(self.device)


def to_pixels(image: PictureInput) -> np.ndarray:
    """A picture in any of its forms as (H, W, 3) uint8; DataError when it cannot be read.

    >>> to_pixels(np.zeros((2, 3, 3), np.uint8)).shape
    (2, 3, 3)
    """
    if isinstance(image, str | Path | bytes):
        return read_picture(image)
    if isinstance(image, np.ndarray):
        return image
    convert = getattr(image, "convert", None)
    if convert is None:
        raise DataError(
            f"picture: expected a path, bytes, an array or a Pillow image, got {type(image).__name__}; open it first"
        )
    return np.asarray(convert("RGB"))


def one_of(attended: Attended, row: int) -> Attended:
    """The attention of one example of a batch, as a batch of one."""
    parts = {part.name: _row(getattr(attended, part.name), row) for part in fields(attended)}
    return replace(attended, **parts)


def _row(part: Any, row: int) -> Any:
    """The row of a tensor, or of every tensor of a density."""
    if isinstance(part, Tensor):
        return part[row : row + 1]
    if is_dataclass(part) and not isinstance(part, type):
        return replace(part, **{own.name: _row(getattr(part, own.name), row) for own in fields(part)})
    return part
