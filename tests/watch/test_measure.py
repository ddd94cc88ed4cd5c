"""Scores of maps, intervals, halves, and the whole evaluation with known maps."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import foveate as fv
from foveate.apps.cli.evaluate_attention import find_cases
from foveate.lab.data import DATASETS, Dataset, ImageRecord, Object, Question
from foveate.metrics import bootstrap_interval
from foveate.ops.boxes import Box
from foveate.watch import Case, Maps, evaluate_attention
from foveate.watch.measure import MEASURES, SIZE, halves, roc_auc, score_maps

REGION = torch.zeros(4, 4, dtype=torch.bool)
REGION[:2, :2] = True


def record(name):
    return ImageRecord(name, lambda: np.zeros((28, 28, 3), np.uint8))


def case(name, box):
    return Case(record(name), "thing", (Box(*box),))


def test_perfect_and_opposite_maps():
    inside = REGION / REGION.sum()
    outside = (~REGION) / (~REGION).sum()
    good, bad = score_maps(torch.stack([inside, outside]), REGION, inside)
    names = dict(zip(MEASURES, good.tolist(), strict=True))
    assert names == pytest.approx({**dict.fromkeys(MEASURES, 1.0), "js": 0.0})
    assert dict(zip(MEASURES, bad.tolist(), strict=True)) == pytest.approx({**dict.fromkeys(MEASURES, 0.0), "js": 1.0})


def test_auc_is_the_probability_of_the_right_order():
    maps = torch.rand(3, 4, 4, generator=torch.Generator().manual_seed(0))
    maps[2] = (maps[2] * 4).round()  # with ties
    for one, auc in zip(maps, roc_auc(maps, REGION), strict=True):
        a, b = one[REGION][:, None], one[~REGION][None]
        assert auc.item() == pytest.approx(((a > b).double() + (a == b).double() / 2).mean().item())
    assert roc_auc(maps, torch.ones(4, 4, dtype=torch.bool)).tolist() == [0.5] * 3


def test_bootstrap_draws_whole_images():
    values = torch.tensor([0.0] * 50 + [1.0] * 50)
    same = bootstrap_interval(values, clusters=["a"] * 50 + ["b"] * 50)
    apart = bootstrap_interval(values, clusters=list(range(100)))
    assert (same.low, same.mean, same.high) == (0.0, 0.5, 1.0)
    assert 0.3 < apart.low < 0.5 < apart.high < 0.7


def test_halves_share_no_image():
    groups = ["a", "b", "a", "c", "b"]
    first = halves(groups).tolist()
    assert not {g for g, f in zip(groups, first, strict=True) if f} & {
        g for g, f in zip(groups, first, strict=True) if not f
    }


def test_the_head_that_grounds_is_found():
    cases = [case(str(n), (0.0, 0.0, 0.5, 0.5) if n % 2 else (0.5, 0.5, 1.0, 1.0)) for n in range(8)]

    def source(pixels, one):
        heads = torch.rand(2, 3, *SIZE, generator=torch.Generator().manual_seed(int(one.image_id)))
        heads[1, 2] = one.region(*SIZE).float()
        heads = heads / heads.sum((-2, -1), keepdim=True)
        return Maps(heads.mean((0, 1)), heads, ("first", "second"))

    found = evaluate_attention("model", "data", source, cases)
    best = found.best_heads("mass", count=2)
    assert (best[0].layer, best[0].head, best[0].chosen) == ("second", 2, pytest.approx(1.0))
    assert best[0].other["pointing"].mean == 1.0
    assert best[1].other["mass"].mean < 0.5
    summary = found.summary()
    assert set(summary) == {"model", "uniform", "centre", "random"}
    assert summary["uniform"]["mass"].mean == pytest.approx(0.25)
    assert found.best_heads("js", count=1)[0].head == 2  # lower is better
    json = found.to_json()
    assert (json["cases"], json["images"]) == (8, 8)
    assert len(json["heads"]["mean"]["auc"]) == 2
    with pytest.raises(fv.UnknownName, match="pointing"):
        found.best_heads("poiting")
    one = evaluate_attention("model", "data", source, cases[:1])
    with pytest.raises(fv.DataError, match="at least two images"):
        one.best_heads()


def test_cases_of_datasets():
    scenes = DATASETS["scenes"].read(None, "val", count=6)
    questions = find_cases(scenes, 5)
    assert len(questions) == 5
    assert all(one.is_question and one.boxes for one in questions)
    phrases = find_cases(scenes, kind="phrases")
    assert not phrases[0].is_question
    assert phrases[0].truth(14, 14).sum().item() == pytest.approx(1)
    things = Dataset("mine", "all", (record("a"),), objects={"a": (Object(1, "cat", Box(0, 0, 0.5, 0.5)),) * 1})
    assert [one.text for one in find_cases(things)] == ["cat"]
    human = Question(1, "a", "Where?", human_maps=(lambda: np.eye(4),))
    looked = find_cases(Dataset("mine", "all", (record("a"),), questions=(human,)))[0]
    assert torch.equal(looked.region(4, 4), torch.eye(4).bool())
    with pytest.raises(fv.DataError, match="expected questions, phrases or objects with boxes"):
        find_cases(Dataset("mine", "all", (record("a"),)))
    with pytest.raises(fv.UnknownName, match="phrases"):
        find_cases(scenes, kind="phrase")


def test_baselines_see_what_the_model_sees():
    """A model that sees the right half: baselines are drawn into it, given maps are cut to it."""
    cases = [case(str(n), (0.5, 0.0, 1.0, 1.0)) for n in range(4)]
    total = torch.zeros(*SIZE).double()
    total[:, 7:] = 1 / 98

    def source(pixels, case):
        return Maps(total, total[None, None], ("layer",), (0.5, 0.0, 1.0, 1.0))

    even = torch.full((1, *SIZE), 1 / 196, dtype=torch.float64)
    found = evaluate_attention("m", "d", source, cases, baselines={"mean of train": even})
    mass = MEASURES.index("mass")
    for name in ("uniform", "centre", "random", "mean of train"):
        assert found.baselines[name][:, mass].tolist() == pytest.approx([1.0] * 4)
    assert found.differences("uniform")["mass"].mean == pytest.approx(0)
    with pytest.raises(fv.UnknownName, match="centre"):
        found.differences("center")


def test_effects_of_heads_are_those_of_a_model_without_their_columns():
    """A head that contributes nothing is a head whose columns of the output projection are zero."""
    transformers = pytest.importorskip("transformers", reason="needs the extra hf")
    from foveate.watch.measure import head_effects, lookers_of
    from tests.watch.processors import PROCESSORS
    from tests.watch.tiny import small

    torch.manual_seed(0)
    model = transformers.ViTForImageClassification(small("ViTConfig", num_labels=5)).eval()
    processor = PROCESSORS["ViT"]()
    cases = [case(name, (0.0, 0.0, 0.5, 0.5)) for name in ("a", "b", "c")]
    found = head_effects(lookers_of(model, processor)["all layers"], cases)
    assert found.effects.shape == found.grounding.shape == (3, 2, 4)
    inputs = dict(processor(images=cases[0].image.pixels(), return_tensors="pt"))
    with torch.no_grad():
        before = model(**inputs).logits[0].double().log_softmax(-1)
        best = int(before.argmax())
        project = next(m for n, m in model.named_modules() if n.endswith("o_proj") or n.endswith("output.dense"))
        columns = project.weight[:, 8:16].clone()
        project.weight[:, 8:16] = 0
        after = model(**inputs).logits[0].double().log_softmax(-1)
        project.weight[:, 8:16] = columns
    expected = (before - after)[best].item() / np.log(2)
    assert found.effects[0, 0, 1].item() == pytest.approx(expected, abs=1e-5)
    for by in ("effect", "grounding"):
        best = found.best(by, count=2)
        assert len(best) == 2
        assert {"effect", "grounding"} < set(best[0])
    assert -1 <= found.agreement() <= 1
    assert len(found.plot().axes) == 2
