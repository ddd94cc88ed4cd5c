"""Entmax with alpha as a tensor: one per row, per head or for all, with its exact derivative."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from foveate.checks import at_least_float32, beside_rows, check_dim, check_floating, check_mask, is_tracing
from foveate.errors import WrongType, WrongValue
from foveate.ops import kernels
from foveate.ops.simplex import MAX_ALPHA, _entmax_flat, _entmax_steep, _may_ask, _steep_product, limit_gradient

_SMALL = 0.03  # below it, a series replaces differences that cancel


def entmax_tensor(scores: Tensor, alpha: Tensor, dim: int, mask: Tensor | None) -> Tensor:
    """`fv.entmax` with a tensor alpha: its checks and axes.

    >>> entmax_tensor(torch.zeros(2, 2), torch.tensor([1.5, 2.0]), 0, None).tolist()
    [[0.5, 0.5], [0.5, 0.5]]
    """
    check_floating("entmax", "scores", scores)
    check_alpha(alpha)
    dim = check_dim("entmax", scores, dim)
    alpha = beside_rows("entmax", "alpha", alpha, scores, (dim,))
    if mask is not None:
        check_mask("entmax", mask, scores.shape)
        scores = torch.where(mask, scores, -math.inf)
    wide = limit_gradient(at_least_float32(scores), scores.dtype)
    weights = entmax_by_row(wide.movedim(dim, -1), alpha.to(wide.dtype).movedim(dim, -1))
    return weights.movedim(-1, dim).to(scores.dtype)


def entmax_by_row(scores: Tensor, alpha: Tensor) -> Tensor:
    """Entmax along the last axis of scores (..., N) with alpha (..., 1) that broadcasts, 1 < alpha <= 64.

    With `ε = α − 1`, `p_i = [1 + ε u_i]_+^{1/ε}` and `u_i = z_i − c`, the derivatives on the support are
    `∂p/∂z = diag(q) − q qᵀ / Σq` with `q = p^{2−α}`, and
    `∂p_i/∂α = p_i g_i − (q_i / Σq) Σ_j p_j g_j`, `g = (x / (1 + x) − log(1 + x)) / ε²`, `x = ε u = p^ε − 1`.

    Reference: Correia et al. 2019, proposition 2, in a form whose terms do not cancel as α → 1.

    >>> entmax_by_row(torch.tensor([[1.0, 0.5, -1.0]]), torch.tensor([[2.0]])).tolist()
    [[0.75, 0.25, 0.0]]
    """
    solve: Callable[..., Tensor] = (
        _EntmaxAlpha.apply if kernels.needs_function(scores) or kernels.needs_function(alpha) else _entmax_alpha
    )
    return solve(scores, alpha)


def check_alpha(alpha: Tensor) -> None:
    """Raises ValueError if a known alpha is not in (1, 64]."""
    if not alpha.is_floating_point():
        raise WrongType(f"entmax: expected floating-point alpha, got {alpha.dtype}; call .float() first")
    known = type(alpha) in (Tensor, torch.nn.Parameter) and not alpha.is_meta and not is_tracing()
    if not known or alpha.numel() == 0:
        return
    low, high = float(alpha.detach().min()), float(alpha.detach().max())
    if not (low > 1 and high <= MAX_ALPHA):
        raise WrongValue(
            f"entmax: expected 1 < alpha <= {MAX_ALPHA:g}, got {low if not low > 1 else high:g}; keep it there with "
            "fv.Entmax(learnable=True)"
        )


@torch.library.custom_op("foveate::entmax_alpha", mutates_args=())
def _entmax_alpha(scores: Tensor, alpha: Tensor) -> Tensor:
    """The weights; an opaque operator, since its loops depend on the data."""
    if scores.numel() == 0:
        return torch.zeros_like(scores, memory_format=torch.contiguous_format)
    top = scores.amax(-1, keepdim=True)
    infinite, nothing = torch.isinf(top), top == -math.inf
    ties = torch.zeros_like(scores).masked_fill_(scores != top, -math.inf)
    # The threshold is found in float64: its rounding would show in the weights of small alpha.
    finite = torch.where(infinite, ties, scores).double()
    peak = top.masked_fill(infinite, 0).double()
    gain = (alpha.double() - 1).expand_as(top)
    weights = _entmax_flat(finite - peak, gain.clamp(max=1.0))
    steep = (gain > 1)[..., 0]
    if not _may_ask(steep):
        weights = torch.where(gain > 1, _entmax_steep(finite, peak, gain.clamp(min=1.0)), weights)
    elif bool(steep.any()):
        weights[steep] = _entmax_steep(finite[steep], peak[steep], gain[steep])
    weights = weights / weights.sum(-1, keepdim=True)
    return weights.masked_fill(nothing, 0).to(scores.dtype).contiguous()


@_entmax_alpha.register_fake
def _(scores: Tensor, alpha: Tensor) -> Tensor:
    return torch.empty_like(scores, memory_format=torch.contiguous_format)


def _examples(info: Any, in_dims: tuple[int | None, ...], scores: Tensor, alpha: Tensor) -> tuple[Tensor, int]:
    """The operator under vmap: one more leading axis of the scores."""

    def front(part: Tensor, dim: int | None) -> Tensor:
        return part.expand(info.batch_size, *part.shape) if dim is None else part.movedim(dim, 0)

    z, a = front(scores, in_dims[0]), front(alpha, in_dims[1])
    return _entmax_alpha(z, a.reshape(a.shape[0], *[1] * (z.ndim - a.ndim), *a.shape[1:])), 0


_entmax_alpha.register_vmap(_examples)


class _EntmaxAlpha(torch.autograd.Function):
    """The operator with derivatives in both modes."""

    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor, alpha: Tensor) -> Tensor:
        weights: Tensor = _entmax_alpha(scores, alpha)
        return weights

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output, inputs[1])
        ctx.save_for_forward(output, inputs[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        weights, alpha = ctx.saved_tensors
        to_scores, to_alpha = entmax_gradient(weights, alpha, gradient)
        return to_scores, to_alpha.sum_to_size(alpha.shape)

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor | None, to_alpha: Tensor | None) -> Tensor:
        weights, alpha = ctx.saved_tensors
        change = torch.zeros_like(weights) if tangent is None else _product(weights, tangent, alpha)
        if to_alpha is not None:
            share, grown = _parts(weights, alpha)
            grown = grown * to_alpha
            change = change + grown - share * grown.sum(-1, keepdim=True)
        return change


_entmax_alpha.register_autograd(_EntmaxAlpha.backward, setup_context=_EntmaxAlpha.setup_context)


def entmax_gradient(weights: Tensor, alpha: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients to scores (..., N) and to the alpha of each row, (..., 1), from the one to the weights.

    >>> weights = torch.tensor([0.75, 0.25, 0.0])
    >>> entmax_gradient(weights, torch.tensor([2.0]), torch.tensor([1.0, 0.0, 0.0]))[0][:2].tolist()
    [0.5, -0.5]
    """
    share, grown = _parts(weights, alpha)
    pulled = gradient - (share * gradient).sum(-1, keepdim=True)
    return _product(weights, gradient, alpha), (pulled * grown).sum(-1, keepdim=True)


def _product(weights: Tensor, direction: Tensor, alpha: Tensor) -> Tensor:
    """J v with `J = diag(q) − q qᵀ / Σq`; each branch sees only alphas at which it is finite."""
    q = _metric(weights, alpha.clamp(max=2))
    flat = q * (direction - (_share(weights, alpha) * direction).sum(-1, keepdim=True))
    return torch.where(alpha > 2, _steep_product(weights, direction, alpha.clamp(min=2)), flat)


def _metric(weights: Tensor, alpha: Tensor) -> Tensor:
    """q = p^{2−α} on the support, 0 elsewhere."""
    support = weights > 0
    return torch.where(support, torch.where(support, weights, 1).pow(2 - alpha), 0)


def _share(weights: Tensor, alpha: Tensor) -> Tensor:
    """q / Σq on the support, 0 elsewhere; in units of the largest q, which is beyond every dtype for large alpha."""
    support = weights > 0
    log_q = (2 - alpha) * torch.where(support, weights, 1).log()
    unit = torch.where(support, log_q, -torch.inf).amax(-1, keepdim=True).detach()
    q = torch.where(support, torch.where(support, log_q - unit, 0).exp(), 0)
    total = q.sum(-1, keepdim=True)
    return q / torch.where(total > 0, total, 1)


def _parts(weights: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
    """`q / Σq`, and p g up to a multiple of q, on the support; 0 elsewhere.

    A multiple of q has no part in the derivative. For α > 2, `p (1 − ε log p) / ε²` without the term −q / ε² is finite.
    """
    support = weights > 0
    gain = alpha - 1
    flat = gain.clamp(max=1.0)
    log_p = torch.where(support, weights, 1).log()
    x = torch.expm1(flat * log_p)
    u = torch.where(flat > 0, x / flat, log_p)
    grown = torch.where(alpha > 2, (1 - gain * log_p) / gain.clamp(min=1.0).square(), u.square() * _phi(x))
    return _share(weights, alpha), torch.where(support, weights * grown, 0)


def _phi(x: Tensor) -> Tensor:
    """`(x / (1 + x) − log(1 + x)) / x²` for −1 < x <= 0; −½ at 0."""
    small = x.abs() < _SMALL
    z = torch.where(small, 1.0, x).to(x.dtype)
    closed = (z / (1 + z) - torch.log1p(z)) / z.square()
    y, series = torch.where(small, x, 0).to(x.dtype), torch.zeros_like(x)
    for k in range(11, 1, -1):  # Σ_{k≥2} (−1)^{k+1} (1 − 1/k) x^{k−2}
        series = series * y + (-1) ** (k + 1) * (1 - 1 / k)
    return torch.where(small, series, closed)
