"""The task of captioning on embedded data: loss, predictions, metrics, settings."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from foveate.errors import UnknownName
from foveate.lab.models import LSTMCaptionerSettings
from foveate.lab.tasks import TASKS, Captioning
from foveate.lab.tasks.captioning.task import EMPTY
from foveate.lab.tasks.guidance import phrase_targets
from foveate.lab.tasks.task_settings import Constraint
from tests.lab.tasks.captioning.small import batch_of, settings


@pytest.fixture(scope="module")
def task() -> Captioning:
    return Captioning.from_data(settings(), None)


def test_the_loss_is_a_sum_over_words(task: Captioning) -> None:
    torch.manual_seed(0)
    model, batch = task.build_model().eval(), batch_of(task)
    loss = task.loss(model, batch, 0)
    assert loss.count == int(batch.mask.sum())
    assert set(loss.parts) == {"words"}
    parts = [
        task.loss(model, task.collate([example]), 0)
        for example in map(task.examples("val", None).__getitem__, range(3))
    ]
    torch.testing.assert_close(loss.total, sum(part.total for part in parts))
    assert loss.count == sum(part.count for part in parts)


def test_constraints_are_weighed_in(task: Captioning) -> None:
    batch = batch_of(task)
    for field in ("ccr", "ccs"):
        totals = []
        for constraint in (Constraint(1.0), Constraint(3.0), Constraint(1.0, margin=0.9)):
            other = replace(task, settings=settings(**{field: constraint}))
            torch.manual_seed(0)
            model = other.build_model().eval()
            torch.manual_seed(1)
            loss = other.loss(model, batch, 0)
            torch.testing.assert_close(loss.total, loss.parts["words"] + constraint.weight * loss.parts[field])
            totals.append(loss.parts[field].item())
        assert totals[0] == pytest.approx(totals[1])
        assert totals[2] > totals[0] > 0


@pytest.mark.parametrize("mechanism", ["softmax", "sparsemax", "tvmax", "multimodal"])
def test_guidance_draws_both_attentions_of_words_to_their_boxes(task: Captioning, mechanism: str) -> None:
    guided = replace(task, settings=settings(guidance=0.5, mechanism=mechanism))
    torch.manual_seed(0)
    model, batch = guided.build_model().eval(), batch_of(guided, count=1)
    found = guided.loss(model, batch, 0)
    torch.testing.assert_close(found.total, found.parts["words"] + 0.5 * found.parts["guidance"])
    captions = batch.examples[0].captions
    optimiser = torch.optim.Adam(model.parameters(), 0.03)
    for _ in range(60):
        optimiser.zero_grad()
        guided.loss(model, batch, 0).parts["guidance"].backward()
        optimiser.step()
    captioned = guided.run(model, batch)
    targets = phrase_targets(captions, [(28, 28)] * len(captions), captioned.image_scores, first=0) > 0
    words = targets.any(-1)
    assert words.any()
    for weights in (captioned.image.weights, captioned.input_weights):
        inside = (weights * targets).sum(-1)[words].mean()
        assert inside > 2 * targets[words].float().mean()


def test_guidance_draws_words_that_name_nothing_to_the_whole_image(task: Captioning) -> None:
    chosen = settings(guidance=1.0)
    guided = replace(task, settings=replace(chosen, model=replace(chosen.model, scores="product")))
    torch.manual_seed(0)
    model, batch = guided.build_model().eval(), batch_of(guided, count=1)
    optimiser = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(150):
        optimiser.zero_grad()
        guided.loss(model, batch, 0).parts["guidance"].backward()
        optimiser.step()
    captioned, captions = guided.run(model, batch), batch.examples[0].captions
    named = phrase_targets(captions, [(28, 28)] * len(captions), captioned.image_scores, first=0).any(-1)
    T = named.shape[1]
    empty = torch.tensor([[w in EMPTY for w in c.tokens[:T]] + [False] * (T - len(c.tokens)) for c in captions])
    most = captioned.image.weights.amax(-1)
    assert most[empty & batch.mask & ~named].mean() < 0.5 * most[named].mean()


@pytest.mark.parametrize("name", ["ccr", "ccs"])
def test_each_constraint_begins_after_its_steps(task: Captioning, name: str) -> None:
    late = replace(task, settings=settings(**{name: Constraint(0.5, margin=0.9, after=2)}))
    torch.manual_seed(0)
    model, batch = late.build_model().eval(), batch_of(late)
    losses = [late.loss(model, batch, step) for step in (0, 1, 2)]
    assert all({"words", name} <= set(loss.parts) for loss in losses)
    assert len({tuple(loss.parts) for loss in losses}) == 1  # alike, so that batches can be joined
    assert [bool(loss.parts[name] > 0) for loss in losses] == [False, False, True]
    torch.testing.assert_close(losses[1].total, losses[1].parts["words"])
    torch.testing.assert_close(losses[2].total, losses[2].parts["words"] + 0.5 * losses[2].parts[name])


def test_predictions_are_measured(task: Captioning) -> None:
    torch.manual_seed(0)
    model, metrics = task.build_model().eval(), task.metrics()
    for count in (0, 3):
        examples = [task.examples("val", None)[i] for i in range(count, count + 3)]
        batch = task.collate(examples)
        with torch.no_grad():
            found = task.predict(model, batch)
        assert len(found.captions) == 3
        assert found.maps.shape[:2] == found.mask.shape
        torch.testing.assert_close(found.maps.sum((-2, -1)), torch.ones(found.mask.shape))
        assert [len(text.split()) for text in found.captions] == found.mask.sum(1).tolist()
        assert all(len(text.split()) <= 8 for text in found.captions)
        metrics.update(found, batch)
    result = metrics.compute()
    assert {task.objective, "bleu-4", "rouge-l", "rep", "words", "mentioned", "ptb tokenizer"} <= set(result)
    merged = task.metrics()
    merged.merge(json.loads(json.dumps(metrics.state())))
    assert merged.compute() == pytest.approx(result)


def test_what_is_read_back_is_what_was_written(task: Captioning) -> None:
    torch.manual_seed(0)
    model, batch = task.build_model().eval(), batch_of(task)
    with torch.no_grad():
        found, captioned = task.write(model, batch.images, beams=3, max_words=5)
    assert found.words.shape[1] == 3
    steps = torch.cat([torch.ones(3, 1, dtype=torch.bool), found.mask[:, 0, :-1]], 1)
    chances = captioned.scores.log_softmax(-1).gather(-1, found.words[:, 0][steps][:, None])[:, 0]
    total = torch.zeros(3).index_add(0, steps.nonzero()[:, 0], chances)
    torch.testing.assert_close(total, found.log_probabilities[:, 0], rtol=1e-4, atol=1e-4)


def test_captions_need_images_in_a_batch(task: Captioning) -> None:
    """A negative size made no batches, hence no captions and no error."""
    with pytest.raises(ValueError, match="caption: expected batch_size as a whole number >= 1, got -1"):
        task.predictor(task.build_model()).captions([Path("a.png")], batch_size=-1)


def test_trained_runs_are_measured_with_java_and_trainings_without(task: Captioning) -> None:
    assert task.metrics().quality.java is False
    trained = replace(task, settings=settings(spice=True)).predictor(task.build_model()).task
    assert trained.metrics().quality.java is None
    assert trained.metrics().quality.spice
    assert not replace(task, settings=settings(spice=True)).metrics().quality.spice


def test_comes_back_from_its_vocabulary(task: Captioning) -> None:
    again = Captioning.from_vocabulary(task.settings, json.loads(json.dumps(task.vocabulary())))
    assert again == task
    assert TASKS["captioning"] is Captioning


def test_settings_are_checked_and_used(task: Captioning) -> None:
    with pytest.raises(UnknownName, match="did you mean 'scenes'"):
        settings(dataset="scens")
    with pytest.raises(UnknownName, match="dataset with captions"):
        settings(dataset="vqa-v2")
    fewer = Captioning.from_data(settings(min_count=5), None)
    assert len(fewer.inputs.words) < len(task.inputs.words)
    basis = settings(mechanism="continuous-softmax", mechanism_options={"basis": {"count": 49, "variance": 0.001}})
    assert len(basis.attention().basis.centres) == 49
    model = replace(
        task, settings=settings(model=LSTMCaptionerSettings(hidden=8, score_dim=3, dropout=0.25))
    ).build_model()
    assert (model.scores.weight.shape, model.dropout.p) == ((3,), 0.25)
    other = Captioning.from_data(settings(train_split="val"), None)
    assert other.inputs.words != task.inputs.words
    assert other.examples("train", None).fingerprint() == task.examples("val", None).fingerprint()
