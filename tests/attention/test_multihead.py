"""Multi-head attention: the outputs of torch with softmax, and any transform in its place."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from foveate import MECHANISMS, MultiheadAttention
from foveate.errors import ShapeError
from foveate.ops import TRANSFORMS
from tests.cases import draw


@pytest.mark.parametrize("masked", [False, True])
def test_same_numbers_as_torch(masked):
    theirs = nn.MultiheadAttention(16, 4, batch_first=True, dtype=torch.float64)
    ours = MultiheadAttention(16, 4).double()
    ours.load_state_dict(theirs.state_dict())
    queries, keys, values = draw(2, 3, 16), draw(2, 7, 16, seed=1), draw(2, 7, 16, seed=2)
    mask = torch.arange(7) < torch.tensor([[7], [4]]) if masked else None
    expected, weights = theirs(
        queries, keys, values, key_padding_mask=None if mask is None else ~mask, average_attn_weights=False
    )
    out = ours(queries, keys, values, mask=mask)
    torch.testing.assert_close(out.context, expected)
    torch.testing.assert_close(out.weights, weights)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_one_behaviour_with_and_without_weights(dtype):
    attend = MultiheadAttention(16, 2).to(dtype)
    x = (draw(2, 5, 16) * 8).to(dtype)
    mask = torch.zeros(5, 5, dtype=dtype)
    mask[:, 3:] = mask[1] = torch.finfo(dtype).min
    mask[2] = -torch.inf
    fast, none = attend(x, x, x, attn_mask=mask, need_weights=False)
    slow, weights = attend(x, x, x, attn_mask=mask, need_weights=True)
    assert none is None
    assert weights.dtype == dtype
    torch.testing.assert_close(fast, slow, rtol=0, atol={2: 6e-2, 4: 1e-5}[dtype.itemsize])
    assert (weights[:, 2] == 0).all()
    torch.testing.assert_close(weights[:, 1].float().sum(-1), torch.ones(2), rtol=0, atol=1e-2)


def test_a_mask_per_query():
    attend = MultiheadAttention(8, 2).double()
    causal = torch.ones(1, 4, 4, dtype=torch.bool).tril()
    out = attend(draw(2, 4, 8), draw(2, 4, 8), mask=causal)
    assert (out.weights[:, :, ~causal[0]] == 0).all()
    torch.testing.assert_close(out.weights.sum(-1), torch.ones(2, 2, 4, dtype=torch.float64))


@pytest.mark.parametrize("name", TRANSFORMS)
def test_any_transform(name):
    attend = MultiheadAttention(8, 2, transform=name)
    out = attend(torch.randn(2, 5, 8), torch.randn(2, 6, 8), grid=(2, 3))
    out.context.sum().backward()
    assert out.context.shape == (2, 5, 8)
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in attend.parameters())


def test_nothing_to_attend_to_reads_the_bias_alone():
    attend = MultiheadAttention(8, 2).double()
    out = attend(draw(1, 2, 8), draw(1, 3, 8), mask=torch.zeros(1, 3, dtype=torch.bool))
    torch.testing.assert_close(out.context, attend.out_proj.bias.expand(1, 2, 8))


@pytest.mark.parametrize("name", TRANSFORMS)
def test_grids_of_different_sizes_in_one_batch(name):
    attend, grid = MultiheadAttention(8, 2, transform=name).double(), torch.tensor([[2, 2], [3, 3]])
    queries, keys = draw(2, 5, 8), draw(2, 9, 8, seed=1)
    out = attend(queries, keys, grid=grid)
    first, second = attend(queries[:1], keys[:1, :4], grid=(2, 2)), attend(queries[1:], keys[1:], grid=(3, 3))
    torch.testing.assert_close(out.weights[:1, ..., :4], first.weights)
    torch.testing.assert_close(out.context, torch.cat([first.context, second.context]))
    assert (out.weights[0, ..., 4:] == 0).all()
    assert out.mask.sum(-1).tolist() == [4, 9]


@pytest.mark.parametrize("name", TRANSFORMS)
def test_no_examples_no_queries_and_no_keys(name):
    attend = MultiheadAttention(8, 2, transform=name)
    for B, Q, N in ((0, 3, 4), (2, 0, 4), (2, 3, 0), (0, 0, 0)):
        out = attend(torch.zeros(B, Q, 8), torch.zeros(B, N, 8), grid=(1, N))
        out.context.sum().backward()
        assert out.context.shape == (B, Q, 8)
        assert out.weights.shape == (B, 2, Q, N)
        torch.testing.assert_close(out.context, attend.out_proj.bias.expand(B, Q, 8))


def test_dropout_works_in_training_only():
    attend = MultiheadAttention(8, 2, dropout=0.9).double()
    x = draw(1, 6, 8)
    assert not torch.allclose(attend(x, x).context, attend(x, x).context)
    attend.eval()
    torch.testing.assert_close(attend(x, x).context, attend(x, x).context)


def test_what_does_not_fit_is_explained():
    for heads, near in ((5, "2, 4, 8"), (0, "1, 2, 4")):
        with pytest.raises(ShapeError, match=f"divide dim = 64, got {heads}; use one of {near}"):
            MultiheadAttention(64, heads)
    with pytest.raises(ShapeError, match="expected heads that divide dim = 8, got 6; use one of 2, 4, 8"):
        MultiheadAttention(8, 6)
    with pytest.raises(ShapeError, match=r"expected keys \(B, N, D\) of sizes \(1, any, 8\), got \(1, 3, 7\)"):
        MultiheadAttention(8, 2)(torch.zeros(1, 2, 8), torch.zeros(1, 3, 7))
    attend, x = MultiheadAttention(8, 2, transform="tvmax"), torch.zeros(1, 6, 8)
    with pytest.raises(
        ShapeError, match=r"tvmax: expected grid=\(H, W\), got None; pass the rows and columns of the 6"
    ):
        attend(x, x)
    with pytest.raises(ShapeError, match=r"tvmax: expected a grid of 6 cells, got \(2, 4\); rows times columns"):
        attend(x, x, grid=(2, 4))


def masks(polarity: str) -> dict[str, torch.Tensor]:
    padding, attn = torch.arange(7) >= torch.tensor([[7], [4]]), torch.ones(3, 7).triu(2).bool()
    numbers = {"dtype": torch.float64}
    return {
        "boolean": {"key_padding_mask": padding, "attn_mask": attn},
        "per head": {"attn_mask": attn.expand(8, 3, 7), "key_padding_mask": padding},
        "added": {
            "attn_mask": draw(3, 7, seed=4),
            "key_padding_mask": torch.zeros(2, 7, **numbers).masked_fill(padding, -torch.inf),
        },
        "padding": {"key_padding_mask": padding},
    }[polarity]


@pytest.mark.parametrize("polarity", ["boolean", "per head", "added", "padding"])
@pytest.mark.parametrize("batch_first", [True, False])
def test_torchs_masks_layouts_and_pair(polarity, batch_first):
    theirs = nn.MultiheadAttention(16, 4, batch_first=batch_first, dtype=torch.float64)
    ours = MultiheadAttention(16, 4, batch_first=batch_first).double()
    ours.load_state_dict(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())
    inputs = draw(2, 3, 16), draw(2, 7, 16, seed=1), draw(2, 7, 16, seed=2)
    if not batch_first:
        inputs = tuple(x.transpose(0, 1) for x in inputs)
    for average in (True, False):
        expected = theirs(*inputs, **masks(polarity), average_attn_weights=average)
        torch.testing.assert_close(
            ours(*inputs, **masks(polarity), need_weights=True, average_attn_weights=average), expected
        )
    output, nothing = ours(*inputs, **masks(polarity), need_weights=False)
    torch.testing.assert_close(output, expected[0])
    assert nothing is None
    seen = ours(*inputs, **masks(polarity))
    torch.testing.assert_close(seen.weights, expected[1])


def test_other_sizes_no_bias_and_one_example():
    theirs = nn.MultiheadAttention(16, 4, bias=False, kdim=6, vdim=5, dtype=torch.float64)
    ours = MultiheadAttention(16, 4, bias=False, kdim=6, vdim=5, batch_first=False).double()
    ours.load_state_dict(theirs.state_dict())
    for lead in ((2,), ()):
        inputs = draw(3, *lead, 16), draw(7, *lead, 6, seed=1), draw(7, *lead, 5, seed=2)
        torch.testing.assert_close(ours(*inputs, need_weights=True), theirs(*inputs))


def test_is_causal():
    attend, x = MultiheadAttention(8, 2).double(), draw(2, 5, 8)
    causal = torch.ones(5, 5).triu(1).bool()
    torch.testing.assert_close(attend(x, x, is_causal=True).weights, attend(x, x, attn_mask=causal).weights)


@pytest.mark.parametrize("training", [False, True])
def test_inside_an_encoder_layer_of_torch(training):
    """Also in evaluation, where torch would use the weights with a fused softmax of its own."""
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True, dtype=torch.float64)
    x, padding = draw(2, 6, 16), torch.arange(6) >= torch.tensor([[6], [4]])
    expected = layer.train()(x, src_key_padding_mask=padding)
    for name in ("softmax", "sparsemax"):
        ours = MultiheadAttention(16, 4, transform=name).double()
        ours.load_state_dict(layer.self_attn.state_dict())
        layer.self_attn = ours
        layer.train(training)
        with torch.no_grad():
            out = layer(x, src_key_padding_mask=padding)
        same = torch.allclose(out[~padding], expected[~padding])
        assert same == (name == "softmax")


@pytest.mark.parametrize("name", [name for name, row in MECHANISMS.items() if row.continuous])
def test_one_density_per_head(name):
    attend = MultiheadAttention(8, 2, transform=name).eval()
    mask = torch.arange(12) < torch.tensor([[12], [9]])
    seen = attend(torch.randn(2, 5, 8), torch.randn(2, 12, 8), grid=(3, 4), mask=mask)
    assert seen.density.mean.shape == (2, 2, 5, 2)
    assert seen.context.shape == (2, 5, 8)
    seen.context.sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in attend.parameters())
    with pytest.raises(ValueError, match=f"expected dropout=0 beside transform='{name}', got 0.1"):
        MultiheadAttention(8, 2, transform=name, dropout=0.1)
