"""A mistake of a user is answered in one line, before anything is computed for nothing."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from foveate.apps.cli import Command, main

SMALL = ["limit=8", "batch_size=4", "warmup=0", "images.size=32", "hidden=8", "heads=2", "layers=1", "--quiet"]


@pytest.mark.parametrize(
    ("steps", "said"),
    [(3, "got loss nan and norm nan at step 2 (epoch 1, batch 2"), (1, "in the evaluation after step 1 (softmax")],
)
def test_weights_that_overflow_are_reported_with_step_and_checkpoint(steps, said, tmp_path, capsys):
    """Attention raises an error for NaN scores before there is a loss."""
    out = str(tmp_path / "run")
    assert main(["train", "vqa-mcan-scenes", "lr=1e30", f"steps={steps}", *SMALL, "--out", out]) == 1
    error = capsys.readouterr().err
    assert said in error
    assert "checkpoint" in error


@pytest.mark.parametrize(
    "options", [["--plot", "nodir/look.png"], ["--plot", "look.txt"], ["--plot", "."], ["--out", "nodir/a.json"]]
)
def test_look_checks_its_outputs_before_the_model_is_loaded(options, capsys):
    assert main(["look", "no-model", "a.png", *options]) == 1
    assert "look: expected" in capsys.readouterr().err


def test_what_the_file_system_says_is_one_line(monkeypatch, capsys):
    def exists() -> None:
        raise FileExistsError(errno.EEXIST, "File exists", "file")

    monkeypatch.setattr(Command, "load", lambda command: exists)
    assert main(["studio"]) == 1
    message = "foveate studio: expected a path that can be used, got File exists: file; choose another\n"
    assert capsys.readouterr().err == message


@pytest.mark.parametrize("change", ["hidden=-1", "hidden=0", "word_dim=-1", "dropout=2", "max_words=0"])
@pytest.mark.parametrize("recipe", ["captioning-lstm-scenes", "matching-scan-scenes"])
def test_sizes_that_no_model_has_are_one_line(recipe: str, change: str, tmp_path: Path, capsys):
    assert main(["train", recipe, change, "--out", str(tmp_path / "run")]) == 1
    assert f"Settings: expected {change.split('=')[0]} " in capsys.readouterr().err


@pytest.mark.parametrize(
    "change", ["heads=0", "heads=-2", "layers=-1", "word_dim=0", "max_tokens=0", "max_answers=0", "map_size=0,4"]
)
def test_sizes_of_answering(change: str, tmp_path: Path, capsys):
    """Some of them trained without an error: a negative number of layers was none."""
    assert main(["train", "vqa-mcan-scenes", change, "--out", str(tmp_path / "run")]) == 1
    assert "Settings: expected " in capsys.readouterr().err
