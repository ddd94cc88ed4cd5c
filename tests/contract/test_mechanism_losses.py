"""Laws of `attend.loss(scores, target)`, zero at the target, gradient p - q everywhere, and of `density_loss`."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck

from foveate import fenchel_young_loss, mechanism
from foveate.attention import MECHANISMS, DiscreteAttention
from foveate.attention.arguments import map_weights
from foveate.ops.resample import resample_map
from tests.cases import draw

GRIDS = {"one": (3, 4), "several": torch.tensor([[3, 4], [2, 5]]), "line": (12,)}
ELLIPSES = ["continuous-softmax", "continuous-sparsemax", "continuous-entmax"]
DISCRETE = [name for name, row in MECHANISMS.items() if not row.continuous]


def case(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scores, a target on the simplex, and a mask that leaves out the padding of the smaller grid and one cell."""
    scores, target = draw(2, 3, 12, seed=seed), draw(2, 3, 12, seed=seed + 1).exp()
    mask = torch.ones(2, 12, dtype=torch.bool)
    mask[1, 10:], mask[0, 4] = False, False
    target = target * mask[:, None]
    return scores, target / target.sum(-1, keepdim=True), mask


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("name", MECHANISMS)
def test_the_gradient_is_weights_minus_target(name, grid):
    scores, target, mask = case()
    attend, z = mechanism(name, temperature=0.5).eval(), scores.clone().requires_grad_()
    loss = attend.loss(z, target, grid=GRIDS[grid], mask=mask)
    (slope,) = torch.autograd.grad(loss.sum(), z)
    weights = attend(scores, draw(2, 12, 4), grid=GRIDS[grid], mask=mask).weights
    assert loss.shape == (2, 3)
    assert (loss > 0).all()
    torch.testing.assert_close(slope, weights - target)
    own = attend.loss(scores, weights, grid=GRIDS[grid], mask=mask)
    torch.testing.assert_close(own, torch.zeros_like(own))


@pytest.mark.parametrize("name", DISCRETE)
def test_cells_without_weight_move(name):
    scores, target = torch.zeros(1, 12), torch.zeros(1, 12)
    scores[:, 0], target[:, 11] = 50.0, 1.0
    scores.requires_grad_()
    attend = DiscreteAttention(name)
    assert attend.weigh(scores, (3, 4))[0, 11] < 1e-9
    attend.loss(scores, target, grid=(3, 4)).sum().backward()
    assert scores.grad[0, 11] == -1


@pytest.mark.parametrize("name", DISCRETE)
def test_learned_options_get_their_gradient(name):
    scores, target, _ = case()
    attend = DiscreteAttention(name, learnable=True, heads=3).double()
    scores, target = scores[:, :, None].double(), target[:, :, None].double()
    parameters = tuple(attend.parameters())
    assert parameters

    def loss(*values: torch.Tensor) -> torch.Tensor:
        state = {n: v for (n, _), v in zip(attend.named_parameters(), values, strict=True)}
        return torch.func.functional_call(_Loss(attend), {f"attend.{n}": v for n, v in state.items()}, (scores, target))

    assert gradcheck(loss, tuple(p.detach().clone().requires_grad_() for p in parameters))


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("name", ELLIPSES)
def test_the_density_loss_compares_with_the_density_of_the_target(name, grid):
    """A run that attends with the target as its weights has the density that the loss compares with."""
    scores, target, mask = case()
    attend, values = mechanism(name, temperature=0.5, positions="ends").eval(), draw(2, 12, 4)
    own = attend(scores, values, grid=GRIDS[grid], mask=mask).density
    wanted = attend(0.5 * target.log(), values, grid=GRIDS[grid], mask=mask).density
    loss = attend.density_loss(scores, target, grid=GRIDS[grid], mask=mask)
    torch.testing.assert_close(loss, fenchel_young_loss(own, wanted))
    assert loss.shape == (2, 3)
    assert (loss > 0).all()
    agreed = attend.density_loss(0.5 * target.log(), target, grid=GRIDS[grid], mask=mask)
    torch.testing.assert_close(agreed, torch.zeros_like(agreed), atol=1e-9, rtol=0)


@pytest.mark.parametrize("name", ELLIPSES)
def test_the_density_loss_asks_for_the_moments_alone(name):
    """A ring and a blob of one mean and covariance are the same to an ellipse, and not to the loss of the scores."""
    ring = torch.tensor([[1.0, 1, 1, 1, 0, 1, 1, 1, 1]], dtype=torch.float64) / 8
    attend = mechanism(name)
    corners = torch.zeros(1, 9, dtype=torch.float64)
    corners[:, [0, 2, 6, 8]], corners[:, 4] = 3 / 16, 1 / 4  # variances 3/4 of a cell squared, as those of the ring
    target = (corners + 1e-12) / (corners + 1e-12).sum()
    assert attend.density_loss((ring + 1e-12).log(), target, grid=(3, 3)).abs() < 1e-9
    assert attend.loss((ring + 1e-12).log(), target, grid=(3, 3)) > 0.5


@pytest.mark.parametrize("name", ELLIPSES)
def test_the_gradient_of_the_density_loss_is_exact(name):
    scores, target, mask = case()
    attend = mechanism(name)
    assert gradcheck(lambda z: attend.density_loss(z, target, grid=(3, 4), mask=mask), scores.requires_grad_())


def test_a_mixture_has_no_density_loss():
    scores, target, _ = case()
    with pytest.raises(TypeError, match=r"expected two densities of one family .* use attend.loss"):
        mechanism("multimodal").density_loss(scores, target, grid=(3, 4))


class _Loss(torch.nn.Module):
    def __init__(self, attend: DiscreteAttention) -> None:
        super().__init__()
        self.attend = attend

    def forward(self, scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return self.attend.loss(scores, target, grid=(3, 4))


def test_maps_become_weights_of_each_grid():
    maps, grid = draw(2, 6, 6).exp(), torch.tensor([[3, 4], [2, 5]])
    weights = map_weights(maps, grid, 12)
    torch.testing.assert_close(weights[0], resample_map(maps[0], 3, 4).flatten())
    torch.testing.assert_close(weights[1, :10], resample_map(maps[1], 2, 5).flatten())
    assert (weights[1, 10:] == 0).all()
    torch.testing.assert_close(map_weights(maps, (3, 4), 12), resample_map(maps, 3, 4).flatten(1))
