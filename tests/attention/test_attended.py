"""Attention as a map, whatever the mechanism."""

from __future__ import annotations

import pytest
import torch

from foveate.attention import Attended, mechanism
from foveate.attention.arguments import from_canvas, to_canvas
from foveate.errors import ShapeError
from foveate.ops import Gaussian, Mixture
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


def ragged(name: str, queries: tuple[int, ...] = ()) -> tuple[Attended, list[Attended]]:
    """Attention over three images of different grids under a mask, and the same image by image."""
    grid = torch.tensor([[2, 5], [4, 5], [5, 3]])
    mask = torch.arange(20) < grid.prod(-1, keepdim=True)
    mask[1, :7] = False
    scores, values, attend = 2 * draw(3, *queries, 20), draw(3, 20, 6, seed=1), mechanism(name).eval()
    whole = attend(scores, values, grid=grid, mask=mask)
    return whole, [attend(scores[i : i + 1], values[i : i + 1], grid[i : i + 1], mask[i : i + 1]) for i in range(3)]


def assert_same(got: Attended, expected: Attended) -> None:
    for part in ("context", "weights", "grid", "mask"):
        torch.testing.assert_close(getattr(got, part), getattr(expected, part))
    torch.testing.assert_close(got.map(4, 4), expected.map(4, 4))
    assert (got.density is None) == (expected.density is None)
    if got.density is not None:
        torch.testing.assert_close(got.density.mean, expected.density.mean)
        torch.testing.assert_close(got.density.covariance, expected.density.covariance)


@pytest.mark.parametrize(
    "name", ["tvmax", "continuous-softmax", "continuous-entmax", "multimodal", "multimodal-sparse"]
)
@pytest.mark.parametrize("queries", [(), (2,)])
def test_index_picks_examples_and_all_that_belongs_to_them(name, queries):
    whole, alone = ragged(name, queries)
    for i in range(3):
        assert_same(whole[i], alone[i])
        assert_same(whole[i - 3], alone[i])
    for rows in (slice(0, 3, 2), torch.tensor([0, 2]), [0, -1], torch.tensor([True, False, True])):
        picked = whole[rows]
        assert picked.weights.shape == (2, *queries, 20)
        assert_same(picked[0], alone[0])
        assert_same(picked[1], alone[2])
    assert_same(whole[::-1][0], alone[2])
    assert_same(whole[torch.tensor([1, 1, 0])][1], alone[1])
    assert whole[torch.zeros(3, dtype=torch.bool)].context.shape == (0, *queries, 6)
    assert [one.weights.shape[0] for one in whole] == [1, 1, 1]


def test_an_index_keeps_a_shared_grid_and_spreads_a_shared_mask():
    seen = Attended(
        torch.zeros(3, 2), draw(3, 4).softmax(-1), grid=(2, 2), mask=torch.tensor([True, True, True, False])
    )
    assert seen[1].grid == (2, 2)
    assert seen[:2].mask.tolist() == [[True, True, True, False]] * 2


def test_an_index_passes_the_gradient():
    scores = draw(3, 20).requires_grad_()
    out = mechanism("multimodal").eval()(scores, draw(3, 20, 6, seed=1), grid=(4, 5))
    out[1].density.mean.sum().backward()
    assert scores.grad[1].abs().sum() > 0
    assert scores.grad[[0, 2]].abs().sum() == 0


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        (3, IndexError, r"Attended: expected examples in \[-3, 2\], got \[3\]; the batch has 3"),
        (torch.tensor([0, -4]), IndexError, r"got \[0, -4\]"),
        (torch.tensor([True, False]), ShapeError, r"boolean tensor of shape \(3,\), got \(2,\); use one truth value"),
        (torch.tensor([[0]]), ShapeError, r"1-d tensor of example numbers, got torch.int64 of shape \(1, 1\)"),
        (torch.tensor([0.0]), ShapeError, r"1-d tensor of example numbers, got torch.float32"),
        ("first", TypeError, "an int, a slice"),
    ],
)
def test_bad_index(rows, error, message):
    with pytest.raises(error, match=message):
        Attended(torch.zeros(3, 2), torch.zeros(3, 4))[rows]


def test_a_density_without_a_batch_has_no_index():
    with pytest.raises(ShapeError, match="Gaussian: expected a density with a batch axis, got one density"):
        Gaussian(torch.zeros(2), torch.eye(2))[0]
    pair = Mixture(Gaussian(torch.zeros(2, 2), torch.eye(2).expand(2, 2, 2)), torch.tensor([0.5, 0.5]))
    with pytest.raises(ShapeError, match="Mixture: expected a density with a batch axis"):
        pair[0]


@pytest.mark.parametrize("name", ["sparsemax", "continuous-sparsemax", "multimodal"])
@pytest.mark.parametrize("queries", [(3,), (2, 2)])
def test_mean_over_queries_leaves_out_queries_that_attend_to_nothing(name, queries):
    scores, values = 2 * draw(2, *queries, 20), draw(2, 20, 6, seed=1)
    out = mechanism(name).eval()(scores, values, grid=(4, 5))
    blank = torch.zeros(2, *queries, dtype=torch.bool)
    blank[0].flatten()[-1] = True
    gone = blank[..., None]
    density = out.density
    seen = Attended(out.context.masked_fill(gone, 0), out.weights.masked_fill(gone, 0), density, (4, 5))
    mean = seen.mean_over_queries()
    kept = [~blank[i].flatten() for i in range(2)]
    for part, full in (("context", out.context), ("weights", out.weights)):
        expected = torch.stack([full[i].flatten(0, -2)[kept[i]].mean(0) for i in range(2)])
        torch.testing.assert_close(getattr(mean, part), expected)
    if density is None:
        assert mean.density is None
    else:
        maps = density.to_map(6, 6).reshape(2, -1, 6, 6)
        torch.testing.assert_close(mean.density.to_map(6, 6), torch.stack([maps[i][kept[i]].mean(0) for i in range(2)]))
        assert mean.density.batch_shape == (2,)


def test_mean_over_queries_where_no_query_attends_and_where_there_are_none():
    blank = Attended(torch.zeros(1, 2, 3), torch.zeros(1, 2, 4), grid=(2, 2)).mean_over_queries()
    assert blank.weights.tolist() == [[0.0] * 4]
    assert blank.map().sum() == 0
    seen = Attended(torch.zeros(1, 3), torch.full((1, 4), 0.25))
    assert seen.mean_over_queries() is seen
