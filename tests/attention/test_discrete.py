"""Attention with discrete weights, and the errors it raises."""

from __future__ import annotations

from inspect import signature

import pytest
import torch

from foveate import mechanism
from foveate.attention import DiscreteAttention
from foveate.errors import ShapeError, UnknownName
from foveate.ops import TRANSFORMS, fusedmax, gfusedmax, tvmax
from foveate.ops.grid import grid_edges
from tests.cases import draw


def test_options_reach_the_transform():
    scores, values = draw(2, 12), draw(2, 12, 3, seed=1)
    for name, option in (("entmax", {"alpha": 1.1}), ("fusedmax", {"smoothness": 0.5}), ("tvmax", {"smoothness": 0.5})):
        plain = mechanism(name)(scores, values, grid=(3, 4)).weights
        other = mechanism(name, **option)(scores, values, grid=(3, 4)).weights
        assert not torch.allclose(plain, other), name


def test_edges_default_to_the_grid_and_can_be_given():
    scores, values = draw(2, 12), draw(2, 12, 3, seed=1)
    on_grid = mechanism("gfusedmax", smoothness=0.2)(scores, values, grid=(3, 4)).weights
    torch.testing.assert_close(on_grid, tvmax(scores.reshape(2, 3, 4), 0.2).flatten(1))
    edges = torch.tensor([[0, 11], [5, 6]])
    given = mechanism("gfusedmax", edges=edges, smoothness=0.2)(scores, values).weights
    torch.testing.assert_close(given, gfusedmax(scores, edges, 0.2))
    chain = mechanism("gfusedmax", smoothness=0.2)(scores, values).weights
    torch.testing.assert_close(chain, gfusedmax(scores, grid_edges(1, 12), 0.2))


@pytest.mark.parametrize("name", list(TRANSFORMS))
def test_grids_of_different_sizes_in_one_batch(name):
    grid = torch.tensor([[2, 3], [3, 3]])
    scores, values = draw(2, 4, 9), draw(2, 9, 5, seed=1)
    mask = torch.arange(9) < grid.prod(-1, keepdim=True)
    out = mechanism(name)(scores, values, grid=grid, mask=mask)
    alone = mechanism(name)(scores[:1, :, :6], values[:1, :6], grid=(2, 3))
    torch.testing.assert_close(out.weights[:1, :, :6], alone.weights)
    torch.testing.assert_close(out.context[:1], alone.context)
    torch.testing.assert_close(out.map(4, 4)[:1], alone.map(4, 4))
    assert (out.weights[0, :, 6:] == 0).all()


@pytest.mark.parametrize("name", list(TRANSFORMS))
def test_a_grid_of_one_dimension_is_a_chain(name):
    scores, values = draw(3, 2, 12), draw(3, 12, 4, seed=1)
    out = mechanism(name)(scores, values, grid=(12,))
    torch.testing.assert_close(out.weights, mechanism(name)(scores, values, grid=(1, 12)).weights)
    torch.testing.assert_close(out.weights[1:2], mechanism(name)(scores[1:2], values[1:2], grid=(12,)).weights)
    assert out.map().shape == (3, 2, 12)
    if name in ("tvmax", "gfusedmax"):
        smoothness = signature(TRANSFORMS[name].function).parameters["smoothness"].default
        torch.testing.assert_close(out.weights, fusedmax(scores, smoothness))


@pytest.mark.parametrize("name", list(TRANSFORMS))
@pytest.mark.parametrize(("B", "N"), [(0, 6), (2, 0), (0, 0)])
def test_no_examples_and_no_locations(name, B, N):
    for queries in ((), (3,), (0,), (2, 3)):
        scores, values = torch.zeros(B, *queries, N, requires_grad=True), torch.zeros(B, N, 5, requires_grad=True)
        for grid in ((N,), (1, N), torch.tensor([[1, N]]).expand(B, 2)):
            out = mechanism(name)(scores, values, grid=grid, mask=torch.ones(B, N, dtype=torch.bool))
            out.context.sum().backward()
            assert out.context.shape == (B, *queries, 5)
            assert out.weights.shape == scores.grad.shape == (B, *queries, N)
            assert (out.context == 0).all()
            assert out.map().shape[: 1 + len(queries)] == (B, *queries)


@pytest.mark.parametrize("name", list(TRANSFORMS))
def test_meta_tensors_have_a_shape_and_no_values(name):
    scores, values = torch.zeros(2, 3, 12, device="meta"), torch.zeros(2, 12, 5, device="meta")
    mask = torch.ones(2, 12, dtype=torch.bool, device="meta")
    out = mechanism(name).to("meta")(scores, values, grid=(3, 4), mask=mask)
    assert out.context.is_meta
    assert out.context.shape == (2, 3, 5)
    assert out.weights.shape == (2, 3, 12)
    assert out.map().shape == (2, 3, 3, 4)


def test_what_does_not_fit_is_explained():
    attend, scores, values = mechanism("tvmax"), draw(2, 12), draw(2, 12, 3)
    with pytest.raises(
        ShapeError, match=r"tvmax: expected grid=\(H, W\), got None; pass the rows and columns of the 12 locations"
    ):
        attend(scores, values)
    with pytest.raises(ShapeError, match=r"tvmax: expected a grid of 12 cells, got \(3, 5\); rows times columns"):
        attend(scores, values, grid=(3, 5))
    with pytest.raises(ShapeError, match=r"tvmax: expected values \(B, N, D\) = \(2, 12, any\), got \(2, 11, 3\)"):
        attend(scores, values[:, 1:], grid=(3, 4))
    for grid in ((2, 2, 3, 1), (-3, -4)):
        with pytest.raises(ShapeError, match=r"tvmax: expected a grid of 12 cells, got \("):
            attend(scores, values, grid=grid)
    with pytest.raises(ShapeError, match=r"expected grid \(B, 2\) = \(2, 2\), got \(3, 2\)"):
        attend(scores, values, grid=torch.ones(3, 2, dtype=torch.long))
    with pytest.raises(ShapeError, match=r"expected at most 12 cells per example, got 16; pad the scores"):
        attend(scores, values, grid=torch.tensor([[4, 4], [1, 1]]))
    with pytest.raises(ShapeError, match=r"softmax: expected a mask that broadcasts to \(2, 12\), got \(2, 11\)"):
        mechanism("softmax")(scores, values, mask=torch.ones(2, 11, dtype=torch.bool))
    with pytest.raises(UnknownName, match="mechanism: expected a known name, got 'tvmx'; did you mean 'tvmax'"):
        mechanism("tvmx")
    with pytest.raises(UnknownName, match=r"option of tvmax: .*got 'smoothnes'; did you mean 'smoothness'"):
        mechanism("tvmax", smoothnes=1)


def test_it_says_what_it_is():
    for name in TRANSFORMS:
        assert name in repr(DiscreteAttention(name))
    assert "smoothness=0.5" in repr(mechanism("tvmax", smoothness=0.5))
