"""The proximal operator of total variation on a chain, a grid or any graph: exact, certified, batched.

    `prox(x) = argmin_w ½‖w − x‖² + λ Σ_{i~j} |w_i − w_j|`

Iterate, polish, certify. Over-relaxed Douglas-Rachford steps (one Laplacian solve in the graph's spectral basis each)
move the dual variables; an edge is fused where its dual is strictly inside ±λ; each fused group's value follows in
closed form; the duality gap of that exact-by-construction point decides in float64 whether it is the answer. The
examples that fail go on iterating, the others leave the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from foveate.checks import check_floating, check_mask, check_ndim, check_number, raise_nan
from foveate.errors import ShapeError
from foveate.ops.graphs import EdgeGraph, Graph, GridGraph

_RELAXATION = 1.7
_FIRST_CHECK, _NEXT_CHECK = 25, 20  # steps before a point is polished and judged, and between two such points
_PATIENCE = 400  # steps in float32 before an example goes on in float64
_MOST_STEPS = 100_000
_MOST_GRADIENTS = 20
_TOLERANCE = {torch.float32: 2e-12, torch.float64: 2e-13}  # relative gap at which an example is done
_TIE = 1e-11  # neighbours closer than this, in units of the input's deviation, are equal


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
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
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
    value, labels, gap = _minimise(
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


def _minimise(
    y: Tensor, keep: Tensor, smoothness: Tensor, graph: Callable[[torch.dtype], Graph], dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Iterate, polish, certify, for (N, B) float64 problems of unit variance with one smoothness (B,) each."""
    judge, tolerance = graph(torch.float64), _TOLERANCE[dtype] * 0.5 * keep.sum(0)
    state = _State.start(y, keep, smoothness, graph(dtype), dtype)
    linked, value = state.bound > 0, y.clone()
    gap, left = torch.full_like(smoothness, torch.inf), torch.arange(y.shape[-1], device=y.device)
    done, check = 0, _FIRST_CHECK
    while True:
        state.iterate(check - done)
        done = check
        w, g = _polish(judge, state, tolerance[left])
        better = g < gap[left]
        value[:, left[better]], gap[left[better]] = w.reshape(-1, len(left))[:, better], g[better]
        unsure = ~(g <= tolerance[left])
        if done > _MOST_STEPS or not bool(unsure.any()):
            break
        state.retune()
        state, left = state.select(unsure.nonzero()[:, 0]), left[unsure]
        if done > _PATIENCE and state.dtype != torch.float64:
            state.widen(judge)
        check = done + max(_NEXT_CHECK, done // 3)
    slope = judge.difference(value.reshape(*judge.nodes, -1))
    return value, judge.parts(linked & (slope.abs() <= _TIE)), gap


class _State:
    """Douglas-Rachford on the dual: `drive` is the point before clipping to ±λ, `dual` the clipped one."""

    def __init__(self, graph: Graph, y: Tensor, bound: Tensor, strength: Tensor, drive: Tensor, dual: Tensor) -> None:
        self.graph, self.y, self.bound, self.strength, self.drive, self.dual = graph, y, bound, strength, drive, dual
        self._prepare()

    def _prepare(self) -> None:
        self.dtype = self.drive.dtype
        self._target = self.y.to(self.dtype)
        self.limit = self.bound.to(self.dtype)
        self._gain = self.strength.to(self.dtype)
        self._damping = self.graph.damping(self._gain)

    @classmethod
    def start(cls, y: Tensor, keep: Tensor, smoothness: Tensor, graph: Graph, dtype: torch.dtype) -> _State:
        """Edges that touch a masked node get the bound 0; rough inputs and small λ get a small step strength."""
        y, keep = y.reshape(*graph.nodes, -1), keep.reshape(*graph.nodes, -1)
        real = graph.joins(keep)
        steps = _total((graph.difference(y) * real).abs()) / _total(real).clamp(min=1)
        strength = (0.3 + 6 * smoothness / steps.clamp(min=1e-9)).clamp(max=30)
        zero = torch.zeros_like(real, dtype=dtype)
        return cls(graph, y, real * smoothness, strength, zero, zero)

    def iterate(self, steps: int) -> None:
        """b = y + Dᵀ(a − 2u);  w = (1 + ρ DᵀD)⁻¹ b;  a ← ωρ Dw + (1 − ω) a + ω u;  u ← clip(a, ±λ)."""
        drive, dual, gain = self.drive, self.dual, self._gain * _RELAXATION
        for step in range(steps):
            pull = self.graph.divergence(torch.sub(drive, dual, alpha=2)).add_(self._target)
            slope = self.graph.difference(self.graph.smooth(pull, self._damping))
            if step == steps - 1:
                self._slack, self._slope = drive - dual, slope.clone()
            drive = slope.mul_(gain).add_(drive, alpha=1 - _RELAXATION).add_(dual, alpha=_RELAXATION)
            dual = torch.clamp(drive, -self.limit, self.limit)
        self.drive, self.dual = drive, dual

    def retune(self) -> None:
        """Balance the two residuals: a step strength far from right costs many steps."""
        slack = self.drive - self.dual
        primal = _total((self._slope - slack / self._gain).square())
        moved = _total(self.graph.divergence(slack - self._slack).square())
        ratio = (primal / moved.clamp(min=1e-30)).pow(0.25).clamp(0.2, 5)
        ratio = torch.where((ratio > 2) | (ratio < 0.5), ratio, 1)
        self.strength = self.strength * ratio
        self.drive = self.dual + slack * ratio

    def select(self, rows: Tensor) -> _State:
        """The examples that go on."""
        parts = (self.y, self.bound, self.strength, self.drive, self.dual)
        return _State(self.graph, *(part.index_select(-1, rows) for part in parts))

    def restart(self, rows: Tensor, dual: Tensor) -> None:
        """Go on from a better dual point, with the same slack."""
        dual = dual.to(self.dtype)
        self.drive[..., rows] += dual - self.dual[..., rows]
        self.dual[..., rows] = dual

    def widen(self, graph: Graph) -> None:
        """Go on in float64."""
        self.graph, self.drive, self.dual = graph, self.drive.double(), self.dual.double()
        self._prepare()


def _total(x: Tensor) -> Tensor:
    """Sum over everything but the batch, which is last."""
    return x.reshape(-1, x.shape[-1]).sum(0)


def _polish(graph: Graph, state: _State, tolerance: Tensor) -> tuple[Tensor, Tensor]:
    """Each group's value in closed form (eq. 8), and the duality gap of that point, in float64."""
    y, bound = state.y, state.bound
    dual = torch.where(state.dual.abs() >= state.limit, bound.copysign(state.dual), state.dual.double())
    fused = dual.abs() < bound
    pulled = y - graph.divergence(torch.where(fused, 0, dual))
    w = group_mean(pulled.reshape(-1, y.shape[-1]), graph.parts(fused), dim=0).reshape(y.shape)
    short, wrong = _gaps(graph, y, w, dual, bound)
    # Signs that contradict the values mean wrong groups; otherwise only the flow inside the groups is unfinished.
    weak = ((short > tolerance) & (wrong <= tolerance)).nonzero()[:, 0]
    if len(weak):
        y, w_, dual, fused, bound = (part.index_select(-1, weak) for part in (y, w, dual, fused, bound))
        dual = dual + _carry(graph, fused, y - w_ - graph.divergence(dual), tolerance[weak])
        dual = torch.clamp(dual, -bound, bound)
        short[weak], wrong[weak] = _gaps(graph, y, w_, dual, bound)
        state.restart(weak, dual)
    return w, short + wrong


def _gaps(graph: Graph, y: Tensor, w: Tensor, dual: Tensor, bound: Tensor) -> tuple[Tensor, Tensor]:
    """The duality gap in two parts that do not cancel: ½‖y − Dᵀu − w‖² and Σ (λ|Dw| − u Dw)."""
    slope = graph.difference(w)
    short = y - graph.divergence(dual) - w
    return 0.5 * _total(short.square()), _total(bound * slope.abs() - dual * slope)


def _carry(graph: Graph, joined: Tensor, surplus: Tensor, enough: Tensor) -> Tensor:
    """A flow along the joined edges with Dᵀu = surplus: exact on a chain, else by conjugate gradients."""
    flow = graph.carry(surplus)
    if flow is not None:
        return flow * joined
    joined = joined.to(surplus.dtype)
    flow = torch.zeros_like(joined)
    residual = direction = surplus
    size = _total(residual.square())
    going = size > enough
    for _ in range(_MOST_GRADIENTS):
        slope = graph.difference(direction).mul_(joined)
        step = torch.where(going, size / _total(slope.square()), 0)
        flow.addcmul_(slope, step)
        residual = torch.addcmul(residual, graph.divergence(slope), step, value=-1)
        new = _total(residual.square())
        going = new > enough
        if not bool(going.any()):
            break
        direction = torch.addcmul(residual, direction, torch.where(going, new / size, 0))
        size = new
    return flow


def group_mean(x: Tensor, labels: Tensor, dim: int = -1) -> Tensor:
    """Replace each entry by the mean over its group along `dim`; the labels are indices into that axis.

    >>> group_mean(torch.tensor([1.0, 3.0, 5.0]), torch.tensor([0, 0, 2])).tolist()
    [2.0, 2.0, 5.0]
    """
    total = torch.zeros_like(x).scatter_add(dim, labels, x)
    count = torch.zeros_like(x).scatter_add(dim, labels, torch.ones_like(x))
    return (total / count.clamp(min=1)).gather(dim, labels)


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
