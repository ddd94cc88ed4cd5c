"""How the total-variation prox is found: iterate, polish, certify, for a batch of problems on one graph.

Over-relaxed Douglas-Rachford steps (one Laplacian solve in the graph's spectral basis each) move the dual variables; an
edge is fused where its dual is strictly inside ±λ; each fused group's value follows in closed form; the duality gap of
that point decides in float64 whether it is the answer. The examples that fail go on iterating, the others leave the
batch. Tensors are laid out as in `foveate.ops.graphs`: the batch is last.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from foveate.ops.graphs import Graph

_RELAXATION = 1.7
_FIRST_CHECK, _NEXT_CHECK = 25, 25  # steps before a point is polished and judged, and between two such points
_PATIENCE = 400  # steps in float32 before an example goes on in float64
_MOST_STEPS = 100_000
_MOST_GRADIENTS = 15
_TOLERANCE = {torch.float32: 2e-11, torch.float64: 2e-13}  # relative gap at which an example is done
_TIE = 1e-11  # neighbours closer than this, in units of the input's deviation, are equal


def minimise(
    y: Tensor, keep: Tensor, smoothness: Tensor, graph: Callable[[torch.dtype], Graph], dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Iterate, polish, certify, for (N, B) float64 problems of unit variance with one smoothness (B,) each."""
    judge, tolerance = graph(torch.float64), _TOLERANCE[dtype] * 0.5 * keep.sum(0)
    state = State.start(y, keep, smoothness, graph(dtype), dtype)
    linked, value = state.bound > 0, y.clone()
    gap, left = torch.full_like(smoothness, torch.inf), torch.arange(y.shape[-1], device=y.device)
    done, check = 0, _FIRST_CHECK
    while True:
        state.iterate(check - done)
        done = check
        w, g = polish(judge, state, tolerance[left])
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


class State:
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
    def start(cls, y: Tensor, keep: Tensor, smoothness: Tensor, graph: Graph, dtype: torch.dtype) -> State:
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

    def select(self, rows: Tensor) -> State:
        """The examples that go on."""
        parts = (self.y, self.bound, self.strength, self.drive, self.dual)
        return State(self.graph, *(part.index_select(-1, rows) for part in parts))

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


def polish(graph: Graph, state: State, tolerance: Tensor) -> tuple[Tensor, Tensor]:
    """Each group's value in closed form (eq. 8), and the duality gap of that point, in float64."""
    y, bound = state.y, state.bound
    dual = torch.where(state.dual.abs() >= state.limit, bound.copysign(state.dual), state.dual.double())
    fused = dual.abs() < bound
    pulled = y - graph.divergence(torch.where(fused, 0, dual))
    w = group_mean(pulled.reshape(-1, y.shape[-1]), graph.parts(fused), dim=0).reshape(y.shape)
    short, wrong = gaps(graph, y, w, dual, bound)
    # Signs that contradict the values mean wrong groups; otherwise only the flow inside the groups is unfinished.
    weak = ((short > tolerance) & (wrong <= tolerance)).nonzero()[:, 0]
    if len(weak):
        y, w_, dual, fused, bound = (part.index_select(-1, weak) for part in (y, w, dual, fused, bound))
        dual = dual + _carry(graph, fused, y - w_ - graph.divergence(dual), tolerance[weak])
        dual = torch.clamp(dual, -bound, bound)
        short[weak], wrong[weak] = gaps(graph, y, w_, dual, bound)
        state.restart(weak, dual)
    return w, short + wrong


def gaps(graph: Graph, y: Tensor, w: Tensor, dual: Tensor, bound: Tensor) -> tuple[Tensor, Tensor]:
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
