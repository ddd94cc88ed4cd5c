"""Gradient checkpointing: layers whose activations are computed again in the backward pass instead of being kept."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint


def recompute_layers(model: nn.Module) -> None:
    """Let the layers of a model that are marked with `recomputable = True` keep their inputs and outputs only.

    Random numbers are drawn again as in the forward pass, so that gradients are the same. A layer may be marked if it
    changes no buffer in its forward pass, which is computed twice.

    Raises ValueError if no layer is marked: the option would have no effect.
    """
    layers = list(_marked(model))
    if not layers:
        raise ValueError(
            f"train: expected a model with layers to recompute, got {type(model).__name__} with none that are marked "
            "`recomputable`; set gradient_checkpointing=false"
        )
    for layer in layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)


def _marked(module: nn.Module) -> Iterator[nn.Module]:
    """The outermost marked layers."""
    for child in module.children():
        if getattr(type(child), "recomputable", False):
            yield child
        else:
            yield from _marked(child)
