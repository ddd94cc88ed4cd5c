"""A small convolutional encoder, trained together with the model that reads it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from foveate.checks import check_ndim
from foveate.data.features import ImageFeatures
from foveate.encoders.images import PictureEncoder, grid_features
from foveate.encoders.preprocess import Preprocess
from foveate.ops.grid import cell_centres

GROUPS = 8


class ConvEncoder(PictureEncoder):
    """Convolutions of stride 2, then residual blocks on the grid they end at.

    Each entry of `channels` halves the picture: 112 pixels become 7x7 after four and 14x14 after three. The residual
    blocks work where the grid is small, since the same block costs four times more one step earlier. Normalised in
    groups of channels, not over the batch: the result for a picture does not depend on its batch, in training as in
    evaluation, on one process or many.

    Args:
        channels: output channels of the halving convolutions, multiples of 8; the last is D.
        blocks: residual blocks on the last grid.
        size: side of the pictures in pixels, a multiple of 2^len(channels).
        coordinates: give the first convolution the place (x, y) of each pixel as two further channels, so that
            features can tell left from right and above from below.

    >>> ConvEncoder(size=112)(torch.zeros(1, 3, 112, 112)).values.shape
    torch.Size([1, 49, 256])
    """

    def __init__(
        self,
        channels: Sequence[int] = (32, 64, 128, 256),
        *,
        blocks: int = 1,
        size: int = 112,
        coordinates: bool = True,
    ) -> None:
        super().__init__()
        _check_options(channels, size)
        self.name, self.dim, self.coordinates = "conv", channels[-1], coordinates
        self.preprocess = Preprocess((size, size), mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25), resample="bilinear")
        inputs = (5 if coordinates else 3, *channels[:-1])
        halving = [
            layer for i, o in zip(inputs, channels, strict=True) for layer in (*_conv_norm(i, o, stride=2), nn.ReLU())
        ]
        self.layers = nn.Sequential(*halving, *(_Residual(self.dim) for _ in range(blocks)))

    def forward(self, pictures: Tensor) -> ImageFeatures:
        check_ndim("ConvEncoder", "pictures", pictures, 4, "(B, 3, h, w)")
        if self.coordinates:
            B, _, h, w = pictures.shape
            place = cell_centres(h, w, dtype=pictures.dtype, device=pictures.device).T.reshape(1, 2, h, w)
            pictures = torch.cat([pictures, (place * 2 - 1).expand(B, 2, h, w)], dim=1)
        return grid_features(self.layers(pictures))


class _Residual(nn.Module):
    """`relu(x + norm(conv(relu(norm(conv(x))))))`."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(*_conv_norm(channels, channels), nn.ReLU(), *_conv_norm(channels, channels))

    def forward(self, x: Tensor) -> Tensor:
        return (x + self.branch(x)).relu()


def _conv_norm(inputs: int, outputs: int, stride: int = 1) -> tuple[nn.Module, nn.Module]:
    return nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False), nn.GroupNorm(GROUPS, outputs)


def _check_options(channels: Sequence[int], size: int) -> None:
    if not channels or any(c <= 0 or c % GROUPS for c in channels):
        raise ValueError(
            f"ConvEncoder: expected channels as positive multiples of {GROUPS}, got {tuple(channels)}; "
            "for instance (32, 64, 128, 256)"
        )
    if size <= 0 or size % 2 ** len(channels):
        raise ValueError(
            f"ConvEncoder: expected a size divisible by {2 ** len(channels)} for {len(channels)} halvings, got {size}; "
            "change the size or the number of channels"
        )
