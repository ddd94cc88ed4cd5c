"""Scores to weights on the simplex: softmax, sparsemax and the entmax family between and beyond them.

One family, one operator: entmax with alpha = 1 is softmax and with alpha = 2 is sparsemax. The threshold is found by a
monotone Newton iteration instead of a sort, and the gradient is the closed form of the whole family.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from foveate.checks import check_dim, check_floating, check_mask, check_number, is_tracing, raise_nan
from foveate.ops.precision import at_least_float32

_MOST_STEPS = 100


def softmax(scores: Tensor, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """Weights that are positive wherever the score is finite.

    `p_i = exp(z_i) / Σ_j exp(z_j)`

    Args:
        scores: (..., N, ...) real numbers; -inf counts as masked, +inf shares the weight among the infinite ones.
        dim: the axis that is normalised.
        mask: True where a location counts; broadcasts to the scores.

    Returns:
        weights of the scores' shape and dtype that sum to one along `dim`; zeros, with zero gradient, where nothing
        can be attended to. float16 and bfloat16 are computed in float32.

    Reference: Martins et al. 2020, eq. 1.

    >>> softmax(torch.tensor([0.0, 0.0])).tolist()
    [0.5, 0.5]
    """
    return _normalise("softmax", scores, 1.0, dim, mask)


def sparsemax(scores: Tensor, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """Euclidean projection on the simplex: low scores get exactly zero.

    `p = argmin_{p in simplex} ½‖p − z‖² = [z − τ]_+` with τ such that Σ p = 1

    Args and returns as `softmax`. At a score that equals the threshold the gradient is the one of the side where the
    weight is zero.

    Reference: Martins et al. 2020, eq. 2 and 15.

    >>> sparsemax(torch.tensor([1.0, 0.5, -1.0])).tolist()
    [0.75, 0.25, 0.0]
    """
    return _normalise("sparsemax", scores, 2.0, dim, mask)


def entmax(scores: Tensor, alpha: float = 1.5, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """The family between softmax (alpha → 1) and sparsemax (alpha = 2), and beyond.

    `p_i = [(α − 1) z_i − τ]_+^{1/(α−1)}` with τ such that Σ p = 1

    Args:
        scores, dim, mask: as in `softmax`.
        alpha: greater than 1; the larger, the sparser.

    Returns:
        weights, as `softmax`; the gradient at the edge of the support is the one of the zero side.

    Reference: Farinhas 2021, §2.2 (his α is ours).

    >>> entmax(torch.tensor([1.0, 1.0, -3.0]), alpha=1.5).tolist()
    [0.5, 0.5, 0.0]
    """
    check_number("entmax", "alpha", alpha, above=1.0, advice="use fv.softmax for alpha = 1")
    return _normalise("entmax", scores, float(alpha), dim, mask)


def _normalise(where: str, scores: Tensor, alpha: float, dim: int, mask: Tensor | None) -> Tensor:
    check_floating(where, "scores", scores)
    dim = check_dim(where, scores, dim)
    if mask is not None:
        check_mask(where, mask, scores.shape)
        scores = torch.where(mask, scores, -math.inf)
    wide = at_least_float32(scores)
    if alpha == 1.0 and _is_plain(wide, dim):
        return torch.softmax(wide, dim).to(scores.dtype)
    weights = _entmax_rows(wide.movedim(dim, -1), alpha, where).movedim(-1, dim)
    return weights.to(scores.dtype)


def _is_plain(scores: Tensor, dim: int) -> bool:
    """True where torch's own softmax does: eager, and every row has a finite largest score."""
    return not is_tracing() and scores.numel() > 0 and bool(torch.isfinite(scores.detach().amax(dim)).all())


@torch.library.custom_op("foveate::entmax_rows", mutates_args=())
def _entmax_rows(scores: Tensor, alpha: float, where: str) -> Tensor:
    """Entmax along the last axis; an operator of its own because the Newton loop depends on the data."""
    if scores.numel() == 0:
        return torch.zeros_like(scores)
    top = scores.amax(-1, keepdim=True)
    if bool(torch.isfinite(top).all()):
        return _solve(scores - top, alpha).contiguous()
    if bool(torch.isnan(top).any()):
        raise_nan(where, "scores", scores)
    nothing = top == -math.inf
    winners = torch.zeros_like(scores).masked_fill_(scores != top, -math.inf)
    finite = torch.where(torch.isinf(top), winners, scores - top)
    return _solve(finite, alpha).masked_fill(nothing, 0).contiguous()


@_entmax_rows.register_fake
def _(scores: Tensor, alpha: float, where: str) -> Tensor:
    return torch.empty_like(scores, memory_format=torch.contiguous_format)


def _solve(scores: Tensor, alpha: float) -> Tensor:
    """Weights of rows whose largest score is zero."""
    if alpha == 1.0:
        return torch.softmax(scores, dim=-1)
    if alpha == 2.0:
        return _project(scores)
    weights = _entmax15(scores) if alpha == 1.5 else _entmax_any(scores, alpha)
    return weights.div_(weights.sum(-1, keepdim=True))


def _project(scores: Tensor) -> Tensor:
    """Sparsemax: τ ← (Σ_{z > τ} z − 1) / #{z > τ} from τ = max − 1 only rises, and stops when the support does."""
    threshold = scores.new_full((*scores.shape[:-1], 1), -1.0)
    excess, support = torch.empty_like(scores), torch.empty_like(scores)
    size = torch.zeros_like(threshold)
    for _ in range(scores.shape[-1] + 1):
        torch.sub(scores, threshold, out=excess).clamp_(min=0)
        count = torch.sign(excess, out=support).sum(-1, keepdim=True)
        if torch.equal(count, size):
            break
        size = count
        threshold = threshold + (excess.sum(-1, keepdim=True) - 1) / count
    return excess


def _entmax15(scores: Tensor) -> Tensor:
    """[z/2 − τ]_+² by Newton on the norm of [z/2 − τ]_+, which is convex in τ: the steps only go up."""
    half = scores * 0.5
    threshold = half.new_full((*half.shape[:-1], 1), -1.0)
    excess = torch.empty_like(half)
    for _ in range(_MOST_STEPS):
        torch.sub(half, threshold, out=excess).clamp_(min=0)
        norm = torch.linalg.vector_norm(excess, dim=-1, keepdim=True)
        step = (norm - 1) * norm / excess.sum(-1, keepdim=True)
        threshold = threshold + step
        if not bool((step > 4 * torch.finfo(half.dtype).eps).any()):
            break
    return torch.sub(half, threshold, out=excess).clamp_(min=0).square_()


def _entmax_any(scores: Tensor, alpha: float) -> Tensor:
    """[1 + (α − 1)(z − c)]_+^{1/(α−1)}: Newton on the norm for α < 2, bisection beyond, where that norm is none.

    With the threshold written as c = (τ + 1)/(α − 1), α → 1 is exp(z − c) and nothing cancels.
    """
    gain = alpha - 1
    if alpha > 2:
        return _powers(scores.double(), _bisect(scores.double(), alpha), alpha).to(scores.dtype)
    shift = scores.new_zeros((*scores.shape[:-1], 1))
    for _ in range(_MOST_STEPS):
        weights = _powers(scores, shift, alpha)
        total = weights.sum(-1, keepdim=True)
        slope = weights.pow(2 - alpha).sum(-1, keepdim=True)
        step = torch.expm1(gain * total.log()) / gain * total.pow(2 - alpha) / slope
        shift = shift + step
        if not bool((step > 4 * torch.finfo(scores.dtype).eps * (1 + shift)).any()):
            break
    return _powers(scores, shift, alpha)


def _powers(scores: Tensor, shift: Tensor, alpha: float) -> Tensor:
    """[1 + (α − 1)(z − c)]_+^{1/(α−1)}."""
    gain = alpha - 1
    return torch.exp(torch.log1p(((scores - shift) * gain).clamp(min=-1)) / gain)


def _bisect(scores: Tensor, alpha: float) -> Tensor:
    """Shift c at which the weights sum to one, between the c of one winner and the c of a draw among all."""
    low = scores.new_zeros((*scores.shape[:-1], 1))
    high = low + (1 - scores.shape[-1] ** (1 - alpha)) / (alpha - 1)
    for _ in range(_MOST_STEPS):
        middle = (low + high) / 2
        heavy = _powers(scores, middle, alpha).sum(-1, keepdim=True) > 1
        low, high = torch.where(heavy, middle, low), torch.where(heavy, high, middle)
    return high


def _keep_weights(ctx: Any, inputs: tuple[Tensor, float, str], output: Tensor) -> None:
    ctx.save_for_backward(output)
    ctx.alpha = inputs[1]


def _entmax_gradient(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
    """Jᵀg with J = diag(q) − q qᵀ / Σq and q = p^{2−α} on the support."""
    (weights,) = ctx.saved_tensors
    q = _metric(weights, ctx.alpha)
    total = q.sum(-1, keepdim=True)
    mean = (q * gradient).sum(-1, keepdim=True) / torch.where(total > 0, total, 1)
    return q * (gradient - mean), None, None


def _metric(weights: Tensor, alpha: float) -> Tensor:
    """q = p^{2−α} where p > 0, and 0 elsewhere; finite, with a finite derivative."""
    if alpha == 1.0:
        return weights
    support = weights > 0
    if alpha == 2.0:
        return support.to(weights.dtype)
    least = torch.finfo(weights.dtype).eps ** 3 if alpha > 2 else torch.finfo(weights.dtype).tiny
    return weights.clamp(min=least).pow(2 - alpha) * support


_entmax_rows.register_autograd(_entmax_gradient, setup_context=_keep_weights)


@torch.library.register_vmap(_entmax_rows)
def _(info: Any, in_dims: tuple[int | None, ...], scores: Tensor, alpha: float, where: str) -> tuple[Tensor, int]:
    assert in_dims[0] is not None
    return _entmax_rows(scores.movedim(in_dims[0], 0), alpha, where), 0
