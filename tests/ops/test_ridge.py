"""Ridge regression against the normal equations, row by row."""

from __future__ import annotations

import math

import pytest
import torch

from foveate.errors import ShapeError
from foveate.ops.basis import GaussianBasis, TruncatedParaboloidBasis
from foveate.ops.grid import cell_centres, cell_centres_1d
from foveate.ops.ridge import ridge_coefficients, ridge_matrix


def slow(values, basis, centres, penalty, around=None):
    """argmin over B of ‖Bψ − values‖² + penalty ‖B‖², as one least-squares problem with stacked rows."""
    rows, target = [basis(centres)], [values]
    if around is not None:
        rows.append(basis(around))
        target.append(torch.zeros(len(around), values.shape[-1], dtype=values.dtype))
    rows.append(math.sqrt(penalty) * torch.eye(len(basis), dtype=values.dtype))
    target.append(torch.zeros(len(basis), values.shape[-1], dtype=values.dtype))
    return torch.linalg.lstsq(torch.cat(rows), torch.cat(target), driver="gelsd").solution


def around_image(H, W):
    """The cells of the thesis' larger square that lie outside the image, by loops."""
    up, left = math.ceil(H / 2), math.ceil(W / 2)
    return torch.tensor(
        [
            [(j + 0.5) / W, (i + 0.5) / H]
            for i in range(-up, H + up)
            for j in range(-left, W + left)
            if not (0 <= i < H and 0 <= j < W)
        ],
        dtype=torch.float64,
    )


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("kind", [GaussianBasis, TruncatedParaboloidBasis])
@pytest.mark.parametrize("grid", [(3, 5), (1, 1), (7, 2)])
@pytest.mark.parametrize("penalty", [0.01, 1.0])
@pytest.mark.parametrize("padding", [True, False])
def test_solves_the_least_squares_problem(kind, grid, penalty, padding):
    basis = kind.grid(16, variance=0.02)
    values = draw(2, math.prod(grid), 3)
    found = ridge_coefficients(values, basis, grid, penalty, padding)
    assert found.shape == (2, 16, 3)
    for row, x in zip(found, values, strict=True):
        expected = slow(
            x, basis, cell_centres(*grid, dtype=torch.float64), penalty, around_image(*grid) if padding else None
        )
        torch.testing.assert_close(row, expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("padding", [True, False])
def test_on_a_line(padding):
    basis = GaussianBasis.grid(8, dim=1, variance=0.01)
    values = draw(2, 11, 3)
    around = torch.tensor([(i + 0.5) / 11 for i in range(-6, 17) if not 0 <= i < 11], dtype=torch.float64)[:, None]
    found = ridge_coefficients(values, basis, (11,), padding=padding)
    for row, x in zip(found, values, strict=True):
        expected = slow(x, basis, cell_centres_1d(11, dtype=torch.float64), 0.01, around if padding else None)
        torch.testing.assert_close(row, expected, rtol=1e-7, atol=1e-9)


def test_padding_pulls_the_function_to_zero_outside():
    basis = GaussianBasis.for_grid(7, 7)
    outside = torch.tensor([[-0.1, 0.5], [1.1, 0.5]], dtype=torch.float64)
    values = torch.ones(1, 49, 1, dtype=torch.float64)
    free, padded = (basis(outside) @ ridge_coefficients(values, basis, (7, 7), padding=p)[0] for p in (False, True))
    assert (padded.abs() < 0.4 * free.abs()).all()


@pytest.mark.parametrize("padding", [True, False])
def test_masked_locations_leave_the_fit(padding):
    basis, H, W = GaussianBasis.grid(16, variance=0.03), 4, 5
    values = draw(3, 20, 2)
    mask = torch.rand(3, 20, generator=torch.Generator().manual_seed(1)) > 0.3
    mask[1] = True
    mask[2] = False
    found = ridge_coefficients(
        values.masked_fill(~mask[..., None], float("nan")), basis, (H, W), padding=padding, mask=mask
    )
    centres, around = cell_centres(H, W, dtype=torch.float64), around_image(H, W) if padding else None
    for i in range(2):
        expected = slow(values[i, mask[i]], basis, centres[mask[i]], 0.01, around)
        torch.testing.assert_close(found[i], expected, rtol=1e-7, atol=1e-9)
    assert (found[2] == 0).all()


@pytest.mark.parametrize("given_mask", [True, False])
def test_grids_of_different_shape_in_one_batch(given_mask):
    basis = GaussianBasis.grid(16, variance=0.03)
    shapes = [(2, 3), (4, 4), (2, 3), (5, 1)]
    values = torch.full((4, 18, 2), 1e3, dtype=torch.float64)
    mask = torch.zeros(4, 18, dtype=torch.bool)
    for i, (H, W) in enumerate(shapes):
        values[i, : H * W] = draw(H * W, 2) + i
        mask[i, : H * W] = True
    found = ridge_coefficients(values, basis, torch.tensor(shapes), mask=mask if given_mask else None)
    for i, shape in enumerate(shapes):
        alone = ridge_coefficients(values[i : i + 1, : math.prod(shape)], basis, shape)
        torch.testing.assert_close(found[i : i + 1], alone)


def test_grids_of_different_length_on_a_line():
    basis = GaussianBasis.grid(6, dim=1, variance=0.03)
    values = draw(2, 7, 2)
    found = ridge_coefficients(values, basis, torch.tensor([[7], [4]]))
    torch.testing.assert_close(found[1], ridge_coefficients(values[1:, :4], basis, (4,))[0])


def test_different_grids_and_holes():
    basis = GaussianBasis.grid(9, variance=0.05)
    values, grid = draw(2, 12, 1), torch.tensor([[3, 4], [2, 3]])
    mask = torch.ones(2, 12, dtype=torch.bool)
    mask[1, 6:] = False
    mask[1, 0] = False
    found = ridge_coefficients(values, basis, grid, mask=mask)
    centres = cell_centres(2, 3, dtype=torch.float64)[1:]
    torch.testing.assert_close(
        found[1], slow(values[1, 1:6], basis, centres, 0.01, around_image(2, 3)), rtol=1e-7, atol=1e-9
    )
    torch.testing.assert_close(found[:1], ridge_coefficients(values[:1], basis, (3, 4)))


def test_float32_is_solved_in_float64():
    basis, values = GaussianBasis.grid(100), draw(1, 196, 4)
    exact = ridge_coefficients(values, basis, (14, 14))
    single = ridge_coefficients(values.float(), basis, (14, 14))
    assert single.dtype == torch.float32
    assert float((single - exact).abs().max() / exact.abs().max()) < 1e-5


def test_gradient_reaches_the_values():
    basis, values = GaussianBasis.grid(4, variance=0.1), draw(2, 6, 2).requires_grad_()
    mask = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    assert torch.autograd.gradcheck(lambda v: ridge_coefficients(v, basis, (2, 3)), (values,))
    assert torch.autograd.gradcheck(lambda v: ridge_coefficients(v, basis, (2, 3), mask=mask), (values,))


def test_the_operator_is_kept_per_basis_grid_penalty_and_padding():
    def operator(count=9, grid=(3, 3), penalty=0.01, padding=True, dtype=torch.float64):
        return ridge_matrix(GaussianBasis.grid(count), grid, penalty, padding, dtype, torch.device("cpu"))

    assert operator() is operator()
    others = [operator(count=4), operator(grid=(9, 1)), operator(penalty=0.02), operator(padding=False)]
    assert all(o is not operator() for o in others)
    assert operator(dtype=torch.float32).dtype == torch.float32


def test_first_call_in_inference_mode():
    basis = GaussianBasis.grid(9, variance=0.0123)
    values = draw(1, 9, 1).requires_grad_()
    with torch.inference_mode():
        ridge_coefficients(values, basis, (3, 3))
    ridge_coefficients(values, basis, (3, 3)).sum().backward()
    assert values.grad is not None


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"values": torch.zeros(4, 3)}, ShapeError, r"values \(B, N, D\)"),
        ({"values": torch.zeros(1, 9, 2, dtype=torch.long)}, TypeError, "floating-point values"),
        ({"grid": (2, 3)}, ShapeError, "whose cells are the 9 locations"),
        ({"grid": (9,)}, ShapeError, "grid of 2 axes"),
        ({"grid": (0, 3)}, ShapeError, "grid of 2 axes"),
        ({"grid": torch.tensor([[4, 4]])}, ShapeError, "whose cells are the 9 locations"),
        ({"grid": torch.tensor([[3, 3], [3, 3]])}, ShapeError, r"grid \(B, d\)"),
        ({"penalty": 0.0}, ValueError, "penalty > 0, got 0"),
        ({"mask": torch.ones(1, 8, dtype=torch.bool)}, ShapeError, "mask that broadcasts"),
        ({"mask": torch.ones(1, 9)}, TypeError, "boolean mask"),
    ],
)
def test_bad_input(change, error, message):
    arguments = {"values": torch.zeros(1, 9, 2), "basis": GaussianBasis.grid(4), "grid": (3, 3)} | change
    with pytest.raises(error, match=message):
        ridge_coefficients(**arguments)
