"""Relevance against the rules of Chefer et al. 2021 written out as loops, on models from their configurations."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

pytest.importorskip("transformers", reason="needs the extra hf")

import foveate as fv
from foveate.errors import ShapeError
from foveate.watch import relevance
from foveate.watch.faithful import margin
from foveate.watch.model_families import FAMILIES
from foveate.watch.relevance import (
    IMAGE,
    TEXT,
    gradient_times_input,
    integrated_gradients,
    linked,
    relevances,
    relevant_row,
)
from tests.watch.test_planted import build
from tests.watch.tiny import TINY, small


@contextmanager
def recorded(monkeypatch):
    """The result of every softmax over attention scores, part of the graph."""
    found: list[Tensor] = []
    original = F.softmax

    def softmax(*args, **kwargs):
        weights = original(*args, **kwargs)
        if weights.ndim == 4:
            found.append(weights)
        return weights

    with monkeypatch.context() as patch:
        patch.setattr(nn.functional, "softmax", softmax)
        yield found


def positive_mean(weights: Tensor, gradient: Tensor) -> Tensor:
    """Equation 5."""
    return (gradient * weights)[0].clamp(min=0).mean(0)


def single(model, name: str) -> dict[str, Tensor]:
    return {key: value[:1] for key, value in TINY[name].arguments(model).items()}


def chain(maps: list[Tensor]) -> Tensor:
    """Equation 6 for one modality."""
    relevance = torch.eye(len(maps[0]))
    for one in maps:
        relevance = relevance + one @ relevance
    return relevance


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_vit(implementation, dtype, monkeypatch):
    import transformers

    torch.manual_seed(0)
    config = small("ViTConfig", num_labels=5)
    model = transformers.ViTForImageClassification._from_config(config, attn_implementation="eager").eval().to(dtype)
    pixels = torch.randn(1, 3, 32, 32, dtype=dtype)
    with recorded(monkeypatch) as weights:
        logits = model(pixels).logits[0]
    score = logits[2] - logits[[0, 1, 3, 4]].max()
    gradients = torch.autograd.grad(score, weights)
    expected = chain([positive_mean(w, g).float() for w, g in zip(weights, gradients, strict=True)])[0]
    model.set_attn_implementation(implementation)
    with linked(model, lambda name: True) as links:
        found = margin(model(pixels).logits[0], 2)
    links.differentiate(found)
    assert len(links.filled) == 2
    torch.testing.assert_close(relevant_row(links.calls, [0]), expected, atol=1e-5, rtol=1e-5)
    # the rows that were asked for hold every head
    rows = (weights[1] * gradients[1])[0].clamp(min=0)[:, 0]
    torch.testing.assert_close(links.calls[1].rows[:, 0], rows.float(), atol=1e-6, rtol=1e-5)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_clip(implementation, monkeypatch):
    model = TINY["CLIP"].build("eager")
    inputs = single(model, "CLIP")
    with recorded(monkeypatch) as weights:
        score = model(**inputs).logits_per_image[0, 0]
    gradients = torch.autograd.grad(score, weights)
    vision = [pair for pair in zip(weights, gradients, strict=True) if pair[0].shape[-1] == 17]
    assert len(vision) == 2
    expected = chain([positive_mean(*pair) for pair in vision])[0]
    model.set_attn_implementation(implementation)
    with linked(model, FAMILIES["clip"].attends) as links:
        found = model(**inputs).logits_per_image[0, 0]
    links.differentiate(found)
    torch.testing.assert_close(relevant_row(links.calls, [0]), expected, atol=1e-5, rtol=1e-5)


def authors_rules(steps: list[tuple[str, Tensor]], texts: int, boxes: int) -> dict[str, Tensor]:
    """Equations 5 to 11 for LXMERT; a pair of cross-attentions ("ti", "it") is applied at once."""
    r_tt, r_ii = torch.eye(texts), torch.eye(boxes)
    r_ti, r_it = torch.zeros(texts, boxes), torch.zeros(boxes, texts)

    def normalised(r: Tensor) -> Tensor:
        rest = r - torch.eye(len(r))
        return rest / rest.sum(-1, keepdim=True) + torch.eye(len(r))

    number = 0
    while number < len(steps):
        kind, a = steps[number]
        if kind == "t":
            r_tt, r_ti = r_tt + a @ r_tt, r_ti + a @ r_ti
        elif kind == "i":
            r_ii, r_it = r_ii + a @ r_ii, r_it + a @ r_it
        else:
            number += 1
            other, b = steps[number]
            assert (kind, other) == ("ti", "it")
            more_ti = normalised(r_tt).T @ a @ normalised(r_ii)
            more_it = normalised(r_ii).T @ b @ normalised(r_tt)
            r_tt, r_ii, r_ti, r_it = r_tt + a @ r_it, r_ii + b @ r_ti, r_ti + more_ti, r_it + more_it
        number += 1
    return {"tt": r_tt, "ii": r_ii, "ti": r_ti, "it": r_it}


@pytest.mark.parametrize("boxes", [6, 7])
def test_lxmert(boxes, monkeypatch):
    """Seven tokens of text, with six boxes and with seven, where sizes do not tell the sides apart."""
    import transformers

    torch.manual_seed(0)
    config = small("LxmertConfig", visual_feat_dim=32, num_qa_labels=9)
    model = transformers.LxmertForQuestionAnswering(config).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.2)
    inputs = {
        "input_ids": torch.randint(5, 190, (1, 7)),
        "visual_feats": torch.randn(1, boxes, 32),
        "visual_pos": torch.rand(1, boxes, 4),
    }
    with recorded(monkeypatch) as weights:
        logits = model(**inputs).question_answering_score[0]
    best = int(logits.argmax())
    score = logits[best] - logits.topk(2).values[1]
    gradients = torch.autograd.grad(score, weights, allow_unused=True)
    order = ["t"] * 2 + ["i"] * 2 + ["ti", "it", "t", "i"] * 2
    assert len(order) == len(weights)
    steps = [
        (kind, torch.zeros(w.shape[-2:]) if g is None else positive_mean(w, g))
        for kind, w, g in zip(order, weights, gradients, strict=True)
    ]
    expected = authors_rules(steps, 7, boxes)
    with linked(model, lambda name: True) as links:
        found = margin(model(**inputs).question_answering_score[0], best)
    links.differentiate(found)
    ours = relevances(links.calls, attends_image=lambda name: "visual_attention" in name)
    torch.testing.assert_close(ours[TEXT, IMAGE][0], expected["ti"][0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours[TEXT, TEXT][0], expected["tt"][0], atol=1e-5, rtol=1e-5)
    assert expected["ti"][0].max() > 1e-4


def test_several_scores_of_one_pass_and_half_precision():
    model = TINY["CLIP"].build().requires_grad_(False)
    inputs = single(model, "CLIP")
    attends = FAMILIES["clip"].attends

    def row(network: nn.Module, scale: float, again: bool) -> list[Tensor]:
        given = {k: v.to(next(network.parameters()).dtype) if v.is_floating_point() else v for k, v in inputs.items()}
        with linked(network, attends) as links:
            logit = network(**given).logits_per_image[0, 0]
        links.differentiate(logit * scale, again=again)
        first = relevant_row(links.calls, [0])
        if again:
            links.differentiate(logit)
        return [first, relevant_row(links.calls, [0])]

    double, plain = row(model, 2.0, again=True)
    torch.testing.assert_close(plain, row(model, 1.0, again=False)[0])
    assert not torch.allclose(double, plain, rtol=1e-3, atol=0)
    half = row(model.to(torch.bfloat16), 1.0, again=False)[0]
    torch.testing.assert_close(half, plain, atol=0.02 * float(plain[1:].max()), rtol=0.1)


def test_heads_are_combined_as_asked():
    model = TINY["ViT"].build()
    inputs = {"pixel_values": TINY["ViT"].arguments(model)["pixel_values"][:1]}
    found = {}
    for heads in ("mean", "max", 1):
        with linked(model, lambda name: True, heads) as links:
            score = model(**inputs).last_hidden_state[0, 0].square().sum()
        links.differentiate(score, rows=(0, 3))
        found[heads] = links.calls[0]
    every = found["mean"].rows
    assert every.shape == (4, 2, 17)
    torch.testing.assert_close(found["max"].mean[3], every[:, 1].amax(0))
    torch.testing.assert_close(found[1].mean[0], every[1, 0])
    torch.testing.assert_close(found["mean"].mean[0], every[:, 0].mean(0))


def test_layers_that_are_not_wanted_stay_out():
    model = TINY["ViT"].build()
    inputs = {"pixel_values": TINY["ViT"].arguments(model)["pixel_values"][:1]}
    with linked(model, lambda name: ".1." in name) as links:
        score = model(**inputs).last_hidden_state[0, 0].sum()
    links.differentiate(score)
    assert [link.name for link in links.calls] == ["layers.1.attention"]
    expected = links.calls[0].mean[0].clone()
    expected[0] += 1
    torch.testing.assert_close(relevant_row(links.calls, [0]), expected)


def test_multihead_attention_of_torch_by_hand():
    torch.manual_seed(0)
    attend = nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(1, 4, 8)
    with linked(attend, lambda name: True) as links:
        score = attend(x, x, x)[0][0, 1].sum()
    links.differentiate(score)
    query, key, value = F.linear(x, attend.in_proj_weight, attend.in_proj_bias)[0].chunk(3, -1)
    query, key, value = (y.reshape(4, 2, 4).transpose(0, 1) for y in (query, key, value))
    weights = (query @ key.mT / 2).softmax(-1).detach().requires_grad_()
    again = attend.out_proj((weights @ value).transpose(0, 1).flatten(1))[1].sum()
    gradient = torch.autograd.grad(again, weights)[0]
    torch.testing.assert_close(links.calls[0].mean, (weights * gradient).clamp(min=0).mean(0).detach())


@pytest.mark.parametrize("name", ["LLaVA", "Qwen2-VL", "InternVL"])
def test_words_are_read_from_the_passes_that_generate_them(name, monkeypatch):
    """As in one further pass over the prompt and the words, which other models need."""
    model, processor, _ = build(name)
    image = np.random.default_rng(0).integers(0, 255, (60, 100, 3), np.uint8)
    passes = []
    model.register_forward_hook(lambda *_: passes.append(1))

    def seen() -> fv.watch.Look:
        return fv.look(model, image, "what is this", processor=processor, method="relevance", max_new_tokens=3)

    with torch.no_grad():
        found = seen()
    assert len(passes) == len(found.source.said.new)
    monkeypatch.setattr(relevance, "_generated", lambda call: None)
    again = seen()
    assert len(passes) == 2 * len(found.source.said.new) + 1
    assert float(again.layers.max()) > 0
    torch.testing.assert_close(found.layers, again.layers, atol=1e-5 * float(again.layers.max()), rtol=1e-4)
    for one, other in zip(found.words, again.words, strict=True):
        torch.testing.assert_close(one.attention.weights, other.attention.weights, atol=1e-5, rtol=1e-4)


def test_grouped_queries_and_one_row_as_with_eager_weights():
    from transformers import LlamaForCausalLM

    rows = []
    for implementation in ("eager", "sdpa"):
        torch.manual_seed(0)
        config = small("LlamaConfig", num_key_value_heads=2)
        model = LlamaForCausalLM._from_config(config, attn_implementation=implementation).eval()
        with linked(model, lambda name: True) as links:
            score = model(torch.arange(1, 9)[None]).logits[0, -1].square().sum()
        links.differentiate(score, rows=(0, -1))
        rows.append([(link.mean, link.rows) for link in links.calls])
    for eager, sdpa in zip(*rows, strict=True):
        assert float(eager[0].max()) > 0
        torch.testing.assert_close(sdpa, eager, atol=1e-6, rtol=1e-4)


def test_parameters_need_gradients_again_after_the_last_of_several():
    model = TINY["ViT"].build()
    model.requires_grad_(True)
    next(model.parameters()).requires_grad_(False)
    before = [one.requires_grad for one in model.parameters()]
    with pytest.raises(AttributeError), linked(model, lambda name: True), linked(model, lambda name: True):
        model(pixel_values=None, unknown=None)
    with linked(model, lambda name: True):
        with linked(model, lambda name: True):
            pass
        assert not any(one.requires_grad for one in model.parameters())
    assert [one.requires_grad for one in model.parameters()] == before


def test_rows_are_averaged_and_a_pooling_head_begins():
    torch.manual_seed(0)
    from foveate.watch.relevance import Link

    maps = [torch.rand(3, 3) for _ in range(2)]
    square = [Link("x", 3, 3, one) for one in maps]
    expected = chain(maps)
    torch.testing.assert_close(relevant_row(square, [2]), expected[2])
    torch.testing.assert_close(relevant_row(square, [0, -1]), (expected[0] + expected[2]) / 2)
    pool = torch.rand(1, 3)
    torch.testing.assert_close(relevant_row([*square, Link("head", 1, 3, pool)], [0]), (pool @ expected)[0])
    with pytest.raises(ShapeError, match="relevance: expected layers of self-attention"):
        relevant_row([Link("head", 1, 3, pool)], [0])
    with pytest.raises(ShapeError, match="relevance: expected a call in which text attends"):
        relevances(square, attends_image=lambda name: False)


def test_integrated_gradients_are_complete_and_equal_a_slow_sum():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(3 * 4 * 4, 1)).double()
    images, start = torch.randn(2, 2, 6, 6).double(), torch.randn(1, 2, 1, 1).double()

    def score(x: Tensor) -> Tensor:
        return network(x)[:, 0]

    found = integrated_gradients(score, images, baseline=start, steps=400)
    change = score(images) - score(start.expand_as(images))
    torch.testing.assert_close(found.sum((1, 2)), change, atol=1e-4, rtol=1e-4)
    slow = torch.zeros_like(found)
    for step in range(4):
        x = (start + (step + 0.5) / 4 * (images - start)).requires_grad_()
        slow += (torch.autograd.grad(score(x).sum(), x)[0] / 4 * (images - start)).sum(1)
    torch.testing.assert_close(integrated_gradients(score, images, baseline=start, steps=4), slow)
    zero = integrated_gradients(score, images, steps=4)
    assert not torch.allclose(zero, slow)


def test_gradient_times_input_of_a_linear_model_is_exact():
    weight = torch.randn(2, 3, 3)
    images = torch.randn(4, 2, 3, 3)
    found = gradient_times_input(lambda x: (x * weight).sum((1, 2, 3)), images)
    torch.testing.assert_close(found, (images * weight).sum(1))
    shifted = gradient_times_input(lambda x: (x * weight).sum((1, 2, 3)), images, baseline=torch.ones(1))
    torch.testing.assert_close(shifted, ((images - 1) * weight).sum(1))
    with torch.no_grad():
        gradient_times_input(lambda x: x.sum((1, 2, 3)), images)
    with pytest.raises(ShapeError, match="gradient: expected the result of score"):
        gradient_times_input(lambda x: x.sum(), images)
    with pytest.raises(ValueError, match="integrated_gradients: expected steps"):
        integrated_gradients(lambda x: x.sum((1, 2, 3)), images, steps=0)


def test_margin():
    assert margin(torch.tensor([3.0]), 0).item() == 3
    assert margin(torch.tensor([1.0, 4.0, 2.0]), 0).item() == -3
