"""The laws that every mechanism of the table obeys."""

from __future__ import annotations

import math

import pytest
import torch

from foveate import MECHANISMS, mechanism
from tests.cases import draw

pytestmark = pytest.mark.parametrize("name", list(MECHANISMS))
GRID, N, D = (4, 5), 20, 6


def inputs(*queries: int, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    return 2 * draw(3, *queries, N, dtype=dtype), draw(3, N, D, seed=1, dtype=dtype)


def test_shapes_for_no_one_and_two_query_axes(name):
    attend = mechanism(name).eval()
    for queries in ((), (2,), (2, 3)):
        scores, values = inputs(*queries)
        out = attend(scores, values, grid=GRID)
        assert out.context.shape == (3, *queries, D)
        assert out.weights.shape == (3, *queries, N)
        assert out.map().shape == (3, *queries, *GRID)


def test_maps_sum_to_one_on_any_grid(name):
    scores, values = inputs()
    out = mechanism(name).eval()(scores, values, grid=GRID)
    for H, W in (GRID, (9, 3), (16, 16)):
        torch.testing.assert_close(out.map(H, W).sum((-2, -1)), torch.ones(3, dtype=torch.float64), rtol=0, atol=1e-9)
    assert (out.map() >= 0).all()


def test_examples_do_not_see_each_other(name):
    attend = mechanism(name).eval()
    scores, values = inputs()
    together = attend(scores, values, grid=GRID)
    alone = attend(scores[1:2], values[1:2], grid=GRID)
    torch.testing.assert_close(together.context[1:2], alone.context, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(together.map(7, 7)[1:2], alone.map(7, 7), rtol=1e-9, atol=1e-9)


def test_masked_locations_have_no_influence(name):
    attend = mechanism(name).eval()
    scores, values = inputs()
    mask = torch.ones(3, N, dtype=torch.bool)
    mask[0, 10:] = False
    expected = attend(scores, values, grid=GRID, mask=mask)
    junk = attend(scores.masked_fill(~mask, 50.0), values.masked_fill(~mask[..., None], 7.0), grid=GRID, mask=mask)
    torch.testing.assert_close(junk.context, expected.context, rtol=1e-9, atol=1e-9)
    assert (expected.weights[~mask] == 0).all()


def test_nothing_to_attend_to(name):
    attend = mechanism(name).eval()
    scores, values = inputs()
    scores.requires_grad_()
    mask = torch.ones(3, N, dtype=torch.bool)
    mask[1] = False
    out = attend(scores, values, grid=GRID, mask=mask)
    out.context.square().sum().backward()
    assert (out.context[1] == 0).all()
    assert (out.map(5, 5)[1] == 0).all()
    assert (scores.grad[1] == 0).all()
    assert torch.isfinite(scores.grad).all()


def test_gradients_reach_scores_and_values(name):
    torch.manual_seed(0)
    attend = mechanism(name)
    scores, values = inputs()
    scores.requires_grad_()
    values.requires_grad_()
    attend(scores, values, grid=GRID).context.square().sum().backward()
    assert torch.isfinite(scores.grad).all()
    assert scores.grad.abs().sum() > 0
    assert values.grad.abs().sum() > 0


@pytest.mark.parametrize("grid", [(3, 3), (6,)], ids=["plane", "line"])
def test_second_derivatives_are_right(name, grid):
    """In scores and values; a wrong one would mislead gradient penalties and meta-learning without a word."""
    if MECHANISMS[name].needs_grid and len(grid) == 1:
        pytest.skip("over a two-dimensional grid only")
    attend, n = mechanism(name).eval(), math.prod(grid)
    inputs = draw(2, n).requires_grad_(), draw(2, n, 2, seed=1).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda z, v: attend(z, v, grid=grid).context, inputs, atol=1e-5, rtol=1e-4)


def test_evaluation_is_repeatable(name):
    attend = mechanism(name).eval()
    scores, values = inputs()
    assert torch.equal(attend(scores, values, grid=GRID).context, attend(scores, values, grid=GRID).context)


def test_grids_of_different_sizes_in_one_batch(name):
    grid = torch.tensor([[2, 5], [4, 5], [5, 3]])
    attend = mechanism(name).eval()
    scores, values = inputs()
    mask = torch.arange(N) < grid.prod(-1, keepdim=True)
    out = attend(scores, values, grid=grid, mask=mask)
    alone = attend(scores[:1, :10], values[:1, :10], grid=(2, 5))
    torch.testing.assert_close(out.map(6, 6)[:1], alone.map(6, 6), rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(out.context[:1], alone.context, rtol=1e-6, atol=1e-6)
    unmasked = attend(scores, values, grid=grid)
    torch.testing.assert_close(unmasked.context, out.context)
    assert (unmasked.weights[0, 10:] == 0).all()


def test_tuple_and_tensor_grids_agree(name):
    attend = mechanism(name).eval()
    for queries in ((), (2,)):
        scores, values = inputs(*queries)
        expected = attend(scores, values, grid=GRID)
        out = attend(scores, values, grid=torch.tensor([GRID] * 3))
        torch.testing.assert_close(out.weights, expected.weights)
        torch.testing.assert_close(out.context, expected.context)
        torch.testing.assert_close(out.map(7, 6), expected.map(7, 6))


def test_one_dimension(name):
    scores, values = inputs()
    out = mechanism(name).eval()(scores, values, grid=(N,))
    assert out.context.shape == (3, D)
    torch.testing.assert_close(out.map(10).sum(-1), torch.ones(3, dtype=torch.float64), rtol=0, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dtypes(name, dtype):
    scores, values = inputs(dtype=dtype)
    out = mechanism(name).eval()(scores, values, grid=GRID)
    assert out.context.dtype == dtype
    assert torch.isfinite(out.context).all()
