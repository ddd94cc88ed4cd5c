"""Laws of grids for every mechanism: every form of a grid means the same, and a wrong one is explained."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from foveate import MECHANISMS, mechanism, scaled_dot_product_attention
from foveate.errors import ShapeError
from tests.cases import draw

SIZES = st.tuples(st.integers(0, 4), st.integers(0, 4)).filter(lambda size: size[0] * size[1] <= 9)
WRONG = {
    "negative": (torch.tensor([[-2, -3], [2, 3]]), ShapeError, r"rows and columns >= 0, got \[-2, -3\]"),
    "a list, negative": ([(2, 3), (2, -1)], ShapeError, r"rows and columns >= 0, got \[2, -1\]"),
    "float": (torch.full((2, 2), 2.0), TypeError, r"grid of whole numbers, got torch\.float32; use grid\.long\(\)"),
    "boolean": (torch.ones(2, 2, dtype=torch.bool), TypeError, r"grid of whole numbers, got torch\.bool"),
    "array of floats": (np.array([2.0, 3.0]), ShapeError, r"a grid \(H, W\) or one pair"),
    "beyond int64": (torch.tensor([[2**40, 2**40], [2, 3]]), ShapeError, "at most 6 cells per example, got 1208925"),
    "too many cells": (torch.tensor([[2, 3], [2, 4]]), ShapeError, "at most 6 cells per example, got 8"),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("name", list(MECHANISMS))
def test_a_wrong_grid_is_explained(name, case):
    grid, error, message = WRONG[case]
    with pytest.raises(error, match=message):
        mechanism(name).eval()(draw(2, 6), draw(2, 6, 3), grid=grid)


@pytest.mark.parametrize("name", ["softmax", "tvmax", "fusedmax"])
@pytest.mark.parametrize("case", [case for case in WRONG if "array" not in case])
def test_a_wrong_grid_among_tokens_is_explained(name, case):
    grid, error, message = WRONG[case]
    q, k = draw(2, 4, 5), draw(2, 7, 5)
    with pytest.raises(error, match=message):
        scaled_dot_product_attention(q, k, k, transform=name, grid=grid, prefix=1, return_weights=True)


@pytest.mark.parametrize("name", list(MECHANISMS))
@settings(max_examples=10, deadline=None)
@given(sizes=st.lists(SIZES, min_size=1, max_size=4), seed=st.integers(0, 9))
def test_examples_without_cells_are_zeros_and_leave_the_others_alone(name, sizes, seed):
    N = max(1, max(H * W for H, W in sizes))
    scores, values = draw(len(sizes), N, seed=seed).requires_grad_(), draw(len(sizes), N, 3, seed=seed + 1)
    attend = mechanism(name).eval()
    seen = attend(scores, values, grid=torch.tensor(sizes))
    (slope,) = torch.autograd.grad(seen.context.square().sum() + seen.weights.square().sum(), scores)
    maps = seen.map()
    for i, (H, W) in enumerate(sizes):
        n = H * W
        assert torch.isfinite(slope[i]).all()
        assert (slope[i, n:] == 0).all()
        if n == 0:
            assert (seen.context[i] == 0).all()
            assert (seen.weights[i] == 0).all()
            assert (maps[i] == 0).all()
            continue
        alone = attend(scores[i : i + 1, :n], values[i : i + 1, :n], grid=(H, W))
        torch.testing.assert_close(seen.weights[i, :n], alone.weights[0])
        torch.testing.assert_close(seen.context[i], alone.context[0], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", list(MECHANISMS))
def test_every_form_of_a_grid_means_the_same(name):
    scores, values, attend = draw(2, 6), draw(2, 6, 3), mechanism(name).eval()
    expected = attend(scores, values, grid=(2, 3)).context
    for grid in ([2, 3], np.array([2, 3]), torch.Size([2, 3]), np.array([[2, 3]] * 2), [(2, 3)] * 2):
        torch.testing.assert_close(attend(scores, values, grid=grid).context, expected, rtol=1e-6, atol=1e-7)
    for dtype in (torch.int16, torch.int32, torch.uint8):
        grid = torch.tensor([[2, 3]] * 2, dtype=dtype)
        torch.testing.assert_close(attend(scores, values, grid=grid).context, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", [name for name, row in MECHANISMS.items() if row.continuous or name == "tvmax"])
def test_a_grid_is_needed_and_one_number_means_a_line(name):
    attend = mechanism(name).eval()
    with pytest.raises(ShapeError, match=r"grid=\(H, W\), got None; .* 6 locations, grid=\(6,\) if they lie on a line"):
        attend(draw(2, 6), draw(2, 6, 3))
    seen = attend(draw(2, 6), draw(2, 6, 3), grid=(6,))
    assert seen.map().shape == (2, 6)
    assert seen.density is None or seen.density.mean.shape[-1] == 1
