"""Attention that never stores its scores is attention: value, every gradient, every mask, by kernel and by torch."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from foveate import hf, mechanism, scaled_dot_product_attention
from foveate.attention.streaming import stream
from foveate.ops import kernels
from foveate.ops import sparse_attention as streaming
from foveate.ops.sparse_attention import attend_dense, attending, stream_attention, stream_supports
from tests.cases import draw

CASES = 520
GROUPS = 20
TOLERANCE = {torch.float64: 1e-9, torch.float32: 3e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}
needs_kernel = pytest.mark.skipif(kernels.unit() is None, reason="the kernels are not built")


def attention(seed: int):
    """Random parts of a call, wide ones for the reference, and its options."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    B, heads, groups = rng.choice([1, 1, 2]), rng.choice([1, 2]), rng.choice([1, 1, 2, 3])
    Q, N = rng.choice([1, 2, 5, 33, 70]), rng.choice([1, 2, 7, 48, 49, 97, 200])
    E, D = rng.choice([1, 3, 8, 16, 64, 72]), rng.choice([1, 5, 16, 64])
    M = heads * groups
    dtype = rng.choices(list(TOLERANCE), [2, 4, 1, 1])[0]
    gain = rng.choice([0.2, 1.0, 3.0])
    parts = {"query": gain * normal(B, M, Q, E), "key": normal(B, heads, N, E), "value": normal(B, heads, N, D)}
    options: dict = {"enable_gqa": groups > 1, "transform": rng.choice(["sparsemax", "entmax"])}
    if options["transform"] == "entmax":
        alpha = rng.choice([1.05, 1.2, 1.5, 1.5, 1.8, 2.0])
        shape = rng.choice([None, None, (M, 1, 1), (Q, 1), (B, 1, Q, 1)])
        options["alpha"] = (
            alpha if shape is None else alpha + (2 - alpha) * torch.rand(shape, generator=generator).double()
        )
    if rng.random() < 0.4:
        shape = rng.choice([(), (M, 1, 1), (Q, 1)])
        options["temperature"] = 0.5 + torch.rand(shape, generator=generator).double() if shape else 0.7
    kind = rng.choice(["none", "causal", "keys", "boolean", "numbers", "lowest"])
    shape = rng.choice([(Q, N), (M, 1, N), (B, 1, Q, N), (B, M, Q, N), (Q, 1), (1, N)])
    shape = (N,) if kind == "keys" else shape
    if kind == "causal":
        options["is_causal"] = True
    elif kind in ("keys", "boolean"):
        options["attn_mask"] = torch.rand(shape, generator=generator) < 0.7
    elif kind == "numbers":
        options["attn_mask"] = normal(*shape).masked_fill(torch.rand(shape, generator=generator) < 0.2, -math.inf)
    elif kind == "lowest":
        keep = torch.rand(shape, generator=generator) < 0.6
        options["attn_mask"] = torch.zeros(shape, dtype=torch.float64).masked_fill(~keep, torch.finfo(dtype).min)
    if rng.random() < 0.3:
        options["scale"] = rng.choice([0.3, -0.2, 1.0])
    return {name: part.to(dtype) for name, part in parts.items()}, options, dtype


def run(parts: dict, options: dict, dtype: torch.dtype, dense: bool):
    """Context and the gradients to all that is differentiable."""
    leaves = {name: part.to(dtype).detach().requires_grad_() for name, part in parts.items()}
    used = dict(options)
    for name, value in options.items():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            wanted = name != "attn_mask" or bool((value > -1e3).all())
            used[name] = leaves[name] = value.to(
                dtype if name == "attn_mask" else torch.promote_types(dtype, torch.float32)
            )
            leaves[name] = used[name] = used[name].detach().requires_grad_(wanted)
    inputs = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}
    result = scaled_dot_product_attention(
        *(leaves[name] for name in ("query", "key", "value")), **used, return_weights=dense
    )
    context = result[0] if dense else result
    weight = torch.arange(context.numel()).double().mul(1.7).sin().reshape(context.shape).to(context.dtype)
    return context, dict(zip(inputs, torch.autograd.grad(context, list(inputs.values()), weight), strict=True))


@pytest.mark.parametrize("group", range(GROUPS))
def test_streamed_is_dense(group):
    """520 cases: shapes, masks, grouped queries, alpha and temperature as numbers and tensors, four dtypes."""
    for seed in range(group, CASES, GROUPS):
        parts, options, dtype = attention(seed)
        expected, wanted = run(parts, options, torch.float64, dense=True)
        if dtype != torch.float64 and "attn_mask" in options and options["attn_mask"].dtype != torch.bool:
            options["attn_mask"] = options["attn_mask"].to(dtype)
            expected, wanted = run(
                parts, {**options, "attn_mask": _wide(options["attn_mask"])}, torch.float64, dense=True
            )
        context, found = run(parts, options, dtype, dense=False)
        assert context.dtype == dtype, seed
        tolerance = TOLERANCE[dtype]
        torch.testing.assert_close(context.double(), expected, rtol=0, atol=tolerance * 4, msg=f"case {seed}")
        # a weight at the edge of the support may have either gradient
        for name, gradient in wanted.items():
            size = float(gradient.abs().max())
            rest = (found[name].double() - gradient).abs().max() / max(size, 1e-3)
            assert rest < (0.2 if dtype in (torch.float16, torch.bfloat16) else 100 * tolerance), (
                seed,
                name,
                float(rest),
            )


def _wide(mask: torch.Tensor) -> torch.Tensor:
    """A mask in float64, with the lowest numbers of its dtype those of float64."""
    low = mask <= torch.finfo(mask.dtype).min / 2
    return mask.double().masked_fill(low, -math.inf)


def example(dtype: torch.dtype = torch.float64, Q: int = 7, N: int = 70, **changes):
    """What the operator takes, with leaves that need a gradient."""
    tensors = [draw(2, 4, Q, 8, seed=1), draw(2, 2, N, 8, seed=2), draw(2, 2, N, 5, seed=3)]
    tensors += [1.2 + 0.7 * draw(4, 1, seed=4).sigmoid(), 0.5 + draw(2, 1, Q, seed=5).sigmoid(), draw(4, 1, N, seed=6)]
    tensors[3], tensors[5] = tensors[3][None], tensors[5][None]
    numbers = {
        "alpha": 0.0,
        "cooling": 0.0,
        "is_causal": False,
        "scale": 0.4,
        "lowest": -1e300,
        "dropout": 0.0,
        "seed": 5,
    }
    return attending([x.to(dtype).requires_grad_() for x in tensors], list((numbers | changes).values()))


def leaves(x) -> list[torch.Tensor]:
    return [part for part in streaming._tensors(x) if part is not None]


@pytest.mark.parametrize("every", [False, True])
def test_gradients_of_both_orders(every, monkeypatch):
    x = example(Q=2, N=4)

    def attend(*tensors):
        made = attending(tensors, streaming._numbers(x))
        return stream_supports(made)[2] if every else stream_attention(made)

    assert torch.autograd.gradcheck(attend, leaves(x))
    assert torch.autograd.gradgradcheck(attend, leaves(x))


@needs_kernel
@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("kept", ["kept", "found again"])
def test_kernel_and_torch_are_the_same_also_in_what_they_drop(dropout, kept, monkeypatch):
    """Also where supports are too large to keep."""
    if kept == "found again":
        monkeypatch.setattr("foveate.ops.kernels.stream.KEPT", 0)
    x = example(dropout=dropout)
    weight = draw(2, 4, 7, 5, seed=9)
    ours = stream_attention(x)
    gradients = torch.autograd.grad(ours, leaves(x), weight)
    monkeypatch.setattr(streaming, "forward", lambda *_: None)
    theirs = stream_attention(x)
    assert not torch.equal(ours, theirs)  # another order of additions: the kernel was used
    torch.testing.assert_close(ours, theirs)
    for a, b in zip(gradients, torch.autograd.grad(theirs, leaves(x), weight), strict=True):
        torch.testing.assert_close(a, b)
    if dropout:
        assert not torch.allclose(ours, stream_attention(example()))


@needs_kernel
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kept", ["kept", "found again"])
@pytest.mark.parametrize("changes", [{}, {"is_causal": True}, {"dropout": 0.3}], ids=str)
def test_supports_of_most_keys(dtype, kept, changes, monkeypatch):
    """They are multiplied as matrices, in chunks of 240 keys."""
    monkeypatch.setattr("foveate.ops.kernels.stream.KEPT", 10**9 if kept == "kept" else 0)
    x = example(dtype, Q=90, N=500, **({"scale": 1e-3} | changes))
    with torch.no_grad():
        x.mask.mul_(1e-3)
    weight = draw(2, 4, 90, 5, seed=9).to(dtype)
    wide = attending([part.detach().double().requires_grad_() for part in leaves(x)], streaming._numbers(x))
    expected, weights = attend_dense(wide)
    assert (weights > 0).double().mean() > (0.08 if "is_causal" in changes else 0.35)
    context = stream_attention(x)
    tolerance = {"rtol": 0, "atol": 1e-10 if dtype == torch.float64 else 2e-6}
    torch.testing.assert_close(context.double(), expected, **tolerance)
    found = torch.autograd.grad(context, leaves(x), weight)
    for a, b in zip(found, torch.autograd.grad(expected, leaves(wide), weight.double()), strict=True):
        size = float(b.abs().max())
        torch.testing.assert_close(a.double() / size, b / size, rtol=0, atol=1e-9 if dtype == torch.float64 else 2e-4)


def test_blocks_of_queries_do_not_show(monkeypatch):
    monkeypatch.setattr(streaming, "forward", lambda *_: None)
    x = example(is_causal=True, dropout=0.2)
    whole = stream_attention(x)
    gradients = torch.autograd.grad(whole.sum(), leaves(x))
    monkeypatch.setattr(streaming, "BLOCK", 2 * 4 * 70 * 3)  # three queries
    parts = stream_attention(x)
    torch.testing.assert_close(parts, whole)
    for a, b in zip(torch.autograd.grad(parts.sum(), leaves(x)), gradients, strict=True):
        torch.testing.assert_close(a, b)


@needs_kernel
def test_threads_do_not_change_a_bit():
    x = example(torch.float32, Q=300, N=400)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            results.append(stream_attention(x))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*results)


def test_supports_are_those_of_the_weights():
    x = example()
    context, places, weights = stream_supports(x)
    expected, dense = attend_dense(x)
    torch.testing.assert_close(context, expected)
    inside = places >= 0
    assert (places.diff(dim=-1)[inside[..., 1:]] > 0).all()
    assert (weights[inside] > 0).all()
    assert not weights[~inside].any()
    back = torch.zeros_like(dense).scatter_add(-1, places.clamp(min=0).long(), weights)
    torch.testing.assert_close(back, dense)


def test_vmap_compile_and_the_operator():
    x = example(torch.float32)
    numbers = streaming._numbers(x)
    expected = stream_attention(x)

    def attend(query, *rest):
        return stream_attention(attending((query, *rest), numbers))

    tensors = leaves(x)
    several = torch.stack([tensors[0], 2 * tensors[0]])
    one_by_one = torch.stack([attend(q, *tensors[1:]) for q in several])
    torch.testing.assert_close(torch.func.vmap(attend, (0, *[None] * 5))(several, *tensors[1:]), one_by_one)
    numbers_of_op = (*numbers[:-1], torch.tensor(5))
    torch.library.opcheck(torch.ops.foveate.stream.default, (*tensors, *numbers_of_op))
    torch.testing.assert_close(torch.ops.foveate.stream(*tensors, *numbers_of_op)[0], expected)


def test_compiled_attention_has_the_same_gradients():
    def attend(q, k, v, mask):
        return scaled_dot_product_attention(q, k, v, mask, transform="entmax", alpha=1.5)

    parts = [draw(2, 2, n, 8, seed=i, dtype=torch.float32).requires_grad_() for i, n in enumerate((9, 70, 70))]
    mask = draw(9, 70, seed=5) > -0.5
    expected = attend(*parts, mask)
    context = torch.compile(attend, fullgraph=True, backend="aot_eager")(*parts, mask)
    torch.testing.assert_close(context, expected)
    for a, b in zip(
        torch.autograd.grad(context.square().sum(), parts),
        torch.autograd.grad(expected.square().sum(), parts),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


def test_numbers_without_meaning():
    q, k, v = (draw(1, 1, n, 8, seed=i) for i, n in enumerate((3, 5, 5)))
    with pytest.raises(ValueError, match="without NaN"):
        scaled_dot_product_attention(q * math.nan, k, v, transform="entmax")
    mask = torch.zeros(3, 5).double()
    mask[1, 2] = math.inf
    context = scaled_dot_product_attention(q, k, v, mask, transform="entmax")
    torch.testing.assert_close(context[0, 0, 1], v[0, 0, 2])
    large = scaled_dot_product_attention(q.abs().float() * 1e38, k.abs().float() * 1e10, v.float(), transform="entmax")
    assert torch.isfinite(large).all()
    nothing = scaled_dot_product_attention(q, k, v, torch.zeros(3, 5, dtype=torch.bool), transform="sparsemax")
    assert not nothing.any()


def test_what_streams_and_what_does_not():
    parts = [draw(1, 2, n, 8, seed=i) for i, n in enumerate((3, 5, 5))]
    for name, options, streams in [
        ("sparsemax", {}, True),
        ("entmax", {"alpha": 1.3}, True),
        ("entmax", {"alpha": 2.5}, False),
        ("entmax", {"alpha": torch.tensor([[[1.5]], [[2.5]]])}, False),
        ("softmax", {"temperature": 0.5}, True),
        ("fusedmax", {}, False),
        ("continuous-softmax", {}, False),
    ]:
        attend = mechanism(name, **options)
        streamed = kernels.unit() is not None or name == "softmax"
        assert (stream("test", attend, *parts) is not None) == (streams and streamed), name
    with torch.autograd.forward_ad.dual_level():
        assert stream("test", mechanism("sparsemax"), *parts) is None


@pytest.mark.parametrize("temperature", [0.5, torch.tensor([[[0.5]], [[2.0]]])])
def test_softmax_with_a_temperature_is_that_of_torch(temperature):
    parts = [draw(1, 2, n, 8, seed=i).requires_grad_() for i, n in enumerate((3, 5, 5))]
    mask = torch.tensor([[1, 1, 0, 1, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]]).bool()
    options = {"transform": "softmax", "temperature": temperature, "attn_mask": mask}
    streamed = scaled_dot_product_attention(*parts, **options)
    dense, _ = scaled_dot_product_attention(*parts, **options, return_weights=True)
    torch.testing.assert_close(streamed, dense)
    for a, b in zip(
        torch.autograd.grad(streamed.square().sum(), parts),
        torch.autograd.grad(dense.square().sum(), parts),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


def small_llama():
    """A causal language model from a configuration, under 1.5-entmax."""
    transformers = pytest.importorskip("transformers", reason="extra hf")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=50, intermediate_size=32, **sizes)).eval()
    hf.use(model, "entmax")
    return model


@pytest.mark.slow
def test_generation_with_a_cache_is_that_without():
    model = small_llama()
    ids = torch.randint(50, (2, 300), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, :40] = 0  # padding on the left
    options = {"max_new_tokens": 24, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    cached = model.generate(ids, attention_mask=mask, use_cache=True, **options)
    assert cached.shape == (2, 324)
    assert torch.equal(cached, model.generate(ids, attention_mask=mask, use_cache=False, **options))
    with torch.no_grad():
        past = model(ids[:, :-1], attention_mask=mask[:, :-1], use_cache=True).past_key_values
        step = model(ids[:, -1:], attention_mask=mask, past_key_values=past, use_cache=True).logits[:, -1]
        torch.testing.assert_close(step, model(ids, attention_mask=mask).logits[:, -1], rtol=0, atol=1e-5)


@needs_kernel
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ViT", "Llama"])
def test_a_training_step_with_4096_tokens_fits_in_a_gigabyte(kind):
    """All memory of the process, by the operating system; the dense path needs more."""
    pytest.importorskip("transformers", reason="extra hf")
    script = Path(__file__).parent.parent.parent / "benchmarks" / "length.py"
    found = {}
    for way in ("streamed", "dense path"):
        command = [sys.executable, str(script), "--one", json.dumps(["model", kind, way])]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
        found[way] = json.loads(done.stdout.strip().splitlines()[-1])
    assert found["streamed"]["MB"] < 1024 < found["dense path"]["MB"], found
    assert abs(found["streamed"]["loss"] - found["dense path"]["loss"]) < 1e-5, found
