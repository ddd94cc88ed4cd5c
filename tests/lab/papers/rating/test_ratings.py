"""Ratings are complete, append-only and survive a crash; results are those of a calculation by hand."""

from __future__ import annotations

import csv
import json
import re

import numpy as np
import pytest

from foveate.apps.cli.main import main
from foveate.apps.studio.rating_page import answer, begin_html, sheet_html
from foveate.errors import DataError
from foveate.lab.papers.rating import RatingStore, Study, read_results
from foveate.lab.papers.rating.rating_store import questions


def rate_all(store: RatingStore, rater: str, quality: dict[int, int], relevance: dict[int, int]) -> None:
    for item in range(len(store.study.items)):
        answers = {
            name: (quality if name.endswith("quality") else relevance)[int(name[0])]
            for name in questions(store.study, item)
        }
        store.add(rater, item, answers)


def test_answers_are_required_and_on_the_scale(study: Study) -> None:
    store = RatingStore(study)
    rater = store.new_rater()
    whole = dict.fromkeys(questions(study, 0), 3)
    for wrong in ({}, {**whole, "0/quality": 6}, {**whole, "9/0": 3}, {k: v for k, v in whole.items() if k != "1/0"}):
        with pytest.raises(DataError, match="every question"):
            store.add(rater, 0, wrong)
    assert store.read(rater) == {}
    store.add(rater, 0, whole)
    assert store.read(rater) == {0: whole}


def test_a_rater_resumes_where_they_stopped(study: Study) -> None:
    store = RatingStore(study)
    rater = store.new_rater()
    for item in study.order(rater):
        assert store.next_item(rater) == item
        store.add(rater, item, dict.fromkeys(questions(study, item), 2))
    assert store.next_item(rater) is None
    assert store.raters() == [rater]


def test_a_line_that_a_crash_cut_off_is_skipped(study: Study) -> None:
    store = RatingStore(study)
    rater = store.new_rater()
    store.add(rater, 0, dict.fromkeys(questions(study, 0), 2))
    path = store.directory / f"{rater}.jsonl"
    before = path.read_bytes()
    path.write_bytes(before + before[:20])
    assert list(store.read(rater)) == [0]
    store.add(rater, 1, dict.fromkeys(questions(study, 1), 4))
    assert sorted(store.read(rater)) == [0, 1]
    assert path.read_bytes().startswith(before)  # nothing that was written is changed


def test_codes_are_not_paths(study: Study) -> None:
    for code in ("../../etc", "", "ABCDEFGH", "a" * 9):
        with pytest.raises(DataError, match="eight letters"):
            RatingStore(study).read(code)


def test_results_by_hand(study: Study) -> None:
    store = RatingStore(study)
    for quality, relevance in (({0: 2, 1: 4, 2: 4}, {0: 1, 1: 3, 2: 5}), ({0: 3, 1: 5, 2: 5}, {0: 1, 1: 3, 2: 5})):
        rate_all(store, store.new_rater(), quality, relevance)
    found = read_results(study)
    assert [found.means["quality"][run].mean for run in study.runs] == [2.5, 4.5, 4.5]
    assert [found.means["attention relevance"][run].mean for run in study.runs] == [1.0, 3.0, 5.0]
    assert found.alpha["attention relevance"] == 1.0
    assert found.alpha["quality"] < 1.0
    first = found.differences[0]
    assert (first.measure, first.means, first.p) == ("quality", (2.5, 4.5), 0.125)  # 2 of 2⁴ signs are as extreme
    assert first.corrected == pytest.approx(0.75)  # six comparisons
    assert found.sentences()[0].startswith("Quality does not differ")


def test_sentences_name_what_stands(study: Study) -> None:
    from dataclasses import replace

    many = replace(study, items=study.items * 5)
    store = RatingStore(many)
    rate_all(store, store.new_rater(), {0: 2, 1: 4, 2: 4}, {0: 3, 1: 3, 2: 3})
    quality, relevance = read_results(many).sentences()
    assert (
        "scenes-captioning mechanism=sparsemax is rated higher than scenes-captioning (4.00 against 2.00, p < 0.001)"
        in quality
    )
    assert (
        relevance == "Attention relevance does not differ significantly between the runs (corrected for 3 comparisons)."
    )


def test_a_rater_who_stopped_early_counts_for_what_they_rated(study: Study) -> None:
    store = RatingStore(study)
    rate_all(store, store.new_rater(), {0: 1, 1: 1, 2: 1}, {0: 1, 1: 1, 2: 1})
    store.add(store.new_rater(), 2, dict.fromkeys(questions(study, 2), 5))
    assert read_results(study).means["quality"][study.runs[0]].mean == pytest.approx((4 * 1 + 5) / 5)


def test_results_on_the_command_line(study: Study, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rate", str(study.directory), "--results"]) == 1
    assert "expected ratings" in capsys.readouterr().err
    store = RatingStore(study)
    rate_all(store, store.new_rater(), {0: 1, 1: 2, 2: 3}, {0: 1, 1: 2, 2: 3})
    assert main(["rate", str(study.directory), "--results"]) == 0
    printed = capsys.readouterr().out
    assert "1 raters, 4 images" in printed
    assert "Krippendorff" in printed
    numbers = json.loads((study.directory / "results.json").read_text())
    assert numbers["means"]["quality"]["scenes-captioning"][0] == 1.0
    rows = list(csv.DictReader((study.directory / "ratings.csv").read_text().splitlines()))
    assert len(rows) == numbers["ratings"] == sum(len(questions(study, item)) for item in range(4))
    assert {row["question"] for row in rows} == {"quality", "attention relevance"}
    assert np.mean([int(row["rating"]) for row in rows if row["run"].endswith("tvmax")]) == 3.0


def test_make_on_the_command_line(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = "scenes-vqa,scenes-vqa mechanism=sparsemax"
    assert main(["rate", str(tmp_path / "s"), "--make", "--runs", runs, "--images", "2", "--split", "val"]) == 0
    assert "2 images, 2 runs, 4 maps" in capsys.readouterr().out
    assert main(["rate", str(tmp_path / "s"), "--make", "--results"]) == 1
    assert main(["rate", str(tmp_path / "nowhere")]) == 1


# --- the page without a browser


def sent_answers(sheet: str, value: int = 3) -> dict[str, object]:
    names = re.findall(r'data-question="([^"]+)"', sheet)
    return {
        "rater": re.search(r'data-rater="([^"]+)"', sheet)[1],
        "item": int(re.search(r'data-item="([^"]+)"', sheet)[1]),
        "answers": dict.fromkeys(names, value),
    }


def test_the_page_does_not_name_the_runs(study: Study) -> None:
    store = RatingStore(study)
    pages = begin_html(study) + sheet_html(store, store.new_rater())
    for word in ("sparsemax", "tvmax", "scenes-captioning", '"0/quality"'):
        assert word not in pages


def test_the_page_walks_through_all_images_and_maps_letters_to_runs(study: Study) -> None:
    store = RatingStore(study)
    sheet = answer(store, {"code": ""})
    for _ in study.items:
        message = sent_answers(sheet)
        rater, item = message["rater"], message["item"]
        message["answers"]["A/quality"] = 5
        sheet = answer(store, message)
        shown_first = study.shuffled(rater, item)[0].run
        assert store.read(rater)[item][f"{shown_first}/quality"] == 5
    assert "Thank you" in sheet


def test_the_page_resumes_by_code(study: Study) -> None:
    store = RatingStore(study)
    sheet = answer(store, {"code": ""})
    message = sent_answers(sheet)
    answer(store, message)
    assert "Image 2 of 4" in answer(store, {"code": message["rater"].upper()})
    assert "expected the code of an earlier visit" in answer(store, {"code": "00000000"})


@pytest.mark.parametrize(
    "sent", [None, 3, {}, {"rater": "x", "item": 0}, {"item": 99}, {"rater": "../a", "item": 0, "answers": []}]
)
def test_the_page_survives_anything(study: Study, sent: object) -> None:
    assert 'role="alert"' in answer(RatingStore(study), sent)
    assert not (study.directory / "ratings").exists() or not list((study.directory / "ratings").iterdir())
