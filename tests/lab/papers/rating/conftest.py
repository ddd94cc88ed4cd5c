"""A small study on the embedded captioning run, made once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from foveate.lab.papers.rating import Study, make_study

RUNS = ("scenes-captioning", "scenes-captioning mechanism=sparsemax", "scenes-captioning mechanism=tvmax")


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("made") / "study"
    make_study(directory, RUNS, count=4, seed=3, split="val", max_words=2, progress=False)
    return directory


@pytest.fixture
def study(made: Path, tmp_path: Path) -> Study:
    """A copy that a test may change."""
    shutil.copytree(made, tmp_path / "study")
    return Study.load(tmp_path / "study")
