"""The solver of the total-variation prox: iterate, polish, certify, for a batch of problems on one graph.

Over-relaxed Douglas-Rachford steps, each with one Laplacian solve in the graph's spectral basis, update the dual
variables. An edge is fused where its dual is strictly inside ±λ; the value of each fused group follows in closed form;
the duality gap at that point, evaluated in float64, decides whether it is the solution. Examples above the tolerance
keep iterating, the others leave the batch. Tensors are laid out as in `foveate.ops.graphs`: the batch is last.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from foveate.checks import is_tracing
from foveate.errors import WrongType, WrongValue
from foveate.ops.graphs import Graph

_RELAXATION = 1.7
_FIRST_CHECK, _NEXT_CHECK = 25, 25  # steps before the first polished and certified point, and between two of them
_FLOAT32_STEPS = 400  # steps in float32 before an example continues in float64
_MAX_STEPS = 100_000
_MAX_CG_STEPS = 15
_TOLERANCE = {torch.float32: 2e-11, torch.float64: 2e-13}  # relative gap at which an example is solved
_TIE = 1e-11  # neighbours closer than this, in units of the input's standard deviation, are equal


def minimise(
    y: Tensor, keep: Tensor, smoothness: Tensor, graph: Callable[[torch.dtype], Graph], dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Minimisers of (N, B) float64 problems of unit variance with one smoothness (B,) each.

    Args:
        y: (N, B) values of the nodes, 0 where masked.
        keep: (N, B) True where a node counts.
        smoothness: (B,) λ of each problem.
        graph: makes the graph in a given dtype.
        dtype: in which the iteration starts; the polish and the certificate are always in float64.

    Returns:
        the minimisers (N, B), the label (N, B) of each node's fused group, and the duality gaps (B,).
    """
    exact, tolerance = graph(torch.float64), _TOLERANCE[dtype] * 0.5 * keep.sum(0)
    state = DouglasRachford.start(y, keep, smoothness, graph(dtype), dtype)
    linked, value = state.bound > 0, y.clone()
    gap, left = torch.full_like(smoothness, torch.inf), torch.arange(y.shape[-1], device=y.device)
    done, check = 0, _FIRST_CHECK
    while True:
        state.iterate(check - done)
        done = check
        w, g = polish(exact, state, tolerance[left])
        # The gap does not fall monotonically, so the best point so far is kept.
        better = g < gap[left]
        value[:, left[better]], gap[left[better]] = w.reshape(-1, len(left))[:, better], g[better]
        unsure = ~(g <= tolerance[left])
        if done > _MAX_STEPS or not bool(unsure.any()):
            break
        state.retune()
        state, left = state.select(unsure.nonzero()[:, 0]), left[unsure]
        if done > _FLOAT32_STEPS and state.dtype != torch.float64:
            state.promote(exact)
        check = done + max(_NEXT_CHECK, done // 3)
    slope = exact.difference(value.reshape(*exact.nodes, -1))
    return value, exact.components(linked & (slope.abs() <= _TIE)), gap


class DouglasRachford:
    """State of the iteration on the dual: `drive` is the point before clipping to ±λ, `dual` the clipped one."""

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
    def start(cls, y: Tensor, keep: Tensor, smoothness: Tensor, graph: Graph, dtype: torch.dtype) -> DouglasRachford:
        """Start at zero, with bound 0 on edges of masked nodes, and a step strength that grows with λ."""
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
            if step == steps - 1:  # the residuals of the last step, for `retune`; before mul_ overwrites the slope
                self._slack, self._slope = drive - dual, slope.clone()
            drive = slope.mul_(gain).add_(drive, alpha=1 - _RELAXATION).add_(dual, alpha=_RELAXATION)
            dual = torch.clamp(drive, -self.limit, self.limit)
        self.drive, self.dual = drive, dual

    def retune(self) -> None:
        """Balance the primal and the dual residual: far from balance, the iteration takes many more steps."""
        slack = self.drive - self.dual
        primal = _total((self._slope - slack / self._gain).square())
        moved = _total(self.graph.divergence(slack - self._slack).square())
        ratio = (primal / moved.clamp(min=1e-30)).pow(0.25).clamp(0.2, 5)
        ratio = torch.where((ratio > 2) | (ratio < 0.5), ratio, 1)
        self.strength = self.strength * ratio
        # The slack is in units of the strength; rescaled, it stands for the same primal point.
        self.drive = self.dual + slack * ratio

    def select(self, rows: Tensor) -> DouglasRachford:
        """The given examples of the batch."""
        parts = (self.y, self.bound, self.strength, self.drive, self.dual)
        return DouglasRachford(self.graph, *(part.index_select(-1, rows) for part in parts))

    def restart(self, rows: Tensor, dual: Tensor) -> None:
        """Continue the given examples from a better dual point, with the same slack."""
        dual = dual.to(self.dtype)
        self.drive[..., rows] += dual - self.dual[..., rows]
        self.dual[..., rows] = dual

    def promote(self, graph: Graph) -> None:
        """Continue in float64."""
        self.graph, self.drive, self.dual = graph, self.drive.double(), self.dual.double()
        self._prepare()


def _total(x: Tensor) -> Tensor:
    """Sum over all axes but the last, the batch."""
    return x.reshape(-1, x.shape[-1]).sum(0)


def polish(graph: Graph, state: DouglasRachford, tolerance: Tensor) -> tuple[Tensor, Tensor]:
    """Each group's value in closed form (eq. 8), and the duality gap of that point, in float64."""
    y, bound = state.y, state.bound
    # A dual at its float32 limit is at the float64 bound, not a rounding error inside it.
    dual = torch.where(state.dual.abs() >= state.limit, bound.copysign(state.dual), state.dual.double())
    fused = dual.abs() < bound
    pulled = y - graph.divergence(torch.where(fused, 0, dual))
    w = group_mean(pulled.reshape(-1, y.shape[-1]), graph.components(fused), dim=0).reshape(y.shape)
    short, wrong = gaps(graph, y, w, dual, bound)
    # A dual whose sign contradicts the values means wrong groups; otherwise only the flow inside them is unfinished.
    weak = ((short > tolerance) & (wrong <= tolerance)).nonzero()[:, 0]
    if len(weak):
        y, w_, dual, fused, bound = (part.index_select(-1, weak) for part in (y, w, dual, fused, bound))
        dual = dual + _route(graph, fused, y - w_ - graph.divergence(dual), tolerance[weak])
        dual = torch.clamp(dual, -bound, bound)
        short[weak], wrong[weak] = gaps(graph, y, w_, dual, bound)
        state.restart(weak, dual)
    return w, short + wrong


def gaps(graph: Graph, y: Tensor, w: Tensor, dual: Tensor, bound: Tensor) -> tuple[Tensor, Tensor]:
    """The duality gap in two parts that do not cancel: ½‖y − Dᵀu − w‖² and Σ (λ|Dw| − u Dw)."""
    slope = graph.difference(w)
    short = y - graph.divergence(dual) - w
    return 0.5 * _total(short.square()), _total(bound * slope.abs() - dual * slope)


def _route(graph: Graph, joined: Tensor, surplus: Tensor, enough: Tensor) -> Tensor:
    """A flow along the joined edges with Dᵀu = surplus: exact on a chain, else by conjugate gradients."""
    flow = graph.route(surplus)
    if flow is not None:
        return flow * joined
    joined = joined.to(surplus.dtype)
    flow = torch.zeros_like(joined)
    residual = direction = surplus
    size = _total(residual.square())
    going = size > enough
    for _ in range(_MAX_CG_STEPS):
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


_LEAST = 1e-20  # below it, the prox is the identity


def prox_by_row(
    x: Tensor,
    keep: Tensor,
    edges: Tensor | None,
    axes: int,
    smoothness: Tensor,
    solve: Callable[[Tensor, float], tuple[Tensor, Tensor, Tensor]],
) -> tuple[Tensor, Tensor, Tensor]:
    """Value, groups and gap over the last axes of x, for smoothness with as many axes as x, 1 in the last ones.

    Where the groups stay the same, the prox is affine in x and λ: `w_g = mean(x_g) − λ b_g`, with the signed boundary
    `b_g = (1 / |g|) Σ_{i in g, j not in g, i~j} sign(w_i − w_j)`, so that it has every derivative.

    Args:
        x, keep: (..., *nodes) values and whether they count.
        edges: (E, 2) of a graph, None for a chain or a grid.
        axes: 1 or 2.
        smoothness: λ >= 0, which broadcasts to x.
        solve: the operator `(x, λ) -> value, labels, gap` for one number λ.
    """
    with torch.no_grad():
        # prox_λ(x) = λ prox_1(x / λ): one number for the operator, whatever the rows have.
        scale = smoothness.detach().clamp(min=_LEAST).to(x.dtype)
        rough, labels, gap = solve(torch.where(keep, x.detach() / scale, 0), 1.0)
        boundary = _boundary(rough, keep, edges, axes, labels)
    start = x.ndim - axes
    flat = labels.flatten(start)
    mean = group_mean(torch.where(keep, x, 0).flatten(start), flat).reshape(x.shape)
    pull = group_mean(boundary.flatten(start), flat).reshape(x.shape)
    return torch.where(keep, mean - smoothness.to(x.dtype) * pull, 0), labels, gap


def _boundary(value: Tensor, keep: Tensor, edges: Tensor | None, axes: int, labels: Tensor) -> Tensor:
    """`Σ_j sign(w_i − w_j)` over the neighbours j of each node that count and are in another group."""
    total = torch.zeros_like(value)
    if edges is not None:
        near, far = edges.long().unbind(-1)
        both = keep[..., near] & keep[..., far] & (labels[..., near] != labels[..., far])
        sign = torch.where(both, (value[..., near] - value[..., far]).sign(), 0)
        return total.index_add(-1, near, sign).index_add(-1, far, -sign)
    for dim in range(-axes, 0):
        n = value.shape[dim]
        if n < 2:
            continue
        (a, ka), (b, kb) = ([x.narrow(dim, at, n - 1) for x in (value, keep)] for at in (0, 1))
        apart = labels.narrow(dim, 0, n - 1) != labels.narrow(dim, 1, n - 1)
        sign = torch.where(ka & kb & apart, (a - b).sign(), 0)
        edge = torch.zeros_like(value.narrow(dim, 0, 1))
        total = total + torch.cat([sign, edge], dim) - torch.cat([edge, sign], dim)
    return total


def check_smoothness(where: str, smoothness: Tensor) -> None:
    """Raises an error if a known smoothness is negative or no floating-point tensor."""
    if not smoothness.is_floating_point():
        raise WrongType(f"{where}: expected floating-point smoothness, got {smoothness.dtype}; call .float() first")
    known = type(smoothness) in (Tensor, torch.nn.Parameter) and not smoothness.is_meta and smoothness.numel() > 0
    if known and not is_tracing() and not float(smoothness.detach().min()) >= 0:
        raise WrongValue(
            f"{where}: expected smoothness >= 0, got {float(smoothness.detach().min()):g}; 0 leaves the scores as they "
            "are"
        )
