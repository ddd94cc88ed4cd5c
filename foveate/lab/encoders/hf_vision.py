"""Vision models of `transformers` as encoders (extra `hf`): ResNet, ConvNeXt, ViT, DINOv2, CLIP, Swin, ..."""

from __future__ import annotations

import inspect
import math
from typing import Any

from torch import Tensor

from foveate.errors import DataError, ShapeError
from foveate.lab.encoders.image_encoder import ImageEncoder, Preprocess, grid_features
from foveate.lab.features import ImageFeatures
from foveate.registry import optional

BICUBIC = 3  # Pillow's constant, as written in preprocessor_config.json


class HFVision(ImageEncoder):
    """The last hidden state of a pretrained model, on its grid.

    Tokens without a location (class, registers) are dropped. Of a vision-language model such as CLIP, the vision model
    is used. Size, mean and standard deviation come from the model's preprocessor_config.json; images are resized
    without cropping.

    Args:
        model: name on the hub, or a directory written by `save_pretrained`.
        size: side of the images in pixels, the model's own by default. Position embeddings are interpolated.

    Raises ShapeError if the output of the model does not lie on a grid.
    """

    def __init__(self, model: str, *, size: int | None = None) -> None:
        super().__init__()
        transformers = optional("hf", "transformers", extra="hf")
        self.name = f"hf:{model}"
        loaded = transformers.AutoModel.from_pretrained(model)
        self.network = getattr(loaded, "vision_model", loaded).eval()
        self.preprocess = hf_preprocess(transformers, model, size)
        self.dim = _dimension(self.network.config)
        forward = inspect.signature(self.network.forward).parameters
        self.options = {"interpolate_pos_encoding": True} if "interpolate_pos_encoding" in forward else {}

    def forward(self, images: Tensor) -> ImageFeatures:
        state = self.network(pixel_values=images, **self.options).last_hidden_state
        if state.ndim == 4:
            return grid_features(state)
        grid, others = _token_grid(state.shape[1], images.shape[-2:], getattr(self.network.config, "patch_size", None))
        return ImageFeatures(state[:, others:], grid=grid)


def _dimension(config: Any) -> int:
    """Return the number of features: the last size of a pyramid, or the hidden size of a transformer."""
    sizes = getattr(config, "hidden_sizes", None)
    return int(sizes[-1] if sizes else config.hidden_size)


def _token_grid(tokens: int, size: tuple[int, ...], patch: Any) -> tuple[tuple[int, int], int]:
    """Return the grid of a sequence of tokens and the number of leading tokens without a location.

    A pyramid (Swin) halves the grid of patches several times and has no other tokens.
    """
    rows, columns = patch if isinstance(patch, (tuple, list)) else (patch, patch)
    if rows is None:
        raise ShapeError(
            "HFVision: expected a model with a patch size or a grid as output, got neither; use another model"
        )
    H, W = size[0] // rows, size[1] // columns
    if tokens >= H * W:
        return (H, W), tokens - H * W
    factor = math.isqrt(H * W // tokens)
    if tokens * factor**2 == H * W and H % factor == 0 and W % factor == 0:
        return (H // factor, W // factor), 0
    raise ShapeError(
        f"HFVision: expected {H * W} tokens or an integer fraction for {tuple(size)} pixels, patches of {patch}, "
        f"got {tokens}; choose a size that the patches divide"
    )


def hf_preprocess(transformers: Any, model: str, size: int | None) -> Preprocess:
    # Read the file instead of building the processor, whose fast variant needs torchvision.
    settings, _ = transformers.BaseImageProcessor.get_image_processor_dict(model)
    try:
        mean, std = tuple(settings["image_mean"]), tuple(settings["image_std"])
        side = (size, size) if size else _own_size(settings.get("crop_size") or settings["size"])
    except (KeyError, TypeError):
        raise DataError(
            f"HFVision: expected image_mean, image_std and size in the preprocessor_config.json of {model}, "
            f"got {sorted(settings)}; use a vision model"
        ) from None
    return Preprocess(side, mean, std, "bicubic" if settings.get("resample", BICUBIC) == BICUBIC else "bilinear")


def _own_size(value: Any) -> tuple[int, int]:
    if isinstance(value, int):
        return value, value
    if "height" in value:
        return int(value["height"]), int(value["width"])
    return int(value["shortest_edge"]), int(value["shortest_edge"])
