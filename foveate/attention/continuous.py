"""Attention with a density over the image instead of weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import index
from typing import Annotated, Any, Literal, get_args

import torch
from torch import Tensor, nn

from foveate.attention.arguments import (
    AnyGrid,
    Grid,
    as_grid,
    check_inputs,
    mask_beside,
    positions,
    shared_mask,
    without_padding,
)
from foveate.attention.attended import Attended
from foveate.attention.discrete import DiscreteAttention
from foveate.attention.fits import Fit
from foveate.attention.mechanism import Mechanism, Temperature, learned_options, read_options, register_option
from foveate.checks import check_heads
from foveate.errors import ShapeError, UnknownName, WrongValue
from foveate.ops import fenchel_young_loss, softmax
from foveate.ops.basis import Basis, GaussianBasis
from foveate.ops.density import Density
from foveate.ops.mixture import Mixture
from foveate.ops.reading import weighted_sum
from foveate.ops.ridge import ridge_coefficients, ridge_matrix, ridge_weights
from foveate.ops.values import memo

Positions = Literal["centres", "ends"]


class ContinuousAttention(nn.Module):
    """Fit a density to discrete weights and take the expectation of a value function under it.

    c = Σ_j B_j E_p[ψ_j(t)],  p = fit(transform(z)),  B the ridge regression of the values on the basis ψ

    Args:
        fit: turns the weights into a density.

    The options are annotated with their meanings.

    In one dimension (text, audio) the grid is (N,).

    torch.compile makes one graph of it (`fullgraph=True`), with and without a mask. Two cases need several graphs: a
    grid that is a tensor, because which examples share a basis depends on its values, and `multimodal` in training,
    because the number of components is drawn.

    Reference: Farinhas 2021, algorithms 1 and 2; Farinhas et al. 2021, §3.

    >>> from foveate.attention.fits import MatchMoments
    >>> attend = ContinuousAttention(MatchMoments())
    >>> out = attend(torch.zeros(1, 49), torch.ones(1, 49, 3), grid=(7, 7))
    >>> out.context.shape, bool((out.density.mean - 0.5).abs().max() < 1e-6)
    (torch.Size([1, 3]), True)
    """

    def __init__(
        self,
        fit: Fit,
        *,
        transform: Annotated[str, "from scores to the weights that are fitted, a name in TRANSFORMS"] = "softmax",
        basis: Annotated[Basis | None, "of the value function; `GaussianBasis.for_grid` when absent"] = None,
        ridge: Annotated[float, "penalty of the ridge regression of the values on the basis"] = 0.01,
        padding: Annotated[
            bool, "the regression sees zeros around the image; the thesis pads, the paper does not"
        ] = False,
        positions: Annotated[
            Positions,
            'of the cells to which the density is fitted: "centres", or "ends" as in the thesis, the outer rows and '
            "columns on the edges of the image; the value function is fitted at the centres in both",
        ] = "centres",
        temperature: Temperature = 1.0,
        learnable: Annotated[
            bool | Sequence[str],
            "makes the temperature, and the alpha of a fit that has one, parameters that training changes: True for "
            "both, or their names",
        ] = False,
        heads: Annotated[
            int | None, "one learnable temperature per head, for scores (B, M, Q, N); needs `learnable`"
        ] = None,
    ) -> None:
        super().__init__()
        if positions not in get_args(Positions):
            raise WrongValue(
                f"continuous attention: expected positions 'centres' or 'ends', got {positions!r}; use 'centres'"
            )
        self.fit, self.basis, self.ridge, self.padding, self.positions = fit, basis, ridge, padding, positions
        own = fit.learnable()
        learned = learned_options("continuous attention", learnable, heads, {"temperature": temperature}, own)
        self.transform = DiscreteAttention(transform, temperature=learned.get("temperature", temperature))
        self._learned = {k: v for k, v in (own | learned).items() if k in own and isinstance(v, Tensor | nn.Module)}
        for name, value in self._learned.items():
            register_option(self, name, value)

    def forward(
        self, scores: Tensor, values: Tensor, grid: AnyGrid | None = None, mask: Tensor | None = None
    ) -> Attended:
        """Attend with scores (B, ..., N) to values on a grid; see `fv.mechanism` for the shapes."""
        cells = as_grid("continuous attention", grid)
        check_inputs("continuous attention", scores, values, cells, mask, needs_grid=True)
        assert cells is not None
        if not isinstance(cells, Tensor) and len(cells) == 3:
            raise ShapeError(
                f"continuous attention: expected a grid of one or two axes, got {tuple(cells)}; attend frame by "
                "frame, or with a discrete mechanism such as tvmax"
            )
        wide = torch.promote_types(scores.dtype, torch.float32)
        mask = without_padding(cells, mask, scores.shape[-1])
        weights = self.transform.weigh(scores.to(wide), cells, mask)
        if _query_axes(mask):
            context, density = self._attend_apart(weights, values.to(wide), cells, mask_beside(scores, mask))
        else:
            common = None if mask is None else shared_mask(mask).expand(scores.shape[0], scores.shape[-1])
            context, density = self._attend(weights, values.to(wide), cells, common)
        return Attended(context.to(values.dtype), weights.to(scores.dtype), density, cells, shared_mask(mask))

    def loss(self, scores: Tensor, target: Tensor, grid: AnyGrid | None = None, mask: Tensor | None = None) -> Tensor:
        """How far the weights that the density is fitted to are from a target; see `DiscreteAttention.loss`.

        Where they agree, the density is the one fitted to the target: for a single ellipse, the mean and covariance
        of both are the same.

        Args:
            scores, grid, mask: as in `forward`.
            target: (B, ..., N), which sums to one over the locations that count.

        Returns:
            (B, ...) losses, zero where the weights are the target.
        """
        return self.transform.loss(scores, target, grid, mask)

    def density_loss(
        self, scores: Tensor, target: Tensor, grid: AnyGrid | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """How far the density is from the one that would be fitted to a target: `fv.fenchel_young_loss` of the two.

        For a Gaussian this is KL(q ‖ p), q fitted to the target. Unlike `loss`, it asks for no more than a single
        ellipse can do: the weights may differ from the target as long as their mean and covariance agree.

        Args:
            scores, grid, mask: as in `forward`; the mask has no query axes.
            target: (B, ..., N), which sums to one over the locations that count.

        Returns:
            (B, ...) losses, zero where the moments agree.

        Raises TypeError for a mixture, which has no such loss.
        """
        cells = as_grid("continuous attention", grid)
        check_inputs("continuous attention", scores, target.unsqueeze(-1), cells, mask, needs_grid=True)
        assert cells is not None
        wide = torch.promote_types(scores.dtype, torch.float32)
        mask = without_padding(cells, mask, scores.shape[-1])
        weights = self.transform.weigh(scores.to(wide), cells, mask)
        places, beside = positions(weights, cells, ends=self.positions == "ends"), mask_beside(weights, mask)
        fit = self._current_fit()
        density, wanted = (fit(each, places, beside, training=self.training) for each in (weights, target.to(wide)))
        return fenchel_young_loss(density, wanted)

    def _attend(self, weights: Tensor, values: Tensor, grid: Grid, mask: Tensor | None) -> tuple[Tensor, Density]:
        """Context and density of weights (B, ..., N), with a mask (B, N)."""
        fit = self._current_fit()
        places = positions(weights, grid, ends=self.positions == "ends")
        density = fit(weights, places, mask_beside(weights, mask), training=self.training)
        if weights.numel() == 0:  # no example, query or location: an empty sum, which backward goes through too
            return weighted_sum(weights, values), density
        context = self._read(density, values, grid, mask)
        return torch.where(weights.sum(-1, keepdim=True) > 0, context, 0), density

    def _attend_apart(self, weights: Tensor, values: Tensor, grid: Grid, mask: Tensor | None) -> tuple[Tensor, Density]:
        """The same with a mask per query: queries whose masks differ see different value functions."""
        assert mask is not None
        own, (B, N) = _query_axes(mask), (weights.shape[0], weights.shape[-1])
        axes = tuple(weights.shape[1 : 1 + own])
        kept = mask.reshape(*mask.shape[: 1 + own], mask.shape[-1]).expand(B, *axes, N)
        parts = _fold(weights, axes, own), _fold(values, axes, min(own, values.ndim - 3)), _fold(kept, axes, own)
        cells = grid.repeat_interleave(math.prod(axes), 0) if isinstance(grid, Tensor) else grid
        context, density = self._attend(parts[0], parts[1], cells, parts[2])
        unfolded = density.map_tensors(lambda part: part.reshape(B, *axes, *part.shape[1:]))
        return context.reshape(B, *axes, *context.shape[1:]), unfolded

    def _read(self, density: Density, values: Tensor, grid: Grid, mask: Tensor | None) -> Tensor:
        """Expectation of the value function; images with different grids each get the basis of their own."""
        if not isinstance(grid, Tensor):
            return self._expect(density, values, tuple(grid), mask)
        shapes, group = torch.unique(grid.clamp(min=1), dim=0, return_inverse=True)
        if len(shapes) == 1:
            return self._expect(density, values, shapes[0], mask)
        parts = [(group == g).nonzero()[:, 0] for g in range(len(shapes))]
        read = [
            self._expect(density[rows], values[rows], shape, None if mask is None else mask[rows])
            for rows, shape in zip(parts, shapes, strict=True)
        ]
        return torch.cat(read)[torch.cat(parts).argsort()]

    def _expect(self, density: Density, values: Tensor, cells: tuple[int, ...] | Tensor, mask: Tensor | None) -> Tensor:
        sizes = [index(n) for n in cells]
        n = math.prod(sizes)
        mask = None if mask is None else mask[:, :n]
        basis = GaussianBasis.for_grid(*sizes) if self.basis is None else self.basis
        expectations = self._current_fit().expect(density, basis).to(values.dtype)
        if mask is not None and isinstance(density, Mixture) and density.background is not None:
            expectations = expectations + _read_background(density.background, basis, tuple(sizes), mask).to(
                values.dtype
            )
        B, (J, D) = values.shape[0], (len(basis), values.shape[-1])
        r = expectations.reshape(B, -1, J)
        Q = r.shape[1]
        # (r R) V or r (R V), whichever takes fewer products; heads with values of their own share r R
        if values.ndim > 3 or Q * n * (J + D) < J * D * (n + Q):
            weights = ridge_weights(r, basis, tuple(sizes), self.ridge, self.padding, mask)
            weights = weights.reshape(*expectations.shape[:-1], n)
            return weighted_sum(weights, _present(values[..., :n, :], mask))
        context = r @ ridge_coefficients(values[:, :n], basis, sizes, self.ridge, self.padding, mask)
        return context.reshape(*expectations.shape[:-1], D)

    def _current_fit(self) -> Fit:
        """The fit with the parameters as they are now."""
        now = {name: getattr(self, name) for name in self._learned}
        return self.fit.using({name: part() if callable(part) else part for name, part in now.items()})

    def extra_repr(self) -> str:
        """Every option, for print."""
        reading = f"basis={self.basis}, ridge={self.ridge}, padding={self.padding}"
        return f"fit={self.fit}, {reading}, positions={self.positions!r}"


def _present(values: Tensor, mask: Tensor | None) -> Tensor:
    """Values with 0 where masked, whatever stood there."""
    if mask is None:
        return values
    return torch.where(mask.reshape(mask.shape[0], *[1] * (values.ndim - 3), mask.shape[-1], 1), values, 0)


def _read_background(weight: Tensor, basis: Basis, sizes: tuple[int, ...], mask: Tensor) -> Tensor:
    """(B, ..., J) by which a mask (B, n) changes the expectation under a background of weight (B, ...).

    What is read from a background is the mean over the locations that count: elsewhere there is no value to read.
    """
    at = basis(positions(weight.new_zeros(1, math.prod(sizes)), sizes).double())
    counts = mask.to(at.dtype)
    mean = (counts @ at.to(counts.device)) / counts.sum(-1, keepdim=True).clamp(min=1)
    change = (mean - basis.mass_in_image().to(mean)).masked_fill(mask.all(-1, keepdim=True), 0)
    return weight.unsqueeze(-1) * change.reshape(len(mask), *[1] * (weight.ndim - 1), len(basis))


def _query_axes(mask: Tensor | None) -> int:
    """How many query axes, counted from the first, a mask distinguishes: 0 for (B, N) and (B, 1, N)."""
    if mask is None or mask.ndim <= 2:
        return 0
    return max((axis for axis in range(1, mask.ndim - 1) if mask.shape[axis] != 1), default=0)


def _fold(x: Tensor, axes: tuple[int, ...], own: int) -> Tensor:
    """Query axes as examples: (B, q_1, ..., q_own, *rest) -> (B·Πaxes, *rest), expanded over missing axes.

    >>> _fold(torch.zeros(2, 5), (3,), 0).shape, _fold(torch.zeros(2, 3, 5), (3,), 1).shape
    (torch.Size([6, 5]), torch.Size([6, 5]))
    """
    rest = x.shape[1 + own :]
    x = x.reshape(*x.shape[: 1 + own], *[1] * (len(axes) - own), *rest)
    return x.expand(x.shape[0], *axes, *rest).reshape(x.shape[0] * math.prod(axes), *rest)


def continuous(fit: type[Fit], summary: str, reference: str, **fixed: Any) -> Mechanism:
    """The row of a continuous mechanism: its options are those of the fit and those of `ContinuousAttention`.

    Args:
        fit: the class whose fields are options.
        summary, reference: for listings.
        fixed: options of the fit that the mechanism sets itself.
    """
    own = read_options(fit, skip=fixed)
    outer = read_options(ContinuousAttention.__init__, skip={"self", "fit", "return"})
    inner, known = {option.name for option in own}, {option.name for option in (*own, *outer)}

    def make_fit(**options: Any) -> Fit:
        for option in options:
            if option not in inner:
                raise UnknownName(f"option of {fit.__name__}", option, inner)
        return fit(**(fixed | options))

    def build(**options: Any) -> nn.Module:
        for option in options:
            if option not in known:
                raise UnknownName("option of a continuous mechanism", option, known)
        of_fit = {key: value for key, value in options.items() if key in inner}
        rest = {key: value for key, value in options.items() if key not in inner}
        return ContinuousAttention(make_fit(**of_fit), **rest)

    return Mechanism(build, summary, reference, fit=make_fit, options=(*own, *outer))


class ContinuousSelfAttention(nn.Module):
    """Self-attention in which every token attends to J functions instead of N tokens: O(N·J). Experimental.

    `K = R K_tokens`, `V = R V_tokens`, `c_n = softmax(q_n Kᵀ / √(D/M)) V`

    R, (J, N), is the ridge regression of values at the cell centres on J Gaussian functions, read at their centres:
    keys and values become functions of the plane, and a token scores J of them. What is finer than the spacing of
    the functions is lost; `benchmarks/self_attention.py` shows what is gained.

    Args:
        dim: D, features per token.
        heads: M, a divisor of D.
        functions: J, a square number.
        ridge: penalty of the regression.

    Reference: Farinhas 2021 (thesis), §7.2, which names it as future work.

    >>> attend = ContinuousSelfAttention(8, heads=2, functions=16)
    >>> seen = attend(torch.randn(1, 196, 8), grid=(14, 14))
    >>> seen.context.shape, seen.weights.shape
    (torch.Size([1, 196, 8]), torch.Size([1, 2, 196, 16]))
    """

    def __init__(self, dim: int, heads: int, functions: int = 49, *, ridge: float = 0.01) -> None:
        super().__init__()
        check_heads("ContinuousSelfAttention", dim, heads)
        side = math.isqrt(functions)
        if side * side != functions:
            raise WrongValue(
                f"ContinuousSelfAttention: expected a square number of functions, got {functions}; use {side * side}"
            )
        self.heads, self.functions, self.ridge = heads, functions, ridge
        self.in_proj = nn.Linear(dim, 3 * dim)
        self.out_proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor, grid: AnyGrid) -> Attended:
        """Attend from every token of x (B, N, D) on a grid of N cells.

        Returns:
            Attended with context (B, N, D) and weights (B, M, N, J) over the functions; no map.
        """
        cells = as_grid("ContinuousSelfAttention", grid)
        if not isinstance(cells, tuple) or len(cells) != 2 or x.ndim != 3 or math.prod(cells) != x.shape[1]:
            raise ShapeError(
                f"ContinuousSelfAttention: expected x (B, N, D) and a grid (H, W) of N cells, got {tuple(x.shape)} and "
                f"{cells}; images of one size at a time"
            )
        q, k, v = self.in_proj(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        R = _to_functions(self.functions, cells, self.ridge, x.dtype, x.device)
        keys, values = R @ k, R @ v
        weights = softmax(q @ keys.transpose(-1, -2) / math.sqrt(q.shape[-1]))
        context = (weights @ values).transpose(1, 2).flatten(2)
        return Attended(self.out_proj(context), weights)

    def extra_repr(self) -> str:
        """The sizes, for print."""
        return f"heads={self.heads}, functions={self.functions}, ridge={self.ridge}"


@memo(maxsize=64)
def _to_functions(
    functions: int, cells: tuple[int, ...], ridge: float, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """(J, N) from values at the cells to those of their regression at the J centres of the functions."""
    side = math.isqrt(functions)
    # neighbours overlap at one deviation of their spacing
    basis = GaussianBasis.grid(functions, variance=1 / max(side - 1, 1) ** 2)
    at_centres = basis(basis.centres.double()).double()
    return (at_centres @ ridge_matrix(basis, cells, ridge, False, torch.float64, torch.device("cpu"))).to(device, dtype)
