"""What attention reads: the weighted sum of values, which skips the values that have no weight."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from foveate.checks import is_tracing
from foveate.ops import kernels

DENSE = 0.12  # share of non-zero weights beyond which one matrix product for many queries is quicker
LARGE = 1 << 16  # values from which on it pays to look at the weights first


def weighted_sum(weights: Tensor, values: Tensor, sparse: bool = False) -> Tensor:
    """`Σ_n w_n v_n`: weights (B, ..., N) and values (B, N, D) give (B, ..., D).

    Args:
        weights: (B, ..., N).
        values: (B, N, D), or (B, ..., N, D) with query axes of the weights, from the first, or 1 in their place.
        sparse: the weights come from a transform with exact zeros. Values of weight zero are then not read where that
            is quicker, and the gradient to the weights is zero off their support, at every size: such a transform
            lets none through.

    >>> weighted_sum(torch.tensor([[0.25, 0.75]]), torch.tensor([[[1.0], [5.0]]])).tolist()
    [[4.0]]
    """
    N, D = values.shape[-2:]
    lead = values.shape[:-2]
    rows = weights.reshape(*weights.shape[: len(lead)], math.prod(weights.shape[len(lead) : -1]), N)
    if rows.shape[: len(lead)] != lead:  # heads that share values
        rows = _on_support(rows) if sparse else rows
        return (rows @ values).reshape(*weights.shape[:-1], D)
    rows, values = (x.reshape(math.prod(lead), *x.shape[-2:]) for x in (rows, values))
    if not sparse:
        context = rows @ values
    elif values.numel() < LARGE or weights.dtype != values.dtype or is_tracing():
        context = _on_support(rows) @ values
    elif kernels.is_direct(weights) and kernels.is_direct(values):
        context = _attend(rows, values)
    else:
        context = _gather_support(_on_support(rows), values)
    return context.reshape(*weights.shape[:-1], D)


def _on_support(weights: Tensor) -> Tensor:
    """The weights, which are not negative, with a gradient where they are above zero."""
    return weights.relu() if weights.requires_grad else weights


def _gather_support(weights: Tensor, values: Tensor) -> Tensor:
    """The same in torch: where one query has few weights that are not zero, gather their values first."""
    B, Q, N = weights.shape
    most = int((weights.detach() != 0).sum(-1).max()) if Q == 1 and weights.device.type == "cpu" else N
    if most > N // 4:
        return weights @ values
    kept, places = weights.topk(max(most, 1), sorted=False)
    return kept @ values[torch.arange(B)[:, None], places[:, 0]]


class _Attend(torch.autograd.Function):
    """The weighted sum by a kernel that reads only the support."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, values: Tensor) -> Tensor:
        ctx.save_for_backward(weights, values)
        context = kernels.attend(weights, values, 1.0 if weights.shape[1] == 1 else DENSE)
        ctx.dense = context is None
        return weights @ values if context is None else context

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        weights, values = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        found = None if ctx.dense else kernels.attend_gradient(weights, values, gradient, wanted)
        if found is not None:
            return found
        to_weights = torch.where(weights > 0, gradient @ values.transpose(-1, -2), 0) if wanted[0] else None
        return to_weights, weights.transpose(-1, -2) @ gradient if wanted[1] else None


_attend: Callable[..., Tensor] = _Attend.apply


def masked_mean(x: Tensor, mask: Tensor | None) -> Tensor:
    """Mean of x (B, N, D) over the locations that count; zeros if none does.

    >>> masked_mean(torch.tensor([[[1.0], [3.0], [9.0]]]), torch.tensor([[True, True, False]])).tolist()
    [[2.0]]
    """
    if mask is None:
        return x.mean(1)
    return x.where(mask[..., None], 0).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
