"""`fv.watch.intervene` against a model whose attention is written out by hand, and what it leaves behind."""

from __future__ import annotations

import asyncio
import contextvars
import math
import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("transformers", reason="needs the extra hf")

import foveate as fv
from foveate.errors import ShapeError, UnknownName
from foveate.watch.model_families import find_layout
from foveate.watch.record import layer_number
from tests.watch.test_planted import build
from tests.watch.tiny import TINY

Edit = Callable[[int | None, Tensor], Tensor]


def keep(layer: int | None, x: Tensor) -> Tensor:
    return x


def by_hand(scores_of: Edit, weights_of: Edit):
    """Eager attention with the scores and the weights edited."""

    def attention(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **kwargs):
        groups = getattr(module, "num_key_value_groups", 1)
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        scores = query @ key.mT * (query.shape[-1] ** -0.5 if scaling is None else scaling)
        if attention_mask is not None:
            scores = scores + attention_mask[..., : key.shape[-2]]
        weights = weights_of(module.number, scores_of(module.number, scores).softmax(-1))
        return (weights @ value).transpose(1, 2).contiguous(), weights

    return attention


def number_layers(model: nn.Module) -> None:
    for name, module in model.named_modules():
        module.number = layer_number(name)


def tiny(name: str):
    model, _, _ = build(name)
    number_layers(model)
    return model, TINY[name].arguments(model)


def vit():
    return tiny("ViT")


def llava():
    return tiny("LLaVA")


def output(model: nn.Module, inputs) -> Tensor:
    with torch.no_grad():
        found = model(**inputs)
    return found.last_hidden_state if hasattr(found, "last_hidden_state") else found.logits


def hand_made(model, inputs, monkeypatch, scores_of: Edit = keep, weights_of: Edit = keep) -> Tensor:
    import transformers.models.llama.modeling_llama as llama
    import transformers.models.vit.modeling_vit as vit_code

    function = by_hand(scores_of, weights_of)
    before = model.config._attn_implementation
    with monkeypatch.context() as patch:
        # the vision tower of LLaVA keeps its own attention
        patch.setattr(llama if "input_ids" in inputs else vit_code, "eager_attention_forward", function)
        model.set_attn_implementation("eager")
        found = output(model, inputs)
    model.set_attn_implementation(before)
    return found


def same(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)


IMPLEMENTATIONS = pytest.mark.parametrize("implementation", ["sdpa", "eager"])


@IMPLEMENTATIONS
@pytest.mark.parametrize("how", ["zero", "mean", "uniform"])
def test_heads_of_a_vision_tower(implementation, how, monkeypatch):
    model, inputs = vit()

    def edit(layer, weights):
        if layer != 1:
            return weights
        weights = weights.clone()
        for head in (0, 2):
            if how == "zero":
                weights[:, head] = 0
            elif how == "uniform":
                weights[:, head] = 1 / weights.shape[-1]
            else:
                weights[:, head] = weights[:, head].mean(-2, keepdim=True)
        return weights

    expected = hand_made(model, inputs, monkeypatch, weights_of=edit)
    model.set_attn_implementation(implementation)
    plain = output(model, inputs)
    with fv.watch.intervene(model, heads={1: [0, 2]}, how=how) as names:
        changed = output(model, inputs)
    assert len(names) == 1
    assert layer_number(names[0]) == 1
    same(changed, expected)
    assert not torch.allclose(changed, plain, atol=1e-5)
    assert torch.equal(output(model, inputs), plain)


@IMPLEMENTATIONS
@pytest.mark.parametrize("how", ["zero", "mean", "uniform"])
def test_image_tokens_of_a_language_model(implementation, how, monkeypatch):
    model, inputs = llava()
    image = inputs["input_ids"][0] == 199

    def scores_of(layer, scores):
        return scores.masked_fill(image, -math.inf).nan_to_num(neginf=-1e30) if how == "zero" else scores

    def weights_of(layer, weights):
        if how == "zero":
            # the first rows are image tokens before any text: they have no key left
            return weights.masked_fill((weights[..., ~image].sum(-1, keepdim=True) < 1e-6), 0)
        mass = (weights * image).sum(-1, keepdim=True)
        allowed = (weights > 0) * image
        share = allowed.float() if how == "uniform" else (weights * image).mean(-2, keepdim=True) * allowed
        return torch.where(image & (mass > 0), mass * share / share.sum(-1, keepdim=True).clamp(min=1e-30), weights)

    expected = hand_made(model, inputs, monkeypatch, scores_of, weights_of)
    model.set_attn_implementation(implementation)
    with fv.watch.intervene(model, keys="image", how=how) as names:
        changed = output(model, inputs)
    assert all("language_model" in name for name in names)
    # rows without any key are of no use to a model
    rows = image.nonzero().max() + 1
    same(changed[:, rows:], expected[:, rows:])


@IMPLEMENTATIONS
def test_keys_of_chosen_heads_and_layers(implementation, monkeypatch):
    model, inputs = vit()

    def scores_of(layer, scores):
        scores = scores.clone()
        if layer == 0:
            scores[:, 3, :, [1, 5]] = -math.inf
        return scores

    expected = hand_made(model, inputs, monkeypatch, scores_of)
    model.set_attn_implementation(implementation)
    with fv.watch.intervene(model, heads={0: [3]}, keys=[1, 5]):
        same(output(model, inputs), expected)
    with fv.watch.intervene(model, keys=[1, 5], layers=[0]):
        assert not torch.allclose(output(model, inputs), expected, atol=1e-5), "all heads"


def test_keys_per_example_with_padding(monkeypatch):
    model, inputs = vit()
    rows = torch.tensor([[1, 2, -1], [4, -1, -1]])
    gone = torch.zeros(2, 1, 1, 17, dtype=torch.bool)
    gone[0, ..., [1, 2]] = True
    gone[1, ..., 4] = True
    expected = hand_made(model, inputs, monkeypatch, lambda layer, scores: scores.masked_fill(gone, -math.inf))
    model.set_attn_implementation("sdpa")
    with fv.watch.intervene(model, keys=rows):
        same(output(model, inputs), expected)


@IMPLEMENTATIONS
def test_steering_by_a_map_and_by_boxes(implementation, monkeypatch):
    model, inputs = llava()
    layout = find_layout(model, inputs)
    H, W = layout.grid
    prior = torch.zeros(H, W)
    prior[: H // 2, : W // 2] = 1
    places = layout.tokens
    bias = torch.zeros(inputs["input_ids"].shape[1])
    bias[places] = 2.0 * (prior / prior.mean()).clamp(min=0.01).log().flatten()
    expected = hand_made(model, inputs, monkeypatch, lambda layer, scores: scores + bias)
    model.set_attn_implementation(implementation)
    with fv.watch.intervene(model, steer=prior, strength=2.0):
        same(output(model, inputs), expected)
    with fv.watch.intervene(model, steer=[(0.0, 0.0, 0.5, 0.5)], strength=2.0):
        same(output(model, inputs), expected)
    with fv.watch.intervene(model, steer=prior, strength=0.0):
        same(output(model, inputs), hand_made(model, inputs, monkeypatch))
    with fv.watch.intervene(model, steer=torch.ones(3, 5)):
        same(output(model, inputs), hand_made(model, inputs, monkeypatch))


def test_steering_moves_the_map():
    model, processor, _ = build("LLaVA")
    image = (np.random.default_rng(0).random((60, 60, 3)) * 255).astype(np.uint8)

    def mass() -> float:
        seen = fv.look(model, image=image, text="what is this", processor=processor, max_new_tokens=1)
        return float(seen.words[0].attention.map(8, 8)[0, :4, :4].sum())

    plain = mass()
    with fv.watch.intervene(model, steer=[(0.0, 0.0, 0.5, 0.5)], strength=4.0):
        steered = mass()
    assert steered > 0.95 > plain
    assert mass() == plain


@IMPLEMENTATIONS
def test_sinks_are_redistributed(implementation, monkeypatch):
    model, inputs = vit()
    model.set_attn_implementation(implementation)
    patches = range(1, 17)

    # a sink: one patch that every query looks at
    steer = torch.full((4, 4), 1e-3)
    steer[1, 2] = 1
    with fv.watch.intervene(model, steer=steer, layers=[0]), fv.watch(model, layers=[0], keep="image") as seen:
        output(model, inputs)
    before = seen[0].weights
    with (
        fv.watch.intervene(model, sinks="redistribute", layers=[0]),
        fv.watch.intervene(model, steer=steer, layers=[0]),
        fv.watch(model, layers=[0], keep="image") as seen,
    ):
        output(model, inputs)
    after = seen[-1].weights
    assert before[..., 6].mean() > 0.4
    assert after[..., 6].abs().max() == 0
    torch.testing.assert_close(after.sum(-1), before.sum(-1), atol=1e-5, rtol=1e-5)
    others = [patch - 1 for patch in patches if patch != 7]
    share = before[..., others] / before[..., others].sum(-1, keepdim=True)
    torch.testing.assert_close(after[..., others] / after.sum(-1, keepdim=True), share, atol=1e-5, rtol=1e-4)


def test_multihead_attention_of_torch():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0).eval()
    x = torch.randn(2, 5, 8)
    with torch.no_grad():
        plain = layer(x)
        with fv.watch.intervene(layer, keys=[4]):
            changed = layer(x)
        padded = layer(x, src_key_padding_mask=torch.tensor([[False] * 4 + [True]] * 2))
        same(changed, padded)
        with fv.watch.intervene(layer, heads={"self_attn": [1]}), fv.watch(layer) as seen:
            layer(x)
        assert seen.names == ["self_attn"]
        assert torch.equal(layer(x), plain)


def test_grouped_queries_while_generating(monkeypatch):
    """With a cache every step has one query, and transformers packs the heads that share a key."""
    model, inputs = llava()
    wanted = {"max_new_tokens": 4, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    one = {name: inputs[name][:1] for name in ("input_ids", "pixel_values")}

    def run():
        return torch.stack(model.generate(**one, **wanted).logits)

    for options in ({"keys": "image"}, {"heads": {0: [1, 2]}}, {"keys": "image", "how": "uniform"}):
        found = []
        for implementation in ("sdpa", "eager"):
            model.set_attn_implementation(implementation)
            with fv.watch.intervene(model, **options):
                found.append(run())
        same(*found)
        model.set_attn_implementation("sdpa")
        assert not torch.allclose(found[0][0], run()[0], atol=1e-6)


def state(model: nn.Module) -> list[tuple[str, object]]:
    return [(name, module.__dict__.get("forward")) for name, module in model.named_modules()]


def test_what_is_left_behind_is_what_was_there():
    model, inputs = vit()
    before, plain = state(model), output(model, inputs)
    with pytest.raises(RuntimeError, match="stop"), fv.watch.intervene(model, heads={0: [0]}):
        raise RuntimeError("stop")
    assert state(model) == before
    outer, inner = fv.watch.intervene(model, heads={0: [0]}), fv.watch.intervene(model, heads={0: [1]})
    with fv.watch.intervene(model, heads={0: [0, 1]}):
        both = output(model, inputs)
    with outer:
        with inner:
            same(output(model, inputs), both)
        with fv.watch.intervene(model, heads={0: [0]}):
            one = output(model, inputs)
        assert torch.equal(output(model, inputs), one)
    assert state(model) == before
    assert torch.equal(output(model, inputs), plain)


def test_threads_do_not_see_each_other():
    model, inputs = vit()
    plain = output(model, inputs)
    with fv.watch.intervene(model, heads={0: [0]}):
        first = output(model, inputs)
    with fv.watch.intervene(model, heads={1: [1, 2]}):
        second = output(model, inputs)
    barrier, found = threading.Barrier(3), {}

    def work(name: str, heads) -> None:
        results = []
        with fv.watch.intervene(model, heads=heads):
            barrier.wait()
            results = [output(model, inputs) for _ in range(3)]
            barrier.wait()
        found[name] = results

    threads = [
        threading.Thread(target=work, args=("first", {0: [0]})),
        threading.Thread(target=work, args=("second", {1: [1, 2]})),
    ]
    for thread in threads:
        thread.start()
    barrier.wait()
    here = output(model, inputs)
    barrier.wait()
    for thread in threads:
        thread.join()
    assert torch.equal(here, plain)
    assert all(torch.equal(one, first) for one in found["first"])
    assert all(torch.equal(one, second) for one in found["second"])
    assert torch.equal(output(model, inputs), plain)

    async def in_context():
        with fv.watch.intervene(model, heads={0: [0]}):
            return await asyncio.to_thread(output, model, inputs)

    assert torch.equal(contextvars.copy_context().run(asyncio.run, in_context()), first)


def test_errors():
    model, inputs = vit()
    with pytest.raises(ValueError, match="intervene: expected heads, keys, steer or sinks"), fv.watch.intervene(model):
        pass
    with pytest.raises(UnknownName, match="'zeros'; did you mean 'zero'"):
        fv.watch.intervene(model, heads={0: [0]}, how="zeros").__enter__()
    with pytest.raises(UnknownName, match="intervene sinks"):
        fv.watch.intervene(model, sinks="remove").__enter__()
    with pytest.raises(
        ShapeError, match=r"intervene: expected layers of the model, got \[7\]; there are the layers 0, 1"
    ):
        fv.watch.intervene(model, heads={7: [0]}).__enter__()
    with fv.watch.intervene(model, heads={0: [9]}), pytest.raises(ShapeError, match="expected heads from 0 to 3"):
        output(model, inputs)
    with pytest.raises(ValueError, match="strength"):
        fv.watch.intervene(model, steer=torch.ones(2, 2), strength=-1.0).__enter__()
    attend = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    with (
        fv.watch.intervene(attend, keys=[0, 1], steer=torch.ones(2, 2)),
        pytest.raises(ShapeError, match="expected a map of the 2 keys"),
    ):
        attend(*[torch.zeros(1, 3, 8)] * 3)
