"""Which modules of a model attend, by the names of their classes."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

from torch import nn

ATTENTION = ("attention", "attn", "attend")
# Parts of attention modules that are named after them and do not attend.
NOT_ATTENTION = ("output", "norm", "bias", "dropout", "embeddings")
# Their softmax weighs sampling points, not tokens.
NOT_OVER_TOKENS = ("deformable",)
FUSED = (nn.MultiheadAttention, nn.TransformerEncoderLayer)


def attends(module: nn.Module) -> bool:
    """True when a module's class says that it attends.

    >>> attends(nn.MultiheadAttention(4, 1)), attends(nn.Linear(4, 4))
    (True, False)
    """
    return _named_after_attention(type(module).__name__.lower())


@functools.cache
def _named_after_attention(kind: str) -> bool:
    return any(part in kind for part in ATTENTION) and not kind.endswith(NOT_ATTENTION)


def is_changed(module: nn.Module) -> bool:
    """True when `foveate.hf` replaced the attention of a module."""
    return "foveate_change" in module.__dict__


def attention_modules(model: nn.Module) -> Iterable[tuple[str, nn.Module]]:
    """The innermost modules whose class says that they attend."""
    for name, module in model.named_modules():
        if attends(module) and not any(attends(part) for part in module.modules() if part is not module):
            yield name, module


def is_over_tokens(module: nn.Module) -> bool:
    """False for attention over sampling points, which has no softmax over tokens to change."""
    kind = type(module).__name__.lower()
    return not any(part in kind for part in NOT_OVER_TOKENS)


def compiled_modules(model: nn.Module) -> list[str]:
    """Names of the compiled modules."""
    return [
        name
        for name, module in model.named_modules()
        if hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
    ]


def attending_inside(model: nn.Module, roots: Sequence[str]) -> list[str]:
    """Names of the attention modules inside the modules `roots`."""
    inside = tuple(f"{root}." if root else "" for root in roots)
    return [name for name, module in model.named_modules() if name.startswith(inside) and attends(module)]
