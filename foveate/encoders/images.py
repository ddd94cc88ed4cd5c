"""What the encoders of pictures have in common."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor, nn

from foveate.data.features import ImageFeatures
from foveate.encoders.preprocess import Preprocess
from foveate.errors import ShapeError


class PictureEncoder(nn.Module, ABC):
    """An encoder that reads pictures: normalised (B, 3, h, w) in, `ImageFeatures` out.

    Attributes:
        name: that builds it again, as `foveate extract` takes it.
        dim: number of features a location, D.
        preprocess: what makes its input of a picture.
    """

    name: str
    dim: int
    preprocess: Preprocess

    @abstractmethod
    def forward(self, pictures: Tensor) -> ImageFeatures:
        """The features of normalised pictures (B, 3, h, w)."""

    def weights(self) -> str:
        """Digest of the weights, by which a store knows the encoder that made it."""
        return weights_digest(self)

    def encode_pixels(self, pixels: Tensor) -> ImageFeatures:
        """The features of stretched pictures (B, 3, h, w) uint8 on the encoder's device, without a gradient."""
        with torch.no_grad():
            return self(self.preprocess.normalise(pixels))

    def encode(self, pictures: Iterable[np.ndarray]) -> ImageFeatures:
        """The features of pictures (H, W, 3) uint8, made as at extraction, without a gradient."""
        pixels = torch.stack([self.preprocess.pixels(picture) for picture in pictures])
        return self.encode_pixels(pixels.to(next(self.parameters()).device))


def grid_features(maps: Tensor) -> ImageFeatures:
    """Feature maps (B, D, H, W) as locations in row order.

    >>> grid_features(torch.zeros(2, 8, 3, 4)).values.shape
    torch.Size([2, 12, 8])
    """
    if maps.ndim != 4:
        raise ShapeError(
            f"grid_features: expected maps (B, D, H, W), got {tuple(maps.shape)}; keep the rows and columns apart"
        )
    return ImageFeatures(maps.flatten(2).transpose(1, 2), grid=(maps.shape[2], maps.shape[3]))


def weights_digest(module: nn.Module) -> str:
    """Sixteen hexadecimal digits that change with any parameter or buffer.

    >>> weights_digest(nn.Identity())
    'e3b0c44298fc1c14'
    """
    sha = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        sha.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        sha.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return sha.hexdigest()[:16]
