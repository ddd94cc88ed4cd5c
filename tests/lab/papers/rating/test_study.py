"""A study is frozen, blinded and shuffled; its maps share one scale and have no edges."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from foveate.attention import Attended
from foveate.errors import DataError
from foveate.lab.papers.rating import Study, make_study
from foveate.lab.papers.rating.study import STUDY, content_words, maps_of, overlay
from foveate.lab.tasks.presentation import Rated
from tests.lab.papers.rating.conftest import RUNS


def test_a_study_holds_every_run_for_every_image(study: Study) -> None:
    assert len(study.items) == 4
    assert study.runs == RUNS
    assert study.kind == "caption"
    for item in study.items:
        assert [entry.run for entry in item.entries] == [0, 1, 2]
        for entry in item.entries:
            assert entry.text
            assert 1 <= len(entry.words) <= 2
            assert not {word.word for word in entry.words} & {"a", "the", "is", "there"}
            for word in entry.words:
                with Image.open(study.directory / word.map) as a, Image.open(study.directory / item.image) as b:
                    assert a.size == b.size


def test_the_seed_draws_the_images(made: Path, tmp_path: Path) -> None:
    options = {"count": 4, "split": "val", "max_words": 1, "progress": False}
    first = {item.id for item in Study.load(made).items}
    again = make_study(tmp_path / "a", ["scenes-vqa", "scenes-vqa mechanism=tvmax"], seed=3, **options)
    other = make_study(tmp_path / "b", ["scenes-vqa", "scenes-vqa mechanism=tvmax"], seed=4, **options)
    assert {item.id for item in again.items} == first
    assert {item.id for item in other.items} != first


def test_questions_and_captions_are_prompts(tmp_path: Path) -> None:
    vqa = make_study(
        tmp_path / "vqa", ["scenes-vqa", "scenes-vqa mechanism=tvmax"], count=1, split="val", progress=False
    )
    assert vqa.items[0].prompt.endswith("?")
    assert [word.word for word in vqa.items[0].entries[0].words] == [vqa.items[0].entries[0].text]
    runs = ["scenes-matching", "scenes-matching mechanism=sparsemax"]
    matching = make_study(tmp_path / "matching", runs, count=1, split="val", progress=False)
    assert matching.items[0].prompt
    assert not matching.rates_text
    assert len(matching.items[0].entries[0].words) > 1


def test_every_rater_has_an_order_of_their_own(study: Study) -> None:
    codes = [f"{n:08x}" for n in range(12)]
    assert study.order(codes[0]) == study.order(codes[0])
    assert len({tuple(study.order(code)) for code in codes}) > 3
    orders = {tuple(entry.run for entry in study.shuffled(code, item)) for code in codes for item in range(4)}
    assert len(orders) == 6
    assert sorted(study.order(codes[0])) == list(range(4))


def test_names_of_maps_do_not_tell_the_run(study: Study) -> None:
    names = [word.map for item in study.items for entry in item.entries for word in entry.words]
    assert len(set(names)) == len(names)
    assert not any(run.split()[-1] in name for name in names for run in study.runs)


def test_maps_have_no_edge_and_no_mask() -> None:
    pixels = np.full((60, 60, 3), 200, np.uint8)
    weights = torch.zeros(6, 6)
    weights[2, 2] = 36.0
    drawn = overlay(pixels, weights, top=36.0)
    assert (drawn[40:, 40:] == 200).all()  # untouched where there is no attention
    assert drawn[25, 25].tolist() != [200, 200, 200]
    half = overlay(pixels, weights / 2, top=36.0)
    assert abs(half[25, 25].astype(int) - 200).sum() < abs(drawn[25, 25].astype(int) - 200).sum()  # one scale
    assert (overlay(pixels, weights * 9, top=36.0)[25, 25] == overlay(pixels, weights * 99, top=36.0)[25, 25]).all()


def test_words_without_content_are_not_rated() -> None:
    assert content_words(["there", "is", "a", "red", "Star"]) == [3, 4]
    assert content_words(["the"]) == [0]
    attended = Attended(torch.zeros(1, 3, 2), torch.full((1, 3, 4), 0.25), grid=(2, 2))
    assert [word for word, _ in maps_of(Rated("", "a red star", ("a", "red", "star"), attended), 1)] == ["red"]


def test_a_changed_study_is_not_opened(study: Study) -> None:
    path = study.directory / STUDY
    content = json.loads(path.read_text())
    content["runs"][0] = "other"
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match="damaged"):
        Study.load(study.directory)


def test_a_missing_map_is_named(study: Study) -> None:
    (study.directory / study.items[1].entries[0].words[0].map).unlink()
    with pytest.raises(DataError, match="maps/1-"):
        Study.load(study.directory)


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        (["scenes-vqa"], "at least 2 runs"),
        (["scenes-vqa", "scenes-captioning"], "runs of one task"),
        (["scenes-vqa", "nowhere"], "directory of a run"),
    ],
)
def test_runs_must_be_comparable(tmp_path: Path, runs: list[str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        make_study(tmp_path / "new", runs, progress=False)
    assert not (tmp_path / "new" / STUDY).exists()


def test_a_study_is_never_overwritten(study: Study) -> None:
    with pytest.raises(DataError, match="expected a new directory"):
        make_study(study.directory, ["scenes-vqa", "scenes-vqa"], progress=False)
