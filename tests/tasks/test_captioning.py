"""The task of captioning on embedded data: examples, batches, loss, predictions, metrics."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from foveate.data.samples import Box, Caption, Dataset, Phrase, Picture
from foveate.data.scenes import make_scenes
from foveate.data.vocabulary import END, START, Vocabulary
from foveate.errors import UnknownName
from foveate.recipes import override
from foveate.recipes.captioning import CAPTIONING_RECIPES
from foveate.recipes.typed import decode, encode
from foveate.tasks import TASKS, Captioning
from foveate.tasks.captioning_data import CaptionExample, collate, things_of
from foveate.tasks.captioning_settings import CaptioningSettings
from foveate.tasks.pictures import Conv


def settings(**changes) -> CaptioningSettings:
    small = CaptioningSettings(images=Conv((8, 8)), word_dim=8, hidden=8, min_count=1, max_words=8, beams=2, limit=6)
    return replace(small, **changes)


@pytest.fixture(scope="module")
def task() -> Captioning:
    return Captioning.from_data(settings(), None)


def batch_of(task: Captioning, split: str = "val", count: int = 3):
    examples = task.examples(split, None)
    return task.collate([examples[i] for i in range(count)])


def test_an_example_is_a_picture_with_its_captions(task: Captioning) -> None:
    examples = task.examples("val", None)
    data = make_scenes(split="val", count=6)
    assert len(examples) == 6
    assert examples[1].captions == data.captions_of(data.pictures[1].id)
    assert examples.fingerprint() == data.fingerprint()


def test_batches_shift_the_words_by_one(task: Captioning) -> None:
    batch = batch_of(task)
    captions = [caption for example in batch.examples for caption in example.captions]
    assert batch.index.tolist() == [row for row, example in enumerate(batch.examples) for _ in example.captions]
    for row, caption in enumerate(captions):
        numbers = [START, *task.words.encode(caption.tokens), END][:9]
        count = len(numbers) - 1
        assert batch.tokens[row][batch.mask[row]].tolist() == numbers[:-1]
        assert batch.targets[row, :count].tolist() == numbers[1:]
        assert batch.mask[row].sum() == count


def test_a_caption_that_is_cut_off_has_no_end() -> None:
    words = Vocabulary.from_tokens([["a", "b", "c"]])
    captions = (Caption(1, 1, "a b c", ("a", "b", "c")), Caption(2, 1, "a", ("a",)))
    batch = collate([CaptionExample(1, torch.zeros(3, 2, 2), captions)], words, max_words=2)
    assert batch.tokens.tolist() == [[START, 4], [START, 4]]
    assert batch.targets.tolist() == [[4, 5], [4, END]]


def test_things_are_objects_or_entities() -> None:
    scenes = make_scenes(split="val", count=2)
    image = scenes.pictures[0].id
    names = {thing.name for thing in scenes.objects_of(image)}
    assert {names[0] for names in things_of(scenes, image)} == names
    box = (Box(0, 0, 0.5, 0.5),)
    captions = (
        Caption(
            1,
            1,
            "",
            ("a", "brown", "dog", "at", "night"),
            (Phrase(0, 3, 7, boxes=box), Phrase(4, 5, 0, unlinked="scene")),
        ),
        Caption(2, 1, "", ("the", "puppy", "runs"), (Phrase(0, 2, 7, boxes=box),)),
    )
    flickr = Dataset("mine", "val", (Picture(1, lambda: None),), captions=captions)
    assert things_of(flickr, 1) == (("dog", "puppy"),)


def test_the_loss_is_a_sum_over_words(task: Captioning) -> None:
    torch.manual_seed(0)
    model, batch = task.build_model().eval(), batch_of(task)
    loss = task.loss(model, batch)
    assert loss.count == int(batch.mask.sum())
    assert set(loss.parts) == {"words"}
    parts = [
        task.loss(model, task.collate([example])) for example in map(task.examples("val", None).__getitem__, range(3))
    ]
    torch.testing.assert_close(loss.total, sum(part.total for part in parts))
    assert loss.count == sum(part.count for part in parts)


def test_constraints_are_weighed_in(task: Captioning) -> None:
    batch = batch_of(task)
    for field, margin in (("ccr", "ccr_margin"), ("ccs", "ccs_margin")):
        totals = []
        for changes in ({field: 1.0}, {field: 3.0}, {field: 1.0, margin: 0.9}):
            other = replace(task, settings=settings(**changes))
            torch.manual_seed(0)
            model = other.build_model().eval()
            torch.manual_seed(1)
            loss = other.loss(model, batch)
            torch.testing.assert_close(loss.total, loss.parts["words"] + changes[field] * loss.parts[field])
            totals.append(loss.parts[field].item())
        assert totals[0] == pytest.approx(totals[1])
        assert totals[2] > totals[0] > 0


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
        found, captioned = task.write(model, batch.pictures, beams=3, max_words=5)
    assert found.words.shape[1] == 3
    steps = torch.cat([torch.ones(3, 1, dtype=torch.bool), found.mask[:, 0, :-1]], 1)
    chances = captioned.scores.log_softmax(-1).gather(-1, found.words[:, 0][steps][:, None])[:, 0]
    total = torch.zeros(3).index_add(0, steps.nonzero()[:, 0], chances)
    torch.testing.assert_close(total, found.log_probabilities[:, 0], rtol=1e-4, atol=1e-4)


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
        settings(data="scens")
    with pytest.raises(UnknownName, match="data with captions"):
        settings(data="vqa-v2")
    fewer = Captioning.from_data(settings(min_count=5), None)
    assert len(fewer.words) < len(task.words)
    basis = settings(mechanism="continuous-softmax", mechanism_options={"basis": {"count": 49, "variance": 0.001}})
    assert len(basis.attention().basis.centres) == 49
    model = replace(task, settings=settings(score_dim=3, dropout=0.25)).build_model()
    assert (model.scores.weight.shape, model.dropout.p) == ((3,), 0.25)
    other = Captioning.from_data(settings(train_split="val"), None)
    assert other.words != task.words
    assert other.examples("train", None).fingerprint() == task.examples("val", None).fingerprint()


@pytest.mark.parametrize("name", CAPTIONING_RECIPES)
def test_recipes_build_and_survive_the_way_through_json(name: str) -> None:
    recipe = CAPTIONING_RECIPES[name]()
    assert recipe.name == name
    assert recipe.task == "captioning"
    assert CAPTIONING_RECIPES[name].__doc__
    assert decode(CaptioningSettings, encode(recipe.settings), "settings") == recipe.settings
    small = replace(recipe.settings, hidden=8, score_dim=None)
    dim = None if isinstance(recipe.settings.images, Conv) else 8
    assert Captioning(small, Vocabulary.from_tokens([["a"]]), dim).build_model()


def test_paper_settings() -> None:
    for name, data in (("captioning-lstm-coco", "coco-karpathy"), ("captioning-lstm-flickr30k", "flickr30k")):
        recipe = CAPTIONING_RECIPES[name]()
        chosen, training = recipe.settings, recipe.training
        assert (chosen.data, chosen.word_dim, chosen.hidden, chosen.min_count) == (data, 256, 512, 5)
        assert (training.optimiser.lr, training.optimiser.betas, training.epochs) == (1e-4, (0.8, 0.999), 50)
        rates = [training.schedule.rate(epoch, 50) for epoch in (0, 9, 10, 11)]
        assert rates == pytest.approx([1, 1, 0.99, 0.99**2])
    assert CAPTIONING_RECIPES["captioning-lstm-coco"]().settings.train_split == "train+restval"
    changed = override(
        CAPTIONING_RECIPES["captioning-lstm-coco"](), ["mechanism=tvmax", "mechanism_options.smoothness=0.01"]
    )
    assert changed.settings.mechanism_options == {"smoothness": 0.01}
