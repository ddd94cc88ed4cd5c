"""Scores to weights on the simplex: softmax, sparsemax and the entmax family between and beyond them.

One family, one operator: entmax with alpha = 1 is softmax and with alpha = 2 is sparsemax. The threshold is found by a
monotone Newton iteration, and the Jacobian is the closed form of the whole family.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from foveate.checks import (
    as_number,
    at_least_float32,
    check_dim,
    check_floating,
    check_mask,
    check_number,
    is_tracing,
    raise_nan,
)
from foveate.errors import WrongValue
from foveate.ops import kernels
from foveate.ops.kernels import gpu

MAX_ALPHA = 64.0
_MAX_STEPS = 100
# On a device, where no step asks whether it was the last. A step of Newton's iteration on a convex function divides the
# product of residual and slope by four: from N² to a residual of 1e-7 for N up to a million.
_FIXED_STEPS = 32


def softmax(scores: Tensor, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """Weights that are positive wherever the score is finite.

    `p_i = exp(z_i) / Σ_j exp(z_j)`

    Args:
        scores: (..., N, ...) real numbers; -inf counts as masked, +inf shares the weight among the infinite ones.
        dim: the axis that is normalised.
        mask: True where a location counts; broadcasts to the scores.

    Returns:
        weights of the scores' shape and dtype that sum to one along `dim`; zeros, with zero gradient, where there is
        nothing to attend to. float16 and bfloat16 are computed in float32.

    Reference: Martins et al. 2020, eq. 1.

    >>> softmax(torch.tensor([0.0, 0.0])).tolist()
    [0.5, 0.5]
    """
    return _normalise("softmax", scores, 1.0, dim, mask)


def sparsemax(scores: Tensor, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """Euclidean projection on the simplex: low scores get exactly zero.

    `p = argmin_{p in simplex} ½‖p − z‖² = [z − τ]_+` with τ such that Σ p = 1

    Args and returns as in `softmax`. Where a score equals the threshold, the gradient is that of the side on which the
    weight is zero.

    Reference: Martins et al. 2020, eq. 2 and 15.

    >>> sparsemax(torch.tensor([1.0, 0.5, -1.0])).tolist()
    [0.75, 0.25, 0.0]
    """
    return _normalise("sparsemax", scores, 2.0, dim, mask)


def entmax(scores: Tensor, alpha: float | Tensor = 1.5, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """The family between softmax (alpha → 1) and sparsemax (alpha = 2), and beyond.

    `p_i = [(α − 1) z_i − τ]_+^{1/(α−1)}` with τ such that Σ p = 1

    Args:
        scores, dim, mask: as in `softmax`.
        alpha: greater than 1 and at most 64; the larger, the sparser. A tensor broadcasts to the scores with size 1
            along `dim` (one per row, (M, 1, 1) per head, or for all), and gets its exact gradient.

    Returns:
        weights, as in `softmax`. At the edge of the support the gradient is that of the zero side. For alpha > 2 the
        gradient grows like p^{2−α}; where it exceeds the range of the scores' dtype, it is the largest finite number.

    Reference: Farinhas 2021, §2.2 (their α is ours).

    >>> entmax(torch.tensor([1.0, 1.0, -3.0]), alpha=1.5).tolist()
    [0.5, 0.5, 0.0]
    """
    alpha = as_number(alpha)
    if isinstance(alpha, Tensor):
        from foveate.ops.entmax_alpha import entmax_tensor  # which uses the solvers of this module

        return entmax_tensor(scores, alpha, dim, mask)
    check_number("entmax", "alpha", alpha, above=1.0, advice="use fv.softmax for alpha = 1")
    if alpha > MAX_ALPHA:
        raise WrongValue(
            f"entmax: expected alpha <= {MAX_ALPHA:g}, got {alpha!r}; use a smaller alpha, since beyond it the weights "
            "are those of an argmax"
        )
    return _normalise("entmax", scores, float(alpha), dim, mask)


def _normalise(where: str, scores: Tensor, alpha: float, dim: int, mask: Tensor | None) -> Tensor:
    check_floating(where, "scores", scores)
    dim = check_dim(where, scores, dim)
    if mask is not None:
        check_mask(where, mask, scores.shape)
        scores = torch.where(mask, scores, -math.inf)
    wide = at_least_float32(scores)
    if alpha > 2:
        limit_gradient(wide, scores.dtype)
    if alpha == 1.0 and _is_plain(wide, dim):
        return torch.softmax(wide, dim).to(scores.dtype)
    if kernels.is_direct(wide) and dim == scores.ndim - 1:
        return _EntmaxDirect.run(wide, alpha, where).to(scores.dtype)
    solve: Callable[..., Tensor] = _Entmax.apply if kernels.needs_function(wide) else _entmax_rows
    # Counted from the end, the axis stays the same when vmap adds one in front.
    return solve(wide.movedim(dim, -1), alpha, dim - scores.ndim, where).movedim(-1, dim).to(scores.dtype)


def _may_ask(x: Tensor) -> bool:
    """True where reading a number waits for nothing: not on a device, which would stop after every question."""
    return x.is_cpu


def _is_done(goes_on: Tensor) -> bool:
    """True where no row goes on; on a device nobody asks."""
    return _may_ask(goes_on) and not bool(goes_on.any())


def _is_plain(scores: Tensor, dim: int) -> bool:
    """True where torch.softmax needs no help: the values can be read, and every row has a finite largest score."""
    # The values of fake tensors and other subclasses are left to the operator.
    known = type(scores) in (Tensor, torch.nn.Parameter) and not scores.is_meta
    readable = known and not is_tracing() and scores.numel() > 0 and _may_ask(scores)
    return readable and bool(torch.isfinite(scores.detach().amax(dim)).all())


def _weigh_rows(scores: Tensor, alpha: float, dim: int, where: str) -> Tensor:
    """Entmax along the last axis, called `dim` in messages; an opaque operator, since its loops depend on the data."""
    native = kernels.entmax(scores, alpha)
    if native is not None:
        return native
    if scores.numel() == 0:
        return torch.zeros_like(scores, memory_format=torch.contiguous_format)
    top = scores.amax(-1, keepdim=True)
    if _may_ask(top):
        if bool(torch.isfinite(top).all()):
            return _solve(scores, top, alpha).contiguous()
        if bool(torch.isnan(top).any()):
            raise_nan(where, "scores", scores.movedim(-1, dim))
    # Rows with +inf share the weight among their infinite scores; rows of -inf are solved as ties, then set to zero.
    infinite, nothing = torch.isinf(top), top == -math.inf
    ties = torch.zeros_like(scores).masked_fill_(scores != top, -math.inf)
    finite = torch.where(infinite, ties, scores)
    return _solve(finite, top.masked_fill(infinite, 0), alpha).masked_fill(nothing, 0).contiguous()


_entmax_rows = torch.library.custom_op("foveate::entmax_rows", _weigh_rows, mutates_args=())


@gpu.where_installed(_entmax_rows)
def _rows_on_device(scores: Tensor, alpha: float, dim: int, where: str) -> Tensor:
    return gpu.entmax(scores, alpha) if gpu.weighs(scores, alpha) else _weigh_rows(scores, alpha, dim, where)


@_entmax_rows.register_fake
def _(scores: Tensor, alpha: float, dim: int, where: str) -> Tensor:
    return torch.empty_like(scores, memory_format=torch.contiguous_format)


def _entmax_examples(
    info: Any, in_dims: tuple[int | None, ...], scores: Tensor, alpha: float, dim: int, where: str
) -> tuple[Tensor, int]:
    """The operator under vmap: one more leading axis."""
    assert in_dims[0] is not None
    return _entmax_rows(scores.movedim(in_dims[0], 0), alpha, dim, where), 0


_entmax_rows.register_vmap(_entmax_examples)


class _Entmax(torch.autograd.Function):
    """The operator with derivatives in both modes; the Jacobian is symmetric."""

    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor, alpha: float, dim: int, where: str) -> Tensor:
        weights: Tensor = _entmax_rows(scores, alpha, dim, where)
        return weights

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)
        ctx.alpha = inputs[1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        (weights,) = ctx.saved_tensors
        return _jacobian_product(weights, gradient, ctx.alpha), None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> Tensor:
        (weights,) = ctx.saved_tensors
        return _jacobian_product(weights, tangent, ctx.alpha)


_entmax_rows.register_autograd(_Entmax.backward, setup_context=_Entmax.setup_context)


class _EntmaxDirect(torch.autograd.Function):
    """The operator past torch's dispatcher, which would cost most of a small call; `setup_context` would, too."""

    @staticmethod
    def run(scores: Tensor, alpha: float, where: str) -> Tensor:
        """Entmax along the last axis of scores that `kernels.is_direct` accepts."""
        if scores.requires_grad and torch.is_grad_enabled():
            return _entmax_direct(scores, alpha, where)
        native = kernels.entmax(scores, alpha)
        return _entmax_rows(scores, alpha, -1, where) if native is None else native

    @staticmethod
    def forward(ctx: Any, scores: Tensor, alpha: float, where: str) -> Tensor:
        weights = _EntmaxDirect.run(scores, alpha, where)
        ctx.save_for_backward(weights)
        ctx.alpha = alpha
        return weights

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (weights,) = ctx.saved_tensors
        return _jacobian_product(weights, gradient, ctx.alpha), None, None


_entmax_direct: Callable[..., Tensor] = _EntmaxDirect.apply


def _solve(scores: Tensor, top: Tensor, alpha: float) -> Tensor:
    """Weights of rows whose largest score `top` is finite."""
    if alpha == 1.0:
        return torch.softmax(scores - top, dim=-1)
    if alpha == 2.0:
        return _project(scores - top)
    if alpha > 2:
        weights = _entmax_steep(scores.double(), top.double(), alpha - 1).to(scores.dtype)
    else:
        weights = _entmax15(scores - top) if alpha == 1.5 else _entmax_flat(scores - top, alpha - 1)
    # The sum differs from one by the rounding of the threshold.
    return weights.div_(weights.sum(-1, keepdim=True))


def _project(scores: Tensor) -> Tensor:
    """Sparsemax: τ ← (Σ_{z > τ} z − 1) / #{z > τ} from τ = max − 1 only rises, and stops when the support does."""
    # The largest score is 0: at τ = −1 it alone has weight one, so the start is below the solution.
    threshold = scores.new_full((*scores.shape[:-1], 1), -1.0)
    excess, support = torch.empty_like(scores), torch.empty_like(scores)
    size = torch.zeros_like(threshold)
    for _ in range(scores.shape[-1] + 1 if _may_ask(scores) else _FIXED_STEPS):
        torch.sub(scores, threshold, out=excess).clamp_(min=0)
        count = torch.sign(excess, out=support).sum(-1, keepdim=True)
        if _is_done(count != size):
            return excess
        size = count
        threshold = threshold + (excess.sum(-1, keepdim=True) - 1) / count
    return torch.sub(scores, threshold, out=excess).clamp_(min=0)


def _entmax15(scores: Tensor) -> Tensor:
    """[z/2 − τ]_+² by Newton on the norm of [z/2 − τ]_+, which is convex in τ: the steps only go up."""
    half = scores * 0.5
    # As in `_project`, the largest score alone has weight one at the start.
    threshold = half.new_full((*half.shape[:-1], 1), -1.0)
    excess = torch.empty_like(half)
    for _ in range(_most_steps(scores)):
        torch.sub(half, threshold, out=excess).clamp_(min=0)
        norm = torch.linalg.vector_norm(excess, dim=-1, keepdim=True)
        step = (norm - 1) * norm / excess.sum(-1, keepdim=True)
        threshold = threshold + step
        if _is_done(step > 4 * torch.finfo(half.dtype).eps):
            break
    return torch.sub(half, threshold, out=excess).clamp_(min=0).square_()


def _entmax_flat(scores: Tensor, gain: float | Tensor) -> Tensor:
    """α ≤ 2, gain = α − 1: [1 + gain (z − c)]_+^{1/gain} by Newton on the norm, which is convex in c.

    With the threshold written as c = (τ + 1)/gain, α → 1 is exp(z − c) and nothing cancels.
    """
    limits = torch.finfo(scores.dtype)
    shift = scores.new_zeros((*scores.shape[:-1], 1))
    weights, base = torch.empty_like(scores), torch.empty_like(scores)
    for _ in range(_most_steps(scores)):
        _powers(scores, shift, gain, weights, base)
        total = weights.sum(-1, keepdim=True)
        slope = torch.div(weights, base.add_(1).clamp_(min=limits.tiny), out=base).sum(-1, keepdim=True)  # Σ p^{1−gain}
        # Newton on (Σp)^gain − 1; expm1 keeps its digits where gain → 0.
        step = torch.expm1(gain * total.log()) / gain * total.pow(1 - gain) / slope
        shift = shift + step
        if _is_done(step > 4 * limits.eps * (1 + shift)):
            break
    return _powers(scores, shift, gain, weights, base)


def _most_steps(scores: Tensor) -> int:
    return _MAX_STEPS if _may_ask(scores) else _FIXED_STEPS


def _powers(scores: Tensor, shift: Tensor, gain: float | Tensor, weights: Tensor, base: Tensor) -> Tensor:
    """The weights [1 + gain (z − c)]_+^{1/gain}, and the base less one, each written over what was there."""
    torch.sub(scores, shift, out=base).mul_(gain).clamp_(min=-1)
    # exp2: exp and pow take five times as long, and much longer where the result is zero.
    return torch.log1p(base, out=weights).mul_(math.log2(math.e) / gain).exp2_()


def _entmax_steep(scores: Tensor, top: Tensor, gain: float | Tensor) -> Tensor:
    """α > 2, gain = α − 1: Newton on the smallest positive weight u, with every other weight relative to it.

    `p_i = (u^gain + b_i^gain)^{1/gain}`, `b_i = (gain (z_i − z_k))^{1/gain}`, z_k the smallest score in the support

    A threshold would not do: for α = 64, scores 1e-80 above it have weights of 0.05. In u the sum of the weights is
    convex with a slope between 1 and N, so that the root is as accurate as the sum itself.
    """
    least, size = _smallest_in_support(scores, top, gain)
    inside, roots = scores >= least, _roots(scores, least, gain)
    u = 1 / size
    for _ in range(_most_steps(scores)):
        weights = _norm_pair(u, roots, gain) * inside
        slope = ((u / weights.where(inside, 1)).pow(gain - 1) * inside).sum(-1, keepdim=True)
        step = (weights.sum(-1, keepdim=True) - 1) / slope
        # u starts at its upper bound and only falls; rounding must not carry it below zero.
        u = (u - step).clamp(min=torch.finfo(u.dtype).tiny)
        if _is_done(step > 4 * torch.finfo(u.dtype).eps):
            break
    return _norm_pair(u, roots, gain) * inside


def _smallest_in_support(scores: Tensor, top: Tensor, gain: float | Tensor) -> tuple[Tensor, Tensor]:
    """The smallest score of the support and the support's size, by bisection over the sorted scores.

    Score z_k is in the support exactly where Σ_i [gain (z_i − z_k)]_+^{1/gain} < 1. Raw scores are subtracted, since
    rounding a difference by the last digit of another score would move weights visibly.
    """
    # The largest score alone fills the sum where gain (top − z_k) ≥ 1: such scores, -inf among them, need no test.
    near = (top - scores) * gain < 1
    ordered = scores.where(near, -math.inf).sort(-1, descending=True).values
    low, high = torch.ones_like(top, dtype=torch.long), near.sum(-1, keepdim=True)
    for _ in range(scores.shape[-1].bit_length()):
        if _is_done(low != high):
            break
        middle = (low + high + 1) // 2
        candidate = ordered.gather(-1, middle - 1)
        belongs = _roots(scores, candidate, gain).sum(-1, keepdim=True) < 1
        low, high = torch.where(belongs, middle, low), torch.where(belongs, high, middle - 1)
    return ordered.gather(-1, low - 1), low.to(scores.dtype)


def _roots(scores: Tensor, least: Tensor, gain: float | Tensor) -> Tensor:
    """[gain (z − least)]_+^{1/gain}."""
    return ((scores - least).clamp(min=0) * gain).pow(1 / gain)


def _norm_pair(a: Tensor, b: Tensor, gain: float | Tensor) -> Tensor:
    """(a^gain + b^gain)^{1/gain} for a > 0 and b ≥ 0, without underflow."""
    large, small = torch.maximum(a, b), torch.minimum(a, b)
    return large * torch.exp(torch.log1p((small / large).pow(gain)) / gain)


def _jacobian_product(weights: Tensor, direction: Tensor, alpha: float) -> Tensor:
    """J v with the symmetric J = diag(q) − q qᵀ / Σq and q = p^{2−α} on the support."""
    if alpha > 2:
        return _steep_product(weights, direction, alpha)
    if gpu.weighs(weights, alpha) and direction.dtype == weights.dtype and not torch.is_grad_enabled():
        return gpu.entmax_gradient(weights, direction, alpha)
    native = kernels.entmax_gradient(weights, direction, alpha)
    if native is not None:
        return native
    q = _metric(weights, alpha)
    total = q.sum(-1, keepdim=True)
    mean = (q * direction).sum(-1, keepdim=True) / torch.where(total > 0, total, 1)
    return q * (direction - mean)


def _metric(weights: Tensor, alpha: float) -> Tensor:
    """q = p^{2−α} where p > 0, and 0 elsewhere, for α ≤ 2; finite, with a finite derivative."""
    if alpha == 1.0:
        return weights
    support = weights.sign()  # of numbers: products with booleans are slow
    if alpha == 2.0:
        return support
    if alpha == 1.5:
        return weights.clamp(min=torch.finfo(weights.dtype).tiny).sqrt() * support
    # The powers of one instead of zero: those of the smallest numbers take twice as long.
    return (weights + (1 - support)).clamp(min=torch.finfo(weights.dtype).tiny).pow(2 - alpha) * support


def limit_gradient(wide: Tensor, dtype: torch.dtype) -> Tensor:
    """Keep the gradient of what was converted from a narrower dtype finite when it is converted back."""
    if wide.dtype != dtype and wide.requires_grad:
        limit = torch.finfo(dtype).max
        wide.register_hook(lambda gradient: gradient.clamp(-limit, limit))
    return wide


def _steep_product(weights: Tensor, direction: Tensor, alpha: float | Tensor) -> Tensor:
    """J v for α > 2, where q = p^{2−α} ≥ 1 spans hundreds of orders of magnitude; float64, saturated at the dtype.

    With δ = v − v_k relative to the largest q_k, `(J v)_i = q_i δ_i − (q_i / Σq) Σ_j q_j δ_j` has only terms of the
    size of the second largest q, however large q_k is; they are computed in units of it.
    """
    if weights.shape[-1] < 2:
        return torch.zeros_like(direction)
    p, v = weights.double(), direction.double()
    support = p > 0
    log_q = torch.where(support, (2 - alpha) * torch.where(support, p, 1).log(), -math.inf)
    largest = log_q.detach().topk(2, dim=-1)
    unit = largest.values[..., 1:].clamp(min=0)  # 0 for one location alone and for none
    q = (log_q - unit).clamp(max=200).exp()  # e^200 of these units is infinite for the others
    scaled = q * (v - v.gather(-1, largest.indices[..., :1]))
    total = q.sum(-1, keepdim=True)
    share = q / torch.where(total > 0, total, 1)
    # The unit may exceed float64: multiplying twice by its root keeps zeros zero and lets the rest saturate.
    root = (unit / 2).clamp(max=690).exp()
    product = (scaled - share * scaled.sum(-1, keepdim=True)) * root * root
    limit = torch.finfo(weights.dtype).max
    return product.clamp(-limit, limit).to(weights.dtype)
