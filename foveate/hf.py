"""Other attention inside Hugging Face models: register it by name, use it in a live model, pool with it.

`register` makes every transform an `attn_implementation` of transformers; `use` changes layers of a model that is
already loaded, and `adapt` trains it to keep its outputs; `pool` puts a mechanism into a pooling head; `check` counts
what really goes through.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from foveate.attention.arguments import split_mask
from foveate.errors import ShapeError, WrongValue
from foveate.ops import TRANSFORMS
from foveate.registry import optional
from foveate.watch.adapting import adapt
from foveate.watch.modules import attention_modules, is_over_tokens
from foveate.watch.places import Setting, pair
from foveate.watch.record import Layers, module_filter
from foveate.watch.swap import Change, Changed, pool_heads, swap
from foveate.watch.watching import watch

PREFIX = "foveate-"
__all__ = ["Changed", "adapt", "check", "pool", "register", "use"]


def register(name: str | None = None, **options: Any) -> str | list[str]:
    """Make transforms available as `attn_implementation="foveate-<name>"` in `from_pretrained`.

    Registers the attention function and its mask function. The mask is the additive one of eager attention: without a
    mask function a causal model would see the future, and with a boolean mask the modules of a model that bypass the
    interface and add the mask themselves (GIT) would ignore it.

    Args:
        name: one transform; None registers every transform that needs no edges, with its defaults.
        options: of that transform, such as `alpha=1.3`; they become part of the name.

    Returns:
        The name to pass, "foveate-entmax-alpha=1.3", or all names.

    Call `check` on the loaded model: some modules ignore the interface without a word.

    >>> register("entmax", alpha=1.3)  # doctest: +SKIP
    'foveate-entmax-alpha=1.3'
    """
    transformers = optional("foveate.hf", "transformers", extra="hf")
    from transformers.masking_utils import AttentionMaskInterface, eager_mask

    if name is None:
        return [_first(register(each)) for each, row in TRANSFORMS.items() if not row.needs_edges]
    change = Change(name, options)
    full = PREFIX + "-".join([name, *(f"{key}={value}" for key, value in options.items())])
    transformers.AttentionInterface.register(full, partial(attention, change=change))
    AttentionMaskInterface.register(full, eager_mask)
    return full


def _first(name: str | list[str]) -> str:
    return name if isinstance(name, str) else name[0]


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    *,
    change: Change,
    softcap: float | None = None,
    position_bias: Tensor | None = None,
    s_aux: Tensor | None = None,
    **unused: Any,
) -> tuple[Tensor, Tensor | None]:
    """The attention function of the interface of transformers: (B, M, Q, D) -> (B, Q, M, D) and the weights.

    The weights are None where attention streams and nobody asked for them.
    """
    if s_aux is not None:
        raise NotImplementedError(_sinks_message(change.name, type(module).__name__))
    asked = unused.get("output_attentions", getattr(getattr(module, "config", None), "output_attentions", False))
    if not (softcap or position_bias is not None or asked):
        part = dropout if module.training else 0.0
        mask = None if attention_mask is None else attention_mask[..., : key.shape[-2]]
        context = change.stream("foveate", query, key, value, mask, part, False, scaling)
        if context is not None:
            return context.transpose(1, 2).contiguous(), None
    groups = query.shape[1] // key.shape[1]
    if groups > 1:  # grouped-query attention
        key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
    scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
    if position_bias is not None:
        scores = scores + position_bias
    # As in eager attention, `is_causal` is only a hint for fused kernels: our mask function never leaves a mask out.
    scores, keep = split_mask(scores, attention_mask)
    weights = _with_grid(change, module, scores.shape[-1]).weights(scores, keep)
    dropped = nn.functional.dropout(weights, dropout, module.training)
    return (dropped.to(value.dtype) @ value).transpose(1, 2).contiguous(), weights


def _with_grid(change: Change, module: nn.Module, count: int) -> Change:
    """The change with the grid of a vision tower, read from its configuration, where the keys fit it."""
    from foveate.watch.places import pair

    config = getattr(module, "config", None)
    patch, image = getattr(config, "patch_size", None), getattr(config, "image_size", None)
    if TRANSFORMS[change.name].axes != 2 or change.grid is not None or patch is None or image is None:
        return change
    (height, width), (rows, columns) = pair(image), pair(patch)
    grid = height // rows, width // columns
    prefix = count - grid[0] * grid[1]
    # CLS, distillation token and registers; any other number of keys means images of another size.
    if not 0 <= prefix <= 2 + (getattr(config, "num_register_tokens", 0) or 0):
        raise WrongValue(
            f"foveate-{change.name}: expected images of {height} x {width} pixels, got {count} keys; use "
            f'foveate.hf.use(model, "{change.name}"), which follows the size of the images'
        )
    return Change(change.name, change.options, grid, prefix)


def use(
    model: nn.Module,
    name: str,
    layers: Layers = None,
    *,
    inputs: Mapping[str, Any] | None = None,
    grid: tuple[int, int] | None = None,
    prefix: int = 0,
    **options: Any,
) -> Changed:
    """Change the attention of a live model, or of some of its layers.

    Args:
        model: any torch model; modules whose class says that they attend are changed.
        name: a transform without edges.
        layers: which modules, as in `fv.watch`; all when None.
        inputs: of a forward pass that shows whether every chosen module really changed; made from the model's
            configuration when None.
        grid, prefix: rows and columns of the patches and the number of keys before them, for tvmax; None reads them
            from the pixels of vision towers and dual encoders, and takes neighbours along the sequence elsewhere.
        options: of the transform.

    Returns:
        A handle; `handle.restore()` or a `with` block undoes the change.

    Raises:
        ValueError: when a chosen module does not go through, or adds attention sinks of its own to the softmax; the
            model is then as it was.

    Warns if most layers of a loaded model change to weights far from those it was trained with; see `adapt`.
    """
    change = Change(name, options, grid, prefix)
    chosen = module_filter(layers)
    for path, module in attention_modules(model):
        if chosen(path) and _has_sinks(module):
            raise WrongValue(_sinks_message(name, path))
    changed = swap(model, change, chosen)
    try:
        if not changed.names:
            raise WrongValue(f"use: expected attention modules among layers={layers!r}, got none; pass other layers")
        check(model, inputs, layers=changed.names)
    except BaseException:
        changed.restore()
        raise
    _warn_if_ruinous(model, change, len(changed.names))
    return changed


def _warn_if_ruinous(model: nn.Module, change: Change, changed: int) -> None:
    """Warn where a model with trained weights loses the scale of its scores in most layers."""
    loaded = getattr(getattr(model, "config", None), "_name_or_path", "")
    is_near = change.name == "softmax" or (change.name == "entmax" and float(change.options.get("alpha", 1.5)) <= 1.1)
    if loaded and not is_near and 2 * changed > len(list(attention_modules(model))):
        warnings.warn(
            f"use: {change.name} in {changed} modules of a model that was trained with softmax changes its outputs a "
            "lot; choose an alpha near 1 or the last layers, or keep the outputs with foveate.hf.adapt",
            stacklevel=3,
        )


def check(model: nn.Module, inputs: Mapping[str, Any] | None = None, *, layers: Layers = None) -> list[str]:
    """Run a probe and count which attention goes through a transform of ours.

    Args:
        model: after `from_pretrained(..., attn_implementation="foveate-...")` or `use`.
        inputs: of the probe; made from the model's configuration when None.
        layers: the modules that must go through, all when None.

    Returns:
        The names of the modules that do.

    Raises:
        ValueError: when a module attends past us; the message names it.
    """
    made = probe_inputs(model) if inputs is None else dict(inputs)
    training = model.training
    chosen = module_filter(layers)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        model.eval()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what cannot be seen is raised below
                with watch(model, chosen, queries=-1) as seen:
                    model(**made)
        finally:
            model.train(training)
    through = {row.name for row in seen if row.via == "foveate"}
    past = [row.name for row in seen if row.via != "foveate"] + seen.unseen
    past += [name for name, module in attention_modules(model) if chosen(name) and not is_over_tokens(module)]
    if past or not through:
        raise WrongValue(_past_message(sorted(set(past)), len(through)))
    return sorted(through)


def pool(model: nn.Module, name: str, *, grid: tuple[int, int] | None = None, **options: Any) -> Changed:
    """Put any mechanism, continuous and structured ones too, into the attention pooling head of a vision tower.

    The head keeps its parameters: "softmax" reproduces the model, "multimodal" reads the image with a mixture.

    Args:
        model: with a pooling head of SigLIP, AIMv2 or CLIP's ResNets.
        name: a mechanism.
        grid: rows and columns of the patches; read from the pixels of every call when None.
        options: of the mechanism.

    Returns:
        A handle; `handle.restore()` or a `with` block undoes the change. `fv.watch` sees the mechanism's weights.
    """
    return pool_heads(model, name, grid, options)


def _has_sinks(module: nn.Module) -> bool:
    return isinstance(getattr(module, "sinks", None), Tensor)


def _sinks_message(name: str, where: str) -> str:
    return (
        f"foveate-{name}: expected attention over tokens only, got attention sinks in {where}, which need a softmax; "
        "choose other layers or another model"
    )


def _past_message(past: list[str], through: int) -> str:
    shown = ", ".join(past[:3]) + (f" and {len(past) - 3} more" if len(past) > 3 else "")
    return (
        f"check: expected every attention module to go through foveate, got {len(past)} that do not "
        f"({shown or 'none ran'}) beside {through} that do; use foveate.hf.use, or choose the layers that do"
    )


# Inputs for one small forward pass, made from a model's configuration alone

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
