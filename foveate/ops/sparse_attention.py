"""Attention with sparse weights, in memory that is linear in the number of keys.

The scores of a block of queries are made, turned into weights and dropped again; per query only the support stays,
which is all that the gradient needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from foveate.checks import as_number, at_least_float32
from foveate.ops import kernels
from foveate.ops.entmax_alpha import entmax_gradient
from foveate.ops.kernels import gpu
from foveate.ops.kernels.stream import Attending, Supports, backward, forward
from foveate.ops.simplex import entmax

BLOCK = 2**21  # scores that the torch form makes at once
_TENSORS = ("query", "key", "value", "alpha", "cooling", "mask")


def stream_attention(x: Attending) -> Tensor:
    """Attend without storing the scores.

    `c = Σ_n p_n v_n`,  `p = entmax_α(β (scale · q kᵀ + mask))`

    Args:
        x: query (B, M, Q, E), key (B, M / G, N, E), value (B, M / G, N, D) of one dtype, float32 or float64; G heads of
            the query share one of the keys. alpha in (1, 2] and cooling β, the inverse temperature, are numbers or
            broadcast to (B, M, Q). The mask has four axes that broadcast to (B, M, Q, N): True where a key counts, or
            numbers that are added. With `is_causal`, query i sees the keys up to i.

    Returns:
        (B, M, Q, D); zeros for a query without keys. Second derivatives are computed from all scores at once.

    >>> q, k, v = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 5, 4), torch.randn(1, 2, 5, 4)
    >>> stream_attention(Attending(q, k, v, 1.5, 1.0, None, False, 0.5)).shape
    torch.Size([1, 2, 3, 4])
    """
    tensors, numbers = _tensors(x), _numbers(x)
    if all(part is None or kernels.is_direct(part) for part in tensors[:5]):
        if not (torch.is_grad_enabled() and any(part is not None and part.requires_grad for part in tensors)):
            return _forward(x, keep=False)[0]
        context: Tensor = _stream_direct(*tensors, numbers, False)[0]
        return context
    seed = x.seed if isinstance(x.seed, Tensor) else torch.tensor(x.seed, device="cpu")
    result: Tensor = _stream(*tensors, *numbers[:-1], seed)[0]
    return result


def stream_supports(x: Attending) -> tuple[Tensor, Tensor, Tensor]:
    """As `stream_attention`, with the supports, padded to the largest one.

    Returns:
        context (B, M, Q, D); places (B, M, Q, S), keys in ascending order and -1 after the last; weights (B, M, Q, S)
        before dropout, which have gradients, too.
    """
    context, places, weights = _stream_direct(*_tensors(x), _numbers(x), True)
    return context, places, weights


def attend_dense(x: Attending, first: int = 0, total: int | None = None) -> tuple[Tensor, Tensor]:
    """The same from all scores at once, with derivatives of every order: context and weights (B, M, Q, N).

    Args:
        x: with queries `first` and following of `total`.
    """
    (B, M, Q, E), (heads, N) = x.query.shape, x.key.shape[1:3]
    query, key, value = (at_least_float32(part) for part in (x.query, x.key, x.value))
    # autocast makes products in half precision
    products = at_least_float32(query.reshape(B, heads, -1, E) @ key.transpose(-1, -2))
    scores = products.reshape(B, M, Q, N) * x.scale
    keep = None
    if x.mask is not None:
        keep = x.mask if x.mask.dtype == torch.bool else x.mask > x.lowest
        scores = scores if x.mask.dtype == torch.bool else scores + torch.where(keep, x.mask, 0)
    if x.is_causal:
        number = torch.arange(first, first + Q, device=scores.device)
        causal = torch.arange(N, device=scores.device) <= number[:, None]
        keep = causal[None, None] if keep is None else keep & causal
    alpha, cooling = (
        part.unsqueeze(-1) if isinstance(part, Tensor) else part for part in (as_number(x.alpha), x.cooling)
    )
    weights = entmax(scores * cooling, alpha, mask=keep)
    used = weights * _kept(x, first, Q if total is None else total) if x.dropout else weights
    context = (used.reshape(B, heads, -1, N) @ value).to(x.value.dtype)
    return context.reshape(B, M, Q, x.value.shape[-1]), weights


def _kept(x: Attending, first: int, total: int) -> Tensor:
    """What the weights (B, M, Q, N) are multiplied with: 0 for those that are dropped."""
    B, M, Q, N = *x.query.shape[:3], x.key.shape[-2]
    device = x.query.device
    row = torch.arange(B * M, device=device).view(B, M, 1) * total + torch.arange(first, first + Q, device=device)
    key = torch.arange(N, device=device) * 0x9E3779B1
    number = _mixed((_mixed((row & 0xFFFFFFFF) ^ x.seed).unsqueeze(-1) + key) & 0xFFFFFFFF)
    return (number >= x.dropout * 2**32).to(x.query.dtype) / (1 - x.dropout)


def _mixed(h: Tensor) -> Tensor:
    """The finalizer of MurmurHash3 on 32 bits."""
    h = ((h ^ (h >> 16)) * 0x85EBCA6B) & 0xFFFFFFFF
    h = ((h ^ (h >> 13)) * 0xC2B2AE35) & 0xFFFFFFFF
    return h ^ (h >> 16)


def _tensors(x: Attending) -> tuple[Any, ...]:
    """Those of the fields that are tensors, None for the others."""
    parts = (getattr(x, name) for name in _TENSORS)
    return tuple(part if isinstance(part, Tensor) else None for part in parts)


def _numbers(x: Attending) -> tuple[Any, ...]:
    """The rest: alpha and cooling, 0 where they are tensors, and the settings."""
    pair = (0.0 if isinstance(part, Tensor) else float(part) for part in (x.alpha, x.cooling))
    return (*pair, x.is_causal, x.scale, x.lowest, x.dropout, x.seed)


def attending(tensors: Sequence[Any], numbers: Sequence[Any]) -> Attending:
    """From the arguments of the operators: tensors or None, and the numbers in the order of the fields."""
    query, key, value, alpha, cooling, mask = tensors
    power, factor, *settings = numbers
    return Attending(
        query, key, value, power if alpha is None else alpha, factor if cooling is None else cooling, mask, *settings
    )


def _blocks(x: Attending) -> Iterator[tuple[int, slice, Attending]]:
    """Blocks of queries with BLOCK scores: the number of the first query, its rows, and what is attended with."""
    (B, M, Q, _), N = x.query.shape, x.key.shape[-2]
    size = max(BLOCK // max(B * M * N, 1), 1)
    for first in range(0, Q, size):
        rows = slice(first, first + size)
        parts = [_part(name, part, Q, rows) for name, part in zip(_TENSORS, _tensors(x), strict=True)]
        yield first, rows, attending(parts, _numbers(x))


def _part(name: str, x: Tensor | None, Q: int, rows: slice) -> Tensor | None:
    """The rows of what has one entry per query."""
    by_query = x is not None and name not in ("key", "value") and x.shape[2] == Q
    return x[:, :, rows] if by_query and x is not None else x


def _forward(x: Attending, keep: bool, every: bool = False) -> tuple[Tensor, Tensor, Supports | None]:
    """Context, state and supports, of every row or of those worth keeping; the state is NaN where torch did it."""
    N = x.key.shape[-2]
    done = forward(x, keep or every, N if every else None)
    if done is not None:
        return done
    B, M, Q = x.query.shape[:3]
    context = x.query.new_empty(B, M, Q, x.value.shape[-1])
    parts = [x.query.new_empty(B, M, 0, N)]
    for first, rows, block in _blocks(x):
        context[:, :, rows], weights = attend_dense(block, first, Q)
        if every:
            parts.append(weights)
    supports = None
    if every:
        weights = torch.cat(parts, 2)
        inside = weights > 0
        supports = Supports(inside.sum(-1, dtype=torch.int32), inside.nonzero()[:, -1].int(), weights[inside])
    return context, context.new_full((B, M, Q, 3), math.nan, dtype=at_least_float32(context[:0]).dtype), supports


def _backward(
    x: Attending,
    gradient: Tensor,
    state: Tensor,
    supports: Supports | None,
    places: Tensor | None,
    to_weights: Tensor | None,
    wanted: tuple[bool, ...],
) -> tuple[Tensor | None, ...]:
    """Gradients to the tensors of x where wanted; `to_weights` is that to the padded weights at `places`."""
    if x.query.is_cpu and state.numel() and not bool(torch.isnan(state.flatten()[0])):
        entries = None if to_weights is None or places is None else to_weights[places >= 0]
        found = backward(x, gradient, state, supports, entries, (wanted[3], wanted[4], wanted[5]))
        alpha, cooling = (
            part.sum_to_size(given.shape) if part is not None and isinstance(given, Tensor) else None
            for part, given in zip(found[3:5], (x.alpha, x.cooling), strict=True)
        )
        parts = (*found[:3], alpha, cooling, found[5])
        return tuple(part if want else None for part, want in zip(parts, wanted, strict=True))
    results = [torch.zeros_like(part) if want else None for part, want in zip(_tensors(x), wanted, strict=True)]
    Q = x.query.shape[2]
    for first, rows, block in _blocks(x):
        own = None if to_weights is None or places is None else (places[:, :, rows], to_weights[:, :, rows])
        for name, result, part in zip(
            _TENSORS, results, _block_gradient(block, gradient[:, :, rows], own, first, Q), strict=True
        ):
            if result is not None and part is not None:
                target = _part(name, result, Q, rows)
                assert target is not None
                target += part.sum_to_size(target.shape)
    return tuple(results)


def _block_gradient(
    x: Attending, gradient: Tensor, to_weights: tuple[Tensor, Tensor] | None, first: int, total: int
) -> tuple[Tensor | None, ...]:
    """Gradients to the tensors of x, before broadcasting; without autograd, which an operator cannot use."""
    (B, M, Q, E), (heads, N, D) = x.query.shape, x.value.shape[1:]
    weights = attend_dense(x, first, total)[1]
    key, value, query, gradient = (at_least_float32(part) for part in (x.key, x.value, x.query, gradient))
    kept = _kept(x, first, total) if x.dropout else None
    shared = gradient.reshape(B, heads, -1, D)
    pulled = (shared @ value.transpose(-1, -2)).reshape(B, M, Q, N)
    pulled = pulled if kept is None else pulled * kept
    if to_weights is not None:
        places, padded = to_weights
        spare = pulled.new_zeros(B, M, Q, N + 1).scatter_add(-1, places.long().where(places >= 0, N), padded)
        pulled = pulled + spare[..., :N]
    alpha = x.alpha.unsqueeze(-1) if isinstance(x.alpha, Tensor) else weights.new_tensor(x.alpha)
    cooling = x.cooling.unsqueeze(-1) if isinstance(x.cooling, Tensor) else x.cooling
    to_scores, to_alpha = entmax_gradient(weights, alpha, pulled)
    support = weights > 0
    # The score is this and what is the same for the whole row, whose gradients sum to zero.
    heights = torch.expm1((alpha - 1) * torch.where(support, weights, 1).log()) / (alpha - 1)
    to_cooling = (to_scores * heights).sum(-1) / (cooling.squeeze(-1) if isinstance(cooling, Tensor) else cooling)
    to_scores = to_scores * cooling
    to_products = to_scores.reshape(B, heads, -1, N) * x.scale
    used = (weights if kept is None else weights * kept).reshape(B, heads, -1, N)
    return (
        (to_products @ key).reshape(B, M, Q, E),
        to_products.transpose(-1, -2) @ query.reshape(B, heads, -1, E),
        used.transpose(-1, -2) @ shared,
        to_alpha.squeeze(-1),
        to_cooling,
        None if x.mask is None else to_scores,
    )


def _twice(
    x: Attending, gradient: Tensor, to_weights: tuple[Tensor, Tensor] | None, wanted: Sequence[bool]
) -> list[Any]:
    """Gradients to the tensors of x with a graph of their own, by way of all scores."""
    with torch.enable_grad():
        context, weights = attend_dense(x)
        outputs, given = [context], [gradient]
        if to_weights is not None:
            places, padded = to_weights
            outputs.append(weights.gather(-1, places.clamp(min=0).long()))
            given.append(padded.masked_fill(places < 0, 0))
        inputs = [part for part, want in zip(_tensors(x), wanted, strict=True) if want]
        found = iter(torch.autograd.grad(outputs, inputs, given, create_graph=True))
    return [next(found) if want else None for want in wanted]


def _pad(supports: Supports) -> tuple[Tensor, Tensor]:
    """Places and weights (B, M, Q, S)."""
    counts = supports.counts
    S = int(counts.max()) if counts.numel() else 0
    inside = torch.arange(S, device=counts.device) < counts.unsqueeze(-1)
    places = torch.full(inside.shape, -1, dtype=torch.int32, device=counts.device)
    weights = supports.weights.new_zeros(inside.shape)
    places[inside], weights[inside] = supports.places, supports.weights
    return places, weights


class _Stream(torch.autograd.Function):
    """Past torch's dispatcher; keeps the supports where they are small."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor | None, Tensor | None]:
        *tensors, numbers, every = arguments
        x = attending(tensors, numbers)
        context, state, supports = _forward(x, keep=True, every=every)
        kept = (None, None, None) if supports is None else (supports.counts, supports.places, supports.weights)
        places, weights = (None, None)
        if every and supports is not None:
            places, weights = _pad(supports)
            ctx.mark_non_differentiable(places)
        ctx.save_for_backward(*tensors, state, *kept, places)
        ctx.numbers = numbers
        return context, places, weights

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        *tensors, state, counts, entries, weights, places = ctx.saved_tensors
        x = attending(tensors, ctx.numbers)
        gradient, _, to_weights = gradients
        wanted = tuple(ctx.needs_input_grad[: len(_TENSORS)])
        found: Sequence[Tensor | None]
        if torch.is_grad_enabled():
            extra = None if places is None else (places, to_weights)
            found = _twice(x, gradient, extra, wanted)
        else:
            supports = None if counts is None else Supports(counts, entries, weights)
            found = _backward(x, gradient, state, supports, places, to_weights, wanted)
        return (*found, None, None)


_stream_direct: Callable[..., tuple[Tensor, Tensor, Tensor]] = _Stream.apply


@torch.library.custom_op("foveate::stream", mutates_args=())
def _stream(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    alpha: Tensor | None,
    cooling: Tensor | None,
    mask: Tensor | None,
    alpha_number: float,
    cooling_number: float,
    is_causal: bool,
    scale: float,
    lowest: float,
    dropout: float,
    seed: Tensor,
) -> tuple[Tensor, Tensor]:
    """Context and state; an opaque operator, since its loops depend on the data."""
    numbers = alpha_number, cooling_number, is_causal, scale, lowest, dropout, int(seed)
    return _forward(attending((query, key, value, alpha, cooling, mask), numbers), keep=False)[:2]


@_stream.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    rows = query.shape[:3]
    wide = torch.promote_types(query.dtype, torch.float32)
    return query.new_empty(*rows, value.shape[-1]), query.new_empty(*rows, 3, dtype=wide)


@torch.library.custom_op("foveate::stream_gradient", mutates_args=())
def _stream_gradient(
    gradient: Tensor,
    state: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    alpha: Tensor | None,
    cooling: Tensor | None,
    mask: Tensor | None,
    alpha_number: float,
    cooling_number: float,
    is_causal: bool,
    scale: float,
    lowest: float,
    dropout: float,
    seed: Tensor,
    to_mask: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients to query, key, value, alpha, cooling and mask; the last is empty when it is not asked for."""
    tensors = query, key, value, alpha, cooling, mask
    numbers = alpha_number, cooling_number, is_causal, scale, lowest, dropout, int(seed)
    wanted = (True, True, True, alpha is not None, cooling is not None, to_mask)
    found = _backward(attending(tensors, numbers), gradient, state, None, None, None, wanted)
    return _filled(found, tensors, wanted)  # type: ignore[return-value]


@_stream_gradient.register_fake
def _(gradient: Tensor, state: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    parts, to_mask = rest[:6], rest[-1]
    return tuple(
        part.new_empty(part.shape) if part is not None and (i < 5 or to_mask) else parts[0].new_empty(0)
        for i, part in enumerate(parts)
    )


@gpu.where_installed(_stream)
def _stream_on_device(*arguments: Any) -> tuple[Tensor, Tensor]:
    *rest, seed = arguments
    x = attending(rest[:6], (*rest[6:], int(seed)))
    return gpu.attend(x) if gpu.applies(x) else _forward(x, keep=False)[:2]


@gpu.where_installed(_stream_gradient)
def _gradient_on_device(gradient: Tensor, state: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    *rest, seed, to_mask = arguments
    tensors = rest[:6]
    x = attending(tensors, (*rest[6:], int(seed)))
    wanted = (True, True, True, tensors[3] is not None, tensors[4] is not None, to_mask)
    found: Sequence[Tensor | None]
    if gpu.applies(x) and not to_mask:
        found = gpu.attend_gradient(x, gradient, state, wanted[3] or wanted[4])
    else:
        found = _backward(x, gradient, state, None, None, None, wanted)
    return _filled(found, tensors, wanted)


def _filled(found: Sequence[Tensor | None], tensors: Sequence[Any], wanted: Sequence[bool]) -> tuple[Tensor, ...]:
    """Gradients of the shapes of the tensors, and empty ones where none is wanted: operators return tensors alone."""
    return tuple(
        part.sum_to_size(given.shape).to(given.dtype).contiguous()
        if want and part is not None
        else tensors[0].new_empty(0)
        for part, given, want in zip((*found, None)[: len(tensors)], tensors, wanted, strict=True)
    )


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:6], inputs[-1], output[1])
    ctx.numbers = inputs[6:-1]


def _differentiate(ctx: Any, gradient: Tensor, _: Tensor | None) -> tuple[Any, ...]:
    *tensors, seed, state = ctx.saved_tensors
    to_mask = bool(ctx.needs_input_grad[5])
    found = _stream_gradient(gradient, state, *tensors, *ctx.numbers, seed, to_mask)
    wanted = (True, True, True, tensors[3] is not None, tensors[4] is not None, to_mask)
    return (*(part if want else None for part, want in zip(found, wanted, strict=True)), *[None] * 7)


_stream.register_autograd(_differentiate, setup_context=_remember)


def _examples(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
    """The operator under vmap: its axis joins that of the batch."""
    V = info.batch_size

    def join(x: Tensor | None, dim: int | None) -> Tensor | None:
        if x is None:
            return None
        x = x.expand(V, *x.shape) if dim is None else x.movedim(dim, 0)
        return x.flatten(0, 1)

    parts = [join(x, dim) for x, dim in zip(arguments[:6], in_dims[:6], strict=True)]
    B = max(part.shape[0] for part in parts if part is not None) // V
    # What is shared by the batch is not shared by the axis of vmap.
    parts = [part if part is None or part.shape[0] == V * B else part.repeat_interleave(B, 0) for part in parts]
    context, state = _stream(*parts, *arguments[6:])
    return (context.unflatten(0, (V, B)), state.unflatten(0, (V, B))), (0, 0)


_stream.register_vmap(_examples)
