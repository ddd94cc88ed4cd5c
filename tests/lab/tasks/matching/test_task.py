"""Matching: the loss and its parts, and predictions."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

from foveate.errors import DataError
from foveate.lab.data.vocabulary import SPECIAL, UNKNOWN
from foveate.lab.losses import info_nce, ranking_hinge
from foveate.lab.models import (
    BFANSettings,
    MatchingDAN,
    MatchingDANSettings,
    SCANSettings,
)
from foveate.lab.tasks.matching import Matching
from foveate.lab.tasks.matching.constraints import resourcing, swapping
from foveate.lab.tasks.matching.data import drop_words
from foveate.lab.tasks.matching.settings import Ranking
from foveate.lab.tasks.task_settings import Constraint
from tests.lab.tasks.matching.small import MODELS, SMALL, batch_of


@pytest.fixture(scope="module")
def scenes() -> Matching:
    return Matching.from_data(SMALL, None)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_has_a_loss_with_a_gradient_and_metrics(scenes: Matching, name: str) -> None:
    task = replace(scenes, settings=replace(SMALL, model=MODELS[name]))
    torch.manual_seed(0)
    model = task.build_model()
    batch = batch_of(task)
    loss = task.loss(model, batch, 0)
    assert loss.count == 20
    loss.total.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters() if p.requires_grad)
    metrics = task.metrics()
    with torch.no_grad():
        metrics.update(task.predict(model.eval(), batch), batch)
    found = metrics.compute()
    assert 0 <= found["rsum"] <= 600
    assert ("attention_f1" in found) == (name not in ("m-dan", "dual"))


def test_the_loss_is_equation_9(scenes: Matching) -> None:
    torch.manual_seed(0)
    model, batch = scenes.build_model(), batch_of(scenes)
    plain = scenes.loss(model, batch, 0)
    assert set(plain.parts) == {"ranking"}
    settings = replace(SMALL, ccr=Constraint(2.0, margin=0.4), ccs=Constraint(3.0, margin=0.5))
    torch.manual_seed(5)
    both = replace(scenes, settings=settings).loss(model, batch, 0)
    assert set(both.parts) == {"ranking", "ccr", "ccs"}
    torch.testing.assert_close(both.parts["ranking"], plain.total)
    torch.testing.assert_close(both.total, plain.total + 2 * both.parts["ccr"] + 3 * both.parts["ccs"])
    images, texts = scenes.embed(model, batch)
    torch.testing.assert_close(plain.total, ranking_hinge(model.scorer(images, texts), batch.owner))
    looks = model.scorer.cross_attend(images[batch.owner], texts)
    torch.testing.assert_close(both.parts["ccr"], resourcing(looks, model.scorer.aggregate, 0.4))
    torch.manual_seed(5)
    ccs = swapping(looks, lambda tokens: model.embed_text(tokens, batch.mask).values, batch.tokens, batch.owner, 0.5)
    torch.testing.assert_close(both.parts["ccs"], ccs)


@pytest.mark.parametrize(
    "changes",
    [{"ranking": Ranking(margin=0.7)}, {"ranking": Ranking(negatives="all")}, {"mechanism": "sparsemax"}],
    ids=["margin", "negatives", "mechanism"],
)
def test_fields_change_the_loss(scenes: Matching, changes: dict[str, Any]) -> None:
    torch.manual_seed(0)
    other = replace(scenes, settings=replace(SMALL, **changes))
    model, batch = other.build_model(), batch_of(scenes)
    torch.manual_seed(0)
    plain = scenes.loss(scenes.build_model(), batch, 0).total.item()
    assert plain != pytest.approx(other.loss(model, batch, 0).total.item())


def test_softness_changes_the_loss_of_soft_negatives(scenes: Matching) -> None:
    torch.manual_seed(0)
    model, batch = scenes.build_model(), batch_of(scenes)
    losses = []
    for softness in (0.05, 0.5):
        task = replace(scenes, settings=replace(SMALL, ranking=Ranking(negatives="soft", softness=softness)))
        losses.append(task.loss(model, batch, 0).total.item())
    assert losses[0] != pytest.approx(losses[1])


def test_the_first_steps_use_other_negatives(scenes: Matching) -> None:
    task = replace(scenes, settings=replace(SMALL, ranking=Ranking(warmup_steps=2)))
    torch.manual_seed(0)
    model, batch = task.build_model(), batch_of(task)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    losses = [task.loss(model, batch, step).total.item() for step in range(3)]
    assert losses[0] == losses[1] > losses[2]
    torch.testing.assert_close(model.state_dict(), before)  # the step is not counted among the weights
    assert losses[2] == pytest.approx(scenes.loss(model, batch, 0).total.item())
    soft = replace(scenes, settings=replace(SMALL, ranking=Ranking(warmup_steps=6, warmup_negatives="soft")))
    always = replace(scenes, settings=replace(SMALL, ranking=Ranking(negatives="soft")))
    assert soft.loss(model, batch, 5).total.item() == pytest.approx(always.loss(model, batch, 5).total.item())
    assert soft.loss(model, batch, 6).total.item() == pytest.approx(scenes.loss(model, batch, 6).total.item())


def test_word_vectors_begin_as_large_as_asked(scenes: Matching) -> None:
    small = replace(scenes, settings=replace(SMALL, word_std=0.1))
    torch.manual_seed(0)
    model = small.build_model()
    before = model.text.words.weight.detach().clone()
    small.initialise(model)
    torch.testing.assert_close(model.text.words.weight, before * 0.1)


def test_the_constraints_can_begin_later(scenes: Matching) -> None:
    task = replace(scenes, settings=replace(SMALL, ccr=Constraint(1.0, after=1), ccs=Constraint(1.0, after=2)))
    torch.manual_seed(0)
    model, batch = task.build_model(), batch_of(task)
    parts = [task.loss(model, batch, step).parts for step in range(3)]
    assert all(set(part) == {"ranking", "ccr", "ccs"} for part in parts)  # alike, so that batches can be joined
    assert [(part["ccr"].item() > 0, part["ccs"].item() > 0) for part in parts] == [
        (False, False),
        (True, False),
        (True, True),
    ]


def test_swapped_captions_are_read_without_dropout(scenes: Matching) -> None:
    torch.manual_seed(0)
    model = replace(scenes, settings=replace(SMALL, model=replace(SMALL.model, dropout=0.5))).build_model()
    batch = batch_of(scenes)
    again = [model.embed_text(batch.tokens, batch.mask, dropout=False).values for _ in range(2)]
    torch.testing.assert_close(again[0], again[1])
    torch.testing.assert_close(again[0], model.eval().embed_text(batch.tokens, batch.mask).values)
    assert not torch.equal(again[0], model.train().embed_text(batch.tokens, batch.mask).values)


def test_dropped_words_are_read_as_unknown_in_training_only(scenes: Matching) -> None:
    task = replace(scenes, settings=replace(SMALL, word_dropout=1.0))
    torch.manual_seed(0)
    model, batch = task.build_model(), batch_of(task)
    words = batch.tokens >= len(SPECIAL)
    unknown = replace(batch, tokens=batch.tokens.masked_fill(words, UNKNOWN))
    torch.testing.assert_close(task.loss(model, batch, 0).total, scenes.loss(model, unknown, 0).total)
    assert not torch.equal(task.predict(model, batch).texts.values, task.predict(model, unknown).texts.values)
    torch.manual_seed(0)
    shares = (drop_words(torch.full((100, 100), 7), 0.3) == UNKNOWN).float().mean()
    assert shares.item() == pytest.approx(0.3, abs=0.02)


def test_predicts_what_the_model_counts_as_attended(scenes: Matching) -> None:
    torch.manual_seed(0)
    for kind in (SCANSettings(hidden=8), BFANSettings(hidden=8, temperature=3.0)):
        task = replace(scenes, settings=replace(SMALL, model=kind))
        model, batch = task.build_model().eval(), batch_of(task)
        with torch.no_grad():
            prediction = task.predict(model, batch)
            images, texts = task.embed(model, batch)
            look = model.scorer.look(images[batch.owner], texts)
        least = 1 / look.weights.shape[-1] if isinstance(kind, SCANSettings) else 0.0
        assert torch.equal(prediction.attended, look.weights > least)
        assert prediction.locations == [(7, 7)] * 4
    locations_look = replace(scenes, settings=replace(SMALL, model=SCANSettings(hidden=8, direction="i2t")))
    with torch.no_grad():
        assert locations_look.predict(locations_look.build_model(), batch_of(scenes)).attended is None


def test_goes_through_json_and_back(scenes: Matching) -> None:
    again = Matching.from_vocabulary(SMALL, json.loads(json.dumps(scenes.vocabulary())))
    assert again == scenes
    assert isinstance(
        replace(scenes, settings=replace(SMALL, model=MatchingDANSettings(hidden=8))).build_model(), MatchingDAN
    )


def test_word_vectors_must_fit(scenes: Matching, tmp_path) -> None:
    path = tmp_path / "vectors.txt"
    path.write_text("\n".join(f"{word} 1 2 3 4 5 6" for word in scenes.inputs.words.words[4:]))
    task = replace(scenes, settings=replace(SMALL, words=str(path)))
    model = task.build_model()
    task.initialise(model)
    assert model.text.words.weight[5].tolist() == [1, 2, 3, 4, 5, 6]
    wrong = replace(scenes, settings=replace(SMALL, words=str(path), word_dim=5))
    with pytest.raises(DataError, match=r"words: expected word vectors of 5 dimensions, got 6 .* set word_dim=6"):
        wrong.initialise(wrong.build_model())


def test_infonce_is_a_choice_with_its_own_temperature(scenes: Matching) -> None:
    torch.manual_seed(0)
    model, batch = scenes.build_model(), batch_of(scenes)
    scores = model.scorer(*scenes.embed(model, batch))
    for temperature in (0.05, 0.5):
        ranking = Ranking(loss="infonce", temperature=temperature)
        found = replace(scenes, settings=replace(SMALL, ranking=ranking)).loss(model, batch, 0)
        torch.testing.assert_close(found.total, info_nce(scores, batch.owner, temperature=temperature))
    with pytest.raises(LookupError, match="loss: expected a known name, got 'nce'"):
        Ranking(loss="nce")


def test_pretrained_states_and_ccs_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="matching: expected ccs=0 for text=minilm, got 1"):
        replace(SMALL, model=SCANSettings(hidden=8, text="minilm"), ccs=Constraint(1.0))
