"""A run of visual question answering from recipe to answers: trained, loaded, asked, and its result file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from foveate.apps.cli.answer import answer
from foveate.apps.cli.evaluate import predict
from foveate.errors import DataError
from foveate.lab import hub
from foveate.lab.data.scenes import make_scenes
from foveate.lab.recipes.vqa_recipes import VQA_RECIPES
from foveate.lab.train import override, train_recipe

SMALL = [
    "limit=4",
    "hidden=16",
    "word_dim=8",
    "min_count=1",
    "batch_size=2",
    "training.steps=3",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("runs") / "run"
    recipe = override(VQA_RECIPES["vqa-mcan-scenes"](), SMALL)
    train_recipe(recipe, directory, progress=False)
    return directory


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "scene.png"
    Image.fromarray(make_scenes(split="val", count=1).images[0].pixels()).save(path)
    return path


def test_r_dan_trains_too(tmp_path: Path) -> None:
    recipe = override(VQA_RECIPES["vqa-rdan-scenes"](), [*SMALL, "reasoning_steps=1"])
    history = train_recipe(recipe, tmp_path / "run", progress=False)
    assert "accuracy" in history.best.metrics


def test_a_loaded_run_answers(run: Path, image: Path) -> None:
    found = hub.load(run).answer(image, "What colour is the star?")
    again = hub.load(run).answer(image, "What colour is the star?")
    assert found.best == again.best


def test_the_command_prints_answers_and_unknown_words(
    run: Path, image: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = answer(str(run), image, "What colour is the giraffe?", top=2, plot=tmp_path / "plot.png")
    printed = capsys.readouterr()
    assert found.text in printed.out
    assert "What colour is the giraffe?" in printed.out
    assert "words that the model does not know: giraffe" in printed.err
    assert np.asarray(Image.open(tmp_path / "plot.png")).std() > 0


def test_the_result_file_has_every_question_in_order(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    predict(str(run), out=out, split="test", batch_size=3)
    rows = json.loads(out.read_text())
    asked = make_scenes(split="test", count=4).questions
    assert [row["question_id"] for row in rows] == [question.id for question in asked]
    assert all(set(row) == {"question_id", "answer"} and isinstance(row["answer"], str) for row in rows)
    again = tmp_path / "again.json"
    predict(str(run), out=again, split="test", batch_size=1)
    assert again.read_text() == out.read_text()


def test_a_mechanism_is_fine_tuned_from_another(run: Path, tmp_path: Path) -> None:
    changes = [*SMALL, "mechanism=multimodal", f"start={run}", "lr=1e-9"]
    train_recipe(override(VQA_RECIPES["vqa-mcan-scenes"](), changes), tmp_path / "run", progress=False)
    first, second = (hub.load(directory).model.state_dict() for directory in (run, tmp_path / "run"))
    torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-5)


def test_words_and_answers_stay_those_of_the_start(run: Path, tmp_path: Path) -> None:
    changes = [*SMALL, "limit=3", f"start={run}"]
    train_recipe(override(VQA_RECIPES["vqa-mcan-scenes"](), changes), tmp_path / "run", progress=False)
    words = [(directory / "vocabulary.json").read_text() for directory in (run, tmp_path / "run")]
    assert words[0] == words[1]


def test_runs_of_other_tasks_are_refused(image: Path, tmp_path: Path) -> None:
    message = r"answer: expected a run with the call 'answer', got 'scenes-captioning' of Captioning; train one with "
    with pytest.raises(DataError, match=message + "foveate train vqa-mcan-scenes"):
        answer("scenes-captioning", image, "Is it?")
    message = "predict: expected a run whose task has a result file, got 'scenes-matching' of Matching; use foveate"
    with pytest.raises(DataError, match=message):
        predict("scenes-matching", out=tmp_path / "x.json")
    assert not (tmp_path / "x.json").exists()
