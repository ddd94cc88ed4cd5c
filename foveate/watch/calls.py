"""The weights behind one attention call, for the rows asked for only, as the call itself computes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import handle_torch_function, has_torch_function_unary

Rows = Tensor | None
SOFTMAX = frozenset({torch.softmax, torch.special.softmax, Tensor.softmax, F.softmax})
HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "nheads")


def weigh(scores: Tensor, transform: Callable[..., Tensor], **options: Any) -> Tensor:
    """Apply a transform to scores where `foveate.watch` can see it.

    Our transforms are no single torch function, so a mode would see only their parts. Modules that replace the softmax
    of a model call them through here.

    >>> weigh(torch.zeros(1, 2), torch.softmax, dim=-1).tolist()
    [[0.5, 0.5]]
    """
    if has_torch_function_unary(scores):
        result: Tensor = handle_torch_function(weigh, (scores,), scores, transform, **options)
        return result
    return transform(scores, **options)


def softmax_scores(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor | None:
    """The scores of a softmax over the last axis of at least three, as attention takes one; None for other calls.

    >>> softmax_scores(torch.softmax, (torch.zeros(1, 2, 3), -1), {}).shape
    torch.Size([1, 2, 3])
    """
    if function not in SOFTMAX:
        return None
    scores = args[0] if args else kwargs["input"]
    dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
    return scores if scores.ndim >= 3 and dim in (-1, scores.ndim - 1) else None


def sdpa_weights(
    query: Tensor,
    key: Tensor,
    value: Tensor | None = None,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    rows: Rows = None,
) -> Tensor:
    """The weights of `torch.nn.functional.scaled_dot_product_attention`, (..., M, Q, N), before dropout.

    Args:
        query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa: as in torch.
        rows: indices of the queries to compute, all when None.

    A query whose keys are all masked by a boolean mask or by -inf has zero weights.

    >>> sdpa_weights(torch.zeros(1, 3, 2), torch.zeros(1, 3, 2), is_causal=True, rows=torch.tensor([1])).tolist()
    [[[0.5, 0.5, 0.0]]]
    """
    scores = sdpa_scores(query, key, attn_mask, is_causal, scale, enable_gqa, rows=rows)
    weights = torch.softmax(scores, -1)
    # A row without any key is NaN, 0 / 0; only a mask can make one.
    return weights if attn_mask is None else weights.masked_fill(scores.amax(-1, keepdim=True) == -torch.inf, 0)


def sdpa_scores(
    query: Tensor,
    key: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    rows: Rows = None,
) -> Tensor:
    """The scores of `sdpa_weights` with their mask, to which a softmax is applied."""
    Q, N = query.shape[-2], key.shape[-2]
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    if rows is not None and Q == len(rows) == 1:
        rows = None  # a step of cached generation
    rows = None if rows is None else rows.to(query.device)
    query = (query if rows is None else query.index_select(-2, rows)) * scale
    scores = _grouped_product(query, key) if enable_gqa else _product(query, key)
    if is_causal:
        index = torch.arange(Q, device=query.device) if rows is None else rows
        scores = scores.masked_fill(torch.arange(N, device=query.device) > index[:, None], -torch.inf)
    if attn_mask is not None:
        mask = attn_mask if rows is None or attn_mask.shape[-2] == 1 else attn_mask.index_select(-2, rows)
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    return scores


def _product(query: Tensor, key: Tensor) -> Tensor:
    """The scores of queries for keys; one query is a matrix by a vector, which reads the keys faster in their order."""
    if query.shape[-2] == 1:
        return (key @ query.transpose(-1, -2)).transpose(-1, -2)
    return query @ key.transpose(-1, -2)


def _grouped_product(query: Tensor, key: Tensor) -> Tensor:
    """Scores of M query heads that share fewer key heads, without repeating the keys."""
    groups = query.shape[-3] // key.shape[-3]
    packed = query.unflatten(-3, (key.shape[-3], groups)).flatten(-3, -2)
    scores: Tensor = _product(packed, key).unflatten(-2, (groups, query.shape[-2])).flatten(-4, -3)
    return scores


def multihead_weights(module: nn.MultiheadAttention, call: dict[str, Any], rows: Rows = None) -> Tensor:
    """The weights of a call of `torch.nn.MultiheadAttention`, (B, M, Q, N), computed again for `rows` only.

    Args:
        module: the module that was called.
        call: its arguments by name.
        rows: indices of the queries, all when None.
    """
    query, key, value = call["query"], call["key"], call["value"]
    if module.batch_first and query.ndim == 3:
        query, key, value = (x.transpose(0, 1) for x in (query, key, value))
    attn_mask = call.get("attn_mask")
    if rows is not None:
        query = query.index_select(0, rows.to(query.device))
        attn_mask = None if attn_mask is None else attn_mask.index_select(-2, rows.to(query.device))
    separate = not module._qkv_same_embed_dim
    _, weights = F.multi_head_attention_forward(
        query, key, value, module.embed_dim, module.num_heads, module.in_proj_weight, module.in_proj_bias,
        module.bias_k, module.bias_v, module.add_zero_attn, 0.0, module.out_proj.weight, module.out_proj.bias,
        training=False, key_padding_mask=call.get("key_padding_mask"), need_weights=True, attn_mask=attn_mask,
        use_separate_proj_weight=separate,
        q_proj_weight=module.q_proj_weight, k_proj_weight=module.k_proj_weight, v_proj_weight=module.v_proj_weight,
        average_attn_weights=False,
    )  # fmt: skip
    assert weights is not None
    return weights if weights.ndim == 4 else weights[None]


def head_count(module: nn.Module) -> int | None:
    """The number of heads that an attention module or its configuration states, None when neither does."""
    for owner in (module, getattr(module, "config", None)):
        for name in HEADS:
            count = getattr(owner, name, None)
            if isinstance(count, int):
                return count
    return None


def unpack_groups(module: nn.Module, call: dict[str, Any]) -> dict[str, Any]:
    """The call with one query and M heads where the query axis holds the heads that share a key head.

    For one query (a step of cached generation) transformers passes grouped-query attention to torch as
    (B, M / G, G, D), so that G heads stand where queries do.
    """
    query, key, mask = call["query"], call["key"], call.get("attn_mask")
    groups = getattr(module, "num_key_value_groups", 1)
    packed = (
        isinstance(groups, int)
        and groups > 1
        and query.ndim == 4
        and not call.get("enable_gqa")
        and query.shape[-2] == groups
        and query.shape[1] == key.shape[1]
        and head_count(module) == groups * query.shape[1]
    )
    if not packed:
        return call
    heads = groups * query.shape[1]
    if mask is not None and mask.shape[-2] == groups:
        mask = mask.reshape(mask.shape[0], heads, 1, mask.shape[-1])
    return {**call, "query": query.reshape(len(query), heads, 1, -1), "attn_mask": mask, "enable_gqa": True}


def with_heads(weights: Tensor, module: nn.Module) -> Tensor:
    """Weights (B, M, Q, N) from any shape in which modules compute them; (B·M, Q, N) is common.

    >>> with_heads(torch.zeros(6, 2, 3), nn.MultiheadAttention(8, 2)).shape
    torch.Size([3, 2, 2, 3])
    """
    if weights.ndim == 4:
        return weights
    if weights.ndim > 4:
        return weights.flatten(0, weights.ndim - 4)
    heads = head_count(module)
    if weights.ndim == 3 and heads and len(weights) % heads == 0:
        return weights.reshape(-1, heads, *weights.shape[1:])
    return weights[:, None] if weights.ndim == 3 else weights[None, None]


def project(module: nn.MultiheadAttention, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of every head, (B, M, N, D / M)."""
    if not module.batch_first:
        query, key, value = (x.transpose(0, 1) for x in (query, key, value))
    if module.in_proj_weight is not None:
        matrices = list(module.in_proj_weight.chunk(3))
    else:
        matrices = [module.q_proj_weight, module.k_proj_weight, module.v_proj_weight]
    biases = [None] * 3 if module.in_proj_bias is None else list(module.in_proj_bias.chunk(3))
    parts = (F.linear(x, matrix, bias) for x, matrix, bias in zip((query, key, value), matrices, biases, strict=True))
    q, k, v = (x.unflatten(-1, (module.num_heads, -1)).transpose(1, 2) for x in parts)
    return q, k, v
