"""Which attention streams, and its inputs in the form of the operator: no matrix of scores, any mask and any option."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch.overrides import _get_current_function_mode_stack, handle_torch_function, has_torch_function_unary
from torch.utils._device import DeviceContext

from foveate.attention.discrete import DiscreteAttention
from foveate.checks import as_number, at_least_float32, beside_rows, is_tracing
from foveate.errors import ShapeError
from foveate.ops import kernels
from foveate.ops.entmax_alpha import check_alpha
from foveate.ops.kernels import gpu
from foveate.ops.kernels.stream import Attending
from foveate.ops.sparse_attention import BLOCK, stream_attention, stream_supports

ALPHAS = {"sparsemax": 2.0, "entmax": None}  # of the transforms that stream; None: an option


def stream(
    where: str,
    attend: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    dropout: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor | None:
    """The context (..., Q, D) of attention that never stores its scores; None for attention that has to.

    Args:
        where: the caller, for errors.
        attend: a mechanism; entmax up to alpha = 2 streams, and softmax with a temperature.
        query, key, value: (..., M, Q, E), (..., M / G, N, E), (..., M / G, N, D).
        mask: broadcasts to (..., M, Q, N): True where a key counts, or numbers that are added.
        dropout, is_causal, scale: as in torch.

    A torch function mode sees this call if its class has `reads = True`; attention does not stream inside other modes.
    """
    if not torch.compiler.is_compiling() and has_torch_function_unary(query):
        if not all(_passes_on(mode) for mode in _get_current_function_mode_stack()):
            return None  # somebody waits for the weights
        seen: Tensor | None = handle_torch_function(
            stream, (query,), where, attend, query, key, value, mask, dropout, is_causal, scale
        )
        return seen
    if isinstance(attend, DiscreteAttention) and attend.name == "softmax":
        return _softmax(attend, query, key, value, mask, dropout, is_causal, scale)
    made = _prepare(where, attend, query, key, value, mask, dropout, is_causal, scale)
    if made is None:
        return None
    x, lead = made
    kind, dtype = query.device.type, value.dtype
    if torch.is_autocast_enabled(kind):  # its dtype for the result, as in torch, but not for the scores
        with torch.autocast(kind, enabled=False):
            context, dtype = stream_attention(x), torch.get_autocast_dtype(kind)
    else:
        context = stream_attention(x)
    return context.reshape(*lead, query.shape[-2], value.shape[-1]).to(dtype)


def stream_sparse(
    where: str,
    attend: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    dropout: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor] | None:
    """As `stream`, with the supports: context, places and weights (..., Q, S)."""
    made = _prepare(where, attend, query, key, value, mask, dropout, is_causal, scale, always=True)
    if made is None:
        return None
    x, lead = made
    context, places, weights = stream_supports(x)
    Q = query.shape[-2]
    return (
        context.reshape(*lead, Q, value.shape[-1]).to(value.dtype),
        places.reshape(*lead, Q, places.shape[-1]),
        weights.reshape(*lead, Q, weights.shape[-1]).to(query.dtype),
    )


def _prepare(
    where: str,
    attend: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout: float,
    is_causal: bool,
    scale: float | None,
    always: bool = False,
) -> tuple[Attending, tuple[int, ...]] | None:
    """The inputs of the operator, and the axes before the queries."""
    if not isinstance(attend, DiscreteAttention) or attend.name not in ALPHAS or not _is_backward():
        return None
    given = ALPHAS[attend.name] or attend.values()["alpha"]
    alpha = as_number(given)
    if not _is_flat(attend, alpha) or not all(part.numel() for part in (query, key, value)):
        return None
    dtype = torch.promote_types(query.dtype, torch.float32)
    q, k, v, lead = _four_axes(query, key, value)
    scores = q.new_empty(()).expand(*lead, query.shape[-2], key.shape[-2])  # their shape alone
    if not always and not _pays(q, scores):
        return None
    alpha = beside_rows(attend.name, "alpha", alpha, scores, (-1,)) if isinstance(alpha, Tensor) else alpha
    options = [
        _rows(part.to(dtype), lead) if isinstance(part, Tensor) else part
        for part in (alpha, attend.temperature_of(scores))
    ]
    lowest = -math.inf
    if mask is not None:
        if mask.dtype != torch.bool:
            lowest = torch.finfo(mask.dtype).min / 2
            mask = mask.to(dtype)
        mask = _mask(where, mask, scores, lead)
    number = query.shape[-1] ** -0.5 if scale is None else scale
    settings = is_causal, number, lowest, dropout, _seed(dropout)
    x = Attending(q, k, v, options[0], 1 / options[1], mask, *settings)
    if not gpu.applies(x):  # whose kernels multiply in half precision and sum in float32
        x = replace(x, query=q.to(dtype), key=k.to(dtype), value=v.to(dtype))
    return x, lead


def _passes_on(mode: Any) -> bool:
    return isinstance(mode, DeviceContext) or getattr(mode, "reads", False)


def _is_backward() -> bool:
    """True where derivatives, if any, are taken in backward mode, and not by functorch."""
    if torch.compiler.is_compiling():
        return True
    if forward_ad._current_level >= 0:
        return False
    levels = torch._C._functorch.get_interpreter_stack() or []
    return all(level.key() == torch._C._functorch.TransformType.Vmap for level in levels)


def _is_flat(attend: DiscreteAttention, alpha: float | Tensor) -> bool:
    """True where alpha is at most 2: beyond, the weights have no threshold."""
    if not isinstance(alpha, Tensor):
        return 1 < alpha <= 2
    if attend.is_learned("alpha"):
        return True  # kept between 1 and 2
    if alpha.is_meta or is_tracing() or type(alpha) not in (Tensor, torch.nn.Parameter):
        return False
    check_alpha(alpha)
    return alpha.numel() > 0 and float(alpha.detach().max()) <= 2


def _pays(query: Tensor, scores: Tensor) -> bool:
    """False where few scores are quicker made at once than twice in torch, which has no kernel here."""
    return is_tracing() or (kernels.unit() is not None and query.is_cpu) or scores.numel() > BLOCK


def _four_axes(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor, tuple[int, ...]]:
    """(B, M, Q, E), (B, M / G, N, E) and (B, M / G, N, D), without copies, and the axes before the queries."""
    heads = max(x.shape[-3] if x.ndim > 2 else 1 for x in (query, key, value))
    batch = torch.broadcast_shapes(*(x.shape[:-3] for x in (query, key, value)))
    shared = key.shape[-3] if key.ndim > 2 else 1
    if (value.shape[-3] if value.ndim > 2 else 1) != shared or heads % shared:
        shared = heads
        key, value = (
            x.repeat_interleave(heads // x.shape[-3], -3) if x.ndim > 2 and x.shape[-3] != 1 else x
            for x in (key, value)
        )
    B = math.prod(batch)
    parts = [
        x.expand(*batch, count, *x.shape[-2:]).reshape(B, count, *x.shape[-2:])
        for x, count in ((query, heads), (key, shared), (value, shared))
    ]
    deepest = max(x.ndim for x in (query, key, value))
    return parts[0], parts[1], parts[2], (*batch, heads)[max(0, len(batch) + 3 - deepest) :]


def _rows(option: Tensor, lead: tuple[int, ...]) -> Tensor:
    """An option (..., Q, 1) as (B, M, Q), each axis of its size or 1."""
    x = option[..., 0]
    x = x.reshape(*[1] * max(3 - x.ndim, 0), *x.shape)
    if x.ndim > 3:
        x = x.expand(*lead[:-1], *x.shape[-2:]).flatten(0, -3)
    return x


def _mask(where: str, mask: Tensor, scores: Tensor, lead: tuple[int, ...]) -> Tensor:
    """The mask as (B, M, Q, N), each axis of its size or 1."""
    try:
        mask.expand(scores.shape)
    except RuntimeError:
        raise ShapeError(
            f"{where}: expected attn_mask that broadcasts to the scores {tuple(scores.shape)}, got "
            f"{tuple(mask.shape)}; its last axes are queries and keys"
        ) from None
    mask = mask.reshape(*[1] * max(4 - mask.ndim, 0), *mask.shape)
    if mask.ndim > 4:
        mask = mask.expand(*lead[:-1], *mask.shape[-3:]).flatten(0, -4)
    return mask


def _seed(dropout: float) -> Any:
    """Of the hash that drops weights, drawn from torch's generator; a tensor where values cannot be read."""
    if not dropout:
        return 0
    seed = torch.randint(2**31, ())
    return seed if is_tracing() else int(seed)


def _softmax(
    attend: DiscreteAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout: float,
    is_causal: bool,
    scale: float | None,
) -> Tensor | None:
    """Softmax with a temperature by torch's own kernels: the temperature divides the queries."""
    # A mask of numbers would have to be divided, too, and the lowest number has a meaning.
    if not _is_backward() or (mask is not None and mask.dtype != torch.bool) or (is_causal and not (scale or 1) > 0):
        return None
    if not query.numel() or not key.numel():
        return None
    heads = query.shape[-3] if query.ndim > 2 else 1
    grouped = query.ndim > 2 and any(x.ndim > 2 and x.shape[-3] not in (1, heads) for x in (key, value))
    lead = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2]) if not grouped else query.shape[:-2]
    scores = query.new_empty(()).expand(*lead, query.shape[-2], key.shape[-2])  # their shape alone
    cooled = at_least_float32(query) / attend.temperature_of(scores)
    keys, values = key.to(cooled.dtype), value.to(cooled.dtype)
    context = F.scaled_dot_product_attention(
        cooled, keys, values, mask, dropout, is_causal, scale=scale, enable_gqa=grouped
    )
    return context.to(value.dtype)
