"""Streaming attention in C++: exact sparse weights without the matrix of scores.

None where the kernel does not apply, or where a score could be no number; the caller then does the same in torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from foveate.ops.kernels import is_direct, is_wide, native

KEPT = 4  # a support is kept where it has at most this many entries per number of a key and a value


@dataclass(frozen=True)
class Attending:
    """What is attended with; see `foveate.ops.sparse_attention` for the shapes.

    Attributes:
        lowest: keys whose number in an additive mask is not above this do not count.
        seed: of the hash that drops weights.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    alpha: float | Tensor
    cooling: float | Tensor
    mask: Tensor | None
    is_causal: bool
    scale: float
    lowest: float = -math.inf
    dropout: float = 0.0
    seed: int | Tensor = 0


@dataclass(frozen=True)
class Supports:
    """The support of every row, one after the other.

    Attributes:
        counts: (B, M, Q) size of each support, -1 for one that was too large to keep.
        places: (S,) the keys.
        weights: (S,) their weights.
    """

    counts: Tensor
    places: Tensor
    weights: Tensor


def forward(x: Attending, keep: bool, most: float | None = None) -> tuple[Tensor, Tensor, Supports | None] | None:
    """Context (B, M, Q, D), the state (B, M, Q, 3) from which `backward` finds the weights, and the supports.

    Args:
        x: what is attended with.
        keep: whether to keep supports.
        most: entries per row that may be kept, on average over a block of rows.
    """
    if not _applies(x):
        return None
    (B, M, Q, E), D = x.query.shape, x.value.shape[-1]
    context, state = x.query.new_empty(B, M, Q, D), x.query.new_empty(B, M, Q, 3)
    counts = torch.empty(B, M, Q, dtype=torch.int32) if keep else None
    call, held = _call(x)
    done = native().stream_forward(
        call, context.data_ptr(), state.data_ptr(), _address(counts), KEPT * (E + D) if most is None else most
    )
    del held
    if done is None:
        return None
    if counts is None:
        return context, state, None
    total, parts = done
    places, weights = torch.empty(total, dtype=torch.int32), x.query.new_empty(total)
    native().stream_supports(is_wide(x.query), parts, places.data_ptr(), weights.data_ptr())
    return context, state, Supports(counts, places, weights)


def backward(
    x: Attending,
    gradient: Tensor,
    state: Tensor,
    supports: Supports | None,
    to_weights: Tensor | None,
    wanted: tuple[bool, bool, bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """Gradients to query, key, value, and where `wanted` to alpha (B, M, Q), cooling (B, M, Q) and mask."""
    (B, M, Q, E), (_, heads, N, D) = x.query.shape, x.value.shape
    made = x.query.new_empty
    results = [made(B, M, Q, E), made(B, heads, N, E), made(B, heads, N, D)]
    extra = [made(B, M, Q) if wanted[0] else None, made(B, M, Q) if wanted[1] else None]
    to_mask = (
        torch.zeros_like(x.mask, memory_format=torch.contiguous_format) if wanted[2] and x.mask is not None else None
    )
    call, held = _call(x)
    gradient = gradient.contiguous()
    kept = (None, None, None) if supports is None else (supports.counts, supports.places, supports.weights)
    native().stream_backward(
        call,
        [_address(part) for part in (gradient, state, *kept, to_weights)],
        [_address(part) for part in (*results, *extra, to_mask)],
    )
    del held
    return results[0], results[1], results[2], extra[0], extra[1], to_mask


def _applies(x: Attending) -> bool:
    tensors = [x.query, x.key, x.value, *(part for part in (x.alpha, x.cooling) if isinstance(part, Tensor))]
    mask = x.mask is None or (x.mask.is_cpu and x.mask.dtype in (torch.bool, x.query.dtype))
    sizes = x.query.numel() and x.key.numel() and x.value.numel()
    return bool(sizes) and mask and all(is_direct(t) and t.dtype == x.query.dtype for t in tensors)


def _address(x: Tensor | None) -> int:
    return 0 if x is None else x.data_ptr()


def _call(x: Attending) -> tuple[Any, list[Any]]:
    """The arguments of a call, and the tensors that must live until it returns."""
    query, key, value = (t if t.stride(-1) == 1 else t.contiguous() for t in (x.query, x.key, x.value))
    (B, M, Q, E), N, D = query.shape, key.shape[-2], value.shape[-1]
    rows = [
        (part if isinstance(part, Tensor) else query.new_full((1, 1, 1), part)).expand(B, M, Q)
        for part in (x.alpha, x.cooling)
    ]
    mask = None if x.mask is None else x.mask.contiguous()
    strides = (
        [0, 0, 0, 0] if mask is None else [s if n > 1 else 0 for s, n in zip(mask.stride(), mask.shape, strict=True)]
    )
    call = native().StreamCall(
        is_wide(query),
        [B, M, M // key.shape[1], Q, N, E, D],
        *((t.data_ptr(), *t.stride()[:3]) for t in (query, key, value, *rows)),
        _address(mask),
        mask is not None and mask.dtype == torch.bool,
        strides,
        x.lowest if math.isfinite(x.lowest) else -torch.finfo(query.dtype).max,
        x.scale,
        x.is_causal,
        x.dropout,
        x.seed,
        torch.get_num_threads(),
    )
    return call, [query, key, value, *rows, mask]
