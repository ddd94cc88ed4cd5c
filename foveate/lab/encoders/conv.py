"""A small convolutional encoder, trained jointly with the model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from foveate.checks import check_ndim
from foveate.errors import DataError
from foveate.lab.encoders.image_encoder import ImageEncoder, Preprocess, grid_features
from foveate.lab.features import ImageFeatures
from foveate.ops.grid import cell_centres

GROUPS = 8
# The encoder that recognises the shapes of Scenes; `scenes_conv` trains it.
SCENES_WEIGHTS = Path(__file__).parent / "scenes_conv.safetensors"
SCENES_CHANNELS, SCENES_BLOCKS = (16, 32, 64, 96), 1


class ConvEncoder(ImageEncoder):
    """Convolutions of stride 2 followed by residual blocks on the final grid.

    Each entry of `channels` halves the image: 112 pixels become 7x7 after four and 14x14 after three. Residual blocks
    come last, where the grid is small: one step earlier a block costs four times as much. Group normalisation makes the
    features of an image independent of its batch, in training and evaluation, with one process or several.

    Args:
        channels: output channels of the halving convolutions, multiples of 8; the last is D.
        blocks: residual blocks on the last grid.
        size: side of the images in pixels, a multiple of 2^len(channels).
        coordinates: pass the position (x, y) of each pixel to the first convolution as two more channels, so that
            features distinguish left from right and above from below.

    >>> ConvEncoder(size=112)(torch.zeros(1, 3, 112, 112)).values.shape
    torch.Size([1, 49, 256])
    """

    recomputable: ClassVar[bool] = True

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

    def forward(self, images: Tensor) -> ImageFeatures:
        check_ndim("ConvEncoder", "images", images, 4, "(B, 3, h, w)")
        if self.coordinates:
            B, _, h, w = images.shape
            position = cell_centres(h, w, dtype=images.dtype, device=images.device).T.reshape(1, 2, h, w)
            images = torch.cat([images, (position * 2 - 1).expand(B, 2, h, w)], dim=1)
        return grid_features(self.layers(images))


def load_scenes_weights(encoder: ConvEncoder) -> None:
    """Load the encoder that recognises the shapes of Scenes; raises DataError if `encoder` has another shape."""
    weights = {name: tensor.float() for name, tensor in load_file(SCENES_WEIGHTS).items()}
    expected = {name: tensor.shape for name, tensor in encoder.state_dict().items()}
    if {name: tensor.shape for name, tensor in weights.items()} != expected:
        raise DataError(
            f"scenes encoder: expected channels {SCENES_CHANNELS} and {SCENES_BLOCKS} residual block, got another "
            "encoder; set them, or use start=random"
        )
    encoder.load_state_dict(weights)


class _Residual(nn.Module):
    """`relu(x + norm(conv(relu(norm(conv(x))))))`."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(*_conv_norm(channels, channels), nn.ReLU(), *_conv_norm(channels, channels))

    def forward(self, x: Tensor) -> Tensor:
        branch: Tensor = self.branch(x)
        return (x + branch).relu()


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
