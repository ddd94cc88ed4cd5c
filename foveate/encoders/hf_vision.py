"""Any vision model of `transformers` as an encoder (extra `hf`): ResNet, ConvNeXt, ViT, DINOv2, CLIP, Swin, ..."""

from __future__ import annotations

import inspect
import math
from typing import Any

from torch import Tensor

from foveate.data.features import ImageFeatures
from foveate.encoders.images import PictureEncoder, grid_features
from foveate.encoders.preprocess import Preprocess
from foveate.errors import DataError, ShapeError
from foveate.registry import optional

BICUBIC = 3  # Pillow's number, as the files of the hub write it


class HFVision(PictureEncoder):
    """The last hidden state of a pretrained model, on its grid.

    Tokens that stand for no place (class, registers) are dropped. Of a model of pictures and text, such as CLIP, the
    vision half is taken. Size, mean and deviation come from the model's own preprocessing file; the picture is
    stretched to the size, not cropped.

    Args:
        model: name on the hub, or a folder that `save_pretrained` wrote.
        size: side of the pictures in pixels; the model's own when absent. Position codes are interpolated.

    A model whose output lies on no grid raises ShapeError.
    """

    def __init__(self, model: str, *, size: int | None = None) -> None:
        super().__init__()
        transformers = optional("hf", "transformers", extra="hf")
        self.name = f"hf:{model}"
        whole = transformers.AutoModel.from_pretrained(model)
        self.network = getattr(whole, "vision_model", whole).eval()
        self.preprocess = _preprocess(transformers, model, size)
        self.dim = _dimension(self.network.config)
        forward = inspect.signature(self.network.forward).parameters
        self.options = {"interpolate_pos_encoding": True} if "interpolate_pos_encoding" in forward else {}

    def forward(self, pictures: Tensor) -> ImageFeatures:
        state = self.network(pixel_values=pictures, **self.options).last_hidden_state
        if state.ndim == 4:
            return grid_features(state)
        grid, others = _token_grid(
            state.shape[1], pictures.shape[-2:], getattr(self.network.config, "patch_size", None)
        )
        return ImageFeatures(state[:, others:], grid=grid)


def _dimension(config: Any) -> int:
    """Number of features: the last of a pyramid's sizes, or the one size of a transformer."""
    sizes = getattr(config, "hidden_sizes", None)
    return int(sizes[-1] if sizes else config.hidden_size)


def _token_grid(tokens: int, size: tuple[int, ...], patch: Any) -> tuple[tuple[int, int], int]:
    """The grid of a sequence of tokens and how many of them, at its start, stand for no place.

    A pyramid (Swin) halves the grid of patches some times and has no other tokens.
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
        f"HFVision: expected {H * W} tokens or a whole fraction of them for {tuple(size)} pixels, patches of {patch}, "
        f"got {tokens}; choose a size that the patches divide"
    )


def _preprocess(transformers: Any, model: str, size: int | None) -> Preprocess:
    # The file is read, not the processor built: its fast form needs torchvision.
    settings, _ = transformers.BaseImageProcessor.get_image_processor_dict(model)
    try:
        mean, std = tuple(settings["image_mean"]), tuple(settings["image_std"])
        side = (size, size) if size else _own_size(settings.get("crop_size") or settings["size"])
    except (KeyError, TypeError):
        raise DataError(
            f"HFVision: expected image_mean, image_std and size in the preprocessor_config.json of {model}, "
            f"got {sorted(settings)}; use a model of pictures"
        ) from None
    return Preprocess(side, mean, std, "bicubic" if settings.get("resample", BICUBIC) == BICUBIC else "bilinear")


def _own_size(value: Any) -> tuple[int, int]:
    if isinstance(value, int):
        return value, value
    if "height" in value:
        return int(value["height"]), int(value["width"])
    return int(value["shortest_edge"]), int(value["shortest_edge"])
