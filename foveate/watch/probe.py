"""Inputs for one small forward pass of a model, made from its configuration alone."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from foveate.errors import ShapeError
from foveate.watch.places import pair

SIDE = 224  # of a probe image when the configuration states no size


def probe_inputs(model: nn.Module) -> dict[str, Any]:
    """Random pixels and a few token ids for a transformers model.

    Models that need more (grids, boxes, a matching number of image tokens) raise an error that asks for `inputs`.
    """
    config = getattr(model, "config", None)
    names = inspect.signature(model.forward).parameters
    made: dict[str, Any] = {}
    generator = torch.Generator().manual_seed(0)
    image_token = getattr(config, "image_token_id", getattr(config, "image_token_index", None))
    if config is None or not {"pixel_values", "input_ids"} & set(names) or "image_grid_thw" in names or image_token:
        raise ShapeError(
            f"probe: expected a model that takes pixels or token ids alone, got {type(model).__name__}; pass inputs= "
            "as the model's processor returns them"
        )
    weight = next(model.parameters())
    if "pixel_values" in names:
        vision = getattr(config, "vision_config", None) or getattr(config, "encoder", None) or config
        height, width = pair(getattr(vision, "image_size", None) or SIDE)
        made["pixel_values"] = torch.randn(1, 3, height, width, generator=generator).to(weight)
    if "input_ids" in names:
        made["input_ids"] = torch.tensor([[1, 2, 3, 4]], device=weight.device)
    if "decoder_input_ids" in names:
        made["decoder_input_ids"] = torch.tensor([[1, 2]], device=weight.device)
    return made
