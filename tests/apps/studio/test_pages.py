"""What the pages do, without a browser."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from foveate.apps.cli.main import main
from foveate.apps.studio import PAGES, RunCatalogue, picker, results, widgets
from foveate.apps.studio import ask_page as ask
from foveate.apps.studio import caption_page as caption
from foveate.apps.studio import play_page as play
from foveate.apps.studio import search_page as search
from foveate.apps.studio.attention_maps import KNOBS, PRESETS, SIDE, preset
from foveate.apps.studio.cards import MapChoice, cards_html, documentation
from foveate.apps.studio.share import read_choice, read_link
from foveate.attention import MECHANISMS
from foveate.errors import DataError, UnknownName
from foveate.lab.recipes import RECIPES
from foveate.lab.train.recipe import run_directory


@pytest.fixture
def catalogue(tmp_path):
    return RunCatalogue(tmp_path)


def choice(*names, **knobs):
    usual = MapChoice(names)
    return MapChoice(names, {**usual.knobs, **knobs})


def first_view(catalogue, pick="0"):
    return ask.ask_first(catalogue, picker.choose_example(pick))


def test_an_example_brings_its_image_and_its_questions():
    image = picker.choose_example("2")
    data = picker.examples()
    assert np.array_equal(image.pixels, data.images[2].pixels())
    assert (image.mark, image.domain) == ("2", "Scenes")
    texts = ask.suggestions_for(image)
    assert texts[0] in {question.text for question in data.questions_of(data.images[2].id)}
    assert 1 <= len(texts) <= ask.QUESTIONS
    for wrong in ("99", "-1", "a", None, 1, "9" * 5000, "²"):
        with pytest.raises(DataError, match="pick: expected one of"):
            picker.choose_example(wrong)


def test_a_question_is_answered_beside_the_truth_and_its_maps_drawn(catalogue):
    view = first_view(catalogue)
    html = ask.answer_html(view, catalogue)
    answer = catalogue.predictor("scenes-vqa").answer(view.image.pixels, view.question)
    sign = "✓" if answer.text == view.known.answer else "✗"
    assert f"{answer.text} {sign}" in html
    assert f'True answer</p><p class="fv-answer">{view.known.answer}' in html
    assert "Confidence in each answer" in html
    assert view.grid == (7, 7)
    drawn = ask.maps(view, choice("softmax", "multimodal"))
    assert drawn.count("<figure") == 2
    assert drawn.count("fv-truth") == 2
    assert "inside the true region" in drawn
    assert ask.maps(view, choice("tvmax")) != ask.maps(view, choice("tvmax", smoothness=1.0))
    unknown = ask.maps(replace(view, known=None), choice("softmax"))
    assert "fv-truth" not in unknown
    assert "true region" not in unknown


def test_the_answer_is_put_to_the_test(catalogue):
    from foveate.apps.studio.widgets import believe_html

    view = ask.ask_first(catalogue, picker.choose_example("3"))
    seen, boxes = ask.look_again(catalogue, view)
    assert seen.words[0].text == view.answer.text
    assert boxes
    assert "bits" in believe_html(seen, boxes)
    assert ask.look_again(catalogue, replace(view, answer=None)) is None


def test_a_question_in_other_words_has_no_truth(catalogue):
    view = ask.ask(catalogue, "scenes-vqa", picker.choose_example("0"), "zebra <b> colour?")
    html = ask.answer_html(view, catalogue)
    assert view.known is None
    assert "True answer" not in html
    assert "Not in the vocabulary: zebra" in html
    assert "<b>" not in html.replace("<b>", "", html.count('<div class="fv-bar"><b>'))


def test_a_run_out_of_its_domain_says_so(catalogue):
    own = picker.ChosenImage(np.zeros((30, 40, 3), np.uint8))
    view = ask.ask_first(catalogue, own)
    assert view.question == ask.OWN_QUESTIONS[0]
    if catalogue.usual_run("vqa", "photographs") is None:
        assert view.answer is None
        assert "No run here was trained on photographs" in ask.answer_html(view, catalogue)
    asked = ask.ask(catalogue, "scenes-vqa", own, view.question)
    assert "was trained on Scenes, not on photographs" in ask.answer_html(asked, catalogue)
    assert own.mark == picker.OWN


def test_what_a_run_was_trained_on_stands_beside_its_answer(catalogue):
    view = first_view(catalogue, "1")
    assert "scenes-vqa, trained on Scenes, generated shapes, answers" in ask.answer_html(view, catalogue)
    assert ("scenes-vqa · Scenes", "scenes-vqa") in catalogue.choices("vqa")


def test_a_new_run_never_takes_over(catalogue, tmp_path):
    shutil.copytree(run_directory("scenes-vqa"), tmp_path / "mine")
    config = json.loads((tmp_path / "mine" / "config.json").read_text())
    config["settings"]["dataset"] = "vqa-v2"
    (tmp_path / "mine" / "config.json").write_text(json.dumps(config))
    assert "mine" in [name for _, name in catalogue.choices("vqa")]
    assert catalogue.trained_on("mine") == "photographs (vqa-v2)"
    assert catalogue.usual_run("vqa", "photographs") != "mine"
    assert catalogue.first_run("vqa", "photographs") != "mine"
    own = picker.ChosenImage(np.zeros((30, 40, 3), np.uint8))
    assert ask.ask_first(catalogue, own).run != "mine"
    assert ask.ask_first(catalogue, own, "mine").run == "mine"  # chosen by a person
    assert catalogue.first_run("vqa", "Scenes") == "scenes-vqa"
    assert catalogue.first_run("nothing", "Scenes") is None


def test_what_cannot_be_asked_raises_data_error(catalogue):
    image = picker.choose_example("0")
    with pytest.raises(DataError, match="at most 300 characters, got 10000"):
        ask.ask(catalogue, "scenes-vqa", image, "a" * 10_000)
    with pytest.raises(DataError, match="ask: expected a question, got none"):
        ask.ask(catalogue, "scenes-vqa", image, "   ")
    with pytest.raises(UnknownName, match="run: expected a known name"):
        ask.ask(catalogue, "../../etc", image, "What is red?")
    assert ask.maps(ask.AskView(image, "scenes-vqa", ""), choice("softmax")) == ""
    answered = ask.AskView(image, "scenes-vqa", "", scores=torch.zeros(49), grid=(7, 7))
    assert "Choose at least one mechanism" in ask.maps(answered, choice())


def test_a_link_restores_the_view_and_the_code_runs(catalogue, tmp_path):
    view, chosen = first_view(catalogue, "1"), choice("tvmax", "multimodal", smoothness=0.3)
    bar = ask.share(catalogue, view, chosen)
    link = read_link(html.unescape(re.search(r'data-link="([^"]*)"', bar)[1]))
    assert (link["example"], link["question"], link["run"]) == ("1", view.question, "scenes-vqa")
    assert read_choice(link, ["softmax"]) == chosen
    code = html.unescape(re.search(r"<pre[^>]*>(.*)</pre>", bar, re.DOTALL)[1])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(view.answer.text)
    assert (tmp_path / "attention.png").stat().st_size > 1000


@pytest.mark.parametrize("text", [None, 7, "", "a" * 9000, "&".join("a=1" for _ in range(99))])
def test_nonsense_in_a_link_means_nothing(text):
    assert read_link(text) == {}


@pytest.mark.parametrize(
    "text", [None, "[]", "{", '{"names": 7}', '{"names": [1, [], "<b>"], "knobs": {"alpha": "x"}}']
)
def test_nonsense_from_the_cards_means_nothing(text):
    found = MapChoice.from_json(text)
    assert found.names == ()
    assert found.knobs == MapChoice(()).knobs


def test_every_mechanism_has_a_card():
    shown = cards_html(MECHANISMS)
    assert shown.count('class="fv-card"') == len(MECHANISMS) == shown.count("data:image/png")
    for name in MECHANISMS:
        assert documentation(name)
        assert f'data-name="{name}"' in shown
    for name, knob in KNOBS.items():
        assert shown.count(f'data-knob="{name}"') == len(knob.options)
        assert knob.about in html.unescape(shown)
    assert "${" not in shown
    assert "{{" not in shown


def test_play_draws_every_mechanism_and_follows_contrast_and_paint():
    every = tuple(MECHANISMS)
    assert play.play(preset("ring"), 1, choice(*every)).count("<figure") == len(every)
    assert play.play(preset("ring"), 1, choice("softmax")) != play.play(preset("ring"), 2, choice("softmax"))
    painted = json.dumps([0.0] * 195 + [5.0])
    assert play.play(painted, 1, choice("softmax")) != play.play(preset("nothing"), 1, choice("softmax"))
    assert "Choose at least one mechanism" in play.play(painted, 1, choice())


def test_painted_scores_go_into_a_link_and_back():
    painted = json.dumps([0.0, 1.25, -9.0, 0.5] + [0.0] * 192)
    packed = widgets.pack_scores(widgets.read_scores(painted, 14))
    assert json.loads(widgets.unpack_scores(packed, 14)) == json.loads(painted)
    for wrong in ("", "1.2", "x" * 196, ".".join(["a"] * 196)):
        assert widgets.unpack_scores(wrong, 14) is None


@pytest.mark.parametrize("name", list(PRESETS))
def test_presets_are_what_the_painter_takes(name):
    assert len(widgets.read_scores(preset(name), SIDE)) == SIDE**2


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
    assert list(catalogue.runs("vqa")) == ["photos-vqa", "scenes-vqa", "a/b"]
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
    monkeypatch.setattr("foveate.apps.studio.catalogue.EMBEDDED", catalogue.directory)
    written = Written()
    page.build(written, catalogue)
    assert len(written.html) == 1
    assert f"There is no run of the task {task} yet. Train one with foveate train {page.RECIPE}" in written.html[0]
    assert page.RECIPE in RECIPES


def test_the_shelf_loads_once_and_forgets_the_oldest(catalogue, tmp_path, monkeypatch):
    for name in "abc":
        shutil.copytree(run_directory("scenes-vqa"), tmp_path / name)
    monkeypatch.setattr("foveate.apps.studio.catalogue.CACHE_SIZE", 1)
    first = catalogue.predictor("a")
    assert catalogue.predictor("a") is first
    catalogue.predictor("b")
    catalogue.predictor("c")
    assert catalogue.predictor("a") is not first


BUILD = """
import json, pathlib, sys
from foveate.apps.studio.app import make_studio
studio = make_studio(pathlib.Path(sys.argv[1]))
config = studio.get_config_file()
ids = [part["props"].get("elem_id") or "" for part in config["components"] if part["type"] == "column"]
tabs = [name.removeprefix("page-") for name in ids if name.startswith("page-")]
print(json.dumps([tabs, studio.analytics_enabled, [event["api_visibility"] for event in config["dependencies"]]]))
"""


def test_the_studio_is_built_of_its_pages(tmp_path):
    if find_spec("gradio") is None:
        pytest.skip("the extra studio is not installed")
    # a process of its own: gradio leaves event loops behind
    done = subprocess.run([sys.executable, "-c", BUILD, str(tmp_path)], capture_output=True, text=True, check=True)
    tabs, analytics, visible = json.loads(done.stdout.splitlines()[-1])
    assert tabs == [name.lower() for name in PAGES]
    assert not analytics
    assert set(visible) == {"private", "public"}
    assert visible.count("public") == 3  # answer, caption and rank, for programs
    assert "UserWarning" not in done.stderr


def test_without_gradio_the_command_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "gradio", None)
    assert main(["studio"]) == 1
    assert 'pip install "foveate[studio]"' in capsys.readouterr().err
