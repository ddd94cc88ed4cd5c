"""The row of a transform, and one loss for every transform and density: the Fenchel-Young loss of a regulariser."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from foveate.checks import check_floating, is_tracing
from foveate.errors import ShapeError, WrongType, WrongValue
from foveate.ops.compact import CompactDensity
from foveate.ops.density import Density
from foveate.ops.gaussian import Gaussian
from foveate.ops.moments import lower_root, root_determinant, squared_distance, whiten
from foveate.ops.radial import peak
from foveate.registry import lookup


@dataclass(frozen=True)
class Transform:
    """One transform of scores to weights.

    Attributes:
        function: `f(scores, ..., mask=None) -> weights`.
        regulariser: `Ω(weights, **options)`, of which the function is the regularised argmax; None when there is
            none or it is not known, in which case the transform has no Fenchel-Young loss. One that depends on
            pairs of locations also takes `mask`.
        summary: one line that describes it in tables.
        reference: the paper it comes from.
        axes: how many trailing axes are normalised together: 1 for (..., N), 2 for a grid (..., H, W).
        needs_edges: the function takes the edges of a graph.
        sparse: the weights can be exactly zero, and no gradient passes there: their values need not be read.
        prox: `f(scores, ..., mask=None)` of which the transform is the sparsemax, if it is one: tokens that have no
            place on the grid (CLS, registers, text) can then join the same sparsemax.
        name: the name that its error messages begin with; that of the function when absent.

    >>> from foveate.ops.simplex import sparsemax
    >>> Transform(sparsemax, summary="projection on the simplex").name
    'sparsemax'
    """

    function: Callable[..., Tensor]
    regulariser: Callable[..., Tensor] | None = None
    summary: str = ""
    reference: str = ""
    axes: int = 1
    needs_edges: bool = False
    sparse: bool = False
    prox: Callable[..., Tensor] | None = None
    name: str = ""

    def __post_init__(self) -> None:
        if not self.name:
            function = self.function.func if isinstance(self.function, partial) else self.function
            # The class is frozen, so the default that depends on another field is set past its own __setattr__.
            object.__setattr__(self, "name", getattr(function, "__name__", type(function).__name__))


def fenchel_young_loss(
    scores: Tensor | Density,
    target: Tensor | Density,
    transform: str | Callable[..., Tensor] | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Distance of the transform's weights from the target weights: zero exactly where they agree.

    `L(z; q) = Ω(q) + Ω*(z) − ⟨z, q⟩` with `Ω*(z) = ⟨z, p⟩ − Ω(p)`, `p = transform(z)`;  `∂L/∂z = p − q`

    Args:
        scores: (..., N), or (..., H, W) for a transform over a grid; or a density, which stands for its quadratic score
            (`foveate.ops.fenchel_young`).
        target: weights of the same shape, non-negative with sum one up to rounding (1e-3, 2e-2 in half precision; zeros
            where nothing counts), or a density of the same family.
        transform: its name, its function, or a `functools.partial` of the function with the options set; absent for
            densities, whose family says it.
        mask: True where a location counts; a target with weight on a masked location has infinite loss.

    Returns:
        (...) losses, non-negative; for softmax the Kullback-Leibler divergence of p from q.

    Raises ValueError if a row of the target is no distribution, or if the transform's row in TRANSFORMS has no
    regulariser Ω.

    Reference: Blondel, Martins and Niculae 2020, eq. 14; Ω is the regulariser of the transform's row in TRANSFORMS.

    >>> fenchel_young_loss(torch.tensor([1.0, 0.0]), torch.tensor([1.0, 0.0]), "sparsemax").item()
    0.0
    """
    if isinstance(scores, Density) or isinstance(target, Density):
        return _between_densities(scores, target, transform)
    if transform is None:
        raise WrongType("fenchel_young_loss: expected a transform beside scores, got none; pass its name")
    row, options = _row(transform)
    check_floating("fenchel_young_loss", "scores", scores)
    if target.shape != scores.shape:
        raise ShapeError(
            f"fenchel_young_loss: expected a target of the scores' shape {tuple(scores.shape)}, "
            f"got {tuple(target.shape)}; pass one weight per location"
        )
    if row.needs_edges and "edges" not in options:
        raise WrongType(
            "fenchel_young_loss: expected edges, got none; pass functools.partial(fv.gfusedmax, edges=edges)"
        )
    weights = row.function(scores, mask=mask, **options)
    z = scores if mask is None else torch.where(mask, scores, -torch.inf)
    omega = _regulariser(row, options, z)
    # p is detached: by Danskin's theorem the gradient p − q comes from the linear term alone.
    p, axes = weights.detach(), tuple(range(-row.axes, 0))
    _check_target(target, p, axes)
    target = target.clamp(min=0)  # what rounding left below zero has no entropy
    difference = p - target
    linear = torch.where(difference == 0, 0, z * difference).sum(axes)
    # This term and its gradient are zero; its second derivative is the transform's Jacobian, the Hessian of the loss.
    still = torch.where(p > 0, z - z.detach(), 0)
    second = 0.5 * (still * (weights - p)).sum(axes)
    return omega(target) - omega(p) + linear + second


def _check_target(target: Tensor, weights: Tensor, axes: tuple[int, ...]) -> None:
    """Raises ValueError if a row is no distribution; zeros are one beside weights that are zeros, too."""
    known = {type(x) for x in (target, weights)} <= {Tensor, torch.nn.Parameter}
    if is_tracing() or not known or target.is_meta or target.numel() == 0:
        return
    half = target.is_floating_point() and target.dtype.itemsize < 4
    values = target.detach().to(torch.float64)
    total, low = values.sum(axes), values.amin(axes)
    nothing = (total == 0) & (weights.sum(axes) == 0)
    # written so that NaN fails
    sound = (low >= (-1e-3 if half else -1e-6)) & (((total - 1).abs() <= (2e-2 if half else 1e-3)) | nothing)
    if not bool(sound.all()):
        row = tuple((~sound).nonzero()[0].tolist())
        where = f"row {row}" if row else "the target"
        raise WrongValue(
            f"fenchel_young_loss: expected a target of non-negative weights that sum to one, got in {where} "
            f"the smallest {low[row].item():.4g} and the sum {total[row].item():.4g}; divide each row by its sum, or "
            "leave out examples without a target"
        )


def _between_densities(density: Tensor | Density, target: Tensor | Density, transform: object) -> Tensor:
    if not isinstance(density, Density) or not isinstance(target, Density) or transform is not None:
        raise WrongType(
            "fenchel_young_loss: expected two densities without a transform, got "
            f"{type(density).__name__}, {type(target).__name__} and transform={transform!r}; fit the target with "
            "from_weights"
        )
    return density_fenchel_young(density, target)


def _row(transform: str | Callable[..., Tensor]) -> tuple[Transform, dict[str, Any]]:
    """The row of a transform and the options set by a partial."""
    from foveate.ops import TRANSFORMS

    for row in TRANSFORMS.values():
        if row.function is transform:
            return row, {}
    if isinstance(transform, partial):
        row, options = _row(transform.func)
        return row, {**options, **transform.keywords}
    return lookup("fenchel_young_loss", str(transform), TRANSFORMS), {}


def _regulariser(row: Transform, options: dict[str, Any], scores: Tensor) -> Callable[[Tensor], Tensor]:
    """Ω of a transform with its options set; neighbours that are masked, with score -inf, leave its variation."""
    if row.regulariser is None:
        raise WrongValue(
            f"fenchel_young_loss: expected a transform with a regulariser, got {row.name!r}; "
            "set the regulariser of its row in TRANSFORMS"
        )
    if isinstance(row.function, partial):
        options = {**row.function.keywords, **options}
    if "mask" in signature(row.regulariser).parameters:
        options = {**options, "mask": scores != -torch.inf}
    return partial(row.regulariser, **options)


def negative_entropy(weights: Tensor) -> Tensor:
    """`Ω(p) = Σ p log p`.

    >>> negative_entropy(torch.tensor([1.0, 0.0])).item()
    0.0
    """
    return torch.xlogy(weights, weights).sum(-1)


def half_square(weights: Tensor) -> Tensor:
    """`Ω(p) = ½ Σ p²`.

    >>> half_square(torch.tensor([1.0, 0.0])).item()
    0.5
    """
    return 0.5 * weights.square().sum(-1)


def tsallis(weights: Tensor, alpha: float | Tensor = 1.5) -> Tensor:
    """`Ω(p) = Σ (p^α − p) / (α (α − 1))`.

    >>> tsallis(torch.tensor([0.5, 0.5]), alpha=2.0).item()
    -0.25
    """
    return ((weights.pow(alpha) - weights) / (alpha * (alpha - 1))).sum(-1)


def chain_variation(weights: Tensor, smoothness: float | Tensor = 0.1, mask: Tensor | None = None) -> Tensor:
    """`Ω(p) = ½ Σ p² + λ Σ |p_{n+1} − p_n|`, without the pairs in which a location is masked.

    >>> chain_variation(torch.tensor([1.0, 0.0]), smoothness=0.5).item()
    1.0
    """
    return half_square(weights) + (smoothness * _variation(weights, mask, -1)).sum(-1)


def grid_variation(weights: Tensor, smoothness: float | Tensor = 0.01, mask: Tensor | None = None) -> Tensor:
    """`Ω(p) = ½ Σ p² + λ Σ_{i~j} |p_i − p_j|` over the four neighbours of (..., H, W), without masked pairs.

    >>> grid_variation(torch.tensor([[1.0, 0.0]]), smoothness=0.5).item()
    1.0
    """
    total = sum((smoothness * _variation(weights, mask, dim)).sum((-2, -1)) for dim in (-1, -2))
    return half_square(weights.flatten(-2)) + total


def graph_variation(
    weights: Tensor, edges: Tensor, smoothness: float | Tensor = 0.1, mask: Tensor | None = None
) -> Tensor:
    """`Ω(p) = ½ Σ p² + λ Σ_{(i,j)} |p_i − p_j|`, without the edges in which a node is masked.

    >>> graph_variation(torch.tensor([1.0, 0.0]), torch.tensor([[0, 1]]), smoothness=0.5).item()
    1.0
    """
    near, far = edges.unbind(-1)
    steps = (weights[..., far] - weights[..., near]).abs()
    if mask is not None:
        steps = torch.where(mask[..., far] & mask[..., near], steps, 0)
    return half_square(weights) + (smoothness * steps).sum(-1)


def _variation(weights: Tensor, mask: Tensor | None, dim: int) -> Tensor:
    """|p_{n+1} − p_n| along an axis, 0 where either location is masked."""
    steps = weights.diff(dim=dim).abs()
    if mask is None:
        return steps
    along = mask.movedim(dim, -1)
    return torch.where((along[..., 1:] & along[..., :-1]).movedim(-1, dim), steps, 0)


def density_fenchel_young(density: Density, target: Density) -> Tensor:
    """`L(f; q) = Ω(q) + Ω*(f) − E_q[f]` for the density that the quadratic score f predicts; zero where they agree.

    `f(t) = −½ (t − μ)ᵀ Σ⁻¹ (t − μ)`; Ω is the negative entropy for Gaussians, whose loss is the Kullback-Leibler
    divergence KL(q ‖ p), and the Tsallis entropy of α = 1 + 1/m for densities `[(−τ − ½ ‖·‖²_Σ) / m]_+^m`. The
    gradient in the natural parameters is the difference of the moments, E_p[φ] − E_q[φ]: it does not vanish where the
    supports are apart.

    Args:
        density: a Gaussian, TruncatedParaboloid or BetaGaussian, of batch shape (...).
        target: of the same family; `type(density).from_weights(map, positions)` makes one from a human or true map.

    Returns:
        (...) losses, non-negative.

    Reference: Martins et al. 2022, sparse continuous distributions and Fenchel-Young losses, §5.

    >>> p = Gaussian(torch.zeros(2), torch.eye(2))
    >>> q = Gaussian(torch.tensor([1.0, 0.0]), torch.eye(2))
    >>> density_fenchel_young(p, q).item(), density_fenchel_young(p, p).item()
    (0.5, 0.0)
    """
    if (
        not isinstance(density, Gaussian | CompactDensity)
        or type(density) is not type(target)
        or _power(density) != _power(target)
    ):
        single, own = isinstance(density, Gaussian | CompactDensity), type(density).__name__
        advice = f"fit the target with {own}.from_weights" if single else "use attend.loss(scores, target)"
        raise WrongType(
            f"fenchel_young_loss: expected two densities of one family (Gaussian, TruncatedParaboloid or BetaGaussian "
            f"of one alpha), got {own} and {type(target).__name__}; {advice}"
        )
    if density.mean.shape[-1] != target.mean.shape[-1]:
        raise ShapeError(
            f"fenchel_young_loss: expected densities of one dimension, got {density.mean.shape[-1]} and "
            f"{target.mean.shape[-1]}; fit both on the same positions"
        )
    if not isinstance(density, CompactDensity) or not isinstance(target, CompactDensity):
        return _kullback_leibler(density, target)
    m, d = density.power, density.mean.shape[-1]
    expected = -0.5 * _expected_distance(density, target, lower_root(density.scale))
    return _conjugate(density.scale, m, d) + _omega(target.scale, m, d) - expected


def _power(density: Density) -> float:
    """m of `[1 − ρ]_+^m`, infinite for a Gaussian."""
    return density.power if isinstance(density, CompactDensity) else math.inf


def _kullback_leibler(density: Density, target: Density) -> Tensor:
    root = lower_root(density.covariance)
    ratio = 2 * (root_determinant(root).log() - root_determinant(lower_root(target.covariance)).log())
    return 0.5 * (_expected_distance(density, target, root) - density.mean.shape[-1] + ratio)


def _expected_distance(density: Density, target: Density, root: Tensor) -> Tensor:
    """`E_q[(t − μ)ᵀ (L Lᵀ)⁻¹ (t − μ)]` under the target q."""
    apart = squared_distance((target.mean - density.mean).unsqueeze(-2), root).squeeze(-1)
    spread = whiten(lower_root(target.covariance).transpose(-1, -2), root)  # rows: L⁻¹ of the columns of the target's
    return apart + spread.square().sum((-2, -1))


def _squared_radius(scale: Tensor, m: float, d: int) -> Tensor:
    """`R² = −2 τ`, such that the density of this scale integrates to one."""
    logdet = root_determinant(lower_root(scale)).log()
    return torch.exp(2 / (d + 2 * m) * (math.log(peak(m, d)) + m * math.log(2 * m) - logdet))


def _conjugate(scale: Tensor, m: float, d: int) -> Tensor:
    """`Ω*(f) = E_p[f] − Ω(p)`."""
    return -0.5 * d * _squared_radius(scale, m, d) / (d + 2 * m + 2) - _omega(scale, m, d)


def _omega(scale: Tensor, m: float, d: int) -> Tensor:
    """`Ω(p) = (∫ p^α − 1) / (α (α − 1))`, with `∫ p^α = (E_p[f] − τ) / m`."""
    radius2 = _squared_radius(scale, m, d)
    expected = -0.5 * d * radius2 / (d + 2 * m + 2)
    return m * m / (m + 1) * ((expected + 0.5 * radius2) / m - 1)
