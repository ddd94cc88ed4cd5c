"""Other attention inside Hugging Face models: register it by name, use it in a live model, pool with it.

`register` makes every transform an `attn_implementation` of transformers; `use` changes layers of a model that is
already loaded, and `adapt` trains it to keep its outputs; `pool` puts a mechanism into a pooling head; `check` counts
what really goes through.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from foveate.attention.arguments import split_mask
from foveate.ops import TRANSFORMS
from foveate.registry import optional
from foveate.watch.adapting import adapt
from foveate.watch.modules import attention_modules, is_over_tokens
from foveate.watch.pooling import pool_heads
from foveate.watch.probe import probe_inputs
from foveate.watch.request import Layers, module_filter
from foveate.watch.swap import Change, Changed, swap
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
        raise ValueError(
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
            raise ValueError(_sinks_message(name, path))
    changed = swap(model, change, chosen)
    try:
        if not changed.names:
            raise ValueError(f"use: expected attention modules among layers={layers!r}, got none; pass other layers")
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
        raise ValueError(_past_message(sorted(set(past)), len(through)))
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
