"""What the pages do, without a browser."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from foveate.attention import MECHANISMS
from foveate.cli.main import main
from foveate.errors import DataError, UnknownName
from foveate.recipes import RECIPES
from foveate.studio import PAGES, RunCatalogue, picker, results, widgets
from foveate.studio import ask_page as ask
from foveate.studio import caption_page as caption
from foveate.studio import play_page as play
from foveate.studio import search_page as search
from foveate.studio.attention_maps import KNOBS
from foveate.train.recipe import run_directory

USUAL = [knob.value for knob in KNOBS.values()]


@pytest.fixture
def catalogue(tmp_path):
    return RunCatalogue(tmp_path)


def test_an_example_brings_its_image_and_its_questions():
    asked, image, chips, first = ask.pick_example("2")
    data = picker.examples()
    assert np.array_equal(asked.pixels, data.images[2].pixels())
    assert "data:image/png" in image
    assert first in {question.text for question in data.questions_of(data.images[2].id)}
    assert 1 <= chips.count("data-pick=") <= ask.QUESTIONS
    for wrong in ("99", "-1", "a", None, 1, "9" * 5000, "²"):
        with pytest.raises(DataError, match="pick: expected one of 8 examples"):
            ask.pick_example(wrong)


def test_a_question_is_answered_and_its_maps_drawn(catalogue):
    asked, _, _, text = ask.pick_example("0")
    answered, html = ask.ask(catalogue, "scenes-vqa", asked, text)
    answer = catalogue.predictor("scenes-vqa").answer(asked.pixels, text)
    assert f'<p class="fv-answer">{answer.text}</p>' in html
    assert answered.grid == (7, 7)
    assert answered.truth is not None
    drawn = ask.maps(answered, ["softmax", "multimodal"], USUAL)
    assert drawn.count("<figure") == 4
    assert ask.maps(answered, ["tvmax"], USUAL) != ask.maps(answered, ["tvmax"], [1.0, *USUAL[1:]])
    assert "true region" not in ask.maps(replace(answered, truth=None), ["softmax"], USUAL)


def test_a_question_in_other_words_has_no_truth(catalogue):
    asked, *_ = ask.pick_example("0")
    answered, html = ask.ask(catalogue, "scenes-vqa", asked, "zebra <b> colour?")
    assert answered.truth is None
    assert "Not in the vocabulary: zebra" in html
    assert "<b>" not in html.replace("<b>", "", html.count('<div class="fv-bar"><b>'))


def test_what_cannot_be_asked_raises_data_error(catalogue):
    asked, _, _, text = ask.pick_example("0")
    with pytest.raises(DataError, match="ask: expected an image, got none; pick an example or choose a file"):
        ask.ask(catalogue, "scenes-vqa", ask.AskView(), text)
    with pytest.raises(DataError, match="at most 300 characters, got 10000"):
        ask.ask(catalogue, "scenes-vqa", asked, "a" * 10_000)
    with pytest.raises(DataError, match="ask: expected a question, got none"):
        ask.ask(catalogue, "scenes-vqa", asked, "   ")
    with pytest.raises(UnknownName, match="run: expected a known name"):
        ask.ask(catalogue, "../../etc", asked, text)
    assert ask.maps(ask.AskView(), ["softmax"], USUAL) == ""
    answered = replace(asked, scores=torch.zeros(49), grid=(7, 7))
    assert "choose at least one mechanism" in ask.maps(answered, [], USUAL)


def test_play_draws_every_mechanism_and_follows_contrast_and_paint():
    every = list(MECHANISMS)
    assert play.play(play.preset("ring"), 1, every, USUAL).count("<figure") == len(every)
    assert play.play(play.preset("ring"), 1, ["softmax"], USUAL) != play.play(
        play.preset("ring"), 2, ["softmax"], USUAL
    )
    painted = json.dumps([0.0] * 195 + [5.0])
    assert play.play(painted, 1, ["softmax"], USUAL) != play.play(play.preset("nothing"), 1, ["softmax"], USUAL)
    assert "choose at least one mechanism" in play.play(painted, 1, [], USUAL)


@pytest.mark.parametrize("name", list(play.PRESETS))
def test_presets_are_what_the_painter_takes(name):
    assert len(widgets.read_scores(play.preset(name), play.SIDE)) == play.SIDE**2


@pytest.mark.parametrize(
    "text", ["[" + "9" * 400 + "]", None, "", "[1]", "{}", "[null]", json.dumps(["nan"] * 196), "[" * 9000, 7]
)
def test_nonsense_from_the_painter_means_nothing(text):
    assert widgets.read_scores(text, 14) == [0.0] * 196


def test_scores_from_the_painter_are_bounded():
    assert widgets.read_scores("[1e300, -1e300, 1, 0]", 2) == [9.0, -9.0, 1.0, 0.0]


def test_the_shelf_offers_what_is_in_its_directory_and_nothing_else(catalogue, tmp_path):
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.mkdir()
    (outside / "report.html").write_text("secret")
    os.symlink(outside, tmp_path / "link")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "report.html").write_text("<p>mine</p>")
    shutil.copytree(run_directory("scenes-vqa"), tmp_path / "a" / "b")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    assert list(catalogue.reports()) == ["a"]
    assert list(catalogue.runs("vqa")) == ["scenes-vqa", "a/b"]
    assert catalogue.runs("captioning").keys().isdisjoint({"scenes-vqa"})
    row = next(row for row in catalogue.table() if row[0] == "a/b")
    assert row[1:3] == ["vqa", "softmax"]
    assert row[3].startswith("accuracy 0.")
    assert 'srcdoc="&lt;p&gt;mine&lt;/p&gt;"' in results.show_report(catalogue, "a")
    assert 'sandbox=""' in results.show_report(catalogue, "a")
    for name in ("link", "../outside", "/etc"):
        with pytest.raises(UnknownName):
            results.show_report(catalogue, name)


def test_results_without_reports_say_how_to_get_one(catalogue, monkeypatch, tmp_path):
    assert "foveate demo" in results.show_report(catalogue, None)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "report.html").write_text("long")
    monkeypatch.setattr(results, "MAX_REPORT", 3)
    assert "too large" in results.show_report(catalogue, "a")


class Written:
    """Stands for gradio where only HTML is written."""

    def __init__(self) -> None:
        self.html: list[str] = []

    def HTML(self, text: str) -> None:
        self.html.append(text)


@pytest.mark.parametrize(("page", "task"), [(caption, "captioning"), (search, "matching")])
def test_a_page_without_a_run_says_how_to_get_one(page, task, catalogue, monkeypatch):
    monkeypatch.setattr("foveate.studio.catalogue.EMBEDDED", catalogue.directory)
    written = Written()
    page.build(written, catalogue)
    assert len(written.html) == 1
    assert f"There is no run of the task {task} yet. Train one with foveate train {page.RECIPE}" in written.html[0]
    assert page.RECIPE in RECIPES


def test_the_shelf_loads_once_and_forgets_the_oldest(catalogue, tmp_path, monkeypatch):
    for name in "abc":
        shutil.copytree(run_directory("scenes-vqa"), tmp_path / name)
    monkeypatch.setattr("foveate.studio.catalogue.CACHE_SIZE", 1)
    first = catalogue.predictor("a")
    assert catalogue.predictor("a") is first
    catalogue.predictor("b")
    catalogue.predictor("c")
    assert catalogue.predictor("a") is not first


BUILD = """
import json, pathlib, sys
from foveate.studio.app import make_studio
studio = make_studio(pathlib.Path(sys.argv[1]))
config = studio.get_config_file()
tabs = [part["props"].get("label") for part in config["components"] if part["type"] == "tabitem"]
print(json.dumps([tabs, studio.analytics_enabled, [event["api_visibility"] for event in config["dependencies"]]]))
"""


def test_the_studio_is_built_of_its_pages(tmp_path):
    if find_spec("gradio") is None:
        pytest.skip("the extra studio is not installed")
    # a process of its own: gradio leaves event loops behind
    done = subprocess.run([sys.executable, "-c", BUILD, str(tmp_path)], capture_output=True, text=True, check=True)
    tabs, analytics, visible = json.loads(done.stdout.splitlines()[-1])
    assert tabs == list(PAGES)
    assert not analytics
    assert set(visible) == {"private"}
    assert "UserWarning" not in done.stderr


def test_without_gradio_the_command_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "gradio", None)
    assert main(["studio"]) == 1
    assert 'pip install "foveate[studio]"' in capsys.readouterr().err
