"""Inputs for one small forward pass of a model, made from its configuration alone."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from foveate.errors import ShapeError
from foveate.watch.places import Setting, pair

SIDE = 224  # of a probe image when the configuration states no size
WORDS = (1, 2, 3, 4)  # ids of the tokens of a probe text
FAILURES = (AttributeError, TypeError, ValueError, RuntimeError, IndexError)


def probe_inputs(model: nn.Module) -> dict[str, Any]:
    """Random pixels and a few token ids for a transformers model.

    A model that reads the image among the tokens of a text is asked how many tokens its image has. Models that need
    more (features of regions) raise an error that asks for `inputs`.
    """
    config = getattr(model, "config", None)
    names = inspect.signature(model.forward).parameters
    if config is None or not {"pixel_values", "input_ids"} & set(names) or "visual_feats" in names:
        raise _cannot_be_made(model)
    made: dict[str, Any] = _image(model, config, names)
    image_token = getattr(config, "image_token_id", None) or getattr(config, "image_token_index", None)
    tokens = torch.tensor([WORDS])
    if "qformer_input_ids" in names:
        made["qformer_input_ids"] = tokens
    if image_token:
        tokens = torch.cat([torch.full((1, _count_image_tokens(model, made)), image_token), tokens], 1)
    if "image_embeds_position_mask" in names:  # Kosmos-2 marks the image's tokens, whatever their ids
        tokens = torch.cat([torch.ones(1, config.latent_query_num, dtype=torch.long), tokens], 1)
        made["image_embeds_position_mask"] = torch.arange(tokens.shape[1])[None] < config.latent_query_num
    if "mm_token_type_ids" in names:
        made["mm_token_type_ids"] = tokens.eq(image_token or -1).long()
    if "input_ids" in names:
        made["input_ids"] = tokens
    if "decoder_input_ids" in names and not image_token:
        made["decoder_input_ids"] = tokens[:, :2]
    return _placed(model, made)


def _image(model: nn.Module, config: Any, names: Mapping[str, Any]) -> dict[str, Any]:
    """Pixels as the family takes them: an image, flattened patches with their grid, or several tiles."""
    if "pixel_values" not in names:
        return {}
    vision = Setting(config, {}).vision
    generator = torch.Generator().manual_seed(0)
    if "image_grid_thw" in names:
        side = 2 * vision.spatial_merge_size
        size = getattr(vision, "in_channels", 3) * vision.temporal_patch_size * vision.patch_size**2
        patches = torch.randn(side * side, size, generator=generator)
        return {"pixel_values": patches, "image_grid_thw": torch.tensor([[1, side, side]])}
    if "spatial_shapes" in names:
        patches = torch.randn(1, 4, 3 * vision.patch_size**2, generator=generator)
        shape = torch.tensor([[2, 2]])
        return {"pixel_values": patches, "spatial_shapes": shape, "pixel_attention_mask": torch.ones(1, 4).long()}
    height, width = pair(getattr(vision, "image_size", None) or SIDE)
    pixels = torch.randn(1, 3, height, width, generator=generator)
    if _needs_sizes(model):
        tiles = pixels.expand(1, 5, 3, height, width) if hasattr(config, "image_grid_pinpoints") else pixels
        return {"pixel_values": tiles, "image_sizes": torch.tensor([[height, width]])}
    in_tiles = "pixel_attention_mask" in names and hasattr(config, "image_token_id")
    return {"pixel_values": pixels[None] if in_tiles else pixels}


def _needs_sizes(model: Any) -> bool:
    """True if the model asks for the sizes of its images before the processor."""
    encode = getattr(model, "get_image_features", None)
    given = None if encode is None else inspect.signature(encode).parameters.get("image_sizes")
    return given is not None and given.default is inspect.Parameter.empty


def _count_image_tokens(model: Any, made: Mapping[str, Any]) -> int:
    """How many tokens of the text an image takes, which the model's own encoder tells."""
    try:
        with torch.no_grad():
            found = model.get_image_features(**_placed(model, made))
    except FAILURES as error:
        raise _cannot_be_made(model) from error
    parts = getattr(found, "pooler_output", found)
    return sum(part.shape[:-1].numel() for part in ([parts] if isinstance(parts, Tensor) else parts))


def _placed(model: nn.Module, made: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs on the device of the model, pixels in its precision."""
    weight = next(model.parameters())
    return {
        name: value.to(weight.device, weight.dtype if value.is_floating_point() else None)
        for name, value in made.items()
    }


def _cannot_be_made(model: nn.Module) -> ShapeError:
    return ShapeError(
        f"probe: expected a model whose inputs follow from its configuration, got {type(model).__name__}; pass inputs= "
        "as the model's processor returns them"
    )
