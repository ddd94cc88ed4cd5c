"""Weights by their supports."""

from __future__ import annotations

import pytest
import torch

import foveate as fv
from foveate.errors import ShapeError
from tests.cases import draw


def call(**options):
    parts = [draw(2, 2, n, 8, seed=i).requires_grad_() for i, n in enumerate((5, 13, 13))]
    return parts, fv.scaled_dot_product_attention(*parts, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"transform": "entmax", "alpha": 1.3, "is_causal": True},
        {"transform": "sparsemax", "temperature": torch.tensor([[[0.5]], [[2.0]]])},
        {"transform": "softmax"},
        {"transform": "fusedmax"},
        {"transform": "tvmax", "grid": (3, 4), "prefix": 1},
    ],
    ids=lambda options: options["transform"],
)
def test_sparse_is_dense_with_the_same_gradients(options):
    parts, (context, sparse) = call(**options, return_weights="sparse")
    again, (expected, weights) = call(**options, return_weights=True)
    torch.testing.assert_close(context, expected)
    torch.testing.assert_close(sparse.to_dense(), weights)
    assert sparse.key_count == 13
    assert ((sparse.indices >= 0) == (sparse.weights > 0)).all()
    direction = draw(*weights.shape, seed=9)
    found = torch.autograd.grad((sparse.to_dense() * direction).sum() + context.sum(), parts)
    for a, b in zip(found, torch.autograd.grad((weights * direction).sum() + expected.sum(), again), strict=True):
        torch.testing.assert_close(a, b)


def test_picking_examples_queries_and_maps():
    _, (_, sparse) = call(transform="entmax", return_weights="sparse")
    dense = sparse.to_dense()
    torch.testing.assert_close(sparse[1].to_dense(), dense[1:])
    torch.testing.assert_close(sparse[[1, 0]].to_dense(), dense[[1, 0]])
    seen = sparse.attended(query=2, grid=(3, 4), prefix=1)
    cells = dense[:, :, 2, 1:].mean(1)
    torch.testing.assert_close(seen.weights, cells / cells.sum(-1, keepdim=True))
    assert seen.map().shape == (2, 3, 4)
    torch.testing.assert_close(sparse.attended().weights, dense.mean(1))
    assert sparse.nbytes < dense.numel() * dense.element_size() * 2
    with pytest.raises(ShapeError, match="at least 21 keys for a prefix of 1 and a grid of 4 x 5, got 13"):
        sparse.attended(grid=(4, 5), prefix=1)


def test_a_row_without_keys_has_no_support():
    parts, _ = call()
    mask = torch.ones(5, 13, dtype=torch.bool).index_fill(0, torch.tensor([3]), False)
    context, sparse = fv.scaled_dot_product_attention(*parts, mask, transform="entmax", return_weights="sparse")
    assert (sparse.indices[:, :, 3] == -1).all()
    assert not context[:, :, 3].any()
    assert not sparse.attended(query=3).weights.any()
