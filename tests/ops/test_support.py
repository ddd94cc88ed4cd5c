"""Locations above the uniform weight, and connected components."""

from __future__ import annotations

import pytest
import torch
from scipy.ndimage import label
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components as by_scipy

from foveate.errors import ShapeError
from foveate.ops.support import above_uniform, connected_components, label_components
from tests.cases import draw


def test_above_uniform_counts_the_locations_of_the_mask():
    weights = torch.tensor([[0.5, 0.3, 0.2, 0.0], [0.5, 0.5, 0.0, 0.0]])
    assert above_uniform(weights).tolist() == [[True, True, False, False], [True, True, False, False]]
    mask = torch.tensor([[True, True, True, False], [True, True, False, False]])
    assert above_uniform(weights, mask).tolist() == [[True, False, False, False], [False] * 4]
    assert above_uniform(weights, torch.tensor([[True], [False]])).tolist() == [[True, True, False, False], [False] * 4]


def test_above_uniform_broadcasts_a_mask_beside_query_axes():
    weights, mask = draw(2, 3, 6).softmax(-1), torch.arange(6) < torch.tensor([[6], [4]])
    weights = weights * mask[:, None] / (weights * mask[:, None]).sum(-1, keepdim=True)
    expected = weights > 1 / mask.sum(-1)[:, None, None]
    assert torch.equal(above_uniform(weights, mask[:, None]), expected)


def test_a_multiple_of_the_uniform_weight():
    weights = torch.tensor([0.7, 0.2, 0.1, 0.0])
    assert above_uniform(weights, multiple=2).tolist() == [True, False, False, False]
    assert above_uniform(weights, multiple=0).tolist() == [True, True, True, False]


def test_uniform_weights_are_not_above_uniform():
    for n in range(1, 500):
        for dtype in (torch.float32, torch.float64):
            assert not above_uniform(torch.full((n,), 1 / n, dtype=dtype)).any(), n


def test_no_locations():
    assert above_uniform(torch.zeros(2, 0)).shape == (2, 0)
    assert above_uniform(torch.zeros(2, 0), torch.ones(2, 0, dtype=torch.bool)).shape == (2, 0)
    for shape in ((0, 3, 4), (2, 0, 4), (2, 3, 0)):
        assert label_components(torch.ones(shape, dtype=torch.bool)).shape == shape


def test_masks_that_do_not_fit_are_explained():
    with pytest.raises(ShapeError, match=r"above_uniform: expected a mask that broadcasts to \(2, 4\), got \(2, 3\)"):
        above_uniform(torch.zeros(2, 4), torch.ones(2, 3, dtype=torch.bool))
    with pytest.raises(TypeError, match="above_uniform: expected floating-point weights"):
        above_uniform(torch.zeros(2, dtype=torch.long))


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (7, 1), (6, 7), (14, 14)])
def test_components_of_grids_agree_with_scipy(shape):
    inside = draw(5, 2, *shape) > 0
    for cells, ours in zip(inside.flatten(0, 1), label_components(inside).flatten(0, 1), strict=True):
        theirs = torch.from_numpy(label(cells.numpy())[0]).long()
        assert (ours[~cells] == -1).all()
        for number in theirs.unique().tolist():
            if number:
                same = theirs == number
                assert (ours[same] == same.flatten().nonzero()[0, 0]).all()
        assert len(ours.unique()) == len(theirs.unique())


def test_components_of_graphs_agree_with_scipy():
    generator = torch.Generator().manual_seed(0)
    near, far = torch.randint(20, (2, 25), generator=generator)
    joined = torch.rand(25, 30, generator=generator) > 0.4
    labels = connected_components(20, near, far, joined)
    for graph in range(30):
        kept = joined[:, graph]
        matrix = coo_matrix((torch.ones(int(kept.sum())), (near[kept], far[kept])), shape=(20, 20))
        count, theirs = by_scipy(matrix, directed=False)
        for number in range(count):
            nodes = torch.from_numpy(theirs == number).nonzero()[:, 0]
            assert (labels[nodes, graph] == nodes[0]).all()
