"""Several pretrained encoders as one: the features of a location are those of all of them, one after the other."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from foveate.errors import ShapeError
from foveate.lab.encoders.image_encoder import ImageEncoder
from foveate.lab.features import ImageFeatures


class JoinedEncoder(ImageEncoder):
    """Encoders with the same preprocessing and the same grid; D is the sum of their dimensions.

    Its name, and that of its stores, is theirs joined by a plus: `efficientnet-lite0+efficientnet-lite2`.

    Args:
        parts: at least two encoders that return a grid.

    >>> from foveate.lab.encoders import ConvEncoder
    >>> part = ConvEncoder((8, 8), size=32)
    >>> joined = JoinedEncoder([part, part])
    >>> joined.dim, joined(torch.zeros(1, 3, 32, 32)).values.shape[-1]
    (16, 16)
    """

    def __init__(self, parts: Sequence[ImageEncoder]) -> None:
        super().__init__()
        if len(parts) < 2 or len({part.preprocess for part in parts}) != 1:
            raise ValueError(
                "JoinedEncoder: expected two or more encoders with the same preprocessing, got "
                f"{[(part.name, part.preprocess.size) for part in parts]}; join encoders of one family and size"
            )
        self.parts = nn.ModuleList(parts)
        self.name = "+".join(part.name for part in parts)
        self.dim, self.preprocess = sum(part.dim for part in parts), parts[0].preprocess
        self._digests = [part.weights() for part in parts]

    def weights(self) -> str:
        """Return a digest of the digests of the parts."""
        return hashlib.sha256("".join(self._digests).encode()).hexdigest()[:16]

    def forward(self, images: Tensor) -> ImageFeatures:
        features: list[ImageFeatures] = [part(images) for part in self.parts]
        grids = {one.grid for one in features}
        if len(grids) != 1:
            raise ShapeError(
                f"JoinedEncoder: expected one grid, got {sorted(map(str, grids))} of {self.name}; "
                "join encoders that reduce images by the same factor"
            )
        return ImageFeatures(torch.cat([one.values for one in features], -1), grid=features[0].grid)
