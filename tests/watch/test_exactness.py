"""Watching changes no number, and what is watched is what eager attention returns."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", reason="needs the extra hf")

from foveate.watch import Records, watch
from tests.watch.tiny import TINY, largest_difference

TOLERANCE = 1e-6
# Deformable attention samples points instead of weighing tokens.
PARTLY = {"Grounding DINO"}
QUICK = ("ViT", "Swin", "SAM vision", "SigLIP", "BLIP", "ViLT", "ViT + GPT-2", "DETR", "LLaVA", "Qwen2-VL", "BLIP-2",
         "Gemma 3", "gpt-oss", "BART", "GIT")  # fmt: skip
FAMILIES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in TINY]


def run(name, implementation, watched=True, **options):
    """The output of the tiny model and what was seen."""
    model = TINY[name].build(implementation)
    arguments = {**TINY[name].arguments(model), **options}
    torch.manual_seed(1)  # some embeddings draw at random
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if not watched:
            return model(**arguments), Records()
        with watch(model) as seen:
            return model(**arguments), seen


def implementations(name):
    try:
        TINY[name].build("sdpa")
    except ValueError:
        return ["eager"]
    return ["eager", "sdpa"]


def eager_attentions(output):
    """Every attention tensor (B, M, Q, N) that the output holds, also in the outputs of its parts."""
    found = []
    for key, value in output.items():
        if "attentions" in key and value is not None:
            found += [part for part in flat(value) if isinstance(part, torch.Tensor) and part.ndim == 4]
        elif hasattr(value, "items"):
            found += eager_attentions(value)
    return found


def flat(value):
    if isinstance(value, list | tuple):
        return [one for part in value for one in flat(part)]
    return [value]


@pytest.mark.parametrize("name", FAMILIES)
def test_numbers_do_not_change(name):
    for implementation in implementations(name):
        plain, _ = run(name, implementation, watched=False)
        watched, seen = run(name, implementation)
        assert largest_difference(plain, watched) == 0
        assert len(seen) > 0
        assert bool(seen.unseen) == (name in PARTLY), seen.unseen


@pytest.mark.parametrize("name", FAMILIES)
def test_weights_equal_eager(name):
    output, _ = run(name, "eager", watched=False, output_attentions=True)
    expected = eager_attentions(output)
    for implementation in implementations(name):
        _, seen = run(name, implementation)
        for weights in expected:
            alike = [row.weights for row in seen if row.weights.shape == weights.shape]
            best = min((float((row - weights).abs().max()) for row in alike), default=float("inf"))
            assert best <= TOLERANCE, (implementation, tuple(weights.shape), best)


def test_the_page_of_models_lists_every_family():
    page = (Path(__file__).resolve().parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
    table = next(block for block in page.split("\n\n") if block.startswith("| ") or "\n| BERT |" in block)
    rows = [line.split(" | ")[0].removeprefix("| ") for line in table.splitlines() if line.startswith("| ")]
    assert rows[1:] == list(TINY), "run python benchmarks/families.py"
    assert len(TINY) >= 40


def generated(name, model, **options):
    """Four tokens that the tiny model generates."""
    arguments = TINY[name].arguments(model)
    if name == "LLaVA":
        arguments.pop("mm_token_type_ids", None)
    return model.generate(
        **arguments, max_new_tokens=4, min_new_tokens=4, do_sample=False, pad_token_id=0, return_dict_in_generate=True,
        **options,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["LLaVA", "Qwen2-VL"])
def test_rows_kept_while_generating_equal_eager(name):
    eager, fused = (TINY[name].build(implementation) for implementation in ("eager", "sdpa"))
    expected = generated(name, eager, output_attentions=True)
    plain = generated(name, fused, output_logits=True)
    with watch(fused, queries=-1, keep="image") as seen:
        made = generated(name, fused, output_logits=True)
    assert all(torch.equal(one, other) for one, other in zip(plain.logits, made.logits, strict=True))
    steps = [[row for row in step if row.keys is not None] for step in seen.steps]
    assert [len(step) for step in steps] == [len(step) for step in expected.attentions]
    for step, attentions in zip(steps, expected.attentions, strict=True):
        for row, whole in zip(step, attentions, strict=True):
            keys = row.keys if row.keys.ndim == 1 else row.keys[0]
            weights = whole[0][:, -1:, keys]
            torch.testing.assert_close(row.weights[0], weights, atol=TOLERANCE, rtol=0)
