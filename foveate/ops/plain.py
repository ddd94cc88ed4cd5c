"""The operators in plain torch with a fixed number of steps: what an exported graph contains in their place.

The operators of foveate iterate until they are done, which a graph of fixed operations cannot. Sparsemax, 1.5-entmax
and softmax have a closed form here; the others take as many steps as their docstrings say, with the error measured
there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from foveate.ops.grid import grid_edges
from foveate.ops.sparse_attention import attend_dense, attending

ENTMAX_STEPS = 25
STEEP_STEPS = 64
PROX_STEPS = 200


def plain_entmax(scores: Tensor, alpha: float, dim: int = -1, where: str = "entmax") -> Tensor:
    """`foveate::entmax_rows` along the last axis, by sorting (alpha 1.5 and 2) or by a fixed number of steps.

    The largest difference from the operator is 1e-6 in float32 for alpha <= 2; for larger alpha it grows with the
    slope of the weights, 1e-4 at alpha = 4. `dim` and `where` are those of the operator, whose messages use them.

    >>> plain_entmax(torch.tensor([1.0, 0.5, -1.0]), 2.0).tolist()
    [0.75, 0.25, 0.0]
    """
    top = scores.amax(-1, keepdim=True)
    infinite, nothing = torch.isinf(top), top == -math.inf
    ties = torch.where(scores == top, 0.0, -math.inf)
    centred = torch.where(infinite, ties, scores - torch.where(infinite, 0.0, top))
    centred = torch.where(nothing, 0.0, centred).to(scores.dtype)
    # a score of -1 / (alpha - 1) below the largest has no weight: nothing is lost, and -inf is gone
    near = centred if alpha == 1.0 else centred.clamp(min=-1 / (alpha - 1))
    weights = torch.softmax(near, -1) if alpha == 1.0 else _solve_plain(near, alpha)
    return torch.where(nothing, 0.0, weights).to(scores.dtype)


def plain_entmax_alpha(scores: Tensor, alpha: Tensor) -> Tensor:
    """`foveate::entmax_alpha`, alpha (..., 1) in (1, 2], by ENTMAX_STEPS steps of Newton's rule; error 1e-6.

    >>> plain_entmax_alpha(torch.tensor([[1.0, 0.5, -1.0]]), torch.tensor([[2.0]])).tolist()
    [[0.75, 0.25, 0.0]]
    """
    top = scores.amax(-1, keepdim=True)
    nothing = top == -math.inf
    gain = alpha - 1
    centred = torch.maximum(scores - torch.where(nothing, 0.0, top), -1 / gain)
    return torch.where(nothing, 0.0, _newton(centred, gain))


def plain_stream(*arguments: Any) -> tuple[Tensor, Tensor]:
    """`foveate::stream` by way of all its scores; the state, which only its gradient reads, is zero.

    >>> q, k, v = torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 2, 2), torch.ones(1, 1, 2, 3)
    >>> plain_stream(q, k, v, None, None, None, 1.5, 1.0, False, 1.0, 0.0, 0.0, torch.tensor(0))[0].tolist()
    [[[[1.0, 1.0, 1.0]]]]
    """
    context, weights = attend_dense(attending(arguments[:6], arguments[6:]))
    return context, weights.new_zeros(*weights.shape[:3], 3)


def _solve_plain(scores: Tensor, alpha: float) -> Tensor:
    """Weights of rows whose largest score is zero."""
    if alpha in (1.5, 2.0):
        return _by_sorting(scores, alpha)
    if alpha > 2:
        return _by_bisection(scores.double(), alpha - 1).to(scores.dtype)
    return _newton(scores, alpha - 1)


def _newton(scores: Tensor, gain: float | Tensor) -> Tensor:
    """1 < alpha <= 2, as in `foveate.ops.simplex`."""
    shift = torch.zeros_like(scores[..., :1])
    for _ in range(ENTMAX_STEPS):
        weights = _powers(scores, shift, gain)
        total = weights.sum(-1, keepdim=True)
        slope = torch.where(weights > 0, weights, 1).pow(1 - gain).mul(weights > 0).sum(-1, keepdim=True)
        shift = shift + torch.expm1(gain * total.log()) / gain * total.pow(1 - gain) / slope
    weights = _powers(scores, shift, gain)
    return weights / weights.sum(-1, keepdim=True)


def _powers(scores: Tensor, shift: Tensor, gain: float | Tensor) -> Tensor:
    """[1 + gain (z − c)]_+^{1/gain}."""
    return torch.exp(torch.log1p(((scores - shift) * gain).clamp(min=-1)) / gain)


def _by_sorting(scores: Tensor, alpha: float) -> Tensor:
    """Sparsemax and 1.5-entmax: the support is a prefix of the sorted scores, and its threshold a formula."""
    z = scores * (alpha - 1)
    ordered = torch.sort(z, dim=-1, descending=True).values
    count = torch.ones_like(ordered).cumsum(-1)
    mean = ordered.cumsum(-1) / count
    if alpha == 2.0:
        thresholds = mean - 1 / count
    else:
        spread = count * (ordered.square().cumsum(-1) / count - mean.square())
        thresholds = mean - ((1 - spread) / count).clamp(min=0).sqrt()
    size = (ordered > thresholds).sum(-1, keepdim=True).clamp(min=1)
    excess = (z - thresholds.gather(-1, size - 1)).clamp(min=0)
    weights = excess if alpha == 2.0 else excess.square()
    return weights / weights.sum(-1, keepdim=True)


def _by_bisection(scores: Tensor, gain: float) -> Tensor:
    """alpha > 2: halve the interval of the threshold in `[gain z − τ]_+^{1/gain}`."""
    low, high = torch.full_like(scores[..., :1], -1.0), torch.zeros_like(scores[..., :1])
    for _ in range(STEEP_STEPS):
        middle = (low + high) / 2
        heavy = (scores * gain - middle).clamp(min=0).pow(1 / gain).sum(-1, keepdim=True) > 1
        low, high = torch.where(heavy, middle, low), torch.where(heavy, high, middle)
    weights = (scores * gain - low).clamp(min=0).pow(1 / gain)
    return weights / weights.sum(-1, keepdim=True)


def plain_prox_tv(
    x: Tensor, keep: Tensor, edges: Tensor | None, axes: int, smoothness: float, dim: int = -1, where: str = "prox"
) -> tuple[Tensor, Tensor, Tensor]:
    """`foveate::prox_tv` by PROX_STEPS accelerated projected gradient steps on the dual, with restarts.

    The largest error of TVmax's weights on random and smooth scores: 7 x 7 and 14 x 14 cells 2e-7 for smoothness up
    to 0.5; 19 x 32 cells 2e-7 up to 0.1 and 7e-6 at 0.5. The groups and the gap, which only gradients and
    certificates use, are placeholders.

    Reference: Beck and Teboulle 2009; O'Donoghue and Candès 2015 for the restarts.

    >>> plain_prox_tv(torch.tensor([0.0, 4.0]), torch.tensor([True, True]), None, 1, 1.0)[0].tolist()
    [1.0, 3.0]
    """
    start = x.ndim - axes
    y, kept = torch.where(keep, x, 0).flatten(start), keep.flatten(start)
    H, W = (x.shape[-2] if axes == 2 else 1), x.shape[-1]
    pairs = grid_edges(H, W, device=x.device) if edges is None else edges.long()
    near, far = pairs[:, 0], pairs[:, 1]
    nodes = torch.arange(H * W, device=x.device)
    difference = (far[:, None] == nodes).to(x.dtype) - (near[:, None] == nodes).to(x.dtype)  # (E, N)
    bound = smoothness * (kept[..., near] & kept[..., far]).to(x.dtype)
    step = 0.5 / difference.abs().sum(0).amax(-1).clamp(min=1)  # the largest eigenvalue is at most twice the degree
    dual = previous = torch.zeros_like(bound)
    momentum = 1.0
    for _ in range(PROX_STEPS):
        slope = (y - dual @ difference) @ difference.T
        new = torch.clamp(dual + step * slope, -bound, bound)
        following = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
        forward = ((dual - new) * (new - previous)).sum(-1, keepdim=True) <= 0
        rate = forward.to(x.dtype) * ((momentum - 1) / following)
        dual, previous, momentum = new + rate * (new - previous), new, following
    value = torch.where(kept, y - previous @ difference, 0).reshape(x.shape)
    labels = nodes.reshape(x.shape[start:]).expand(x.shape)
    return value, labels.clone(), torch.zeros_like(x.flatten(start)[..., 0], dtype=torch.float64)


def in_float32(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The function computed in float32 and returned in its dtype: onnxruntime has it in no other.

    >>> in_float32(torch.cos)(torch.zeros(1, dtype=torch.float64))
    tensor([1.], dtype=torch.float64)
    """

    def call(*arguments: Tensor) -> Tensor:
        if arguments[0].dtype != torch.float64:
            unchanged: Tensor = NotImplemented  # torch then keeps the operator
            return unchanged
        return function(*(x.float() for x in arguments)).double()

    return call


def plain_where(condition: Tensor, chosen: Tensor, other: Tensor) -> Tensor:
    """`torch.where` of booleans, which onnxruntime does not have.

    >>> plain_where(torch.tensor([True, False]), torch.tensor([False, False]), torch.tensor([True, True])).tolist()
    [False, True]
    """
    if chosen.dtype != torch.bool or other.dtype != torch.bool:
        unchanged: Tensor = NotImplemented  # torch then keeps the operator
        return unchanged
    return (condition & chosen) | (~condition & other)


def plain_hypot(a: Tensor, b: Tensor) -> Tensor:
    """`torch.hypot`, which ONNX does not have."""
    return (a * a + b * b).sqrt()


def plain_erfc(x: Tensor) -> Tensor:
    """`torch.erfc` as ONNX has it, `1 - erf(x)` in float32.

    >>> plain_erfc(torch.zeros(1))
    tensor([1.])
    """
    return (1 - torch.erf(x.float())).to(x.dtype)


def plain_sort(x: Tensor, stable: bool | None = None, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    """A stable sort as an ordinary one, of which ONNX knows no other; `stable` only matters for ties."""
    values, order = torch.topk(x, x.shape[dim], dim=dim, largest=descending, sorted=True)
    return values, order


def plain_cholesky(matrix: Tensor, upper: bool = False) -> tuple[Tensor, Tensor]:
    """The lower Cholesky factor of matrices (..., J, J), column by column; J is known when a graph is exported.

    >>> plain_cholesky(torch.tensor([[4.0, 2.0], [2.0, 2.0]]))[0].tolist()
    [[2.0, 0.0], [1.0, 1.0]]
    """
    columns = []
    for k in range(matrix.shape[-1]):
        below = matrix[..., k:, k] / matrix[..., k, k].sqrt().unsqueeze(-1)
        column = torch.nn.functional.pad(below, (k, 0))
        columns.append(column)
        matrix = matrix - column.unsqueeze(-1) * column.unsqueeze(-2)
    root = torch.stack(columns, dim=-1)
    return root.mT if upper else root, torch.zeros_like(root[..., 0, 0], dtype=torch.int32)


def plain_cholesky_solve(right: Tensor, root: Tensor, upper: bool = False) -> Tensor:
    """`(L Lᵀ)⁻¹ right` for lower factors (..., J, J) and right sides (..., J, n).

    >>> plain_cholesky_solve(torch.ones(2, 1), torch.eye(2)).flatten().tolist()
    [1.0, 1.0]
    """
    root = root.mT if upper else root
    for order, factor in ((range(root.shape[-1]), root), (reversed(range(root.shape[-1])), root.mT)):
        solved: list[Tensor] = []
        for k in order:
            row = right[..., k : k + 1, :] / factor[..., k, k][..., None, None]
            right = right - factor[..., :, k].unsqueeze(-1) * row
            solved.append(row)
        right = torch.cat(solved if factor is root else solved[::-1], dim=-2)
    return right
