"""Mass of a radially symmetric density in the cells of a grid, exactly: the integral over a cell as a walk around it.

A density that is a function of r = |L⁻¹(t − μ)| alone is the divergence of a radial field,

    p dA = div F dA,    F(z) = cdf(r²) z / (2π r²),    cdf(ρ) = the mass inside r² <= ρ,

so that the mass of a polygon is the sum over its edges of `∫ cdf(r²) / (2π) dθ`: smooth along an edge, no kink where
the support ends, and each edge of a grid serves two cells.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from foveate.checks import is_tracing
from foveate.errors import WrongValue
from foveate.ops.moments import lower_root, whiten
from foveate.ops.quadrature import gauss_legendre, mapped_nodes
from foveate.ops.radial import peak, radial_cdf, radial_reach, support_ratio

MOST_NODES = 32


def cell_masses(mean: Tensor, covariance: Tensor, power: float, H: int, W: int) -> Tensor:
    """Mass of a density of the plane in each cell of an H x W grid over the unit square.

    Args:
        mean: (..., 2) mean.
        covariance: (..., 2, 2) covariance.
        power: of the family in `ops/radial.py`; 0 is the uniform density on an ellipse.
        H, W: rows and columns.

    Returns:
        (..., H, W) in the dtype of `mean`, computed in float64; error below 1e-9.
    """
    x = torch.linspace(0, 1, W + 1, dtype=torch.float64, device=mean.device)
    y = torch.linspace(0, 1, H + 1, dtype=torch.float64, device=mean.device)
    corners = torch.stack([x.expand(H + 1, W + 1), y[:, None].expand(H + 1, W + 1)], dim=-1)
    centred = corners.flatten(0, 1) - mean.double().unsqueeze(-2)
    z = whiten(centred, lower_root(support_ratio(power, 2) * covariance.double())).unflatten(-2, (H + 1, W + 1))
    across = _edge_flux(z[..., :, :-1, :], z[..., :, 1:, :], power)
    down = _edge_flux(z[..., :-1, :, :], z[..., 1:, :, :], power)
    mass = across[..., :-1, :] - across[..., 1:, :] + down[..., :, 1:] - down[..., :, :-1]
    # the four edges of a cell outside the support cancel up to rounding
    return torch.where(mass > 1e-15, mass, torch.zeros_like(mass)).to(mean.dtype)


def line_masses(mean: Tensor, covariance: Tensor, power: float, N: int) -> Tensor:
    """Mass of a density of the line with bounded support in each of N cells of the unit interval.

    Args:
        mean: (..., 1) mean.
        covariance: (..., 1, 1) variance.
        power: finite exponent of the family in `ops/radial.py`.
        N: number of cells.

    Returns:
        (..., N) in the dtype of `mean`, computed in float64; error below 1e-9.
    """
    edges = torch.linspace(0, 1, N + 1, dtype=torch.float64, device=mean.device)
    semi = (support_ratio(power, 1) * covariance.double()).sqrt().squeeze(-1)
    reach = math.sqrt(radial_reach(power, missing=1e-14))
    u = ((edges - mean.double()) / semi).clamp(-reach, reach)
    _, cosine, w = mapped_nodes(u[..., :-1], u[..., 1:], 32)
    return (peak(power, 1) * (w * cosine.pow(2 * power)).sum(-1)).to(mean.dtype)


def normal_masses(low: Tensor, high: Tensor) -> Tensor:
    """Mass of the standard normal between `low` and `high`, without losing the digits of a far tail.

    >>> normal_masses(torch.tensor(8.0), torch.tensor(9.0)).item() > 6e-16
    True
    """
    flip = low > 0
    low, high = torch.where(flip, -high, low), torch.where(flip, -low, high)
    mass: Tensor = 0.5 * (torch.special.erfc(-high / math.sqrt(2)) - torch.special.erfc(-low / math.sqrt(2)))
    return mass


def check_grid(where: str, dim: int, H: int, W: int | None) -> None:
    """Raises ValueError if the map has not as many axes as the density has dimensions, or no cell."""
    if (W is None) != (dim == 1):
        wanted = "H only, the number of cells," if dim == 1 else "H and W"
        raise WrongValue(
            f"{where}: expected {wanted} for a density of dimension {dim}, got H={H}, W={W}; change the call"
        )
    if not is_tracing() and min(H, H if W is None else W) < 1:
        raise WrongValue(f"{where}: expected at least one cell, got H={H}, W={W}; use at least one row and column")


def _nodes(chords: Tensor, power: float) -> int:
    """Nodes of Gauss's rule along the chords (lengths) that integrate `cdf(r²) / r²` to 1e-11."""
    if not math.isinf(power):
        # of an integer power, a polynomial of degree 2 m in the position along the chord
        return int(power) + 1 if float(power).is_integer() and power < MOST_NODES else MOST_NODES
    if is_tracing() or chords.requires_grad or chords.device.type != "cpu" or type(chords) is not Tensor:
        return MOST_NODES  # their values cannot be read, or only by waiting for a GPU
    if chords.numel() == 0:
        return 1
    return min(MOST_NODES, 6 + math.ceil(1.5 * min(MOST_NODES, float(chords.nan_to_num(MOST_NODES).max()))))


def _edge_flux(start: Tensor, end: Tensor, power: float) -> Tensor:
    """`∫ cdf(r²) / (2π) dθ` along the segments from `start` to `end` (..., 2)."""
    reach = radial_reach(power, missing=1e-14)
    step = end - start
    length2 = step.square().sum(-1)
    turn = _cross(start, end)
    foot = -(start * step).sum(-1) / length2
    rest = (reach - turn.square() / length2) / length2
    # a segment that stays outside must not have a moving point of entry: its gradient would be that of a chord inside
    meets = rest > 0
    half = torch.where(meets, rest, torch.ones_like(rest)).sqrt()
    enter, leave = (torch.where(meets, at.clamp(0, 1), torch.zeros_like(at)) for at in (foot - half, foot + half))
    first, last = start + enter.unsqueeze(-1) * step, start + leave.unsqueeze(-1) * step
    outside = _angle(start, first, enter > 0) + _angle(last, end, leave < 1)
    s, w = gauss_legendre(_nodes((leave - enter) * length2.sqrt(), power), start.device)
    at = 0.5 * (enter + leave).unsqueeze(-1) + 0.5 * (leave - enter).unsqueeze(-1) * s
    rho = (turn.square() / length2).unsqueeze(-1) + (at - foot.unsqueeze(-1)).square() * length2.unsqueeze(-1)
    # at the mean cdf(rho) / rho is 0 / 0: its limit is a constant, which any small rho reproduces
    rho = rho.clamp(1e-12, reach)
    inside = 0.5 * (leave - enter) * turn * ((radial_cdf(rho, power) / rho) @ w)
    return (outside + inside) / (2 * math.pi)


def _cross(a: Tensor, b: Tensor) -> Tensor:
    return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]


def _angle(a: Tensor, b: Tensor, there: Tensor) -> Tensor:
    """Angle from a to b, zero where not `there`; what is not there may lie at the origin, which has no angle."""
    far = torch.ones_like(a)
    a, b = torch.where(there.unsqueeze(-1), a, far), torch.where(there.unsqueeze(-1), b, far)
    return torch.atan2(_cross(a, b), (a * b).sum(-1))
