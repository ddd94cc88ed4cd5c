"""The task of visual question answering: loss, predictions and metrics, on a few scenes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from foveate.attention import MECHANISMS
from foveate.errors import DataError, UnknownName
from foveate.lab.losses import answer_bce, answer_cross_entropy, js_guidance, kl_guidance
from foveate.lab.models import ReasoningDANSettings
from foveate.lab.tasks.vqa import VQA
from foveate.lab.train import Adam, Training, evaluate, fit
from tests.lab.tasks.vqa.small import TINY, batch_of, model_of


@pytest.fixture(scope="module")
def task() -> VQA:
    return VQA.from_data(TINY, None)


def test_grouping_does_not_change_the_loss(task: VQA) -> None:
    model = model_of(task)
    single = replace(task, settings=replace(TINY, group=False))
    one = task.loss(model, task.collate([task.examples("train", None)[0]]), 0)
    examples = single.examples("train", None)
    parts = [single.loss(model, single.collate([examples[n]]), 0) for n in range(one.count)]
    assert sum(part.total for part in parts).item() == pytest.approx(one.total.item(), rel=1e-4)


@pytest.mark.parametrize(("name", "function"), [("bce", answer_bce), ("cross-entropy", answer_cross_entropy)])
def test_the_loss_is_the_one_chosen(task: VQA, name: str, function) -> None:
    chosen = replace(task, settings=replace(TINY, loss=name))
    model, batch = model_of(chosen), batch_of(chosen)
    loss = chosen.loss(model, batch, 0)
    torch.testing.assert_close(loss.total, function(chosen.run(model, batch).scores, batch.targets))
    assert loss.count == len(batch.questions)


@pytest.mark.parametrize(("name", "function"), [("kl", kl_guidance), ("js", js_guidance)])
def test_guidance_is_added_with_its_weight(task: VQA, name: str, function) -> None:
    guided = replace(task, settings=replace(TINY, guidance=0.5, guidance_loss=name))
    model, batch = model_of(guided), batch_of(guided)
    loss = guided.loss(model, batch, 0)
    expected = function(guided.run(model, batch).image[-1].map(7, 7), batch.target_map())
    torch.testing.assert_close(loss.parts["guidance"], expected)
    torch.testing.assert_close(loss.total, loss.parts["answers"] + 0.5 * expected)
    assert "guidance" not in task.loss(model, batch, 0).parts


@pytest.mark.parametrize("name", ["tvmax", "continuous-softmax"])
def test_guidance_on_the_scores_is_the_loss_of_the_mechanism(task: VQA, name: str) -> None:
    chosen = replace(TINY, mechanism=name, guidance=0.5, guidance_loss="scores")
    guided = replace(task, settings=chosen)
    model, batch = model_of(guided), batch_of(guided)
    region = batch.region.clone()
    region[0] = 0  # a question whose region is not known has no guidance
    batch = replace(batch, region=region)
    reading, target = guided.run(model, batch).reading, batch.target_map().flatten(1)
    loss = guided.loss(model, batch, 0)
    expected = chosen.attention().loss(reading.scores[1:], target[1:], grid=(7, 7)).sum()
    torch.testing.assert_close(loss.parts["guidance"], expected)
    torch.testing.assert_close(loss.total, loss.parts["answers"] + 0.5 * expected)


def test_guidance_on_the_density_is_that_of_the_ellipse(task: VQA) -> None:
    chosen = replace(TINY, mechanism="continuous-sparsemax", guidance=0.5, guidance_loss="density")
    guided = replace(task, settings=chosen)
    model, batch = model_of(guided), batch_of(guided)
    region = batch.region.clone()
    region[0] = 0  # a question whose region is not known has no guidance
    batch = replace(batch, region=region)
    reading, target = guided.run(model, batch).reading, batch.target_map().flatten(1)
    loss = guided.loss(model, batch, 0)
    expected = chosen.attention().density_loss(reading.scores[1:], target[1:], grid=(7, 7)).sum()
    torch.testing.assert_close(loss.parts["guidance"], expected)
    torch.testing.assert_close(loss.total, loss.parts["answers"] + 0.5 * expected)
    loss.total.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.flat_image.parameters())


@pytest.mark.parametrize("name", ["softmax", "multimodal"])
def test_only_an_ellipse_is_guided_by_its_density(name: str) -> None:
    with pytest.raises(ValueError, match=rf"expected one of continuous-softmax, .* got {name}; use guidance_loss=sc"):
        replace(TINY, mechanism=name, guidance_loss="density")


def test_unknown_guidance_is_named() -> None:
    with pytest.raises(UnknownName, match="guidance_loss: expected a known name, got 'bce'"):
        replace(TINY, guidance_loss="bce")


def test_guidance_needs_a_grid() -> None:
    task = VQA.from_data(replace(TINY, guidance=1.0), None)
    batch = task.collate([task.examples("train", None)[0]])
    answered = task.run(model_of(task), batch)
    flat = replace(answered, image=(replace(answered.image[-1], grid=None),))
    with pytest.raises(DataError, match="guidance: expected features on a grid, got regions; set guidance=0"):
        task._guidance(flat, batch.target_map())
    assert task._guidance(flat, None) == 0


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_mechanism_answers(task: VQA, name: str) -> None:
    chosen = replace(task, settings=replace(TINY, mechanism=name))
    model = model_of(chosen).eval()
    batch = batch_of(chosen)
    with torch.no_grad():
        prediction = chosen.predict(model, batch)
    metrics = chosen.metrics()
    metrics.update(prediction, batch)
    assert {"accuracy", "js", "mass", "pointing", "area", "entropy", "regions", "js of centre"} <= set(
        metrics.compute()
    )


def test_options_reach_the_mechanism(task: VQA) -> None:
    chosen = replace(task, settings=replace(TINY, mechanism="entmax", mechanism_options={"alpha": 1.25}))
    assert chosen.build_model().flat_image.attend.options == {"alpha": 1.25, "temperature": 1.0}
    options = {"basis": {"count": 49, "variance": 0.002}}
    chosen = replace(task, settings=replace(TINY, mechanism="continuous-softmax", mechanism_options=options))
    assert chosen.build_model().flat_image.attend.basis.centres.shape == (49, 2)


def test_r_dan_answers_with_its_own_word_attention(task: VQA) -> None:
    chosen = replace(
        task, settings=replace(TINY, model=ReasoningDANSettings(16, reasoning_steps=3, word_mechanism="sparsemax"))
    )
    answered = chosen.run(model_of(chosen).eval(), batch_of(chosen))
    assert len(answered.image) == 3
    assert (answered.question[0].weights == 0).any()


def test_survives_the_way_through_json(task: VQA) -> None:
    again = VQA.from_vocabulary(TINY, json.loads(json.dumps(task.vocabulary())))
    assert again == task


def test_max_answers_and_min_count() -> None:
    few = VQA.from_data(replace(TINY, max_answers=3), None)
    rare = VQA.from_data(replace(TINY, min_count=3), None)
    everything = VQA.from_data(TINY, None)
    assert few.answers.answers == everything.answers.answers[:3]
    assert len(rare.answers) < len(everything.answers)


def test_word_vectors_are_put_in(task: VQA, tmp_path: Path) -> None:
    path = tmp_path / "tiny.txt"
    path.write_text("is " + "0.5 " * 7 + "0.5\n")
    chosen = replace(task, settings=replace(TINY, words=str(path)))
    model = model_of(chosen)
    chosen.initialise(model)
    assert model.text.words.weight[chosen.inputs.words.index("is")].tolist() == [0.5] * 8
    wrong = replace(task, settings=replace(TINY, words=str(path), word_dim=4))
    with pytest.raises(DataError, match=r"expected word vectors of 4 dimensions, got 8 .*; set word_dim=8"):
        wrong.initialise(model_of(wrong))


def test_trains_and_fine_tunes_another_mechanism(task: VQA, tmp_path: Path) -> None:
    training = Training(Adam(1e-3), epochs=1, batch_size=3)
    history = fit(task, training, _new(tmp_path / "first"), config={}, progress=False)
    assert 0 <= history.best.metrics["accuracy"] <= 1
    other = replace(task, settings=replace(TINY, mechanism="tvmax"))
    fit(other, training, _new(tmp_path / "second"), config={}, start=tmp_path / "first", progress=False)
    assert (tmp_path / "second" / "model.safetensors").is_file()


def _new(directory: Path) -> Path:
    directory.mkdir()
    return directory


def test_batches_do_not_change_the_metrics(task: VQA) -> None:
    model, examples = model_of(task), task.examples("val", None)
    one, many = (evaluate(task, model, examples, batch_size=size) for size in (1, 6))
    assert one == pytest.approx(many, rel=1e-4, abs=1e-5)
