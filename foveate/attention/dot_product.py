"""`torch.nn.functional.scaled_dot_product_attention` with any mechanism in the place of the softmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, overload

import torch
from torch import Tensor
from torch.nn import functional as F

from foveate.attention.arguments import AnyGrid, beside_scores, split_mask
from foveate.attention.discrete import DiscreteAttention
from foveate.attention.mechanism import mechanism
from foveate.attention.sparse_weights import SparseWeights
from foveate.attention.streaming import stream, stream_sparse
from foveate.checks import at_least_float32, check_floating, check_ndim
from foveate.errors import ShapeError, WrongValue

WHERE = "scaled_dot_product_attention"
Weigh = str | Callable[..., Tensor]


@overload
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = ...,
    dropout_p: float = ...,
    is_causal: bool = ...,
    scale: float | None = ...,
    enable_gqa: bool = ...,
    *,
    transform: Weigh = ...,
    grid: AnyGrid | None = ...,
    prefix: int = ...,
    return_weights: Literal[False] = ...,
    **options: Any,
) -> Tensor: ...
@overload
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = ...,
    dropout_p: float = ...,
    is_causal: bool = ...,
    scale: float | None = ...,
    enable_gqa: bool = ...,
    *,
    return_weights: Literal[True],
    transform: Weigh = ...,
    grid: AnyGrid | None = ...,
    prefix: int = ...,
    **options: Any,
) -> tuple[Tensor, Tensor]: ...
@overload
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = ...,
    dropout_p: float = ...,
    is_causal: bool = ...,
    scale: float | None = ...,
    enable_gqa: bool = ...,
    *,
    return_weights: Literal["sparse"],
    transform: Weigh = ...,
    grid: AnyGrid | None = ...,
    prefix: int = ...,
    **options: Any,
) -> tuple[Tensor, SparseWeights]: ...
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    transform: Weigh = "softmax",
    grid: AnyGrid | None = None,
    prefix: int = 0,
    return_weights: bool | Literal["sparse"] = False,
    **options: Any,
) -> Tensor | tuple[Tensor, Tensor | SparseWeights]:
    """Scaled dot-product attention as in torch, with any transform or mechanism.

    `transform(Q Kᵀ · scale + mask) V`

    Args:
        query: (..., Q, E).
        key: (..., N, E).
        value: (..., N, D).
        attn_mask: broadcasts to (..., Q, N); True where a key counts, or numbers that are added to the scores,
            of which -5000 and less mask a key (not for softmax, which adds them as torch does).
        dropout_p: fraction of the weights that are dropped, always applied, as in torch.
        is_causal: query i sees the keys up to i; excludes `attn_mask`.
        scale: 1 / √E when None.
        enable_gqa: the heads of key and value, axis -3, are repeated to match those of the query.
        transform: a name in MECHANISMS, or a function `f(scores, mask=mask) -> weights`.
        grid: rows and columns of the image tokens among the keys, for mechanisms over a grid.
        prefix: number of keys before the image tokens (CLS, registers); other keys may follow them. With TVmax they
            have no neighbours and join the same sparsemax.
        return_weights: return the weights, too; "sparse" for `SparseWeights`, their supports alone.
        options: of the mechanism, such as `alpha=1.5`; tensors broadcast to the scores, with 1 for the keys.

    Returns:
        (..., Q, D), and with `return_weights` the weights (..., Q, N) before dropout; zeros for a query without keys.
        Plain softmax without weights runs torch's own kernels. Sparsemax and entmax with alpha <= 2 never store the
        scores, so that memory is linear in Q and N, unless the dense weights are asked for. Scores are computed in
        float32 at least, as there.

    >>> q, k, v = torch.randn(2, 4, 3, 8), torch.randn(2, 4, 5, 8), torch.randn(2, 4, 5, 8)
    >>> scaled_dot_product_attention(q, k, v, transform="entmax", alpha=1.3).shape
    torch.Size([2, 4, 3, 8])
    >>> on_image = {"transform": "tvmax", "grid": (2, 2), "prefix": 1, "return_weights": True}
    >>> out, weights = scaled_dot_product_attention(q, k, v, **on_image)
    >>> weights.shape
    torch.Size([2, 4, 3, 5])
    """
    if transform == "softmax" and not return_weights and not options:  # nothing of ours: torch's own kernels
        if is_causal and attn_mask is None and scale is not None and scale <= 0:
            # torch's flash kernel multiplies the -inf of its own causal mask by the scale: NaN, or the future alone.
            attn_mask, is_causal = causal_mask(query, key), False
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    check_parts(query, key, value, enable_gqa)
    if is_causal and attn_mask is not None:
        raise WrongValue(f"{WHERE}: expected attn_mask or is_causal, got both; combine them in attn_mask")
    attend = None if callable(transform) else mechanism(transform, **options)
    if not return_weights and grid is None:
        streamed = stream(WHERE, attend, query, key, value, attn_mask, dropout_p, is_causal, scale)
        if streamed is not None:
            return streamed
    if return_weights == "sparse" and grid is None:
        found = stream_sparse(WHERE, attend, query, key, value, attn_mask, dropout_p, is_causal, scale)
        if found is not None:
            return found[0], SparseWeights(*found[1:], key.shape[-2])
    scores, value = dot_products(query, key, value, scale, enable_gqa)
    if is_causal:
        attn_mask = causal_mask(query, key)
    scores, keep = add_mask(scores, attn_mask, transform == "softmax")
    if attend is None:
        assert callable(transform)
        weights = transform(scores, mask=keep, **options)
        context = F.dropout(weights, dropout_p).to(value.dtype) @ value
    else:
        context, weights = attend_heads(attend, scores, value, keep, grid, prefix, dropout_p)
    if not return_weights:
        return context
    weights = weights.to(query.dtype)
    return context, SparseWeights.of(weights) if return_weights == "sparse" else weights


def check_parts(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> None:
    """Raises an error if query, key and value do not match."""
    for name, x in (("query", query), ("key", key), ("value", value)):
        check_floating(WHERE, name, x)
        check_ndim(WHERE, name, x, 2, "(..., N, E)")
    if key.shape[-1] != query.shape[-1] or key.shape[-2] != value.shape[-2]:
        raise ShapeError(
            f"{WHERE}: expected query (..., Q, E), key (..., N, E) and value (..., N, D), got {tuple(query.shape)}, "
            f"{tuple(key.shape)} and {tuple(value.shape)}; one value per key, and keys as long as queries"
        )
    if enable_gqa and (query.shape[-3] % key.shape[-3] or query.shape[-3] % value.shape[-3]):
        raise ShapeError(
            f"{WHERE}: expected heads of key and value that divide the {query.shape[-3]} heads of the query, got "
            f"{key.shape[-3]} and {value.shape[-3]}; repeat them first"
        )
    if not enable_gqa:
        torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])


def dot_products(
    query: Tensor, key: Tensor, value: Tensor, scale: float | None, enable_gqa: bool
) -> tuple[Tensor, Tensor]:
    """Scores (..., Q, N), in float32 at least, and values for every head of the query."""
    if enable_gqa:
        key, value = (x.repeat_interleave(query.shape[-3] // x.shape[-3], -3) for x in (key, value))
    # In half precision a score of 70 000 is infinite, and the lowest number of a mask swallows the scores beside it.
    scores = at_least_float32(at_least_float32(query) @ at_least_float32(key).transpose(-1, -2))
    return scores * (query.shape[-1] ** -0.5 if scale is None else scale), value


def causal_mask(query: Tensor, key: Tensor) -> Tensor:
    """(Q, N), True where query i sees key j <= i."""
    return torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()


def add_mask(scores: Tensor, attn_mask: Tensor | None, is_softmax: bool) -> tuple[Tensor, Tensor | None]:
    """Scores with the numbers of a mask added, and which of them count, as many axes as the scores have."""
    if attn_mask is None:
        return scores, None
    try:
        attn_mask.expand(scores.shape)
    except RuntimeError:
        raise ShapeError(
            f"{WHERE}: expected attn_mask that broadcasts to the scores {tuple(scores.shape)}, got "
            f"{tuple(attn_mask.shape)}; its last axes are queries and keys"
        ) from None
    if is_softmax and attn_mask.dtype != torch.bool:
        return scores + attn_mask, None  # as torch: a row of lowest numbers is uniform, one of -inf is zero
    return split_mask(scores, attn_mask)


def attend_heads(
    attend: torch.nn.Module,
    scores: Tensor,
    value: Tensor,
    keep: Tensor | None,
    grid: AnyGrid | None,
    prefix: int,
    dropout_p: float,
) -> tuple[Tensor, Tensor]:
    """Context (..., Q, D) and weights (..., Q, N) of scores (..., Q, N), values (..., N, D)."""
    keep = beside_scores(scores, keep)
    if isinstance(attend, DiscreteAttention):
        weights = attend.weigh(scores, grid, keep, prefix=prefix if grid is not None else None)
        return F.dropout(weights, dropout_p).to(value.dtype) @ value, weights
    if prefix or dropout_p:
        what = f"prefix={prefix}" if prefix else f"dropout_p={dropout_p}"
        raise WrongValue(
            f"{WHERE}: expected a discrete transform beside {what}, got a density, which has no weights for single "
            "tokens; use 0"
        )
    value = value.expand(*scores.shape[:-2], *value.shape[-2:])
    if scores.ndim == 2:
        seen = attend(scores[None], value[None], grid, None if keep is None else keep[None])[0]
        return seen.context[0], seen.weights[0]
    seen = attend(scores, value, grid, keep)
    return seen.context, seen.weights
