"""Self-attention to functions instead of tokens."""

from __future__ import annotations

import pytest
import torch

from foveate import ContinuousSelfAttention
from foveate.errors import ShapeError
from tests.cases import draw


def test_smooth_values_are_read_as_by_attention_to_tokens():
    """Keys and values that are one constant function: the context is the projection of that constant."""
    attend = ContinuousSelfAttention(8, 2, functions=25).double()
    x = draw(1, 1, 8).expand(1, 144, 8)
    seen = attend(x, grid=(12, 12))
    value = attend.in_proj(x[:, :1])[..., 16:]
    torch.testing.assert_close(seen.context[:, 0], attend.out_proj(value)[:, 0], rtol=0.1, atol=0.1)
    torch.testing.assert_close(seen.weights.sum(-1), torch.ones(1, 2, 144, dtype=torch.float64))


def test_shapes_options_and_gradients():
    attend = ContinuousSelfAttention(8, 2, functions=16)
    x = torch.randn(2, 42, 8, requires_grad=True)
    seen = attend(x, grid=[6, 7])
    assert seen.weights.shape == (2, 2, 42, 16)
    seen.context.square().sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in (x, *attend.parameters()))
    smooth = ContinuousSelfAttention(8, 2, functions=16, ridge=10.0)
    smooth.load_state_dict(attend.state_dict())
    assert not torch.allclose(smooth(x, grid=(6, 7)).context, seen.context)


def test_what_does_not_fit_is_explained():
    with pytest.raises(ValueError, match="expected a square number of functions, got 10; use 9"):
        ContinuousSelfAttention(8, 2, functions=10)
    with pytest.raises(ShapeError, match="expected heads that divide dim = 8, got 3"):
        ContinuousSelfAttention(8, 3)
    with pytest.raises(ShapeError, match=r"a grid \(H, W\) of N cells, got \(1, 6, 8\) and \(2, 4\)"):
        ContinuousSelfAttention(8, 2)(torch.zeros(1, 6, 8), grid=(2, 4))
