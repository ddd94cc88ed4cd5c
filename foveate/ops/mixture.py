"""Mixtures of densities: what multimodal attention attends with."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from foveate.checks import check_floating
from foveate.errors import ShapeError
from foveate.ops.basis import Basis
from foveate.ops.density import Density, Ellipses
from foveate.ops.grid import cell_centres, cell_centres_1d
from foveate.ops.moments import Floor, check_weights
from foveate.ops.values import as_tree


@as_tree
@dataclass(frozen=True, eq=False)
class Mixture(Density):
    """Weighted sum of densities of one family, `p(t) = Σ_k π_k p_k(t) + π_0 1[t in the image]`.

    Attributes:
        components: one density whose batch shape is (..., K).
        weights: (..., K) the mixing weights π, non-negative. With the background they sum to one, or all are zero in a
            row with nothing to attend to, where `p` is zero. A component of weight zero is absent: it adds nothing and
            gets no gradient.
        log_likelihood: (...) ℓ of the Gaussians behind a fit (`foveate.ops.em`), zero where there is nothing to attend
            to; None when the mixture was not fitted.
        criterion: (..., K_max) what `select_mixture` minimised, for every number of components; otherwise None.
        background: (...) the weight π_0 of a uniform density on the image: the fraction of the attention that is
            nowhere in particular. It counts as no component and has no ellipse. None, as in the papers, is zero.

    Reference: Farinhas et al. 2021, equations 4 and 5, for π_0 = 0.

    >>> from foveate.ops.gaussian import Gaussian
    >>> pair = Gaussian(torch.tensor([[0.25, 0.5], [0.75, 0.5]]), 0.01 * torch.eye(2).expand(2, 2, 2))
    >>> mixture = Mixture(pair, torch.tensor([0.5, 0.5]))
    >>> mixture.mean.tolist(), round(mixture.covariance[0, 0].item(), 4)  # 0.01 within, 0.0625 between
    ([0.5, 0.5], 0.0725)
    >>> hazy = Mixture(pair, torch.tensor([0.4, 0.4]), background=torch.tensor(0.2))
    >>> hazy.components_used.item(), round(hazy.covariance[0, 0].item(), 4)  # 0.2 / 12 and 0.8 times the same
    (2, 0.0747)
    """

    components: Density
    weights: Tensor
    log_likelihood: Tensor | None = None
    criterion: Tensor | None = None
    background: Tensor | None = None

    def __post_init__(self) -> None:
        check_floating("Mixture", "weights", self.weights)
        expected = self.components.mean.shape[:-1]
        if self.weights.shape != expected or not expected:
            raise ShapeError(
                f"Mixture: expected weights (..., K) of the components' batch shape {tuple(expected)}, "
                f"got {tuple(self.weights.shape)}; pass one weight per component"
            )
        weights = self.weights
        if self.background is not None:
            check_floating("Mixture", "background", self.background)
            if self.background.shape != expected[:-1]:
                raise ShapeError(
                    f"Mixture: expected background (...) of shape {tuple(expected[:-1])}, "
                    f"got {tuple(self.background.shape)}; pass one weight per mixture"
                )
            weights = torch.cat([weights, self.background.unsqueeze(-1)], dim=-1)
        check_weights("Mixture", weights, weights.sum(-1, keepdim=True))

    @classmethod
    def from_weights(
        cls, weights: Tensor, positions: Tensor, mask: Tensor | None = None, floor: Floor = "cell"
    ) -> Mixture:
        """The mixture that `select_mixture` chooses with its defaults."""
        from foveate.ops.mixture_fit import select_mixture  # which imports this module

        return select_mixture(weights, positions, floor=floor, mask=mask)

    @classmethod
    def average(cls, densities: Density, weights: Tensor) -> Mixture:
        """One mixture per example from many densities of that example, `p(t) = Σ_q weights_q p_q(t)`.

        Args:
            densities: densities of batch shape (B, ...), mixtures or not.
            weights: (B, ...) of each density; they sum to one per example, or are all zero.

        Returns:
            A mixture of batch shape (B,) whose components are all the densities, or all their components.
        """
        background = None
        if isinstance(densities, Mixture):
            if densities.background is not None:
                background = (weights * densities.background).flatten(1).sum(-1)
            weights = weights.unsqueeze(-1) * densities.weights
            densities = densities.components
        lead = weights.ndim
        parts = densities.map_tensors(lambda part: part.flatten(1, lead - 1))
        return cls(parts, weights.flatten(1), background=background)

    @property
    def batch_shape(self) -> torch.Size:
        """The shape `...` of the batch: one mixture for each index into it."""
        return self.weights.shape[:-1]

    def _numbers(self) -> str:
        """How many components there are, and the background, for print."""
        used = self.components_used.flatten().tolist()
        counts = f"components used {', '.join(map(str, used[:8]))}{', ...' if len(used) > 8 else ''}"
        haze = None if self.background is None or not used else self.background.detach().mean()
        return counts if haze is None else f"{counts}, mean background {haze:.2f}"

    @property
    def mean(self) -> Tensor:
        """(..., d) expected position, `Σ π_k μ_k + π_0 ½`."""
        each = self.components.mean
        return self._sum(each, torch.full_like(each[..., 0, :], 0.5))

    @property
    def covariance(self) -> Tensor:
        """(..., d, d) covariance, `Σ π_k (Σ_k + (μ_k − μ)(μ_k − μ)ᵀ) + π_0 (I/12 + (½ − μ)(½ − μ)ᵀ)`."""
        mean = self.mean
        apart = self.components.mean - mean.unsqueeze(-2)
        even = torch.eye(mean.shape[-1], dtype=mean.dtype, device=mean.device) / 12 + _outer(0.5 - mean)
        return self._sum(self.components.covariance + _outer(apart), even)

    @property
    def components_used(self) -> Tensor:
        """(...) number of components with weight above zero; the background is none."""
        return (self.weights > 0).sum(-1)

    def pdf(self, points: Tensor) -> Tensor:
        """Density at `points`, (P, d) shared or (..., P, d) per example -> (..., P)."""
        return self._sum(self._each(points), ((points >= 0) & (points <= 1)).all(-1).to(self.weights.dtype))

    def expect(self, basis: Basis) -> Tensor:
        """Expectation of every basis function, (..., J): `Σ π_k r_k`, and π_0 times its integral over the image."""
        each = self.components.expect(basis)
        return self._sum(each, None if self.background is None else basis.mass_in_image().to(each))

    def to_map(self, H: int, W: int | None = None) -> Tensor:
        """Mass in each cell, (..., H, W), or (..., H) in one dimension; tails outside the image do not count."""
        each = self.components.to_map(H, W)
        return self._sum(
            each, torch.full_like(each[..., 0, :] if W is None else each[..., 0, :, :], 1 / (H * (W or 1)))
        )

    def support_area(self) -> Tensor:
        """(...) length or area of the union of the components' supports inside the image; 1 with a background.

        The sum of the areas minus their overlaps: exact if no two supports overlap or if one covers the image. The
        overlaps are counted on 256 x 256 points (4096 on a line), with an error below 1e-3.
        """
        present = self.weights > 0
        areas = torch.where(present, self.components.support_area(), 0.0)
        grid = cell_centres(256, 256) if self.components.mean.shape[-1] == 2 else cell_centres_1d(4096)
        shared = torch.zeros_like(areas.sum(-1))
        for part in torch.split(grid, 4096):
            inside = (self._each(part) > 0) & present.unsqueeze(-1)
            shared = shared + (inside.sum(-2) - 1).clamp(min=0).sum(-1) / len(grid)
        union = torch.where((areas >= 1).any(-1), 1.0, areas.sum(-1) - shared)
        return union if self.background is None else torch.where(self.background > 0, 1.0, union)

    def ellipses(self, level: float) -> Ellipses:
        """Contours that enclose the fraction `level` of each component's mass: K per example, with their weights."""
        each = self.components.ellipses(level)
        return Ellipses(each.centre.squeeze(-2), each.radii.squeeze(-2), each.angle.squeeze(-1), self.weights)

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """(..., n, d) independent draws, differentiable in the components but not in the weights.

        A row whose weights are all zero draws from all its components with equal probability.
        """
        draws, weights = self.components.sample(n, generator), self.weights.detach()
        if self.background is not None:
            even = torch.rand(draws[..., :1, :, :].shape, dtype=draws.dtype, device=draws.device, generator=generator)
            draws = torch.cat([draws, even], dim=-3)
            weights = torch.cat([weights, self.background.detach().unsqueeze(-1)], dim=-1)
        weights = torch.where(weights.sum(-1, keepdim=True) > 0, weights, 1.0)
        drawn = torch.multinomial(weights.reshape(-1, weights.shape[-1]), n, replacement=True, generator=generator)
        index = drawn.view(*draws.shape[:-3], 1, n, 1).expand(*draws.shape[:-3], 1, n, draws.shape[-1])
        return draws.gather(-3, index).squeeze(-3)

    def _each(self, points: Tensor) -> Tensor:
        """Density of every component, (..., K, P)."""
        return self.components.pdf(points if points.ndim == 2 else points.unsqueeze(-3))

    def _sum(self, each: Tensor, even: Tensor | None) -> Tensor:
        """`Σ_k π_k each_k + π_0 even` over what is present, (..., K, *) and (*) or (..., *) -> (..., *)."""
        axis = self.weights.ndim - 1
        weights = self.weights.reshape(self.weights.shape + (1,) * (each.ndim - self.weights.ndim))
        # not a matrix product: an absent component may be infinite, and zero times that is not zero
        total = torch.where(weights > 0, weights * each, 0.0).sum(axis)
        if self.background is None or even is None:
            return total
        return total + self.background.reshape(self.background.shape + (1,) * (total.ndim - axis)) * even


def _outer(x: Tensor) -> Tensor:
    return x.unsqueeze(-1) * x.unsqueeze(-2)
