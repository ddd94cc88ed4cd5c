"""What is kept, what is noticed, and that everything is put back."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import foveate as fv
from foveate.watch import watching
from foveate.watch.calls import sdpa_weights
from foveate.watch.record import layer_number
from foveate.watch.swap import Change, swap


class Attention(nn.Module):
    """Self-attention of two heads, fused or by softmax."""

    def __init__(self, dim=8, fused=True):
        super().__init__()
        self.qkv, self.fused, self.num_heads = nn.Linear(dim, 3 * dim), fused, 2

    def forward(self, x, mask=None):
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        if self.fused:
            out = F.scaled_dot_product_attention(q, k, v, mask)
        else:
            out = torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, -1) @ v
        return x + out.transpose(1, 2).flatten(2)


def model(layers=3, fused=True):
    torch.manual_seed(0)
    return nn.Sequential(*(Attention(fused=fused) for _ in range(layers))).eval()


X = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))


def test_a_sequence_of_records_in_call_order():
    with fv.watch(model()) as seen:
        assert len(seen) == 0
    network = model()
    with fv.watch(network) as seen:
        network(X)
        network(X)
    assert seen.names == ["0", "1", "2"]
    assert [(row.name, row.step, row.layer) for row in seen[:4]] == [("0", 0, 0), ("1", 0, 1), ("2", 0, 2), ("0", 1, 0)]
    assert [len(step) for step in seen.steps] == [3, 3]
    assert seen.nbytes == 6 * 2 * 2 * 5 * 5 * 4
    torch.testing.assert_close(seen[0].weights.sum(-1), torch.ones(2, 2, 5))


def test_fused_and_plain_attention_give_the_same_weights():
    rows = []
    for fused in (True, False):
        network = model(fused=fused)
        with torch.no_grad(), fv.watch(network) as seen:
            network(X)
        rows.append([row.weights for row in seen])
        assert {row.via for row in seen} == {"sdpa" if fused else "softmax"}
    for one, other in zip(*rows, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=0)


@pytest.mark.parametrize("fused", [True, False])
def test_heads(fused):
    network = model(fused=fused)
    with fv.watch(network) as whole:
        network(X)
    every = whole[1].weights
    wanted = {"mean": every.mean(1, True), "max": every.amax(1, True), 1: every[:, [1]], -1: every[:, [1]]}
    for heads, expected in wanted.items():
        with fv.watch(network, heads=heads) as seen:
            network(X)
        torch.testing.assert_close(seen[1].weights, expected, atol=1e-6, rtol=0)
    with fv.watch(network, heads=[1, 0]) as seen:
        network(X)
    torch.testing.assert_close(seen[1].weights, every[:, [1, 0]], atol=1e-6, rtol=0)
    assert seen[1].attended(grid=(1, 5)).weights.shape == (2, 5, 5)


def test_heads_that_are_not_there():
    network = model()
    with pytest.raises(fv.UnknownName, match="mean"), fv.watch(network, heads="men"):
        pass
    message = r"watch: expected heads from 0 to 1 in 0, got \[2\]; pass layers="
    with pytest.raises(fv.ShapeError, match=message), fv.watch(network, heads=2):
        network(X)
    with pytest.raises(ValueError, match="heads='mean'"), fv.watch(network, heads="mean", grad=True):
        pass


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(
    ("queries", "rows"), [(-1, [4]), (0, [0]), ([0, 3], [0, 3]), (slice(1, 3), [1, 2]), (None, [0, 1, 2, 3, 4])]
)
def test_rows(fused, queries, rows):
    network = model(fused=fused)
    with fv.watch(network) as whole:
        network(X)
    with fv.watch(network, queries=queries) as seen:
        network(X)
    assert seen[0].queries.tolist() == rows
    torch.testing.assert_close(seen[0].weights, whole[0].weights[:, :, rows], atol=1e-6, rtol=0)


def test_columns():
    network = model()
    with fv.watch(network) as whole:
        network(X)
    for keep, columns in ((slice(1, 3), [1, 2]), ([4, 0], [4, 0]), (torch.tensor([2]), [2])):
        with fv.watch(network, keep=keep) as seen:
            network(X)
        assert seen[0].key_count == 5
        torch.testing.assert_close(seen[0].weights, whole[0].weights[..., columns])
    own = torch.tensor([[0, 1], [3, -1]])
    with fv.watch(network, keep=own) as seen:
        network(X)
    assert torch.equal(seen[0].weights[1, ..., 1], torch.zeros(2, 5))
    torch.testing.assert_close(seen[0].weights[1, ..., 0], whole[0].weights[1, ..., 3])
    with fv.watch(network, keep=[7]) as seen:
        network(X)
    assert len(seen) == 0


def test_layers():
    network = model()
    for layers, names in (([0, 2], ["0", "2"]), (1, ["1"]), ("2", ["2"]), (lambda name: name != "1", ["0", "2"])):
        with fv.watch(network, layers=layers) as seen:
            network(X)
        assert seen.names == names


def test_kept_weights_hold_no_more_than_themselves():
    network = model()
    with fv.watch(network, queries=-1, keep=[0], dtype=torch.float16, device="cpu") as seen:
        network(X)
    weights = seen[0].weights
    assert weights.dtype == torch.float16
    assert not weights.requires_grad
    assert weights.untyped_storage().nbytes() == weights.numel() * 2


@pytest.mark.parametrize("dtype", [None, torch.float32])
def test_columns_that_follow_one_another_are_kept_alone(dtype):
    network = model()
    with fv.watch(network) as whole:
        network(X)
    for keep in (slice(1, 4), torch.tensor([[1, 2, 3], [1, 2, 3]])):
        with fv.watch(network, queries=-1, keep=keep, dtype=dtype) as seen:
            network(X)
        weights = seen[0].weights
        assert weights.untyped_storage().nbytes() == weights.numel() * 4
        torch.testing.assert_close(weights, whole[0].weights[:, :, -1:, 1:4], atol=1e-6, rtol=0)


class Block(nn.Module):
    """Holds an attention module, and may attend by itself too."""

    def __init__(self, own=False):
        super().__init__()
        self.attention, self.own = Attention(), own

    def forward(self, x):
        x = torch.relu(self.attention(x))
        return F.scaled_dot_product_attention(x, x, x) if self.own else x


def listened(network, func, passes=2):
    """How often the mode of `fv.watch` sees a function in each pass."""
    counts = []
    see = watching._Mode.__torch_function__

    def count(self, called, types, args=(), kwargs=None):
        counts[-1] += called is func
        return see(self, called, types, args, kwargs)

    with pytest.MonkeyPatch.context() as patch, fv.watch(network) as seen:
        patch.setattr(watching._Mode, "__torch_function__", count)
        for _ in range(passes):
            counts.append(0)
            network(X)
    return counts, seen


def test_a_module_that_only_holds_attention_is_listened_to_once():
    counts, seen = listened(nn.Sequential(Block(), Block()).eval(), torch.relu)
    assert counts == [2, 0]
    assert [(row.name, row.step) for row in seen] == [(f"{n}.attention", step) for step in (0, 1) for n in (0, 1)]


def test_a_module_that_attends_by_itself_is_always_listened_to():
    counts, seen = listened(nn.Sequential(Block(own=True), Block()).eval(), torch.relu)
    assert counts == [2, 1]
    assert [row.name for row in seen] == ["0.attention", "0", "1.attention"] * 2


def test_a_module_whose_first_run_comes_later_is_listened_to():
    class Late(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.later, self.passes = Block(), Block(own=True), 0

        def forward(self, x):
            self.passes += 1
            return self.later(self.first(x)) if self.passes > 2 else self.first(x)

    _, seen = listened(Late().eval(), torch.relu, passes=4)
    assert [row.name for row in seen.steps[3]] == ["first.attention", "later.attention", "later"]


def test_a_change_made_while_watching_is_seen_in_later_passes():
    network = nn.Sequential(Block(), Block()).eval()
    with torch.no_grad(), fv.watch(network) as seen:
        network(X)
        network(X)
        with swap(network, Change("sparsemax"), lambda name: True):
            network(X)
        network(X)
    assert [{row.via for row in step} for step in seen.steps] == [{"sdpa"}, {"sdpa"}, {"foveate"}, {"sdpa"}]


def test_the_function_modes_are_put_back():
    before = torch._C._len_torch_function_stack()
    network = nn.Sequential(Block(), Block()).eval()
    with fv.watch(network):
        network(X)
        for _ in range(2):
            with pytest.raises(RuntimeError):
                network(torch.randn(2, 5, 9))
        assert torch._C._len_torch_function_stack() == before
    assert torch._C._len_torch_function_stack() == before


def test_unknown_keep_and_family():
    with pytest.raises(fv.UnknownName, match="image"), fv.watch(model(), keep="imge"):
        pass
    with pytest.raises(fv.ShapeError, match=r"pass grid=\(rows, columns\)"), fv.watch(model(), keep="image"):
        pass


def test_multihead_attention_is_recorded_once_with_grad():
    module = nn.Sequential(nn.TransformerEncoderLayer(8, 2, batch_first=True)).train()
    with fv.watch(module, grad=True) as seen:
        module(X)
    assert [row.name for row in seen] == ["0.self_attn"]


def test_gradients_reach_the_weights():
    for fused in (True, False):
        network = model(fused=fused)
        with fv.watch(network, grad=True) as seen:
            network(X).sum().backward(retain_graph=True)
            score = network(X).square().sum()
        last = seen[-1].weights
        assert torch.autograd.grad(score, last)[0].abs().sum() > 0
    with (
        pytest.raises(ValueError, match="expected all rows, columns and heads with grad=True"),
        fv.watch(network, queries=-1, grad=True),
    ):
        pass


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("grad", [True, False])
def test_torch_multihead_attention(batch_first, grad):
    torch.manual_seed(0)
    attend = nn.MultiheadAttention(8, 2, batch_first=batch_first).eval()
    with torch.no_grad() if not grad else torch.enable_grad():
        plain, averaged = attend(X, X, X)
        with fv.watch(attend) as seen:
            watched, again = attend(X, X, X)
    assert torch.equal(plain, watched)  # the fused path stays
    torch.testing.assert_close(averaged, again)
    torch.testing.assert_close(seen[0].weights.mean(1), averaged.detach(), atol=1e-6, rtol=0)
    with fv.watch(attend, queries=-1) as last:
        attend(X, X, X, need_weights=False)
    torch.testing.assert_close(last[0].weights, seen[0].weights[:, :, -1:], atol=1e-6, rtol=0)


def test_multihead_attention_with_a_gradient():
    torch.manual_seed(0)
    attend = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    with fv.watch(attend, grad=True) as seen:
        out, averaged = attend(X, X, X)
    assert averaged.shape == (2, 5, 5)
    assert torch.autograd.grad(out.sum(), seen[0].weights)[0].shape == (2, 2, 5, 5)


def test_a_fused_encoder_layer_is_noticed():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    with torch.no_grad():
        plain = layer(X)
        with pytest.warns(UserWarning, match="set_fastpath_enabled"), fv.watch(layer) as seen:
            watched = layer(X)
    assert torch.equal(plain, watched)
    assert (len(seen), seen.unseen) == (0, [""])
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad(), fv.watch(layer) as seen:
            layer(X)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    assert seen.names == ["self_attn"]


def test_compiled_code_is_noticed():
    compiled = torch.compile(model(), backend="eager")
    with pytest.warns(UserWarning, match="uncompiled model"), fv.watch(compiled) as seen:
        compiled(X)
    assert seen.unseen == ["_orig_mod.0", "_orig_mod.1", "_orig_mod.2"]


def test_a_direct_kernel_is_noticed():
    class FlashAttention(nn.Module):
        def forward(self, x):
            return x

    network = nn.Sequential(FlashAttention(), Attention())
    with pytest.warns(UserWarning, match=r"got none in 0; use an"), fv.watch(network) as seen:
        network(X)
    assert (seen.unseen, seen.names) == (["0"], ["1"])


def test_an_attention_of_foveate_records_its_own_weights():
    attend = fv.mechanism("sparsemax")
    with fv.watch(attend) as seen:
        out = attend(torch.randn(2, 4), torch.randn(2, 4, 3))
    torch.testing.assert_close(seen[0].weights[:, 0, 0], out.weights)
    assert seen[0].via == "foveate"


def test_everything_is_put_back_after_an_error():
    network = model()
    with pytest.raises(RuntimeError), fv.watch(network):
        network(torch.randn(2, 5, 9))
    assert not any("forward" in module.__dict__ for module in network.modules())
    with fv.watch(network) as seen:
        network(X)
    assert len(seen) == 3


def test_masked_rows_are_zero_and_causal_rows_follow_torch():
    q, k, v = (torch.randn(1, 2, n, 4, generator=torch.Generator().manual_seed(n)) for n in (3, 6, 6))
    mask = torch.ones(3, 6, dtype=torch.bool)
    mask[1] = False
    assert torch.equal(sdpa_weights(q, k, v, mask)[:, :, 1], torch.zeros(1, 2, 6))
    for options in ({"is_causal": True}, {"scale": 0.3}, {"attn_mask": torch.randn(1, 1, 3, 6)}):
        weights = sdpa_weights(q, k, v, **options)
        torch.testing.assert_close(weights @ v, F.scaled_dot_product_attention(q, k, v, **options), atol=1e-6, rtol=0)
    grouped = torch.randn(1, 4, 3, 4)
    torch.testing.assert_close(
        sdpa_weights(grouped, k, v, enable_gqa=True) @ v.repeat_interleave(2, 1),
        F.scaled_dot_product_attention(grouped, k, v, enable_gqa=True), atol=1e-6, rtol=0,
    )  # fmt: skip


def test_attended_of_a_record():
    network = model()
    with fv.watch(network) as seen:
        network(X)
    record = seen[0]
    assert record.attended().weights.shape == (2, 5, 5)
    one = record.attended(query=0, grid=(2, 2), prefix=1, heads=1)
    expected = record.weights[:, 1, 0, 1:]
    torch.testing.assert_close(one.map().flatten(1), expected / expected.sum(-1, keepdim=True))
    with pytest.raises(fv.ShapeError, match="expected at least 9 columns"):
        record.attended(query=0, grid=(3, 3))


def test_layer_numbers():
    assert [layer_number(name) for name in ("a.b", "model.layers.10.attn", "0", "x2.y")] == [None, 10, 0, None]


class Reads(nn.Module):
    """Attention of ours that streams, called as attention modules are."""

    def __init__(self) -> None:
        super().__init__()
        self.self_attention = fv.MultiheadAttention(16, 4, transform="entmax")

    def forward(self, x):
        return self.self_attention(x, x, x, need_weights=False, is_causal=True)[0]


@pytest.mark.parametrize("request_of", [{}, {"queries": [-1, 2]}, {"heads": "mean"}, {"keep": slice(1, 4)}])
def test_attention_that_streams_is_seen_and_kept_sparse(request_of):
    model, x = Reads(), torch.randn(2, 30, 16)
    inner = model.self_attention
    expected = inner(x, x, x, is_causal=True).weights
    with fv.watch(model, **request_of) as seen:
        result = model(x)
    assert torch.equal(result, model(x))
    (record,) = seen
    assert record.via == "foveate"
    if not request_of:
        assert isinstance(record.kept, fv.SparseWeights)
        torch.testing.assert_close(record.weights, expected)
        torch.testing.assert_close(record.attended(query=7).weights, expected[:, :, 7].mean(1))
    elif "queries" in request_of:
        torch.testing.assert_close(record.weights, expected[:, :, [29, 2]])
    elif "heads" in request_of:
        torch.testing.assert_close(record.weights, expected.mean(1, keepdim=True))
    else:
        torch.testing.assert_close(record.weights, expected[..., 1:4])
    assert seen.nbytes == record.kept.nbytes


def test_a_gradient_reaches_the_weights_of_attention_that_would_stream():
    net = model(layers=1)
    with swap(net, Change("entmax"), lambda name: True):
        with fv.watch(net) as plain:
            net(X)
        with fv.watch(net, grad=True) as seen:
            result = net(X)
    assert isinstance(plain[0].kept, fv.SparseWeights)
    torch.testing.assert_close(plain[0].weights, seen[0].weights)
    assert torch.autograd.grad(result.sum(), seen[0].weights)[0].any()
