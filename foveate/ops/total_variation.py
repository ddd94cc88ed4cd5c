"""The proximal operator of total variation on a chain, a grid or any graph: exact, certified, batched.

    `prox(x) = argmin_w ½‖w − x‖² + λ Σ_{i~j} |w_i − w_j|`

`foveate.ops.tv_solver` iterates, polishes and certifies; this file holds the functions, their checks and the operator.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from foveate.checks import (
    as_number,
    at_least_float32,
    beside_rows,
    check_floating,
    check_mask,
    check_ndim,
    check_number,
    raise_nan,
)
from foveate.errors import ShapeError, WrongType, WrongValue
from foveate.ops import kernels
from foveate.ops.graphs import EdgeGraph, Graph, GridGraph, grid_of_edges
from foveate.ops.tv_solver import check_smoothness, group_mean, minimise, prox_by_row
from foveate.ops.values import as_value

Outputs: TypeAlias = tuple[Tensor, Tensor, Tensor]  # value, labels of the groups, gap
_WARNED_GAP = 1e-6


@as_value
@dataclass(frozen=True)
class TVSolution:
    """The minimiser, a certificate of its accuracy, and the locations that it fuses.

    Attributes:
        value: the minimiser, of the input's shape; 0 where masked.
        gap: (...) relative duality gap, gap / max(1, ½‖x‖²), evaluated in float64: an upper bound on the
            distance of the objective from its minimum.
        groups: of the input's shape, the label of each location's fused group (its smallest location), -1 where masked.
    """

    value: Tensor
    gap: Tensor
    groups: Tensor


def prox_tv1d(x: Tensor, smoothness: float | Tensor, mask: Tensor | None = None) -> Tensor:
    """Total-variation denoising of rows: `argmin_w ½‖w − x‖² + λ Σ_n |w_{n+1} − w_n|`.

    Args:
        x: (..., N) rows; -inf counts as masked.
        smoothness: λ ≥ 0; a tensor, one per row with size 1 along the smoothed axes, gets its exact gradient.
        mask: True where a location counts; masked locations leave the chain, so their neighbours are not linked.

    Returns:
        the minimiser, of x's shape; 0, with zero gradient, where masked. The gradient averages over fused groups.

    Reference: Martins et al. 2020, eq. 4 and 9.

    >>> prox_tv1d(torch.tensor([0.0, 4.0]), 1.0).tolist()
    [1.0, 3.0]
    """
    return solve_tv1d(x, smoothness, mask).value


def solve_tv1d(x: Tensor, smoothness: float | Tensor, mask: Tensor | None = None) -> TVSolution:
    """`prox_tv1d` with its certificate and groups.

    >>> solve_tv1d(torch.tensor([0.0, 0.5, 5.0]), 1.0).groups.tolist()
    [0, 0, 2]
    """
    check_floating("prox_tv1d", "x", x)
    check_ndim("prox_tv1d", "x", x, 1, "(..., N)")
    return solve_tv("prox_tv1d", x, smoothness, mask)


def prox_tv2d(x: Tensor, smoothness: float | Tensor, mask: Tensor | None = None) -> Tensor:
    """Total-variation denoising of grids: `argmin_w ½‖w − x‖² + λ Σ_{i~j} |w_i − w_j|` over the four neighbours.

    Args:
        x: (..., H, W) grids; -inf counts as masked.
        smoothness: λ ≥ 0; a tensor, one per row with size 1 along the smoothed axes, gets its exact gradient.
        mask: True where a cell counts; masked cells leave the grid. Grids of different sizes in one batch are padded
            and masked.

    Returns:
        the minimiser, of x's shape; 0, with zero gradient, where masked. The gradient averages over fused groups.

    Reference: Martins et al. 2020, eq. 4, 8 and 9.

    >>> prox_tv2d(torch.tensor([[0.0, 0.0], [0.0, 4.0]]), 10.0)
    tensor([[1., 1.],
            [1., 1.]])
    """
    return solve_tv2d(x, smoothness, mask).value


def solve_tv2d(x: Tensor, smoothness: float | Tensor, mask: Tensor | None = None) -> TVSolution:
    """`prox_tv2d` with its certificate and groups.

    >>> solve_tv2d(torch.tensor([[0.0, 0.0], [0.0, 4.0]]), 0.5).groups.tolist()
    [[0, 0], [0, 3]]
    """
    check_floating("prox_tv2d", "x", x)
    check_ndim("prox_tv2d", "x", x, 2, "(..., H, W)")
    return solve_tv("prox_tv2d", x, smoothness, mask, axes=2)


def prox_tv_graph(x: Tensor, edges: Tensor, smoothness: float | Tensor, mask: Tensor | None = None) -> Tensor:
    """Total-variation denoising on any graph: `argmin_w ½‖w − x‖² + λ Σ_{(i,j) in edges} |w_i − w_j|`.

    Args:
        x: (..., N) values of the nodes; -inf counts as masked.
        edges: (E, 2) pairs of node numbers; a pair that is listed twice counts twice.
        smoothness: λ ≥ 0; a tensor, one per row with size 1 along the smoothed axes, gets its exact gradient.
        mask: True where a node counts; masked nodes leave the graph.

    Returns:
        the minimiser, of x's shape; 0, with zero gradient, where masked. The gradient averages over fused groups.

    Reference: Martins et al. 2020, eq. 4, 8 and 9.

    >>> prox_tv_graph(torch.tensor([0.0, 1.0, 5.0]), torch.tensor([[0, 2]]), 1.0).tolist()
    [1.0, 1.0, 4.0]
    """
    return solve_tv_graph(x, edges, smoothness, mask).value


def solve_tv_graph(x: Tensor, edges: Tensor, smoothness: float | Tensor, mask: Tensor | None = None) -> TVSolution:
    """`prox_tv_graph` with its certificate and groups.

    >>> solve_tv_graph(torch.tensor([0.0, 1.0, 0.0]), torch.tensor([[0, 2]]), 1.0).groups.tolist()
    [0, 1, 0]
    """
    check_floating("prox_tv_graph", "x", x)
    check_ndim("prox_tv_graph", "x", x, 1, "(..., N)")
    return solve_tv("prox_tv_graph", x, smoothness, mask, edges=edges)


def solve_tv(
    where: str,
    x: Tensor,
    smoothness: float | Tensor,
    mask: Tensor | None,
    *,
    axes: int = 1,
    edges: Tensor | None = None,
    dim: int = -1,
) -> TVSolution:
    """The solution over the last axes of x: a chain for one axis, a grid for two, a graph if edges are passed.

    Error messages begin with `where` and count the last axis as `dim`, the one it was before it was moved.
    """
    smoothness = as_number(smoothness)
    if isinstance(smoothness, Tensor):
        check_smoothness(where, smoothness)
    else:
        check_number(where, "smoothness", smoothness, least=0.0, advice="0 leaves the scores as they are")
    if edges is not None:
        check_edges(where, edges, x.shape[-1])
    keep = x != -torch.inf
    if mask is not None:
        check_mask(where, mask, x.shape)
        keep = keep & mask
    wide = at_least_float32(x)
    solve: Callable[..., Outputs] = _ProxTV.apply if kernels.needs_function(x) else _prox_tv
    if kernels.is_direct(wide) and kernels.is_direct_mask(keep):
        solve = _ProxTVDirect.apply
    if isinstance(smoothness, Tensor):
        own = beside_rows(where, "smoothness", smoothness, x, range(-axes, 0))
        value, labels, gap = prox_by_row(
            wide, keep, edges, axes, own, lambda part, number: solve(part, keep, edges, axes, number, dim, where)
        )
    else:
        value, labels, gap = solve(wide, keep, edges, axes, float(smoothness), dim, where)
    return TVSolution(value.to(x.dtype), gap, torch.where(keep, labels, -1))


def check_edges(where: str, edges: Tensor, N: int) -> None:
    """Raises an error if the edges are not (E, 2) integers from 0 to N − 1."""
    if not isinstance(edges, Tensor) or edges.ndim != 2 or edges.shape[1] != 2:
        got = tuple(edges.shape) if isinstance(edges, Tensor) else type(edges).__name__
        raise ShapeError(f"{where}: expected edges (E, 2), got {got}; pass one pair of node numbers per row")
    if edges.is_floating_point() or edges.dtype == torch.bool:
        raise WrongType(f"{where}: expected integers as edges, got {edges.dtype}; call .long() first")
    # The values of meta tensors, fake tensors and other subclasses cannot be read.
    if torch.compiler.is_compiling() or type(edges) is not Tensor or edges.is_meta or edges.numel() == 0:
        return
    low, high = int(edges.min()), int(edges.max())
    if low < 0 or high >= N:
        raise WrongValue(
            f"{where}: expected edges between nodes 0 and {N - 1}, got {low if low < 0 else high}; "
            "number the nodes from 0"
        )


@torch.library.custom_op("foveate::prox_tv", mutates_args=())
def _prox_tv(
    x: Tensor, keep: Tensor, edges: Tensor | None, axes: int, smoothness: float, dim: int, where: str
) -> tuple[Tensor, Tensor, Tensor]:
    """The prox over the last axes, the label of each node's group, and the relative gap of each example."""
    native = kernels.prox_tv(x, keep, edges, axes, smoothness)
    if native is not None:
        return native
    batch, nodes = x.shape[: x.ndim - axes], x.shape[x.ndim - axes :]
    if x.numel() == 0:
        return torch.zeros_like(x), torch.zeros_like(x, dtype=torch.long), x.new_zeros(batch, dtype=torch.float64)
    N = math.prod(nodes)
    y, k = torch.where(keep, x.detach(), 0).reshape(-1, N).double(), keep.reshape(-1, N)
    infinite = y == torch.inf
    if not bool(torch.isfinite(y).all()):
        # A row of +inf alone is constant, and its prox is itself; beside a finite number there is none.
        if not bool(torch.isfinite(torch.where((infinite == k).all(-1, keepdim=True), 0, y)).all()):
            _raise_not_finite(where, torch.where(keep, x, 0).movedim(-1, dim))
        y = y.masked_fill(infinite, 0)

    shape = (nodes[0] if axes == 2 else 1, nodes[-1]) if edges is None else grid_of_edges(N, edges.long())

    def graph(dtype: torch.dtype) -> Graph:
        if shape is None:
            assert edges is not None
            return EdgeGraph(N, edges.long(), dtype)
        return GridGraph(*shape, dtype, x.device)

    problem = _Standardised.of(y, k, smoothness)
    # Transposed: the solver wants the batch last.
    value, labels, gap = minimise(problem.y.T.contiguous(), k.T.contiguous(), problem.smoothness, graph, x.dtype)
    value, gap = torch.where(k, problem.undo(value.T), 0).to(x.dtype), problem.relative(gap)
    value = value.masked_fill(infinite, torch.inf)
    if bool((gap > _WARNED_GAP).any()):
        warnings.warn(f"{where}: expected a relative gap <= {_WARNED_GAP:g}, got {gap.max():.1e}", stacklevel=2)
    return value.reshape(x.shape), labels.T.reshape(x.shape).contiguous(), gap.reshape(batch)


@dataclass(frozen=True)
class _Standardised:
    """Problems (B, N) shifted and scaled to mean zero and variance one, which is what the solver's constants expect.

    Attributes:
        y, smoothness: (B, N) and (B,) the standardised problems.
        power: (B, 1) power of two by which the input was divided first, so that squares neither overflow nor underflow.
        centre, spread: (B, 1) mean and deviation after that.
        energy: (B,) ½‖x‖² in units of power².
    """

    y: Tensor
    smoothness: Tensor
    power: Tensor
    centre: Tensor
    spread: Tensor
    energy: Tensor

    @classmethod
    def of(cls, x: Tensor, keep: Tensor, smoothness: float) -> _Standardised:
        """Standardise the kept nodes of (B, N) float64 problems; the others become zero."""
        # Scaling by a power of two is exact.
        exponent = torch.frexp(x.abs().amax(-1, keepdim=True)).exponent
        scaled = _shift_exponent(x, -exponent)
        count = keep.sum(-1, keepdim=True).clamp(min=1)
        centre = scaled.sum(-1, keepdim=True) / count
        centred = torch.where(keep, scaled - centre, 0)
        spread = (centred.square().sum(-1, keepdim=True) / count).sqrt()
        spread = torch.where(spread > 0, spread, 1)
        strength = _shift_exponent(torch.full_like(spread, smoothness), -exponent) / spread
        # Beyond 4N all linked nodes are fused, and λ may as well be finite.
        strength = strength.clamp(max=4.0 * x.shape[-1])[:, 0]
        return cls(centred / spread, strength, exponent, centre, spread, 0.5 * scaled.square().sum(-1))

    def undo(self, value: Tensor) -> Tensor:
        """Values (B, N) of the standardised problems as values of the original ones."""
        # |value| ≤ max|x| < 2^exponent in exact arithmetic; without the clamp, rounding could overflow at the top.
        largest = 1 - torch.finfo(value.dtype).eps / 2
        return _shift_exponent((value * self.spread + self.centre).clamp(-largest, largest), self.power)

    def relative(self, gap: Tensor) -> Tensor:
        """Gaps (B,) of the standardised problems relative to max(1, ½‖x‖²) of the original ones."""
        one = _shift_exponent(_shift_exponent(torch.ones_like(gap), -self.power[:, 0]), -self.power[:, 0])
        return gap * self.spread[:, 0].square() / torch.maximum(self.energy, one)


def _shift_exponent(x: Tensor, exponent: Tensor) -> Tensor:
    """x · 2^exponent, in two steps because 2^exponent itself may overflow; torch.ldexp does so in float32."""
    half = exponent // 2
    return x * torch.exp2(half.to(x.dtype)) * torch.exp2((exponent - half).to(x.dtype))


def _raise_not_finite(where: str, x: Tensor) -> None:
    if bool(torch.isnan(x).any()):
        raise_nan(where, "scores", x)
    raise WrongValue(
        f"{where}: expected finite scores, got +inf; clip the scores, or use -inf where a location does not count"
    )


@_prox_tv.register_fake
def _(
    x: Tensor, keep: Tensor, edges: Tensor | None, axes: int, smoothness: float, dim: int, where: str
) -> tuple[Tensor, Tensor, Tensor]:
    like = torch.empty_like(x, memory_format=torch.contiguous_format)
    gap = x.new_empty(x.shape[: x.ndim - axes], dtype=torch.float64)
    return like, torch.empty_like(like, dtype=torch.long), gap


def _prox_examples(info: Any, in_dims: tuple[int | None, ...], x: Tensor, keep: Tensor, *rest: Any) -> Any:
    """The operator under vmap: one more leading axis."""

    def front(part: Tensor, dim: int | None) -> Tensor:
        return part.expand(info.batch_size, *part.shape) if dim is None else part.movedim(dim, 0)

    return _prox_tv(front(x, in_dims[0]), front(keep, in_dims[1]), *rest), (0, 0, 0)


_prox_tv.register_vmap(_prox_examples)


class _ProxTV(torch.autograd.Function):
    """The operator with derivatives in both modes; the Jacobian is symmetric."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, keep: Tensor, edges: Tensor | None, axes: int, *options: Any) -> Outputs:
        outputs: Outputs = _prox_tv(x, keep, edges, axes, *options)
        return outputs

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
        ctx.save_for_backward(inputs[1], output[1])
        ctx.save_for_forward(inputs[1], output[1])
        ctx.mark_non_differentiable(output[1], output[2])
        ctx.axes = inputs[3]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Any, ...]:
        keep, labels = ctx.saved_tensors
        return _jacobian_product(keep, labels, gradient, ctx.axes), None, None, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> tuple[Tensor, None, None]:
        keep, labels = ctx.saved_tensors
        return _jacobian_product(keep, labels, tangent, ctx.axes), None, None


_prox_tv.register_autograd(_ProxTV.backward, setup_context=_ProxTV.setup_context)


class _ProxTVDirect(torch.autograd.Function):
    """The operator past torch's dispatcher, which costs more than a small problem."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, keep: Tensor, edges: Tensor | None, axes: int, smoothness: float, dim: int, where: str
    ) -> Outputs:
        native = kernels.prox_tv(x, keep, edges, axes, smoothness)
        output: Outputs = _prox_tv(x, keep, edges, axes, smoothness, dim, where) if native is None else native
        ctx.save_for_backward(keep, output[1])
        ctx.mark_non_differentiable(output[1], output[2])
        ctx.axes = axes
        return output

    backward = staticmethod(_ProxTV.backward)


def _jacobian_product(keep: Tensor, labels: Tensor, direction: Tensor, axes: int) -> Tensor:
    """J v: the mean of v inside each fused group (eq. 9)."""
    start = direction.ndim - axes
    means = group_mean(direction.flatten(start), labels.flatten(start)).reshape(direction.shape)
    return torch.where(keep, means, 0)
