"""Maps as distributions on a grid: the mass in each cell."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from foveate.ops.resample import to_distribution


def to_grid(look, H, W):
    return to_distribution(torch.from_numpy(look), H, W).numpy()


def slow_grid(look, H, W):
    """Cut every pixel into H x W equal parts: then each part lies in one cell."""
    fine = np.kron(look, np.ones((H, W)))
    h, w = look.shape
    cells = fine.reshape(H, h, W, w).sum((1, 3))
    return cells / cells.sum()


@given(st.integers(1, 7), st.integers(1, 7), st.integers(1, 6), st.integers(1, 6), st.integers(0, 100))
def test_grid_is_the_mass_in_each_cell(h, w, H, W, seed):
    look = np.random.default_rng(seed).random((h, w)) + 0.01
    np.testing.assert_allclose(to_grid(look, H, W), slow_grid(look, H, W), atol=1e-12)
    assert to_grid(look, H, W).sum() == pytest.approx(1)


def test_grid_keeps_rows_and_columns_apart():
    look = np.zeros((4, 6))
    look[0, 5] = 255
    assert to_grid(look, 2, 3).tolist() == [[0, 0, 1], [0, 0, 0]]
    assert to_grid(np.zeros((4, 6)), 2, 3).tolist() == [[0] * 3] * 2
