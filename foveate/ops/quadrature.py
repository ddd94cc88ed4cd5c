"""Integrals of `[1 − |u|²]^{m−1}` times a bump over the unit ball, by Gauss's rule where the product is not negligible.

A density with bounded support is a ball after a change of coordinates, `z = semi * u` along its half axes; lengths are
measured in units of the bump, so that the bump is `exp(−|z − c|²)` or `[1 − |z − c|²]_+`, normalised. What a density
needs, value and gradient, are the integrals of `1, u, u uᵀ`.

- `chord_moments`: m = 1, Gaussian bump, plane. Along the chords across one axis the integral is closed (erfc, exp);
  along the axis Gauss's rule, on the part of it within reach of the peak of the product.
- `ball_moments`: any m >= 1, any bump, line or plane, by Gauss's rule along every axis. Every term is positive.

A square root where a chord ends would spoil Gauss's rule: `S = (3 τ − τ³) / 2` makes it smooth, since
`√(1 − S²) = (1 − τ²) √(4 − τ²) / 2`.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from foveate.ops.radial import peak, radial_reach

CHORD_NODES = 28
REACH = 4.4  # a Gaussian bump is below exp(−REACH²) = 4e-9 of the peak of the product beyond this distance from it


@torch.compiler.assume_constant_result
def gauss_legendre(count: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Nodes (count,) and weights (count,) of Gauss-Legendre quadrature on [−1, 1], in float64.

    Exact for polynomials of degree 2 count − 1. Kept between calls: do not write to them.

    >>> x, w = gauss_legendre(2, torch.device("cpu"))
    >>> round(float(w @ x.square()), 12) == round(2 / 3, 12)
    True
    """
    return _gauss_legendre(count, device)


@lru_cache(maxsize=64)
def _gauss_legendre(count: int, device: torch.device) -> tuple[Tensor, Tensor]:
    x, w = np.polynomial.legendre.leggauss(count)
    with torch.inference_mode(False):  # a tensor made in inference mode would be of no use outside it
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
    axes, points, low, high, swapped = _chord_window(semi, centre)
    (a, b), (cx, cy) = axes, points
    S, cosine, weight = mapped_nodes(low, high, CHORD_NODES)
    x = torch.addcmul(-cx.unsqueeze(-1), a.unsqueeze(-1), S)
    weight = weight.mul_((x * x).neg_().exp_())
    y0 = cy.abs()
    half = cosine.mul_(b.unsqueeze(-1))
    u, v = y0.unsqueeze(-1) - half, half.add_(y0.unsqueeze(-1))
    below, above = (u * u).neg_().exp_(), (v * v).neg_().exp_()
    m0 = torch.special.erfc(u).sub_(torch.special.erfc(v)).mul_(weight)
    m1 = (below - above).mul_(weight)
    m2 = below.mul_(u).sub_(above.mul_(v)).mul_(weight)
    zero, first = 0.5 * math.sqrt(math.pi) * m0.sum(-1), 0.5 * m1.sum(-1)
    second = 0.5 * (m2.sum(-1) + zero)
    x0 = 0.5 * math.sqrt(math.pi) * m0.mul_(S).sum(-1)
    xx = 0.5 * math.sqrt(math.pi) * m0.mul_(S).sum(-1)
    x1 = 0.5 * m1.mul_(S).sum(-1)
    side = torch.where(cy > 0, -b, b)
    y, xy = (first - y0 * zero) / side, (x1 - y0 * x0) / side
    yy = (second - 2 * y0 * first + y0 * y0 * zero) / (b * b)
    x, y = _swap(swapped, x0, y)
    xx, yy = _swap(swapped, xx, yy)
    return torch.stack([zero, x, y, xx, xy, yy], dim=-1) * (a / math.pi).unsqueeze(-1)


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
    outer, inner = _ball_nodes(power, bump)
    if semi.shape[-1] == 1:
        X, _, w = _line(semi, centre[..., 0], power, bump, outer)
        norm = semi * (math.pi**-0.5 if math.isinf(bump) else peak(bump, 1))
        return torch.stack([w.sum(-1), (w * X).sum(-1), (w * X * X).sum(-1)], dim=-1) * norm.unsqueeze(-1)
    a, b = semi.unsqueeze(-2).unbind(-1)
    cx, cy = centre.unbind(-1)
    X, cosine, w = _line(a, cx, power, bump, outer, across=(b, cy))
    radius = torch.ones_like(X)
    if not math.isinf(bump):
        radius = (1 - torch.addcmul(-cx.unsqueeze(-1), a.unsqueeze(-1), X).square()).clamp(min=1e-30).sqrt()
    s, _, v = _line(cosine * b.unsqueeze(-1) / radius, cy.unsqueeze(-1) / radius, power, bump, inner)
    w = w * cosine
    y0, y1, y2 = v.sum(-1), (v * s).sum(-1) * cosine, (v * s * s).sum(-1) * cosine.square()
    parts = [y0, y0 * X, y1, y0 * X * X, y1 * X, y2]
    norm = a * b * (1 / math.pi if math.isinf(bump) else peak(bump, 2))
    return torch.stack([(w * part).sum(-1) for part in parts], dim=-1) * norm.unsqueeze(-1)


def mapped_nodes(low: Tensor, high: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Nodes S between `low` and `high` in [−1, 1], `√(1 − S²)`, and weights, (..., count) each."""
    t1, t2 = 2 * torch.sin(torch.asin(low) / 3), 2 * torch.sin(torch.asin(high) / 3)
    x, w = gauss_legendre(count, low.device)
    half = (0.5 * (t2 - t1)).unsqueeze(-1)
    tau = torch.addcmul((0.5 * (t1 + t2)).unsqueeze(-1), half, x)
    square = tau * tau
    rest = 1 - square
    return 0.5 * tau * (3 - square), 0.5 * rest * (4 - square).sqrt(), rest * w * (1.5 * half)


def _peak(semi2: tuple[Tensor, ...], pull: tuple[Tensor, ...], power: float) -> tuple[list[Tensor], Tensor]:
    """Where in the ball `[1 − |u|²]^power exp(−|semi * u − c|²)` is largest, and the multiplier κ there.

    `u_i = semi_i c_i / (semi_i² + κ)`, `κ (1 − |u|²) = power`; Newton's rule on `(|u|² + power / κ)^{−1/2} = 1`, whose
    left side is nearly linear in κ. `semi2` holds the squares of the half axes, `pull` the products semi * c.
    """
    kappa = torch.full_like(pull[0], power)
    for _ in range(6):
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


def _chord_window(
    semi: Tensor, centre: Tensor
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor], Tensor, Tensor, Tensor]:
    """Axes and centres with the axis of the nodes first, the limits along it, and where the axes were swapped.

    Nodes run along the long axis, except near the end of a wide ellipse: there the edge crosses the chords steeply, and
    the other axis is better.
    """
    a, b = semi.unsqueeze(-2).unbind(-1)
    cx, cy = centre.unbind(-1)
    (x, y), kappa = _peak((a * a, b * b), (a * cx, b * cy), 1.0)
    swapped = ((x * b).abs() > (y * a).abs()) & (b * (1 - y.abs()) > REACH)
    a, b = _swap(swapped, a, b)
    cx, cy = _swap(swapped, cx, cy)
    x, y = _swap(swapped, x, y)
    distance2 = (a * x - cx).square() + (b * y - cy).square()
    low, high = _limits(a, cx, x, distance2, kappa)
    return (a, b), (cx, cy), low, high, swapped


def _ball_nodes(power: float, bump: float) -> tuple[int, int]:
    """Nodes along the first axis and across it.

    Where two edges cross, the integrand of a bounded bump has a kink that only many nodes along the first axis smooth
    out; across it, the product of two paraboloids is a polynomial.
    """
    if math.isinf(bump):
        return 28, 28
    return (128, 8) if power == 1 else (64, 16)


def _swap(swapped: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    return torch.where(swapped, second, first), torch.where(swapped, first, second)


def _line(
    a: Tensor, c: Tensor, power: float, bump: float, nodes: int, across: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Nodes u along one axis, `√(1 − u²)`, and weights times `(1 − u²)^{power−1}` times the bump along this axis.

    `across`: half axis and centre of the other axis, when the nodes are the chords of a disc.
    """
    if math.isinf(bump):
        others = () if across is None else (across,)
        axes = (a, *(b for b, _ in others))
        pulls = (a * c, *(b * cy for b, cy in others))
        at, kappa = _peak(tuple(s * s for s in axes), pulls, power)
        distance2 = (a * at[0] - c).square()
        for (b, cy), y in zip(others, at[1:], strict=True):
            distance2 = distance2 + (b * y - cy).square()
        low, high = _limits(a, c, at[0], distance2, kappa)
    else:
        edge = math.sqrt(radial_reach(power - 1, missing=1e-14))
        low, high = ((c - 1) / a).clamp(-edge, edge), ((c + 1) / a).clamp(-edge, edge)
    u, cosine, w = mapped_nodes(low, high, nodes)
    z2 = torch.addcmul(-c.unsqueeze(-1), a.unsqueeze(-1), u).square()
    w = w * (torch.exp(-z2) if math.isinf(bump) else (1 - z2).clamp(min=0).pow(bump))
    return u, cosine, w if power == 1 else w * cosine.pow(2 * (power - 1))
