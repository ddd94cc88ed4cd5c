"""Other transforms inside Hugging Face models: what goes through, masks, causality, cached generation, pooling."""

from __future__ import annotations

import pytest
import torch
from torch import nn

pytest.importorskip("transformers", reason="needs the extra hf")

import foveate as fv
from foveate import hf
from foveate.ops import TRANSFORMS
from foveate.ops.grid import grid_edges
from foveate.watch.swap import Change, swap
from tests.watch.tiny import TINY, ids, largest_difference, pixels, seen, small

NAMES = [name for name, row in TRANSFORMS.items() if not row.needs_edges]
TOLERANCE = 1e-6
QUICK = ("ViT", "SigLIP", "GIT", "BLIP", "LLaVA", "T5")
FAMILIES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in TINY]
# Deformable attention samples points; sinks need a softmax.
REFUSED = {"Grounding DINO": "do not", "gpt-oss": "attention sinks"}
# Part of the model attends past the interface, or its class does not know the name.
IGNORED = {"SwinV2", "SigLIP vision", "SigLIP", "SigLIP 2", "AIMv2", "FLAVA", "BLIP", "BLIP captioner", "BridgeTower",
           "TrOCR decoder", "Grounding DINO", "ViLT", "LXMERT", "VisualBERT"}  # fmt: skip
UNKNOWN = {"Data2Vec vision", "SAM vision", "GIT"}


@pytest.fixture(autouse=True, scope="module")
def _registered():
    assert set(hf.register()) == {f"foveate-{name}" for name in NAMES}


def run(model, arguments):
    torch.manual_seed(1)  # ViLT draws the order of its patches
    with torch.no_grad():
        return model(**arguments)


def run_changed(model, arguments):
    with hf.use(model, "sparsemax", inputs=arguments):
        return run(model, arguments)


@pytest.mark.parametrize("name", FAMILIES)
def test_use_softmax_reproduces_and_restores(name):
    model = TINY[name].build()
    arguments = TINY[name].arguments(model)
    plain = run(model, arguments)
    if name in REFUSED:
        with pytest.raises(ValueError, match=REFUSED[name]):
            hf.use(model, "softmax", inputs=arguments)
    else:
        with hf.use(model, "softmax", inputs=arguments) as handle:
            assert largest_difference(plain, run(model, arguments)) < 5e-6
            assert handle.names
        with hf.use(model, "sparsemax", inputs=arguments), fv.watch(model) as records:
            run(model, arguments)
        assert {row.via for row in records} == {"foveate"}
        assert largest_difference(plain, run_changed(model, arguments)) > 1e-5
    assert largest_difference(plain, run(model, arguments)) == 0


@pytest.mark.parametrize("name", FAMILIES)
def test_register_softmax_reproduces_or_is_refused(name):
    plain = TINY[name].build("eager")
    arguments = TINY[name].arguments(plain)
    if name in UNKNOWN:
        with pytest.raises(KeyError):
            TINY[name].build("foveate-softmax")
        return
    model = TINY[name].build("foveate-softmax")
    if name == "gpt-oss":
        with pytest.raises(NotImplementedError, match="attention sinks"):
            run(model, arguments)
        return
    if name in IGNORED:
        with pytest.raises(ValueError, match="check: expected every attention module to go through"):
            hf.check(model, arguments)
        return
    assert hf.check(model, arguments)
    assert largest_difference(run(plain, arguments), run(model, arguments)) < TOLERANCE


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("way", ["register", "use"])
def test_causality_and_padding(name, way):
    model = TINY["Llama"].build(f"foveate-{name}" if way == "register" else "sdpa")
    if way == "use":
        hf.use(model, name)
    arguments = {"input_ids": ids, "attention_mask": seen}
    states = run(model, arguments).last_hidden_state
    changed = ids.clone()
    changed[:, -1] = 7
    later = run(model, {**arguments, "input_ids": changed}).last_hidden_state
    assert float((states[0, :-1] - later[0, :-1]).abs().max()) <= TOLERANCE
    alone = run(model, {"input_ids": ids[1:, :4], "attention_mask": seen[1:, :4]}).last_hidden_state
    assert float((states[1, :4] - alone[0]).abs().max()) <= TOLERANCE


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("way", ["register", "use"])
def test_padding_of_a_bidirectional_model(name, way):
    model = TINY["BERT"].build(f"foveate-{name}" if way == "register" else "sdpa")
    if way == "use":
        hf.use(model, name)
    states = run(model, {"input_ids": ids, "attention_mask": seen}).last_hidden_state
    alone = run(model, {"input_ids": ids[1:, :4], "attention_mask": seen[1:, :4]}).last_hidden_state
    assert float((states[1, :4] - alone[0]).abs().max()) <= TOLERANCE


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("way", ["register", "use"])
def test_cached_generation_equals_uncached(name, way):
    from transformers import LlamaForCausalLM

    torch.manual_seed(0)
    options = {"attn_implementation": f"foveate-{name}" if way == "register" else "sdpa"}
    model = LlamaForCausalLM._from_config(small("LlamaConfig"), **options).eval()
    if way == "use":
        hf.use(model, name)
    made = [
        model.generate(
            ids[:1], max_new_tokens=5, do_sample=False, use_cache=cache, pad_token_id=0, output_logits=True,
            return_dict_in_generate=True,
        )
        for cache in (True, False)
    ]  # fmt: skip
    assert torch.equal(made[0].sequences, made[1].sequences)
    difference = max(float((a - b).abs().max()) for a, b in zip(made[0].logits, made[1].logits, strict=True))
    assert difference <= TOLERANCE


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("way", ["register", "use"])
def test_generation_in_a_batch_padded_on_the_left(name, way):
    """Grouped-query attention and a cache; the shorter text is padded before its first token."""
    from transformers import LlamaForCausalLM

    torch.manual_seed(0)
    options = {"attn_implementation": f"foveate-{name}" if way == "register" else "sdpa"}
    model = LlamaForCausalLM._from_config(small("LlamaConfig", num_key_value_heads=2), **options).eval()
    if way == "use":
        hf.use(model, name)
    asked = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    asked |= {"output_logits": True, "return_dict_in_generate": True}
    padded = torch.cat([ids[:1], torch.cat([torch.zeros_like(ids[:1, :2]), ids[1:, :-2]], 1)])
    mask = (torch.arange(padded.shape[1]) >= torch.tensor([[0], [2]])).long()
    together = model.generate(padded, attention_mask=mask, **asked)
    for row, alone in enumerate((ids[:1], ids[1:, :-2])):
        for cache in (True, False):
            single = model.generate(alone, use_cache=cache, **asked)
            pairs = zip(together.logits, single.logits, strict=True)
            assert max(float((a[row] - b[0]).abs().max()) for a, b in pairs) <= TOLERANCE


def test_without_a_mask_function_a_causal_model_sees_the_future():
    from functools import partial

    from transformers import AttentionInterface

    AttentionInterface.register("naked", partial(hf.attention, change=Change("softmax")))
    model = TINY["Llama"].build("naked")
    changed = ids.clone()
    changed[:, -1] = 7
    first, second = (run(model, {"input_ids": x}).last_hidden_state[:, :-1] for x in (ids, changed))
    assert float((first - second).abs().max()) > 1e-4


def test_options_become_part_of_the_name():
    name = hf.register("entmax", alpha=1.3)
    arguments = {"pixel_values": pixels}
    model, same = TINY["ViT"].build(name), TINY["ViT"].build("foveate-entmax")
    assert largest_difference(run(model, arguments), run(same, arguments)) > 1e-4
    live = TINY["ViT"].build()
    hf.use(live, "entmax", alpha=1.3)
    assert largest_difference(run(model, arguments), run(live, arguments)) < TOLERANCE
    with pytest.raises(fv.UnknownName, match="alpha"):
        hf.register("entmax", alfa=1.3)


def test_some_layers_only():
    model = TINY["ViT"].build()
    hf.use(model, "sparsemax", layers=[1])
    with fv.watch(model) as records:
        run(model, {"pixel_values": pixels})
    assert [row.via for row in records] == ["sdpa", "foveate"]
    with pytest.raises(ValueError, match="got none; pass other layers"):
        hf.use(TINY["ViT"].build(), "sparsemax", layers=[9])


def test_a_failed_change_leaves_the_model_alone():
    model = TINY["Grounding DINO"].build()
    with pytest.raises(ValueError, match="do not"):
        hf.use(model, "sparsemax", inputs=TINY["Grounding DINO"].arguments(model))
    assert not any("foveate_change" in module.__dict__ or "forward" in module.__dict__ for module in model.modules())


@pytest.mark.parametrize(("name", "prefix"), [("ViT", 1), ("DINOv2 with registers", 5), ("I-JEPA", 0)])
def test_tvmax_solves_the_graph_of_the_patches(name, prefix):
    scores = torch.randn(3, prefix + 16, generator=torch.Generator().manual_seed(0))
    ours = Change("tvmax", {"smoothness": 0.1}, (4, 4), prefix).weights(scores)
    expected = fv.gfusedmax(scores, grid_edges(4, 4) + prefix, 0.1)
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=0)
    for model in (TINY[name].build("foveate-tvmax"), TINY[name].build()):
        if model.config._attn_implementation == "sdpa":
            hf.use(model, "tvmax", smoothness=0.01)
        with fv.watch(model) as records:
            run(model, {"pixel_values": pixels})
        torch.testing.assert_close(records[-1].weights.sum(-1), torch.ones(2, 4, prefix + 16))


def test_tvmax_follows_the_size_of_the_images():
    model = TINY["ViT"].build()
    images = {"pixel_values": torch.randn(1, 3, 48, 32), "interpolate_pos_encoding": True}
    with hf.use(model, "tvmax", smoothness=0.002, grid=(6, 4), prefix=1, inputs=images):
        expected = run(model, images)
    with hf.use(model, "tvmax", smoothness=0.002, grid=(4, 6), prefix=1, inputs=images):
        assert not torch.equal(run(model, images)[0], expected[0])
    with hf.use(model, "tvmax", smoothness=0.002):
        assert torch.equal(run(model, images)[0], expected[0])
    fixed = TINY["ViT"].build("foveate-tvmax")
    with pytest.raises(ValueError, match=r"expected images of 32 x 32 pixels.*use foveate.hf.use"):
        run(fixed, {"pixel_values": torch.randn(1, 3, 48, 32), "interpolate_pos_encoding": True})


def test_gradient_through_a_changed_model():
    model = TINY["ViT"].build("foveate-sparsemax").double()
    image = pixels[:1].double().requires_grad_()
    direction = torch.randn(image.shape, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    target = torch.randn(1, 17, 32, dtype=torch.double, generator=torch.Generator().manual_seed(1))

    def score(x):
        return (model(x).last_hidden_state * target).sum()

    gradient = torch.autograd.grad(score(image), image)[0]
    step = 1e-6
    with torch.no_grad():
        numeric = (score(image + step * direction) - score(image - step * direction)) / (2 * step)
    torch.testing.assert_close((gradient * direction).sum(), numeric, rtol=1e-4, atol=1e-6)


class AttentionPool2d(nn.Module):
    """The pooling head of CLIP's ResNets, as published."""

    def __init__(self, side, dim, heads, out):
        super().__init__()
        self.positional_embedding = nn.Parameter(torch.randn(side**2 + 1, dim) / dim**0.5)
        self.k_proj, self.q_proj, self.v_proj = (nn.Linear(dim, dim) for _ in range(3))
        self.c_proj, self.num_heads = nn.Linear(dim, out), heads

    def forward(self, x):
        x = x.flatten(start_dim=2).permute(2, 0, 1)
        x = torch.cat([x.mean(dim=0, keepdim=True), x], dim=0) + self.positional_embedding[:, None, :]
        x, _ = nn.functional.multi_head_attention_forward(
            query=x[:1], key=x, value=x, embed_dim_to_check=x.shape[-1], num_heads=self.num_heads,
            q_proj_weight=self.q_proj.weight, k_proj_weight=self.k_proj.weight, v_proj_weight=self.v_proj.weight,
            in_proj_weight=None, in_proj_bias=torch.cat([self.q_proj.bias, self.k_proj.bias, self.v_proj.bias]),
            bias_k=None, bias_v=None, add_zero_attn=False, dropout_p=0, out_proj_weight=self.c_proj.weight,
            out_proj_bias=self.c_proj.bias, use_separate_proj_weight=True, training=self.training, need_weights=False,
        )  # fmt: skip
        return x.squeeze(0)


def heads():
    torch.manual_seed(0)
    yield TINY["SigLIP vision"].build(), {"pixel_values": pixels}, lambda out: out.pooler_output
    yield TINY["AIMv2"].build(), {"pixel_values": pixels, "input_ids": ids}, lambda out: out.image_embeds
    yield nn.Sequential(AttentionPool2d(4, 16, 2, 8)), {"input": torch.randn(2, 16, 4, 4)}, lambda out: out


@pytest.mark.parametrize("case", range(3), ids=["SigLIP", "AIMv2", "CLIP ResNet"])
def test_pool(case):
    model, arguments, pick = list(heads())[case]
    plain = pick(run(model, arguments))
    with hf.pool(model, "softmax"):
        torch.testing.assert_close(pick(run(model, arguments)), plain, atol=1e-6, rtol=0)
    for name in ("tvmax", "continuous-sparsemax", "multimodal"):
        with hf.pool(model, name) as handle, fv.watch(model) as records:
            pooled = pick(model(**arguments))
        gradients = torch.autograd.grad(pooled.sum(), list(model.parameters()), allow_unused=True)
        assert all(bool(torch.isfinite(gradient).all()) for gradient in gradients if gradient is not None)
        assert not torch.equal(pooled.detach(), plain)
        assert [row.name for row in records if row.via == "foveate"] == [f"{handle.names[0]}.foveate_mechanism"]
    assert torch.equal(pick(run(model, arguments)), plain)


def test_pool_without_a_head():
    with pytest.raises(ValueError, match="pool: expected a model with an attention pooling head, got ViTModel"):
        hf.pool(TINY["ViT"].build(), "multimodal")


@pytest.mark.parametrize("mask", ["none", "boolean", "additive"])
@pytest.mark.parametrize("padded", [False, True])
def test_masks_of_torch_multihead_attention(mask, padded):
    torch.manual_seed(0)
    module = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x, future = torch.randn(2, 5, 8), torch.ones(5, 5).triu(1).bool()
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    additive = mask == "additive"
    masks = {
        "attn_mask": None if mask == "none" else future.float() * -1e30 if additive else future,
        "key_padding_mask": None if not padded else padding.float() * -1e30 if additive else padding,
    }
    expected = module(x, x, x, **masks)[0]
    with swap(nn.Sequential(module), Change("softmax"), lambda name: True):
        torch.testing.assert_close(module(x, x, x, **masks)[0], expected, atol=1e-6, rtol=0)


def test_missing_extra(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(fv.MissingExtra, match=r"foveate\[hf\]"):
        hf.register("entmax")


@pytest.mark.parametrize("name", [case for case in FAMILIES if case.values[0] not in {*REFUSED, "LXMERT"}])
def test_probe_needs_no_inputs(name):
    model = TINY[name].build()
    assert hf.use(model, "sparsemax").names


def test_probe_asks_for_inputs():
    with pytest.raises(fv.ShapeError, match="pass inputs= as the model's processor returns them"):
        hf.use(TINY["LXMERT"].build(), "sparsemax")


@pytest.mark.parametrize(
    ("name", "options", "warned"),
    [
        ("sparsemax", {}, True),
        ("entmax", {}, True),
        ("entmax", {"alpha": 1.05}, False),
        ("softmax", {}, False),
        ("sparsemax", {"layers": [0]}, False),
    ],
)
def test_use_warns_before_it_ruins_a_loaded_model(name, options, warned, tmp_path):
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(hidden_size=8, num_hidden_layers=3, num_attention_heads=2, intermediate_size=8, image_size=32)
    made = ViTModel(config)
    with hf.use(made, name, **options):  # no warning: nothing was trained
        pass
    made.save_pretrained(tmp_path)
    loaded = ViTModel.from_pretrained(tmp_path)
    if warned:
        with pytest.warns(UserWarning, match=r"use: .* trained with softmax .* foveate\.hf\.adapt"):
            hf.use(loaded, name, **options)
    else:
        hf.use(loaded, name, **options)
