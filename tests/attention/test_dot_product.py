"""Scaled dot-product attention: torch's semantics with softmax, and any other mechanism."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from foveate import MECHANISMS, fusedmax, gfusedmax, scaled_dot_product_attention, sparsemax, tvmax
from foveate.errors import ShapeError
from foveate.ops.grid import grid_edges
from tests.cases import draw


def parts(*lead: int, Q: int = 5, N: int = 9, dtype: torch.dtype = torch.float32):
    return tuple(draw(*lead, n, 16, seed=i, dtype=dtype) for i, n in enumerate((Q, N, N)))


def with_empty_row() -> torch.Tensor:
    mask = draw(2, 1, 5, 9, seed=5) > -0.3
    mask[0, 0, 2] = False
    return mask


CASES = {
    "plain": {},
    "boolean mask, one row empty": {"attn_mask": with_empty_row()},
    "boolean mask of queries and keys": {"attn_mask": draw(5, 9, seed=6) > 0},
    "boolean mask of keys": {"attn_mask": torch.arange(9)[None] < 7},
    "added mask": {"attn_mask": draw(2, 4, 5, 9, seed=7, dtype=torch.float32)},
    "added mask with -inf, one row empty": {"attn_mask": torch.where(with_empty_row(), 0.0, -math.inf)},
    "added mask with the lowest number": {
        "attn_mask": torch.where(with_empty_row(), 0.0, torch.finfo(torch.float32).min)
    },
    "causal, more keys than queries": {"is_causal": True},
    "scale": {"scale": 0.3},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_softmax_is_that_of_torch(case, dtype):
    q, k, v = parts(2, 4, dtype=dtype)
    case = {n: x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x for n, x in case.items()}
    expected = F.scaled_dot_product_attention(q, k, v, **case)
    ours, weights = scaled_dot_product_attention(q, k, v, **case, return_weights=True)
    tolerance = {torch.float32: 1e-6, torch.float16: 3e-3, torch.bfloat16: 2e-2}[dtype]
    assert ours.dtype == dtype
    torch.testing.assert_close(ours, expected, rtol=0, atol=tolerance)
    torch.testing.assert_close(scaled_dot_product_attention(q, k, v, **case), expected, rtol=0, atol=tolerance)
    total = weights.sum(-1)
    assert (((total - 1).abs() < 2e-2) | (total == 0)).all()


@pytest.mark.parametrize("scale", [0.0, -0.0, -0.3, -2.0])
@pytest.mark.parametrize(("Q", "N"), [(5, 5), (3, 7), (7, 3), (1, 1)])
def test_causal_sees_the_past_for_every_scale(scale, Q, N):
    """torch's flash kernel multiplies its causal -inf by the scale and returns NaN or a look at the future."""
    parts_of = [x.requires_grad_() for x in parts(2, 3, Q=Q, N=N, dtype=torch.float64)]
    q, k, v = parts_of
    future = torch.full((Q, N), -math.inf, dtype=torch.float64).triu(1)
    expected = torch.softmax(q @ k.mT * scale + future, -1) @ v
    for options in ({}, {"return_weights": True}):
        out = scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, **options)
        context = out[0] if options else out
        torch.testing.assert_close(context, expected)
        for ours, theirs in zip(
            torch.autograd.grad(context.square().sum(), parts_of),
            torch.autograd.grad(expected.square().sum(), parts_of, retain_graph=True),
            strict=True,
        ):
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("low", ["min", -1e4, -3e4])
@pytest.mark.parametrize("size", [1.0, 30.0])
def test_half_precision_is_summed_wide_beside_masks_and_large_scores(dtype, low, size):
    """A row of lowest numbers keeps the order of its scores as far as float32 can hold it, as in torch."""
    q, k, v = (x * size for x in parts(2, 4, dtype=dtype))
    mask = torch.zeros(5, 9, dtype=dtype)
    mask[:, 6:] = mask[1] = torch.finfo(dtype).min if low == "min" else low
    expected = F.scaled_dot_product_attention(q, k, v / size, mask)
    ours, weights = scaled_dot_product_attention(q, k, v / size, mask, return_weights=True)
    assert weights.dtype == ours.dtype == dtype
    torch.testing.assert_close(ours, expected, rtol=0, atol={2: 3e-2, 4: 1e-5}[dtype.itemsize])
    exact = torch.softmax(q.float() @ k.float().mT / 4 + mask.float(), -1)
    torch.testing.assert_close(weights.float(), exact, rtol=0, atol={2: 1e-2, 4: 1e-5}[dtype.itemsize])


def test_scores_beyond_half_precision_still_order_the_keys():
    q, k, v = (torch.full((1, n, 64), 40.0, dtype=torch.float16) for n in (1, 3, 3))
    k[:, 1] = 41.0
    for name in ("softmax", "sparsemax", "entmax", "fusedmax"):
        weights = scaled_dot_product_attention(q, k, v, transform=name, return_weights=True)[1]
        assert weights.tolist() == [[[0.0, 1.0, 0.0]]], name


def test_causal_with_fewer_keys_than_queries_and_grouped_heads():
    q, k, v = parts(2, 4, Q=9, N=5)
    for options in ({"is_causal": True}, {"is_causal": True, "enable_gqa": True}):
        keys, values = (k[:, :2], v[:, :2]) if "enable_gqa" in options else (k, v)
        expected = F.scaled_dot_product_attention(q, keys, values, **options)
        ours, weights = scaled_dot_product_attention(q, keys, values, **options, return_weights=True)
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-6)
        assert weights.shape == (2, 4, 9, 5)


@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (2, 3, 4)])
def test_any_batch_shape_and_broadcasting(lead):
    q, k, v = parts(*lead)
    expected = F.scaled_dot_product_attention(q, k, v)
    torch.testing.assert_close(
        scaled_dot_product_attention(q, k, v, return_weights=True)[0], expected, rtol=0, atol=1e-6
    )
    if lead:
        one = scaled_dot_product_attention(q, k[:1], v[:1], return_weights=True)[0]
        torch.testing.assert_close(one, F.scaled_dot_product_attention(q, k[:1], v[:1]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", list(MECHANISMS))
def test_every_mechanism_and_its_gradient(name):
    q, k, v = (x.requires_grad_() for x in parts(2, 3, N=12))
    mask = torch.arange(12) < torch.tensor([12, 8]).reshape(2, 1, 1, 1)
    for attn_mask in (None, mask, torch.where(mask, 0.0, -math.inf)):
        out, weights = scaled_dot_product_attention(
            q, k, v, attn_mask, transform=name, grid=(3, 4), return_weights=True
        )
        assert out.shape == (2, 3, 5, 16)
        assert weights.shape == (2, 3, 5, 12)
        if attn_mask is not None:
            assert (weights[1, ..., 8:] == 0).all()
        grads = torch.autograd.grad(out.square().sum(), (q, k, v))
        assert all(torch.isfinite(g).all() for g in grads)


def test_tvmax_joins_the_tokens_before_and_after_the_image():
    """Equal to the transform of the graph whose only edges are those between patches."""
    q, k, v = parts(2, 3, N=17, dtype=torch.float64)
    expected = gfusedmax(q @ k.mT / 4, grid_edges(3, 4) + 2, 0.05)
    for grid in ((3, 4), [3, 4]):
        _, weights = scaled_dot_product_attention(
            q, k, v, transform="tvmax", grid=grid, prefix=2, smoothness=0.05, return_weights=True
        )
        torch.testing.assert_close(weights, expected)
    by_name = scaled_dot_product_attention(
        q, k, v, transform="gfusedmax", grid=(3, 4), prefix=2, smoothness=0.05, return_weights=True
    )
    torch.testing.assert_close(by_name[1], expected)
    whole = scaled_dot_product_attention(
        q, k[..., :12, :], v[..., :12, :], transform="tvmax", grid=(3, 4), return_weights=True
    )[1]
    torch.testing.assert_close(whole, tvmax((q @ k.mT / 4)[..., :12].unflatten(-1, (3, 4))).flatten(-2))


def test_tvmax_with_a_prefix_and_grids_of_different_sizes():
    q, k, v = parts(2, 3, N=10, dtype=torch.float64)
    _, weights = scaled_dot_product_attention(
        q, k, v, transform="tvmax", grid=[(3, 3), (2, 2)], prefix=1, smoothness=0.05, return_weights=True
    )
    for i, (H, W) in enumerate(((3, 3), (2, 2))):
        n = 1 + H * W
        alone = scaled_dot_product_attention(
            q[i],
            k[i, :, :n],
            v[i, :, :n],
            transform="tvmax",
            grid=(H, W),
            prefix=1,
            smoothness=0.05,
            return_weights=True,
        )[1]
        torch.testing.assert_close(weights[i, ..., :n], alone)
        assert (weights[i, ..., n:] == 0).all()


def test_options_callables_and_dropout():
    q, k, v = parts(2, 4)
    scores = q @ k.mT / 4
    by_option = scaled_dot_product_attention(q, k, v, transform="fusedmax", smoothness=0.5)
    torch.testing.assert_close(by_option, fusedmax(scores, 0.5) @ v)
    mask = torch.arange(9) < 6
    called = scaled_dot_product_attention(q, k, v, mask, transform=sparsemax)
    torch.testing.assert_close(called, sparsemax(scores, mask=mask) @ v)
    torch.manual_seed(0)
    dropped = scaled_dot_product_attention(q, k, v, transform="sparsemax", dropout_p=0.5)
    torch.manual_seed(0)
    assert torch.equal(dropped, scaled_dot_product_attention(q, k, v, transform="sparsemax", dropout_p=0.5))
    weights = sparsemax(scores)
    left = torch.linalg.lstsq(v[0, 0].double().mT, dropped[0, 0].double().mT).solution.mT  # 9 values of 16 features
    ratio = (left / weights[0, 0])[weights[0, 0] > 0]
    assert ((ratio.abs() < 1e-3) | ((ratio - 2).abs() < 1e-3)).all()
    assert 0 < (ratio > 1).sum() < len(ratio)


def test_autocast_and_empty_batches():
    q, k, v = parts(2, 4)
    with torch.autocast("cpu", torch.bfloat16):
        assert scaled_dot_product_attention(q, k, v, transform="sparsemax").dtype == torch.bfloat16
    for name in ("sparsemax", "tvmax", "multimodal"):
        out = scaled_dot_product_attention(q[:0], k[:0], v[:0], transform=name, grid=(3, 3))
        assert out.shape == (0, 4, 5, 16)


def test_what_does_not_fit_is_explained():
    q, k, v = parts(2, 4)
    with pytest.raises(ValueError, match="expected attn_mask or is_causal, got both"):
        scaled_dot_product_attention(q, k, v, torch.ones(5, 9).bool(), is_causal=True, transform="sparsemax")
    with pytest.raises(ShapeError, match=r"broadcasts to the scores \(2, 4, 5, 9\), got \(5, 8\)"):
        scaled_dot_product_attention(q, k, v, torch.ones(5, 8).bool(), transform="sparsemax")
    with pytest.raises(ShapeError, match=r"got \(2, 4, 5, 16\), \(2, 4, 9, 16\) and \(2, 4, 8, 16\)"):
        scaled_dot_product_attention(q, k, v[..., 1:, :], transform="sparsemax")
    with pytest.raises(ShapeError, match="divide the 4 heads of the query, got 3 and 3"):
        scaled_dot_product_attention(q, k[:, :3], v[:, :3], transform="sparsemax", enable_gqa=True)
    with pytest.raises(ShapeError, match="expected at least 13 keys for a prefix of 1 and a grid of 3 x 4, got 9"):
        scaled_dot_product_attention(q, k, v, transform="tvmax", grid=(3, 4), prefix=1)
    with pytest.raises(ValueError, match="expected a discrete transform beside prefix=1"):
        scaled_dot_product_attention(q, k, v, transform="multimodal", grid=(2, 4), prefix=1)
    with pytest.raises(ValueError, match=r"expected a discrete transform beside dropout_p=0\.5"):
        scaled_dot_product_attention(q, k, v, transform="multimodal", grid=(3, 3), dropout_p=0.5)
