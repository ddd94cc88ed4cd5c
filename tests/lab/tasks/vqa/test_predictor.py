"""Answers to questions about images in any form."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from foveate.attention import MECHANISMS
from foveate.errors import DataError
from foveate.lab.tasks.vqa import VQA
from tests.lab.tasks.vqa.small import TINY, image, model_of


@pytest.fixture(scope="module")
def task() -> VQA:
    return VQA.from_data(TINY, None)


def test_answers_a_question(task: VQA, tmp_path: Path) -> None:
    predictor = task.predictor(model_of(task).eval())
    answer = predictor.answer(image(), "Is the zebra left of the star?", top=3)
    assert answer.text in task.answers
    assert len(answer.best) == 3
    assert answer.best[0] == (answer.text, answer.confidence)
    assert [value for _, value in answer.best] == sorted((value for _, value in answer.best), reverse=True)
    assert answer.unknown == ("zebra",)
    assert [word for word, _ in answer.words] == ["is", "the", "zebra", "left", "of", "the", "star"]
    assert sum(weight for _, weight in answer.words) == pytest.approx(1, abs=1e-5)
    assert answer.attention.map(5, 5).shape == (1, 5, 5)
    path = tmp_path / "image.png"
    Image.fromarray(image()).save(path)
    for same in (path, str(path), path.read_bytes(), Image.open(path)):
        assert predictor.answer(same, "Is the zebra left of the star?").best[:3] == answer.best


@pytest.mark.parametrize("name", MECHANISMS)
def test_batches_do_not_change_answers(task: VQA, name: str) -> None:
    predictor = (chosen := replace(task, settings=replace(TINY, mechanism=name))).predictor(model_of(chosen).eval())
    questions = ["Is it red?", "How many large red stars are in the image?", "What colour is the star?"]
    together = predictor.answers([image()] * 3, questions, batch_size=2)
    for question, found in zip(questions, together, strict=True):
        alone = predictor.answer(image(), question)
        assert alone.text == found.text
        assert alone.confidence == pytest.approx(found.confidence, abs=1e-5)
        torch.testing.assert_close(alone.attention.map(6, 6), found.attention.map(6, 6), rtol=1e-3, atol=1e-4)


def test_lists_are_answered_in_batches(task: VQA) -> None:
    predictor, questions = task.predictor(model_of(task).eval()), ["Is it red?", "What colour is the star?"]
    alone = [predictor.answer(image(), question).best for question in questions]
    lists = ([image(), image()], questions), (image(), questions), ([image()], questions)
    for images, asked in lists:
        found = predictor.answer(images, asked, batch_size=2)
        assert [[text for text, _ in one.best] for one in found] == [[text for text, _ in one] for one in alone]
    assert [one.text for one in predictor.answer([image()] * 3, questions[0])] == [alone[0][0][0]] * 3
    assert predictor.answer([], []) == []
    with pytest.raises(DataError, match=r"answer: expected one image per question, got 2 and 3"):
        predictor.answer([image()] * 2, [*questions, "Is it blue?"])


def test_images_of_floats(task: VQA) -> None:
    predictor, pixels = task.predictor(model_of(task).eval()), torch.from_numpy(image())
    whole = predictor.answer(image(), "Is it red?").best
    for same in (
        pixels / 255,
        (pixels / 255).movedim(-1, 0),
        (pixels / 255).double().numpy(),
        pixels.movedim(-1, 0).numpy(),
    ):
        assert predictor.answer(same, "Is it red?").best == whole
    for wrong, message in (
        (pixels.float(), r"got float32 from 0 to 2"),
        (pixels / 255 - 0.5, "undo its normalisation"),
        (pixels.long(), "got int64"),
        (pixels.float() * torch.nan, "got float32 from nan"),
        (pixels[..., 0], r"expected an array \(H, W, 3\)"),
        (torch.zeros(0, 4, 3), r"expected an array \(H, W, 3\)"),
    ):
        with pytest.raises(DataError, match=message):
            predictor.answer(wrong, "Is it red?")


def test_a_split_for_fiftyone(task: VQA) -> None:
    predictor = task.predictor(model_of(task).eval())
    samples = predictor.to_fiftyone("val", limit=3)
    assert len(samples) == 3
    data = task.settings.read("val", None)
    for question, sample in zip(data.questions, samples, strict=False):
        assert sample["ground_truth"] == {"label": question.answer}
        assert sample["prediction"]["label"] == predictor.answer(data.image(question).pixels(), question.text).text
        assert 0 <= sample["prediction"]["confidence"] <= 1
        assert sample["attention"]["heatmap"]["map"].ndim == 2


def test_what_is_printed_is_short(task: VQA) -> None:
    predictor = task.predictor(model_of(task).eval())
    for thing in (predictor, predictor.answer(image(), "Is it red?")):
        assert 1 <= len(repr(thing).splitlines()) <= 5
        assert "tensor(" not in repr(thing)


def test_confidence_is_a_softmax_where_the_loss_is(task: VQA) -> None:
    chosen = replace(task, settings=replace(TINY, loss="cross-entropy"))
    answer = chosen.predictor(model_of(chosen).eval()).answer(image(), "Is it red?", top=1000)
    assert sum(value for _, value in answer.best) == pytest.approx(1, abs=1e-5)


def test_predictor_refusals(task: VQA, tmp_path: Path) -> None:
    predictor = task.predictor(model_of(task).eval())
    for empty in ("", "   ", "?!"):
        with pytest.raises(DataError, match=r"answer: expected a question, got .*; ask with at least one word"):
            predictor.answer(image(), empty)
    (tmp_path / "broken.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"expected a complete image .*broken\.png"):
        predictor.answer(tmp_path / "broken.png", "Is it red?")
    with pytest.raises(DataError, match=r"expected an image at .*nothing\.png, got no file"):
        predictor.answer(tmp_path / "nothing.png", "Is it red?")
    with pytest.raises(DataError, match="image: expected a path, bytes, an array, a tensor or a Pillow image, got int"):
        predictor.answer(3, "Is it red?")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="answer: expected one image per question, got 1 and 2"):
        predictor.answers([image()], ["a", "b"])
    for wrong in ({"top": 0}, {"top": -1}, {"top": True}, {"top": 1.5}, {"batch_size": 0}, {"batch_size": -1}):
        with pytest.raises(ValueError, match=rf"answer: expected {next(iter(wrong))} as a whole number >= 1, got"):
            predictor.answers([image()], ["Is it red?"], **wrong)  # type: ignore[arg-type]
