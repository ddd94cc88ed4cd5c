"""Bases: where the functions are, what they are worth, how well they keep a constant."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import multivariate_normal

from foveate.errors import ShapeError
from foveate.ops.basis import GaussianBasis, TruncatedParaboloidBasis
from foveate.ops.grid import cell_centres, cell_centres_1d, linspace_centres
from foveate.ops.ridge import ridge_coefficients

KINDS = [GaussianBasis, TruncatedParaboloidBasis]
both = pytest.mark.parametrize("kind", KINDS)


@both
def test_grid_is_the_papers(kind):
    basis = kind.grid()
    assert len(basis) == 100
    assert basis.centres.tolist() == linspace_centres(10, 2, dtype=torch.float64).tolist()
    assert basis.variance.tolist() == [0.001, 0.001]
    assert kind.grid(7, dim=1, variance=0.2).centres.shape == (7, 1)
    assert kind.grid(1).centres.tolist() == [[0.5, 0.5]]
    assert kind.grid(4, dtype=torch.float32).centres.dtype == torch.float32


@pytest.mark.parametrize("dim", [1, 2])
def test_gaussian_values(dim):
    basis = GaussianBasis.grid(9, dim=dim, variance=0.02)
    points = torch.rand(4, 3, dim, dtype=torch.float64)
    values = basis(points)
    assert values.shape == (4, 3, 9)
    for j, c in enumerate(basis.centres):
        expected = multivariate_normal(c.numpy(), 0.02).pdf(points.numpy())
        torch.testing.assert_close(values[..., j], torch.tensor(expected))


@both
@pytest.mark.parametrize("dim", [1, 2])
def test_functions_have_mass_one_and_their_variance(kind, dim):
    side = 2000 if dim == 1 else 500
    points = linspace_centres(side, dim, dtype=torch.float64) * 4 - 1.5
    basis = kind(torch.full((1, dim), 0.5).double(), torch.tensor([0.03, 0.01]).double()[:dim])
    values = basis(points)[:, 0] * (4 / (side - 1)) ** dim
    assert math.isclose(values.sum().item(), 1, abs_tol=1e-4)
    spread = (values[:, None] * (points - 0.5).square()).sum(0)
    torch.testing.assert_close(spread, basis.variance, rtol=1e-3, atol=0)


def test_paraboloids_end():
    basis = TruncatedParaboloidBasis(torch.tensor([[0.5, 0.5]]), torch.tensor([0.01, 0.01]))
    edge = math.sqrt(0.06)
    values = basis(torch.tensor([[0.5 + 0.99 * edge, 0.5], [0.5 + 1.01 * edge, 0.5]]))
    assert values[0] > 0
    assert values[1] == 0


@pytest.mark.parametrize(
    ("kind", "H"),
    [(GaussianBasis, H) for H in (1, 2, 3, 4, 5, 7, 8, 10, 14, 19, 32)]
    + [(TruncatedParaboloidBasis, H) for H in (1, 4, 14)],
)
def test_a_constant_stays_a_constant(kind, H):
    """Seen at more points than the search looks at."""
    points = linspace_centres(73, 2, dtype=torch.float64)
    for W in (1, 3, 6, 7, 9, 14, 32):
        basis = kind.for_grid(H, W)
        assert len(basis) <= 100
        values = torch.ones(1, H * W, 1, dtype=torch.float64)
        fitted = basis(points) @ ridge_coefficients(values, basis, (H, W), padding=False)[0]
        allowed = 0.0505 if kind is GaussianBasis or min(H, W) > 3 else 0.2
        assert float((fitted - 1).abs().max()) <= allowed, (H, W)


@both
@pytest.mark.parametrize("N", [1, 2, 3, 5, 14, 50, 128, 300])
def test_a_constant_stays_a_constant_on_a_line(kind, N):
    basis = kind.for_grid(N)
    assert len(basis) <= 100
    values = torch.ones(1, N, 1, dtype=torch.float64)
    fitted = (
        basis(linspace_centres(500, 1, dtype=torch.float64)) @ ridge_coefficients(values, basis, (N,), padding=False)[0]
    )
    assert float((fitted - 1).abs().max()) <= (0.0505 if kind is GaussianBasis or N > 3 else 0.1)


def test_the_papers_basis_does_not_keep_a_constant_on_a_coarse_grid():
    """Why `for_grid` exists: paragraph 2 of the documentation of continuous attention."""
    basis = GaussianBasis.grid()
    fitted = (
        basis(linspace_centres(50, 2).double())
        @ ridge_coefficients(torch.ones(1, 49, 1).double(), basis, (7, 7), padding=False)[0]
    )
    assert float((fitted - 1).abs().max()) > 1


def test_for_grid_follows_the_shape_of_the_grid():
    wide = GaussianBasis.for_grid(4, 16)
    assert wide.variance[0] < wide.variance[1]
    assert len(GaussianBasis.for_grid(7, 7)) == 49
    detail = torch.zeros(1, 49, 1, dtype=torch.float64)
    detail[0, 24] = 1
    basis = GaussianBasis.for_grid(7, 7)
    at = basis(cell_centres(7, 7).double()) @ ridge_coefficients(detail, basis, (7, 7), padding=False)[0]
    assert at[24] > 0.7
    assert at.abs().topk(2, dim=0).values[1] < 0.3


def test_equal_when_the_same():
    assert GaussianBasis.grid(9) == GaussianBasis.grid(9)
    assert hash(GaussianBasis.grid(9)) == hash(GaussianBasis.grid(9))
    assert GaussianBasis.grid(9) != GaussianBasis.grid(9, variance=0.002)
    assert GaussianBasis.grid(9) != TruncatedParaboloidBasis.grid(9)
    assert GaussianBasis.grid(9) != GaussianBasis.grid(4)
    assert GaussianBasis.grid(9) != "basis"
    assert GaussianBasis.grid(9).to("cpu") == GaussianBasis.grid(9)


@both
@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda k: k.grid(50), "perfect square as count in two dimensions, got 50; use 49"),
        (lambda k: k.grid(0), "got 0; use 1"),
        (lambda k: k.grid(0, dim=1), "count >= 1, got 0"),
        (lambda k: k.grid(8, dim=3), "dim 1 or 2, got 3"),
        (lambda k: k.grid(4, variance=0.0), "variance > 0, got 0"),
        (lambda k: k.for_grid(0, 3), "at least one cell, got H=0, W=3"),
        (lambda k: k(torch.zeros(3, 2), torch.tensor([1.0, -1.0])), "variance > 0"),
    ],
)
def test_bad_values(kind, build, message):
    with pytest.raises(ValueError, match=message):
        build(kind)


@both
def test_bad_shapes(kind):
    with pytest.raises(ShapeError, match=r"centres \(J, d\)"):
        kind(torch.zeros(3), torch.ones(1))
    with pytest.raises(ShapeError, match=r"variance \(d,\)"):
        kind(torch.zeros(3, 2), torch.ones(3))
    with pytest.raises(ShapeError, match=r"expected points \(..., P, 2\)"):
        kind.grid(4)(cell_centres_1d(3))
    with pytest.raises(TypeError, match="floating-point centres"):
        kind(torch.zeros(3, 2, dtype=torch.long), torch.ones(2))
