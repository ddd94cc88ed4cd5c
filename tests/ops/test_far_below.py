"""Scores far below the largest are masks for the transforms that couple neighbours, by every path."""

from __future__ import annotations

import pytest
import torch

from foveate import fusedmax, gfusedmax, mechanism, scaled_dot_product_attention, sparsemax, tvmax
from foveate.ops.grid import grid_edges
from tests.cases import draw
from tests.ops.kernels.test_agreement import only_torch

EDGES = torch.cat([grid_edges(3, 4), torch.tensor([[0, 11], [5, 5], [2, 9], [2, 9]])])
FUSED = {
    "fusedmax": lambda z, s, m=None: fusedmax(z, s, mask=m),
    "fusedmax along another axis": lambda z, s, m=None: (
        fusedmax(
            z.mT, s.mT if isinstance(s, torch.Tensor) and s.ndim else s, dim=-2, mask=None if m is None else m.mT
        ).mT
    ),
    "gfusedmax": lambda z, s, m=None: gfusedmax(z, EDGES, s, m),
    "tvmax": lambda z, s, m=None: tvmax(
        z.unflatten(-1, (3, 4)),
        s.unsqueeze(-1) if isinstance(s, torch.Tensor) and s.ndim else s,
        None if m is None else m.unflatten(-1, (3, 4)),
    ).flatten(-2),
}


@pytest.mark.parametrize("smoothness", [0.1, 2.0, torch.tensor(0.1), torch.tensor([[0.05], [0.1], [0.2], [1.0]])])
@pytest.mark.parametrize("low", [-1e4, -1e9, -3e38])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", FUSED)
def test_an_added_mask_is_a_mask(name, dtype, low, smoothness):
    low = max(low, torch.finfo(dtype).min / 2)
    keep = draw(4, 12, seed=1) > -0.4
    keep[:, 3] = True
    function = FUSED[name]
    for scale in (1.0, 100.0):
        scores = (draw(4, 12) * scale).to(dtype)
        expected = function(scores, smoothness, keep)
        added = (scores + torch.where(keep, 0.0, low).to(dtype)).requires_grad_()
        found = function(added, smoothness)
        torch.testing.assert_close(found, expected)
        (found * draw(4, 12, seed=2).to(dtype)).sum().backward()
        assert (added.grad[~keep] == 0).all()
        with only_torch():
            torch.testing.assert_close(function(added, smoothness), expected, rtol=1e-5, atol=1e-6)
        each = torch.func.vmap(lambda z: function(z[None], 0.1)[0])(added.detach())
        torch.testing.assert_close(each, function(scores, 0.1, keep), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("smoothness", [0.0, 0.1, 10.0, 2000.0])
def test_the_margin_leaves_no_weight_out(name, smoothness):
    """A score just below the margin is masked, and just above it, it has no weight either."""
    scores = draw(1, 12)
    function = FUSED[name]
    degree = {"gfusedmax": 6, "tvmax": 4}.get(name, 2)
    margin = 5e3 + 2 * degree * smoothness
    above, below = (scores.clone().index_fill_(1, torch.tensor([4]), 0) for _ in range(2))
    above[0, 4], below[0, 4] = above.max() - margin + 0.5, below.max() - margin - 0.5
    keep = torch.arange(12) != 4
    torch.testing.assert_close(function(below, smoothness), function(scores, smoothness, keep[None]))
    assert function(above, smoothness)[0, 4] == 0


@pytest.mark.parametrize("low", [-10.0, -1000.0, -4900.0])
def test_scores_of_usual_size_keep_their_pull(low):
    """The objective of the paper counts the edge to a cell without weight, however low; a mask has no edges."""
    scores, keep = torch.tensor([[2.0, 1.5, low]]), torch.tensor([[True, True, False]])
    for function in (lambda z, m=None: fusedmax(z, 0.2, mask=m), lambda z, m=None: tvmax(z, 0.2, m)):
        assert function(scores)[0].tolist() == pytest.approx([0.65, 0.35, 0.0], abs=1e-4)
        assert function(scores, keep)[0].tolist() == pytest.approx([0.55, 0.45, 0.0], abs=1e-4)
        torch.testing.assert_close(function(scores.masked_fill(~keep, -1e4)), function(scores, keep))


@pytest.mark.parametrize("low", [-1e4, -1e9, -3.4e38, -torch.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["sparsemax", "entmax", "fusedmax", "gfusedmax", "tvmax", "continuous-softmax"])
def test_additive_masks_of_attention_mask(name, dtype, low):
    q, k, v = (draw(2, n, 6, seed=i, dtype=dtype) for i, n in enumerate((5, 12, 12)))
    keep = draw(2, 5, 12, seed=4) > -0.5
    keep[0, 1] = False
    options = {"transform": name, "grid": (3, 4), "return_weights": True}
    expected, weights = scaled_dot_product_attention(q, k, v, keep, **options)
    added = torch.where(keep, 0.0, low).to(dtype)
    context, found = scaled_dot_product_attention(q, k, v, added, **options)
    torch.testing.assert_close(found, weights)
    torch.testing.assert_close(context, expected)
    assert (found[0, 1] == 0).all()


def test_a_shift_of_the_whole_row_is_no_mask():
    scores = draw(3, 12)
    for name in ("fusedmax", "tvmax", "gfusedmax"):
        attend = mechanism(name)
        shifted = attend(scores - 1e6, draw(3, 12, 2), grid=(3, 4)).weights
        torch.testing.assert_close(shifted, attend(scores, draw(3, 12, 2), grid=(3, 4)).weights, rtol=0, atol=1e-8)
    torch.testing.assert_close(sparsemax(scores - 1e6), sparsemax(scores), rtol=0, atol=1e-8)
