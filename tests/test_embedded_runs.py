"""The runs inside the package load by name, answer, and stay small."""

from __future__ import annotations

from pathlib import Path

import pytest

import foveate as fv
from foveate.data import scenes

RUNS = Path(fv.__file__).parent / "runs"


def test_the_runs_are_small_and_hold_no_pickle():
    files = [path for path in RUNS.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 10e6
    assert {path.suffix for path in files} == {".json", ".safetensors"}


def test_scenes_vqa_answers_questions_it_has_not_seen():
    run, data = fv.load("scenes-vqa"), scenes(split="test")
    questions = data.questions[:80]
    right = [run.answer(data.picture(q).pixels(), q.text).text == q.answer for q in questions]
    assert sum(right) / len(right) > 0.75


def test_an_answer_says_where_it_looked():
    run, data = fv.load("scenes-vqa"), scenes(split="test")
    question = next(q for q in data.questions if q.question_type == "colour")
    found = run.answer(data.picture(question).pixels(), question.text)
    seen = found.attention.map(112, 112)[0].double()
    assert seen.sum().item() == pytest.approx(1, abs=1e-4)
    region = question.region()
    assert seen.numpy()[region].sum() > 5 * region.mean()


def test_scenes_captioning_names_things_that_are_there():
    run, data = fv.load("scenes-captioning"), scenes(split="test", count=40)
    nouns = {name for things in data.objects.values() for thing in things for name in (thing.name, *thing.synonyms)}
    said = there = 0
    for picture in data.pictures:
        names = {name for thing in data.objects[picture.id] for name in (thing.name, *thing.synonyms)}
        words = nouns.intersection(run.caption(picture.pixels()).text.split())
        said, there = said + len(words), there + len(words & names)
    assert said >= len(data)
    assert there / said > 0.8


def test_scenes_matching_tells_captions_of_a_picture_from_others():
    run, data = fv.load("scenes-matching"), scenes(split="test", count=20)
    captions = [data.captions_of(picture.id)[0].text for picture in data.pictures]
    scores = run.match([picture.pixels() for picture in data.pictures], captions)
    best = scores.argmax(1)
    assert (best == best.new_tensor(range(len(data)))).double().mean() > 0.6
