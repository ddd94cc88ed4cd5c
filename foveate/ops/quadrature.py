"""Integrals of `[1 − |u|²]^{m−1}` times a bump over the unit ball, by Gauss's rule where the product is not negligible.

A density with bounded support is a ball after a change of coordinates, `z = semi * u` along its half axes; lengths are
measured in units of the bump, so that the bump is `exp(−|z − c|²)` or `[1 − |z − c|²]_+`, normalised. What a density
needs, value and gradient, are the integrals of `1, u, u uᵀ`.

- `chord_moments`: m = 1, Gaussian bump, plane. Along the chords across one axis the integral has a closed form (erfc,
  exp); along the axis Gauss's rule is applied to the part within reach of the peak of the product.
- `ball_moments`: any m >= 1, any bump, line or plane, by Gauss's rule along each axis. All terms are positive. Along a
  chord the logarithm of a Gaussian bump is a quadratic in the node, so that one matrix product computes the exponents
  and another one the integrals: the cost is essentially one exponential per node.

A square root where a chord ends would spoil Gauss's rule: `S = (3 τ − τ³) / 2` makes it smooth, since
`√(1 − S²) = (1 − τ²) √(4 − τ²) / 2`.

In the tensors below nodes are the first axis and pairs of a density and a bump the last. In-place operations reuse the
large tensors, which is why the order of the lines matters: a tensor is overwritten as soon as its last reader is done.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from foveate.ops import kernels
from foveate.ops.radial import peak, radial_reach
from foveate.ops.values import memo

CHORD_NODES = 28
# Chords processed at once, and chords whose nodes are expanded at once. Larger tensors do not fit into the cache, and
# some allocators return their memory to the system after each use, which then has to be cleared again.
CHORDS, BLOCK = 24000, 1024
REACH = 4.4  # a Gaussian bump is below exp(−REACH²) = 4e-9 of the peak of the product beyond this distance from it


@memo(maxsize=64)
def gauss_legendre(count: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Nodes (count,) and weights (count,) of Gauss-Legendre quadrature on [−1, 1], in float64.

    Exact for polynomials of degree 2 count − 1.

    >>> x, w = gauss_legendre(2, torch.device("cpu"))
    >>> round(float(w @ x.square()), 12) == round(2 / 3, 12)
    True
    """
    x, w = np.polynomial.legendre.leggauss(count)
    return torch.as_tensor(x, device=device), torch.as_tensor(w, device=device)


def chord_moments(semi: Tensor, centre: Tensor) -> Tensor:
    """Integrals of `1, X, Y, X², XY, Y²` times a Gaussian bump over the unit disc.

    `M = π⁻¹ ∫_{|u| <= 1} (1, X, Y, X², XY, Y²) exp(−|semi * u − c|²) dz`, `z = semi * u`.

    Args:
        semi: (R, 2) half axes in units of √2 deviations of the bump, float64.
        centre: (R, J, 2) centres c of the bumps in the frame of the axes.

    Returns:
        (R, J, 6). Error relative to the largest of a row: 1e-6 for half axes of 1e-3 to 90.

    Reference: replaces the angular rule of Farinhas 2021 (thesis, appendix A.2, algorithm 4).
    """
    native = kernels.chord_moments(semi, centre, *gauss_legendre(CHORD_NODES, semi.device))
    if native is not None:
        return native
    windows = _gaussian_window(semi, centre, 1.0).split(CHORD_NODES)
    closed = torch.cat([_closed_chords(window) for window in windows])
    return closed.reshape(*centre.shape[:2], *closed.shape[1:])


def _closed_chords(window: _Window) -> Tensor:
    """`chord_moments` of every pair, (pairs, 6)."""
    X, cosine, weight = window.nodes(CHORD_NODES)
    x = torch.addcmul(-window.cx, window.a, X)
    weight = weight.mul_((x * x).neg_().exp_())
    # mirrored to positive arguments: at very negative ones erfc is 2 up to rounding, and the difference would cancel
    y0, half = window.cy.abs(), cosine.mul_(window.b)
    u, v = y0 - half, half.add_(y0)  # v overwrites half
    below, above = (u * u).neg_().exp_(), (v * v).neg_().exp_()
    m0 = torch.special.erfc(u).sub_(torch.special.erfc(v)).mul_(weight)
    m1 = (below - above).mul_(weight)
    m2 = below.mul_(u).sub_(above.mul_(v)).mul_(weight)  # overwrites below and above, so it comes last
    # ∫ yᵏ exp(−y²) dy, y = z − |c_y|, is ½ √π m0 for k = 0, ½ m1 for k = 1, ½ (m2 + ½ √π m0) for k = 2
    k = 0.5 * math.sqrt(math.pi)
    zero, first, second = k * m0.sum(0), 0.5 * m1.sum(0), 0.5 * m2.sum(0)
    x0, x1 = k * m0.mul_(X).sum(0), 0.5 * m1.mul_(X).sum(0)
    xx = k * m0.mul_(X).sum(0)  # m0 holds a factor X from the line above already
    side = torch.where(window.cy > 0, -window.b, window.b)  # undoes the mirroring
    yy = (second - 2 * y0 * first + (y0 * y0 + 0.5) * zero) / (side * side)
    parts = [zero, x0, (first - y0 * zero) / side, xx, (x1 - y0 * x0) / side, yy]
    return window.unswap(parts, window.a / math.pi)


def ball_moments(semi: Tensor, centre: Tensor, power: float, bump: float) -> Tensor:
    """Integrals of `1, u, u uᵀ` times `[1 − |u|²]^{power − 1}` times a bump over the unit interval or disc.

    Args:
        semi: (R, d) half axes in units of the bump, float64, d = 1 or 2.
        centre: (R, J, d) centres of the bumps in the frame of the axes.
        power: m >= 1.
        bump: exponent of the bump, infinite for `exp(−|z|²)`, 1 for `[1 − |z|²]_+`.

    Returns:
        (R, J, 3) for d = 1, the integrals of `1, X, X²`; (R, J, 6) for d = 2, of `1, X, Y, X², XY, Y²`. Error of the
        value `M_1 − tr M_uu` relative to the largest of a row: 1e-6 for a Gaussian bump; in the plane, for bounded
        bumps that overlap, 1e-5 with power = 1 and 3e-4 otherwise.
    """
    along, across = _ball_nodes(power, bump)
    if semi.shape[-1] == 1:
        pairs = (_pieces(t.flatten(), CHORDS // along) for t in (semi.unsqueeze(-1).expand_as(centre), centre))
        parts = [_line_moments(a, c, power, bump, along) for a, c in zip(*pairs, strict=True)]
        joined = torch.cat(parts)
        return joined.reshape(*centre.shape[:2], *joined.shape[1:])
    windows = (_gaussian_window if math.isinf(bump) else _bounded_window)(semi, centre, power).split(along)
    parts = [_ruled_chords(window, power, bump, along, across) for window in windows]
    joined = torch.cat(parts)
    return joined.reshape(*centre.shape[:2], *joined.shape[1:])


@torch.no_grad()
def ball_nodes(semi: Tensor, centre: Tensor, power: float, bump: float) -> tuple[Tensor, Tensor]:
    """Nodes and weights behind `ball_moments`, for integrals that are to be differentiated further.

    Seen as constants of the unit ball they serve every integrand `[1 − |u|²]^{power − 1}` times a polynomial times the
    bump or its derivatives in `semi` and `centre`: an integral by fixed nodes can be differentiated term by term.

    Args:
        semi, centre, power, bump: as in `ball_moments`.

    Returns:
        Nodes u (n, R, J, d) and weights (n, R, J), n = 560 or more in the plane.
    """
    along, across = _ball_nodes(power, bump)
    R, J, d = centre.shape
    if d == 1:
        a, c = semi.expand(R, J).flatten(), centre.flatten()
        low, high = _line_limits(a, c, power, bump)
        nodes, w = gauss_legendre(along, a.device)
        X, _, weight = _mapped(low, high, nodes.unsqueeze(-1), w.unsqueeze(-1))
        return X.reshape(along, R, J, 1), weight.reshape(along, R, J)
    window = (_gaussian_window if math.isinf(bump) else _bounded_window)(semi, centre, power)
    X, cosine, weight = window.nodes(along)
    middle, half = window.chords(X, cosine, math.isinf(bump))
    powers, weighted = _across(across, power, semi.device)
    Y = middle + half * powers[:, 1, None, None]
    weight = weight * half * weighted[0, :, None, None]
    u = torch.stack(_swap(window.swapped, X.expand_as(Y), Y), dim=-1)
    return u.reshape(-1, R, J, 2), weight.reshape(-1, R, J)


def _ruled_chords(window: _Window, power: float, bump: float, along: int, across: int) -> Tensor:
    """`ball_moments` of every pair in the plane, (pairs, 6)."""
    X, cosine, weight = window.nodes(along)
    middle, half = window.chords(X, cosine, math.isinf(bump))
    x, y, side = torch.addcmul(-window.cx, window.a, X), torch.addcmul(-window.cy, window.b, middle), window.b * half
    exponent = torch.stack([(x * x).add_(y * y).neg_(), -2 * y * side, -side * side])
    inside = None
    if power != 1:
        inside = torch.stack([(cosine - middle) * (cosine + middle), -2 * middle * half, -half * half])
    chords = _chord_integrals(exponent, inside, power, bump, across)
    # Y = middle + half s: the integrals of Y and Y² follow from those of 1, s and s²
    y0, s1, s2 = chords.unflatten(-1, X.shape).mul_(weight.mul_(half)).unbind()
    s1 = s1 * half  # not in place: writing to a view fixes the batch size of an exported graph
    y1 = torch.addcmul(s1, y0, middle)
    y2 = (s2 * (half * half)).add_(s1.add_(y1).mul_(middle))  # half² s2 + (2 half s1 + middle y0) middle
    x0 = y0 * X
    parts = [y0.sum(0), x0.sum(0), y1.sum(0), x0.mul_(X).sum(0), (y1 * X).sum(0), y2.sum(0)]
    norm = window.a * window.b * (1 / math.pi if math.isinf(bump) else peak(bump, 2))
    return window.unswap(parts, norm)


def mapped_nodes(low: Tensor, high: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Nodes S between `low` and `high` in [−1, 1], `√(1 − S²)`, and weights, (..., count) each."""
    x, w = gauss_legendre(count, low.device)
    return _mapped(low.unsqueeze(-1), high.unsqueeze(-1), x, w)


def _mapped(low: Tensor, high: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    # the limits in τ: S = (3 τ − τ³) / 2 is sin(3 θ) for τ = 2 sin θ
    t1, t2 = 2 * torch.sin(torch.asin(low) / 3), 2 * torch.sin(torch.asin(high) / 3)
    half = 0.5 * (t2 - t1)
    tau = torch.addcmul(0.5 * (t1 + t2), half, x)
    square = tau * tau
    rest = 1 - square
    # √(1 − S²) without the cancellation of 1 − S² at the ends
    cosine = rest * torch.rsub(square, 1, alpha=0.25).sqrt()
    return tau * torch.rsub(square, 1.5, alpha=0.5), cosine, rest * (w * (1.5 * half))


@dataclass(frozen=True)
class _Window:
    """The part of the unit disc where the product of a density and a bump can matter, (pairs,) each.

    Nodes run along the axis `a`, from `low` to `high`, and along chords across it, from `bottom` to `top` at most.
    """

    a: Tensor
    b: Tensor
    cx: Tensor
    cy: Tensor
    low: Tensor
    high: Tensor
    bottom: Tensor
    top: Tensor
    swapped: Tensor

    def split(self, count: int) -> list[_Window]:
        """The same in parts, for `count` nodes along the axis."""
        parts = zip(*(_pieces(getattr(self, field.name), CHORDS // count) for field in fields(self)), strict=True)
        return [_Window(*part) for part in parts]

    def nodes(self, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Nodes X along the first axis, `√(1 − X²)` and weights, (count, pairs) each."""
        x, w = gauss_legendre(count, self.a.device)
        return _mapped(self.low, self.high, x.unsqueeze(-1), w.unsqueeze(-1))

    def chords(self, X: Tensor, cosine: Tensor, unbounded: bool) -> tuple[Tensor, Tensor]:
        """Middle and half length of the part of each chord that matters, (count, pairs) each."""
        lower, upper = torch.maximum(-cosine, self.bottom), torch.minimum(cosine, self.top)
        if not unbounded:
            radius = (1 - torch.addcmul(-self.cx, self.a, X).square()).clamp(min=0).sqrt()
            lower = torch.maximum(lower, (self.cy - radius) / self.b)
            upper = torch.minimum(upper, (self.cy + radius) / self.b)
        return (lower + upper).mul_(0.5), (upper - lower).mul_(0.5).relu_()

    def unswap(self, parts: list[Tensor], norm: Tensor) -> Tensor:
        """Integrals of `1, X, Y, X², XY, Y²` times `norm`, (pairs, 6), with the axes in their first order."""
        zero, x, y, xx, xy, yy = parts
        x, y = _swap(self.swapped, x, y)
        xx, yy = _swap(self.swapped, xx, yy)
        return torch.stack([zero, x, y, xx, xy, yy], dim=-1) * norm.unsqueeze(-1)


def _gaussian_window(semi: Tensor, centre: Tensor, power: float) -> _Window:
    """Within reach of the peak of the product.

    The first axis is the long one, except near the end of a wide ellipse: there the edge crosses the chords steeply,
    and the other axis is better.
    """
    a, b, cx, cy = _pairs(semi, centre)
    (x, y), kappa = _peak((a * a, b * b), (a * cx, b * cy), power)
    # near the end of the long axis, and far enough from the end of the short one to leave room for a whole window
    swapped = ((x * b).abs() > (y * a).abs()) & (b * (1 - y.abs()) > 1.5 * REACH)
    a, b = _swap(swapped, a, b)
    cx, cy = _swap(swapped, cx, cy)
    x, y = _swap(swapped, x, y)
    distance2 = (a * x - cx).square() + (b * y - cy).square()
    along, across = _limits(a, cx, x, distance2, kappa), _limits(b, cy, y, distance2, kappa)
    return _Window(a, b, cx, cy, *along, *across, swapped)


def _bounded_window(semi: Tensor, centre: Tensor, power: float) -> _Window:
    """Where the disc and a bounded bump overlap."""
    a, b, cx, cy = _pairs(semi, centre)
    low, high = _overlap(a, cx, power)
    return _Window(a, b, cx, cy, low, high, torch.full_like(a, -1), torch.ones_like(a), a < 0)


def _pairs(semi: Tensor, centre: Tensor) -> tuple[Tensor, ...]:
    """Half axes and centres of every pair of a density and a bump, (pairs,) each."""
    beside = torch.cat([semi.unsqueeze(-2).expand_as(centre), centre], dim=-1)
    return beside.flatten(0, 1).mT.contiguous().unbind()


def _overlap(a: Tensor, c: Tensor, power: float) -> tuple[Tensor, Tensor]:
    """Part of [−1, 1] along the half axis `a` where a bump of half width 1 at `c` is above zero."""
    # the weight (1 − u²)^{power − 1} is negligible beyond this edge, and infinite derivatives wait at ±1
    edge = math.sqrt(radial_reach(power - 1, missing=1e-14))
    return ((c - 1) / a).clamp(-edge, edge), ((c + 1) / a).clamp(-edge, edge)


def _across(count: int, power: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """The powers 0, 1, 2 of the nodes of a chord, (count, 3), and with weights, (3, count)."""
    x, w = gauss_legendre(count, device)
    if not _is_smooth(power):  # the same map as in `_mapped`: nodes crowd at the ends, where the power has a cusp
        x, w = 0.5 * x * (3 - x * x), 1.5 * w * (1 - x * x)
    powers = torch.stack([torch.ones_like(x), x, x * x], dim=-1)
    return powers, powers.mT * w


def _pieces(x: Tensor, size: int, dim: int = 0) -> tuple[Tensor, ...]:
    """Pieces that fit into the cache; one piece in an exported graph, whose batch size is not known."""
    return (x,) if torch.compiler.is_exporting() else x.split(size, dim)


def _is_smooth(power: float) -> bool:
    """Whether `(1 − s²)^{power − 1}` is a polynomial for Gauss's rule, up to 1e-7 with 20 nodes."""
    return power >= 3 or math.isclose(power, round(power))


def _chord_integrals(exponent: Tensor, inside: Tensor | None, power: float, bump: float, count: int) -> Tensor:
    """Integrals of `1, s, s²` over [−1, 1] times `inside^{power − 1}` times the bump, (3, chords).

    Both are quadratics of s, given by their coefficients (3, ...); the bump is `exp(exponent)` or
    `[1 + exponent]_+^bump`.
    """
    powers, weighted = _across(count, power, exponent.device)
    quadratics = [_pieces(q.flatten(1), BLOCK, dim=-1) for q in (exponent, inside) if q is not None]
    parts = []
    for first, *rest in zip(*quadratics, strict=True):
        product = powers @ first
        product = product.exp_() if math.isinf(bump) else product.add_(1).relu_().pow_(bump)
        for second in rest:
            product = product.mul_((powers @ second).relu_().pow_(power - 1))
        parts.append(weighted @ product)
    return torch.cat(parts, dim=-1)


def _peak(semi2: tuple[Tensor, ...], pull: tuple[Tensor, ...], power: float) -> tuple[list[Tensor], Tensor]:
    """Where in the ball `[1 − |u|²]^power exp(−|semi * u − c|²)` is largest, and the multiplier κ there.

    `u_i = semi_i c_i / (semi_i² + κ)`, `κ (1 − |u|²) = power`; Newton's rule on `(|u|² + power / κ)^{−1/2} = 1`, whose
    left side is nearly linear in κ. `semi2` holds the squares of the half axes, `pull` the products semi * c.
    """
    kappa = torch.full_like(pull[0], power)
    for _ in range(4):  # to 1e-3 in 99 of 100 cases, and a window only needs a rough place
        inverse = [1 / (s + kappa) for s in semi2]
        squares = [(p * i).square() for p, i in zip(pull, inverse, strict=True)]
        total = sum(squares[1:], squares[0]) + power / kappa
        slope = power / kappa.square()
        for q, i in zip(squares, inverse, strict=True):
            slope = slope + 2 * q * i
        kappa = kappa + 2 * total * (total.sqrt() - 1) / slope
    return [p / (s + kappa) for s, p in zip(semi2, pull, strict=True)], kappa


def _limits(a: Tensor, cx: Tensor, x: Tensor, distance2: Tensor, kappa: Tensor) -> tuple[Tensor, Tensor]:
    """Part of [−1, 1] along the half axis `a` where the product can matter.

    Seen from its peak at a·x the logarithm of the product falls at least like `(1 + κ / a²) (z − a x)²`, and it is at
    most `−(z − c)²`.
    """
    radius = REACH / (1 + kappa / (a * a)).sqrt()
    far = (distance2 + REACH * REACH).sqrt()
    low = torch.maximum(a * x - radius, cx - far) / a
    high = torch.minimum(a * x + radius, cx + far) / a
    return low.clamp(-1, 1), high.clamp(-1, 1)


def _ball_nodes(power: float, bump: float) -> tuple[int, int]:
    """Nodes along the first axis and across it.

    Where two edges cross, the integrand of a bounded bump has a kink, which takes many nodes along the first axis;
    across it, the product of two paraboloids is a polynomial, for which a few nodes are exact.
    """
    if math.isinf(bump):
        return 28, 20 if _is_smooth(power) else 28
    return (128, 4) if power == 1 else (64, 16)


def _swap(swapped: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    return torch.where(swapped, second, first), torch.where(swapped, first, second)


def _line_limits(a: Tensor, c: Tensor, power: float, bump: float) -> tuple[Tensor, Tensor]:
    """Part of the unit interval where the product can matter, for every pair."""
    if not math.isinf(bump):
        return _overlap(a, c, power)
    (x,), kappa = _peak((a * a,), (a * c,), power)
    return _limits(a, c, x, (a * x - c).square(), kappa)


def _line_moments(a: Tensor, c: Tensor, power: float, bump: float, count: int) -> Tensor:
    """Integrals of `1, X, X²` over the unit interval for every pair, (pairs, 3)."""
    low, high = _line_limits(a, c, power, bump)
    nodes, w = gauss_legendre(count, a.device)
    X, cosine, weight = _mapped(low, high, nodes.unsqueeze(-1), w.unsqueeze(-1))
    z2 = torch.addcmul(-c, a, X).square_()
    weight = weight.mul_(z2.neg_().exp_() if math.isinf(bump) else (1 - z2).relu_().pow_(bump))
    if power != 1:
        weight = weight.mul_(cosine.pow_(2 * (power - 1)))
    norm = a * (math.pi**-0.5 if math.isinf(bump) else peak(bump, 1))
    x1 = weight * X
    parts = [weight.sum(0), x1.sum(0), x1.mul_(X).sum(0)]
    return torch.stack(parts, dim=-1) * norm.unsqueeze(-1)
