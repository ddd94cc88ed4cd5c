"""Attention as a map, whatever the mechanism."""

from __future__ import annotations

import pytest
import torch

from foveate.attention import Attended
from foveate.attention.attended import from_canvas, to_canvas
from foveate.errors import ShapeError
from tests.cases import draw


def test_map_is_the_weights_on_their_grid():
    weights = torch.softmax(draw(2, 3, 12), -1)
    seen = Attended(torch.zeros(2, 3, 5), weights, grid=(3, 4))
    torch.testing.assert_close(seen.map().flatten(-2), weights)
    torch.testing.assert_close(seen.map(9, 2).sum((-2, -1)), torch.ones(2, 3, dtype=torch.float64))


def test_map_in_one_dimension():
    weights = torch.softmax(draw(2, 6), -1)
    seen = Attended(torch.zeros(2, 5), weights, grid=(6,))
    torch.testing.assert_close(seen.map(), weights)
    torch.testing.assert_close(seen.map(3), weights.unflatten(-1, (3, 2)).sum(-1))


def test_map_with_a_grid_an_example():
    weights = torch.tensor([[0.5, 0.5, 0.0, 0.0, 0.0, 0.0], [1 / 6] * 6])
    seen = Attended(torch.zeros(2, 1), weights, grid=torch.tensor([[1, 2], [2, 3]]))
    assert seen.map().shape == (2, 2, 3)
    torch.testing.assert_close(seen.map(4, 4), torch.full((2, 4, 4), 1 / 16))
    queries = Attended(torch.zeros(2, 1), weights[:, None].expand(2, 5, 6), grid=torch.tensor([[1, 2], [2, 3]]))
    torch.testing.assert_close(queries.map(4, 4), torch.full((2, 5, 4, 4), 1 / 16))


def test_nothing_attended_gives_an_empty_map():
    assert Attended(torch.zeros(1, 2), torch.zeros(1, 4), grid=(2, 2)).map(3, 3).sum() == 0


def test_no_grid_no_map():
    with pytest.raises(ShapeError, match=r"Attended.map: expected attention over a grid, got grid=None; pass grid"):
        Attended(torch.zeros(1, 2), torch.zeros(1, 4)).map()


def test_canvas_and_back():
    grid, x = torch.tensor([[2, 3], [3, 1]]), draw(2, 4, 7)
    back = from_canvas(to_canvas(x, grid, (3, 3)), grid, 7)
    torch.testing.assert_close(back[0, :, :6], x[0, :, :6])
    torch.testing.assert_close(back[1, :, :3], x[1, :, :3])
    assert (back[0, :, 6:] == 0).all()
    assert (back[1, :, 3:] == 0).all()
