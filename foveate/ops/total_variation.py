"""The proximal operator of total variation on a chain, a grid or any graph: exact, certified, batched.

    `prox(x) = argmin_w ½‖w − x‖² + λ Σ_{i~j} |w_i − w_j|`

`foveate.ops.tv_solver` iterates, polishes and certifies; here are the functions, their checks and the operator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from foveate.checks import check_floating, check_mask, check_ndim, check_number, raise_nan
from foveate.errors import ShapeError
from foveate.ops.graphs import EdgeGraph, Graph, GridGraph
from foveate.ops.precision import at_least_float32
from foveate.ops.tv_solver import group_mean, minimise


@dataclass(frozen=True)
class TVSolution:
    """The minimiser, how sure we are of it, and which locations it fuses.

    Attributes:
        value: the minimiser, of the input's shape; 0 where masked.
        gap: (...) relative duality gap, gap / max(1, ½‖x‖²), evaluated in float64: a bound on how far from the
            minimum the objective is.
        groups: of the input's shape, the label of each location's fused group (its smallest location), -1 where masked.
    """

    value: Tensor
    gap: Tensor
    groups: Tensor


def prox_tv1d(x: Tensor, smoothness: float, mask: Tensor | None = None) -> Tensor:
    """Total-variation denoising of rows: `argmin_w ½‖w − x‖² + λ Σ_n |w_{n+1} − w_n|`.

    Args:
        x: (..., N) rows; -inf counts as masked.
        smoothness: λ ≥ 0.
        mask: True where a location counts; masked locations leave the chain, so their neighbours are not linked.

    Returns:
        the minimiser, of x's shape; 0, with zero gradient, where masked. The gradient averages over fused groups.

    Reference: Martins et al. 2020, eq. 4 and 9.

    >>> prox_tv1d(torch.tensor([0.0, 4.0]), 1.0).tolist()
    [1.0, 3.0]
    """
    return solve_tv1d(x, smoothness, mask).value


def solve_tv1d(x: Tensor, smoothness: float, mask: Tensor | None = None) -> TVSolution:
    """`prox_tv1d` with its certificate and groups.

    >>> solve_tv1d(torch.tensor([0.0, 0.5, 5.0]), 1.0).groups.tolist()
    [0, 0, 2]
    """
    check_floating("prox_tv1d", "x", x)
    check_ndim("prox_tv1d", "x", x, 1, "(..., N)")
    return _solve("prox_tv1d", x, smoothness, mask, (1, x.shape[-1]))


def prox_tv2d(x: Tensor, smoothness: float, mask: Tensor | None = None) -> Tensor:
    """Total-variation denoising of grids: `argmin_w ½‖w − x‖² + λ Σ_{i~j} |w_i − w_j|` over the four neighbours.

    Args:
        x: (..., H, W) grids; -inf counts as masked.
        smoothness: λ ≥ 0.
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


def solve_tv2d(x: Tensor, smoothness: float, mask: Tensor | None = None) -> TVSolution:
    """`prox_tv2d` with its certificate and groups.

    >>> solve_tv2d(torch.tensor([[0.0, 0.0], [0.0, 4.0]]), 0.5).groups.tolist()
    [[0, 0], [0, 3]]
    """
    check_floating("prox_tv2d", "x", x)
    check_ndim("prox_tv2d", "x", x, 2, "(..., H, W)")
    return _solve("prox_tv2d", x, smoothness, mask, (x.shape[-2], x.shape[-1]), axes=2)


def prox_tv_graph(x: Tensor, edges: Tensor, smoothness: float, mask: Tensor | None = None) -> Tensor:
    """Total-variation denoising on any graph: `argmin_w ½‖w − x‖² + λ Σ_{(i,j) in edges} |w_i − w_j|`.

    Args:
        x: (..., N) values of the nodes; -inf counts as masked.
        edges: (E, 2) pairs of node numbers; a pair given twice counts twice.
        smoothness: λ ≥ 0.
        mask: True where a node counts; masked nodes leave the graph.

    Returns:
        the minimiser, of x's shape; 0, with zero gradient, where masked. The gradient averages over fused groups.

    Reference: Martins et al. 2020, eq. 4, 8 and 9.

    >>> prox_tv_graph(torch.tensor([0.0, 1.0, 5.0]), torch.tensor([[0, 2]]), 1.0).tolist()
    [1.0, 1.0, 4.0]
    """
    return solve_tv_graph(x, edges, smoothness, mask).value


def solve_tv_graph(x: Tensor, edges: Tensor, smoothness: float, mask: Tensor | None = None) -> TVSolution:
    """`prox_tv_graph` with its certificate and groups.

    >>> solve_tv_graph(torch.tensor([0.0, 1.0, 0.0]), torch.tensor([[0, 2]]), 1.0).groups.tolist()
    [0, 1, 0]
    """
    check_floating("prox_tv_graph", "x", x)
    check_ndim("prox_tv_graph", "x", x, 1, "(..., N)")
    check_edges("prox_tv_graph", edges, x.shape[-1])
    return _solve("prox_tv_graph", x, smoothness, mask, (1, x.shape[-1]), edges=edges)


def check_edges(where: str, edges: Tensor, N: int) -> None:
    """Refuse edges that are not (E, 2) whole numbers from 0 to N − 1."""
    if not isinstance(edges, Tensor) or edges.ndim != 2 or edges.shape[1] != 2:
        got = tuple(edges.shape) if isinstance(edges, Tensor) else type(edges).__name__
        raise ShapeError(f"{where}: expected edges (E, 2), got {got}; give one pair of node numbers a row")
    if edges.is_floating_point() or edges.dtype == torch.bool:
        raise TypeError(f"{where}: expected whole numbers as edges, got {edges.dtype}; call .long() first")
    if torch.compiler.is_compiling() or edges.numel() == 0:
        return
    low, high = int(edges.min()), int(edges.max())
    if low < 0 or high >= N:
        raise ValueError(
            f"{where}: expected edges between nodes 0 and {N - 1}, got {low if low < 0 else high}; "
            "number the nodes from 0"
        )


def _solve(
    where: str,
    x: Tensor,
    smoothness: float,
    mask: Tensor | None,
    shape: tuple[int, int],
    axes: int = 1,
    edges: Tensor | None = None,
) -> TVSolution:
    """Check, flatten the nodes to one axis, call the operator, and give the shape back."""
    check_number(where, "smoothness", smoothness, least=0.0, advice="0 leaves the scores as they are")
    keep = x != -torch.inf
    if mask is not None:
        check_mask(where, mask, x.shape)
        keep = keep & mask
    wide = at_least_float32(x)
    flat = (*x.shape[: x.ndim - axes], shape[0] * shape[1])
    value, labels, gap = _prox_tv(wide.reshape(flat), keep.reshape(flat), edges, *shape, float(smoothness), where)
    groups = torch.where(keep, labels.reshape(x.shape), -1)
    return TVSolution(value.reshape(x.shape).to(x.dtype), gap, groups)


@torch.library.custom_op("foveate::prox_tv", mutates_args=())
def _prox_tv(
    x: Tensor, keep: Tensor, edges: Tensor | None, H: int, W: int, smoothness: float, where: str
) -> tuple[Tensor, Tensor, Tensor]:
    """The prox of (..., N) node values, the label of each node's group, and the relative gap of each example."""
    N = x.shape[-1]
    y, k = x.detach().reshape(-1, N).double(), keep.reshape(-1, N)
    y = torch.where(k, y, 0)
    if not bool(torch.isfinite(y.sum())):
        _refuse(where, torch.where(keep, x, 0))
    if y.numel() == 0:
        return (
            torch.zeros_like(x),
            torch.zeros_like(x, dtype=torch.long),
            x.new_zeros(x.shape[:-1], dtype=torch.float64),
        )

    def graph(dtype: torch.dtype) -> Graph:
        return GridGraph(H, W, dtype, x.device) if edges is None else EdgeGraph(N, edges.long(), dtype)

    count = k.sum(-1, keepdim=True).clamp(min=1)
    centre = y.sum(-1, keepdim=True) / count
    centred = torch.where(k, y - centre, 0)
    scale = (centred.square().sum(-1, keepdim=True) / count).sqrt()
    scale = torch.where(scale > 0, scale, 1)
    value, labels, gap = minimise(
        (centred / scale).T.contiguous(), k.T.contiguous(), smoothness / scale[:, 0], graph, x.dtype
    )
    value, labels = torch.where(k, value.T * scale + centre, 0), labels.T.contiguous()
    gap = gap * scale[:, 0].square() / (0.5 * y.square().sum(-1)).clamp(min=1)
    return value.to(x.dtype).reshape(x.shape), labels.reshape(x.shape), gap.reshape(x.shape[:-1])


def _refuse(where: str, x: Tensor) -> None:
    if bool(torch.isnan(x).any()):
        raise_nan(where, "scores", x)
    if bool(torch.isinf(x).any()):
        raise ValueError(
            f"{where}: expected finite scores, got +inf; clip the scores, or give -inf where a location does not count"
        )


@_prox_tv.register_fake
def _(
    x: Tensor, keep: Tensor, edges: Tensor | None, H: int, W: int, smoothness: float, where: str
) -> tuple[Tensor, Tensor, Tensor]:
    like = torch.empty_like(x, memory_format=torch.contiguous_format)
    return like, torch.empty_like(like, dtype=torch.long), x.new_empty(x.shape[:-1], dtype=torch.float64)


def _keep_groups(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.save_for_backward(inputs[1], output[1])
    ctx.mark_non_differentiable(output[1], output[2])


def _prox_gradient(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Any, ...]:
    """Jᵀg: the mean of g inside each fused group (eq. 9)."""
    keep, labels = ctx.saved_tensors
    return torch.where(keep, group_mean(gradient, labels), 0), None, None, None, None, None, None


_prox_tv.register_autograd(_prox_gradient, setup_context=_keep_groups)


@torch.library.register_vmap(_prox_tv)
def _(info: Any, in_dims: tuple[int | None, ...], x: Tensor, keep: Tensor, *rest: Any) -> Any:
    def front(part: Tensor, dim: int | None) -> Tensor:
        return part.expand(info.batch_size, *part.shape) if dim is None else part.movedim(dim, 0)

    return _prox_tv(front(x, in_dims[0]), front(keep, in_dims[1]), *rest), (0, 0, 0)
