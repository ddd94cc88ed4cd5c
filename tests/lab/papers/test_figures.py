"""The qualitative figures of the papers: complete rows, the example that is chosen, and what is drawn."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import foveate as fv
from foveate.apps.cli import main
from foveate.apps.cli.answer import answer_figure
from foveate.apps.cli.terminal import save_figure
from foveate.lab.data.scenes import make_scenes
from foveate.lab.papers.tables.cost import recipe_of
from foveate.lab.papers.tables.drawing import AttentionStep, divergence, draw_captions, draw_steps
from foveate.lab.papers.tables.paper_figures import CONDITIONS, FIGURES, FigureRequest, answer_steps, make_figure
from foveate.lab.recipes import RECIPES
from foveate.lab.tasks import TASKS
from foveate.lab.train import override

NAMES = [
    *(f"000-figure-{n}" for n in range(1, 8)),
    *("001-figure-1.1", *(f"001-figure-6.{n}" for n in range(4, 12))),
    "002-figure-3",
    *(f"003-figure-{n}" for n in (1, 3, 4, 5)),
    *(f"004-figure-{n}" for n in (5, 6, 7)),
]


def test_every_figure_of_the_papers_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(FIGURES) == NAMES
    assert main(["list", "tables"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_panels_are_known_recipes_with_known_fields(name: str) -> None:
    figure = FIGURES[name]
    assert set(figure.chooses) <= set(CONDITIONS)
    for panel in figure.panels:
        override(recipe_of(panel.paper), panel.changes)
        if not isinstance(panel.without_data, str):
            assert panel.without_data.recipe in RECIPES
            override(recipe_of(panel.without_data), panel.exchanged)


def width(path: Path) -> int:
    with Image.open(path) as image:
        return image.width


def titles(figure: object) -> list[str]:
    return [axes.get_title() for axes in figure.axes]  # type: ignore[attr-defined]


def test_figure_4_marks_the_number_of_components_that_is_chosen(tmp_path: Path) -> None:
    figure, notes = make_figure("000-figure-4", FigureRequest(None, tmp_path))
    assert titles(figure) == ["K = 1", "K = 2 (chosen)", "K = 3", "K = 4"]
    assert "K* = 2" in notes
    assert not [note for note in notes if note.startswith("no example")]


def test_figure_7_shows_the_truth_with_divergences(tmp_path: Path) -> None:
    figure, _ = make_figure("000-figure-7", FigureRequest(None, tmp_path, example=3))
    assert titles(figure)[-1] == "true region"
    assert all(", JS 0." in title for title in titles(figure)[:-1])
    seen = fv.Attended(torch.zeros(1, 2), torch.tensor([[0.5, 0.0, 0.0, 0.5]]), grid=(2, 2))
    assert divergence(seen, torch.tensor([[True, False], [False, True]])) == pytest.approx(0, abs=1e-6)
    assert divergence(seen, torch.tensor([[False, True], [True, False]])) == pytest.approx(1, abs=1e-6)


def test_a_figure_of_ones_own_image(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Image.fromarray(make_scenes(split="val", count=1).images[0].pixels()).save(tmp_path / "own.png")
    own = ["--image", str(tmp_path / "own.png"), "--out", str(tmp_path)]
    assert main(["reproduce", "001-figure-6.9", *own, "--text", "How many stars are there?"]) == 0
    assert width(tmp_path / "001-figure-6.9" / "figure.png") > 300
    assert "How many stars are there?" in capsys.readouterr().out
    assert main(["reproduce", "001-figure-6.9", *own]) == 1
    assert "expected --text beside --image" in capsys.readouterr().err
    assert main(["reproduce", "003-figure-5", *own, "--run", "scenes-captioning", "--json"]) == 0
    assert "figure.png" in json.loads(capsys.readouterr().out)["path"]


def test_captions_are_drawn_word_by_word() -> None:
    """One panel per word; of long captions the words that name something; no green where there is no attention."""
    words = ["a", "red", "star", "to", "the", "left", "of", "a", "green", "box"]
    weights = torch.zeros(1, 10, 4)
    weights[..., 0] = 1
    seen = fv.Attended(torch.zeros(1, 10, 2), weights, grid=(2, 2))
    figure = draw_captions(np.zeros((8, 8, 3)), {"softmax": (words, seen)}, most=4)
    assert titles(figure) == ["red", "star", "left", "green", "box"][-4:]
    green = figure.axes[0].images[1].get_array()
    assert green[0, 0, 3] > 0.8
    assert green[1, 1, 3] == 0
    assert len(titles(draw_captions(np.zeros((8, 8, 3)), {"softmax": (words, seen)}, most=40))) == 10


def test_steps_lighten_the_image_and_darken_the_words() -> None:
    image = fv.Attended(torch.zeros(1, 2), torch.tensor([[1.0, 0.0, 0.0, 0.0]]), grid=(2, 2))
    figure = draw_steps([(np.ones((40, 40, 3)), ["one", "two"], [AttentionStep(image, (0.9, 0.1))], "(+) yes")])
    plain, step = (axes.images[0].get_array() for axes in figure.axes)
    assert (plain == 1).all()
    assert step[0, 0].min() > 0.99 > 0.2 > step[-1, -1].max()
    dark = {text.get_text(): text.get_color() for text in figure.texts}  # of the last step
    assert dark["one"][0] < 0.05 < 0.5 < dark["two"][0]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_figure_is_drawn_without_data(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    out = tmp_path_factory.getbasetemp() / "figures"  # trainings are shared
    assert main(["reproduce", name, "--out", str(out), "--quiet"]) == 0
    assert width(out / name / "figure.png") > 300


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_figure_is_drawn_from_the_publishers_formats(
    name: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setenv("PATH", "")  # without Java, whose tokenizer takes half a minute
    out = tmp_path_factory.getbasetemp() / "figures-tiny"
    assert main(["reproduce", name, "--tiny", "--out", str(out), "--quiet"]) == 0
    assert width(out / name / "figure.png") > 300


def test_answer_and_caption_take_fields(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Image.fromarray(make_scenes(split="val", count=1).images[0].pixels()).save(tmp_path / "own.png")
    image, plot = str(tmp_path / "own.png"), str(tmp_path / "plot.png")
    assert main(["answer", "scenes-vqa", image, "How many stars?", "mechanism=k-mca", "--plot", plot]) == 0
    assert width(Path(plot)) > 300
    assert fv.load("scenes-vqa", ["mechanism=k-mca"]).answer(image, "How many stars?").attention.density is not None
    assert main(["caption", "scenes-captioning", image, "mechanism=tvmax", "beams=1"]) == 0
    assert main(["answer", "scenes-vqa", image, "How many stars?", "mechansim=k-mca"]) == 2
    assert "did you mean" in capsys.readouterr().err


def test_a_model_with_steps_shows_them(tmp_path: Path) -> None:
    """r-DAN: attention over the image and over the words in every step; the plot has a panel for each."""
    task = TASKS["vqa"].from_data(replace(RECIPES["vqa-rdan-scenes"]().settings, limit=20, min_count=1), None)
    predictor = task.predictor(task.build_model().eval())
    pixels = make_scenes(split="val", count=1).images[0].pixels()
    found = predictor.answer(pixels, "How many red stars are there?")
    assert len(found.steps) == 2
    assert found.steps[-1][1] == found.words
    assert torch.equal(found.steps[-1][0].weights, found.attention.weights)
    assert sum(weight for _, weight in found.steps[0][1]) == pytest.approx(1, abs=1e-5)
    figure = draw_steps([answer_steps(pixels, found)])
    assert len(figure.axes) == 3
    Image.fromarray(pixels).save(tmp_path / "own.png")
    save_figure(answer_figure(tmp_path / "own.png", "How many red stars are there?", found), tmp_path / "plot.png")
    assert width(tmp_path / "plot.png") > 900
