"""Runs of matching from recipe to scores: trained, loaded, matched, looked into."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from foveate import hub
from foveate.data.scenes import make_scenes
from foveate.errors import DataError
from foveate.recipes import override, train_recipe
from foveate.recipes.matching import MATCHING_RECIPES

SMALL = [
    "limit=4",
    "hidden=16",
    "word_dim=8",
    "batch_size=4",
    "training.steps=3",
    "channels=8,8,8,8",
    "images.start=random",
]


def trained(name: str, folder: Path, *changes: str) -> Path:
    train_recipe(override(MATCHING_RECIPES[name](), [*SMALL, *changes]), folder, progress=False)
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    changes = ("ccr=1", "ccs=1")
    return trained("matching-scan-scenes", tmp_path_factory.mktemp("runs") / "run", *changes)


@pytest.fixture(scope="module")
def pictures() -> list[np.ndarray]:
    return [picture.pixels() for picture in make_scenes(split="val", count=3).pictures]


TEXTS = ["a red circle", "a large blue square left of a green star"]


def test_a_loaded_run_matches(run: Path, pictures: list[np.ndarray]) -> None:
    predictor = hub.load(run)
    scores = predictor.match(pictures, TEXTS)
    assert scores.shape == (3, 2)
    seen, read = predictor.embed_image(pictures, batch_size=2), predictor.embed_text(TEXTS, batch_size=1)
    assert (len(seen), len(read)) == (3, 2)
    torch.testing.assert_close(predictor.match(seen, read), scores, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(predictor.match(pictures[1:2], TEXTS[1:]), scores[1:2, 1:], rtol=1e-4, atol=1e-5)


def test_words_look_at_the_picture(run: Path, pictures: list[np.ndarray]) -> None:
    predictor = hub.load(run)
    seen = predictor.look(pictures[0], "A red circle!")
    assert seen.words == ("a", "red", "circle")
    assert seen.attention.map(8, 8).shape == (1, 3, 8, 8)
    torch.testing.assert_close(seen.attention.weights.sum(-1), torch.ones(1, 3))
    whole = predictor.model.scorer.look(predictor.embed_image(pictures[:1]), predictor.embed_text(["A red circle!"]))
    torch.testing.assert_close(seen.attention.weights, whole.weights[:, 1:4])
    assert predictor.unknown("a red giraffe, giraffe") == ("giraffe",)


def test_messages(run: Path, pictures: list[np.ndarray]) -> None:
    predictor = hub.load(run)
    with pytest.raises(DataError, match=r"match: expected a sentence, got '\.\.\.'; write at least one word"):
        predictor.match(pictures, ["..."])
    with pytest.raises(DataError, match="match: expected at least one picture and one sentence, got none"):
        predictor.match(pictures, [])


@pytest.mark.parametrize(
    "name",
    [
        "matching-bfan-scenes",
        "matching-mdan-scenes",
    ],
)
def test_other_models_train_and_match(name: str, tmp_path: Path, pictures: list[np.ndarray]) -> None:
    predictor = hub.load(trained(name, tmp_path / "run"))
    assert predictor.match(pictures, TEXTS).isfinite().all()
    if "mdan" in name:
        assert predictor.embed_image(pictures).values.shape == (3, 1, 48)
        with pytest.raises(ValueError, match="look: expected SCAN or BFAN, got a model"):
            predictor.look(pictures[0], TEXTS[0])


def test_a_resumed_training_remembers_how_many_batches_it_saw(run: Path) -> None:
    assert hub.load(run).model.batches.item() == 3
