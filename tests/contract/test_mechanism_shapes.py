"""Shapes that every mechanism accepts: values per head or query, masks that broadcast, grids in every form."""

from __future__ import annotations

import pytest
import torch

from foveate import MECHANISMS, mechanism
from foveate.errors import ShapeError
from tests.cases import draw

pytestmark = pytest.mark.parametrize("name", list(MECHANISMS))
GRID, N, D = (3, 4), 12, 5
close = torch.testing.assert_close


def test_values_with_the_axes_of_the_scores(name):
    """Equal to attending with one head, and one query, at a time."""
    attend, scores = mechanism(name).eval(), 2 * draw(2, 3, 2, N)
    for axes in ((3,), (3, 2), (1, 2), (3, 1), (1,)):
        values = draw(2, *axes, N, D, seed=1)
        out = attend(scores, values, grid=GRID)
        assert out.context.shape == (2, 3, 2, D)
        full = values.reshape(2, *axes, *[1] * (2 - len(axes)), N, D).expand(2, 3, 2, N, D)
        for m in range(3):
            for q in range(2):
                close(out.context[:, m, q], attend(scores[:, m, q], full[:, m, q], grid=GRID).context)


def test_masks_that_broadcast_to_the_scores(name):
    attend, scores, values = mechanism(name).eval(), 2 * draw(2, 3, N), draw(2, N, D, seed=1)
    shared = torch.arange(N) < torch.tensor([[12], [7]])
    expected = attend(scores, values, grid=GRID, mask=shared)
    out = attend(scores, values, grid=GRID, mask=shared[:, None])
    close(out.context, expected.context)
    close(out.mask, shared)
    per_query = draw(2, 3, N, seed=3) > -0.5
    per_query[0, 1] = False
    for own in (values, draw(2, 3, N, D, seed=2)):
        out = attend(scores, own, grid=GRID, mask=per_query)
        assert (out.weights[~per_query] == 0).all()
        assert (out.context[0, 1] == 0).all()
        close(out.mask, per_query.any(1))
        for q in range(3):
            alone = attend(scores[:, q], own if own.ndim == 3 else own[:, q], grid=GRID, mask=per_query[:, q])
            close(out.context[:, q], alone.context)
            if out.density is not None:
                close(out.density.to_map(3, 3)[:, q], alone.density.to_map(3, 3))


def test_a_mask_for_all_examples(name):
    attend, scores, values = mechanism(name).eval(), 2 * draw(2, 3, N), draw(2, N, D, seed=1)
    kept = torch.arange(N) < 9
    expected = attend(scores, values, grid=GRID, mask=kept.expand(2, N)).context
    for mask in (kept, kept[None], kept[None, None]):
        close(attend(scores, values, grid=GRID, mask=mask).context, expected)


def test_grids_as_lists(name):
    attend, scores, values = mechanism(name).eval(), 2 * draw(2, N), draw(2, N, D, seed=1)
    whole = attend(scores, values, grid=GRID)
    close(attend(scores, values, grid=[3, 4]).context, whole.context)
    ragged = attend(scores, values, grid=[(3, 4), (2, 5)])
    close(ragged.context, attend(scores, values, grid=torch.tensor([[3, 4], [2, 5]])).context)
    close(ragged.context[:1], whole.context[:1])
    line = attend(scores, values, grid=N)
    close(line.context, attend(scores, values, grid=(N,)).context)
    assert attend(scores[:0], values[:0], grid=[]).context.shape == (0, D)


def test_what_does_not_fit_is_explained(name):
    attend, scores = mechanism(name), draw(2, 3, N)
    with pytest.raises(ShapeError, match=r"or with the query axes of scores \(2, 3, 12\) .*got \(2, 4, 12, 5\)"):
        attend(scores, draw(2, 4, N, D), grid=GRID)
    with pytest.raises(ShapeError, match=r"expected a mask that broadcasts to \(2, 3, 12\), got \(2, 4, 12\)"):
        attend(scores, draw(2, N, D), grid=GRID, mask=torch.ones(2, 4, N).bool())
    with pytest.raises(ShapeError, match=r"as many axes as scores \(2, 3, 12\), got \(2, 1, 1, 12\)"):
        attend(scores, draw(2, N, D), grid=GRID, mask=torch.ones(2, 1, 1, N).bool())
    with pytest.raises(ShapeError, match=r"one pair of rows and columns per example, got \[\(3,\), \(4,\)\]"):
        attend(scores, draw(2, N, D), grid=[(3,), (4,)])
    with pytest.raises(TypeError, match=r"expected grid as .*, got float"):
        attend(scores, draw(2, N, D), grid=3.5)
