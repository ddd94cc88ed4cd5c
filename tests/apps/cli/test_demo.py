"""`foveate demo` in small: what it trains, prints and writes, and that it goes on where it stopped."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from foveate.apps.cli import compare as module
from foveate.apps.cli.compare import demo
from foveate.apps.cli.main import main
from foveate.lab.tasks import TASKS
from foveate.lab.train import train_recipe
from foveate.lab.train.recipe import read_vocabulary, run_directory
from foveate.lab.train.records import CONFIG, LOG, History, read_log


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(module, "QUICK_IMAGES", 12)
    monkeypatch.setattr(module, "QUICK_STEPS", 2)


def test_it_fine_tunes_measures_prints_and_writes(small, tmp_path, capsys):
    assert main(["demo", "--quick", "--mechanisms", "sparsemax,k-mca", "--examples", "1", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert "2 steps from scenes-vqa" in said.out
    assert "K*" in said.out  # which only the second has
    assert "sparsemax (1 of 2)" in said.err
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.count('class="sheet') == 3  # the curves, one question, one failure
    assert "<h2>Failures</h2>" in page
    assert [x["step"] for x in read_log(tmp_path / "quick-k-mca" / LOG) if x["event"] == "curve"] == [2]
    directory = tmp_path / "quick-k-mca"
    config = json.loads((directory / CONFIG).read_text())
    assert config["settings"]["mechanism"] == "k-mca"
    assert (config["settings"]["limit"], config["start"]) == (12, "scenes-vqa")
    assert History.load(directory, "accuracy").has(2)
    # twelve images have fewer words; those of the run must stay
    assert read_vocabulary(directory) == read_vocabulary(run_directory("scenes-vqa"))


def test_started_again_it_goes_on(small, tmp_path, capsys):
    demo(quick=True, mechanisms="softmax", examples=0, out=tmp_path)
    before = (tmp_path / "quick-softmax" / "model.safetensors").stat().st_mtime_ns
    capsys.readouterr()
    demo(quick=True, mechanisms="softmax", examples=0, out=tmp_path)
    assert "already exists" in capsys.readouterr().err
    assert (tmp_path / "quick-softmax" / "model.safetensors").stat().st_mtime_ns == before
    demo(quick=True, mechanisms="softmax", steps=3, examples=0, out=tmp_path)
    assert History.load(tmp_path / "quick-softmax", "accuracy").has(3)


def test_from_scratch_trains_the_recipe_first(small, tmp_path, monkeypatch):
    trained = []

    def train(recipe, out, *, resume):
        trained.append((recipe.name, recipe.start, out, resume))
        if recipe.start is None:
            out.symlink_to(run_directory("scenes-vqa"))
        else:
            train_recipe(recipe, out, resume=resume)

    monkeypatch.setattr(module, "train_recipe", train)
    demo(quick=True, from_scratch=True, mechanisms="softmax", examples=0, out=tmp_path)
    first, tuned = tmp_path / "scratch-first", tmp_path / "scratch-quick-softmax"
    assert trained == [("vqa-mcan-scenes", None, first, True), ("vqa-mcan-scenes", str(first), tuned, True)]
    assert json.loads((tuned / CONFIG).read_text())["start"] == str(first)


def test_names_are_checked_before_anything_is_trained(tmp_path, capsys):
    assert main(["demo", "--task", "vqaa", "--out", str(tmp_path)]) == 2
    assert "demo: expected a known name, got 'vqaa'; did you mean 'vqa'?" in capsys.readouterr().err
    assert main(["demo", "--mechanisms", "softmax,tvmx", "--out", str(tmp_path)]) == 2
    assert "did you mean 'tvmax'?" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_task_without_a_demo_is_not_offered(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(TASKS["matching"], "demo", None)
    assert main(["demo", "--task", "matching", "--out", str(tmp_path)]) == 2
    assert "demo: expected a known name, got 'matching'" in capsys.readouterr().err


def test_a_task_without_an_embedded_run_says_what_to_do(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(TASKS["vqa"], "demo", replace(TASKS["vqa"].demo, run="scenes-nothing"))
    assert main(["demo", "--out", str(tmp_path)]) == 1
    assert "demo: expected the embedded run scenes-nothing, got none in this version" in capsys.readouterr().err
