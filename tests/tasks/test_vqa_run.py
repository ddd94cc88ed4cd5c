"""A run of visual question answering from recipe to answers: trained, loaded, asked, and its result file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from foveate import hub
from foveate.cli.answer import answer
from foveate.cli.predict import predict
from foveate.data.scenes import make_scenes
from foveate.errors import DataError
from foveate.recipes import override, train_recipe
from foveate.recipes.vqa import VQA_RECIPES

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
    folder = tmp_path_factory.mktemp("runs") / "run"
    recipe = override(VQA_RECIPES["vqa-mcan-scenes"](), SMALL)
    train_recipe(recipe, folder, progress=False)
    return folder


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "scene.png"
    Image.fromarray(make_scenes(split="val", count=1).pictures[0].pixels()).save(path)
    return path


def test_r_dan_trains_too(tmp_path: Path) -> None:
    recipe = override(VQA_RECIPES["vqa-rdan-scenes"](), [*SMALL, "model.steps=1"])
    history = train_recipe(recipe, tmp_path / "run", progress=False)
    assert "accuracy" in history.best.metrics


def test_a_loaded_run_answers(run: Path, picture: Path) -> None:
    found = hub.load(run).answer(picture, "What colour is the star?")
    again = hub.load(run).answer(picture, "What colour is the star?")
    assert found.best == again.best


def test_the_command_prints_answers_and_unknown_words(
    run: Path, picture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = answer(str(run), picture, "What colour is the giraffe?", top=2, plot=tmp_path / "plot.png")
    printed = capsys.readouterr()
    assert found.text in printed.out
    assert "What colour is the giraffe?" in printed.out
    assert "words that the model has never seen: giraffe" in printed.err
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
    first, second = (hub.load(folder).model.state_dict() for folder in (run, tmp_path / "run"))
    torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-5)


def test_words_and_answers_stay_those_of_the_start(run: Path, tmp_path: Path) -> None:
    changes = [*SMALL, "limit=3", f"start={run}"]
    train_recipe(override(VQA_RECIPES["vqa-mcan-scenes"](), changes), tmp_path / "run", progress=False)
    words = [(folder / "vocabulary.json").read_text() for folder in (run, tmp_path / "run")]
    assert words[0] == words[1]


def test_other_runs_are_refused(run: Path, picture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Other:
        task = object()

    monkeypatch.setattr(hub, "load", lambda name: Other())
    with pytest.raises(DataError, match="answer: expected a run of visual question answering, got 'run' of object"):
        answer("run", picture, "Is it?")
    with pytest.raises(DataError, match="predict: expected a run of visual question answering, got 'run' of object"):
        predict("run", out=Path("x.json"))
