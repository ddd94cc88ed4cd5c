"""Coordinates and resampling."""

from __future__ import annotations

import torch

from foveate.ops import cell_centres, cell_variance, resample_map
from foveate.ops.grid import canvas_places, cell_centres_1d, grid_edges
from tests.cases import draw


def test_centres_run_along_rows_with_x_first():
    centres = cell_centres(2, 3, dtype=torch.float64)
    assert centres.shape == (6, 2)
    torch.testing.assert_close(centres[1], torch.tensor([0.5, 0.25], dtype=torch.float64))
    torch.testing.assert_close(centres[3], torch.tensor([1 / 6, 0.75], dtype=torch.float64))
    assert cell_centres(0, 3).shape == (0, 2)


def test_cell_variance_of_grids_masks_and_single_rows():
    torch.testing.assert_close(cell_variance(cell_centres(14, 7)), torch.tensor([1 / 49, 1 / 196]) / 12)
    torch.testing.assert_close(cell_variance(cell_centres(1, 4)), torch.tensor([1 / 16, 1.0]) / 12)
    torch.testing.assert_close(cell_variance(cell_centres_1d(5)), torch.tensor([1 / 25]) / 12)
    padded = torch.cat([cell_centres(2, 2), torch.zeros(3, 2)])
    torch.testing.assert_close(cell_variance(padded, torch.arange(7) < 4), torch.tensor([0.25, 0.25]) / 12)


def test_resampling_keeps_the_mass_and_inverts_a_refinement():
    cells = draw(2, 3, 5, 7).abs()
    for H, W in ((5, 7), (10, 21), (3, 2), (1, 1), (64, 9)):
        there = resample_map(cells, H, W)
        torch.testing.assert_close(there.sum((-2, -1)), cells.sum((-2, -1)))
    torch.testing.assert_close(resample_map(resample_map(cells, 15, 14), 5, 7), cells)


def test_resampling_grids_of_different_sizes():
    canvas = torch.zeros(2, 3, 4, dtype=torch.float64)
    canvas[0, :2, :2] = draw(2, 2).abs()
    canvas[1] = draw(3, 4, seed=1).abs()
    got = resample_map(canvas, 6, 4, torch.tensor([[2, 2], [3, 4]]))
    torch.testing.assert_close(got[0], resample_map(canvas[0, :2, :2], 6, 4))
    torch.testing.assert_close(got[1], resample_map(canvas[1], 6, 4))


def test_edges_and_places():
    assert grid_edges(1, 1).shape == (0, 2)
    assert len(grid_edges(3, 4)) == 2 * 4 + 3 * 3
    places, real = canvas_places(torch.tensor([[2, 3], [1, 2]]), 6, 4)
    assert places[0].tolist() == [0, 1, 2, 4, 5, 6]
    assert real.sum(-1).tolist() == [6, 2]
