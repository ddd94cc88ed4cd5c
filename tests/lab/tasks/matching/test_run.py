"""Runs of matching from recipe to scores: trained, loaded, matched, looked into."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from foveate.errors import DataError
from foveate.lab import hub
from foveate.lab.data.scenes import make_scenes
from foveate.lab.recipes.matching_recipes import MATCHING_RECIPES
from foveate.lab.train import override, train_recipe
from foveate.lab.train.records import LOG, read_log

SMALL = [
    "limit=4",
    "hidden=16",
    "word_dim=8",
    "batch_size=4",
    "training.steps=3",
    "channels=8,8,8,8",
    "images.start=random",
]


def trained(name: str, directory: Path, *changes: str) -> Path:
    train_recipe(override(MATCHING_RECIPES[name](), [*SMALL, *changes]), directory, progress=False)
    return directory


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    changes = ("ccr=1", "ccs=1")
    return trained("matching-scan-scenes", tmp_path_factory.mktemp("runs") / "run", *changes)


@pytest.fixture(scope="module")
def images() -> list[np.ndarray]:
    return [image.pixels() for image in make_scenes(split="val", count=3).images]


TEXTS = ["a red circle", "a large blue square left of a green star"]


def test_a_loaded_run_matches(run: Path, images: list[np.ndarray]) -> None:
    predictor = hub.load(run)
    scores = predictor.match(images, TEXTS)
    assert scores.shape == (3, 2)
    seen, read = predictor.encode_image(images, batch_size=2), predictor.encode_text(TEXTS, batch_size=1)
    assert (len(seen), len(read)) == (3, 2)
    torch.testing.assert_close(predictor.match(seen, read), scores, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(predictor.match(images[1:2], TEXTS[1:]), scores[1:2, 1:], rtol=1e-4, atol=1e-5)


def test_words_look_at_the_image(run: Path, images: list[np.ndarray]) -> None:
    predictor = hub.load(run)
    seen = predictor.look(images[0], "A red circle!")
    assert seen.words == ("a", "red", "circle")
    assert seen.attention.map(8, 8).shape == (1, 3, 8, 8)
    torch.testing.assert_close(seen.attention.weights.sum(-1), torch.ones(1, 3))
    whole = predictor.model.scorer.look(predictor.encode_image(images[:1]), predictor.encode_text(["A red circle!"]))
    torch.testing.assert_close(seen.attention.weights, whole.weights[:, 1:4])
    assert predictor.unknown("a red giraffe, giraffe") == ("giraffe",)


def test_messages(run: Path, images: list[np.ndarray]) -> None:
    predictor = hub.load(run)
    with pytest.raises(DataError, match=r"match: expected a sentence, got '\.\.\.'; write at least one word"):
        predictor.match(images, ["..."])
    with pytest.raises(ValueError, match="match: expected batch_size as a whole number >= 1, got -1"):
        predictor.encode_text(TEXTS, batch_size=-1)
    with pytest.raises(DataError, match="match: expected at least one image and one sentence, got none"):
        predictor.match(images, [])


@pytest.mark.parametrize("name", ["scenes-search", "photos-search"])
def test_one_unit_vector_per_image_and_per_sentence(name: str, images: list[np.ndarray]) -> None:
    predictor = hub.load(name)
    seen, read = predictor.embed_image(images, batch_size=2), predictor.embed_text(TEXTS, batch_size=1)
    assert (seen.ndim, len(seen), len(read)) == (2, 3, 2)
    for vectors in (seen, read):
        torch.testing.assert_close(vectors.norm(dim=-1), torch.ones(len(vectors)))
    expected = torch.stack([torch.cosine_similarity(seen, one, dim=-1) for one in read], 1)
    torch.testing.assert_close(predictor.similarity(images, TEXTS), expected)
    torch.testing.assert_close(predictor.similarity(seen, read), expected)
    torch.testing.assert_close(predictor.similarity(images[0], TEXTS[1]), expected[:1, 1:])
    lengths = predictor.encode_image(images).values.norm(dim=-1) * predictor.encode_text(TEXTS).values.norm(dim=-1).mT
    torch.testing.assert_close(predictor.match(images, TEXTS), expected * lengths)


def test_several_vectors_per_image_are_no_similarity(run: Path, images: list[np.ndarray]) -> None:
    predictor = hub.load(run)
    with pytest.raises(DataError, match=r"expected a run with one vector per image, got SCAN.*; use match"):
        predictor.similarity(images, TEXTS)
    seen, read = predictor.embed_image(images), predictor.embed_text(TEXTS)
    torch.testing.assert_close(predictor.match(seen, read), predictor.match(images, TEXTS), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "name",
    [
        "matching-bfan-scenes",
        "matching-mdan-scenes",
    ],
)
def test_other_models_train_and_match(name: str, tmp_path: Path, images: list[np.ndarray]) -> None:
    predictor = hub.load(trained(name, tmp_path / "run"))
    assert predictor.match(images, TEXTS).isfinite().all()
    if "mdan" in name:
        assert predictor.encode_image(images).values.shape == (3, 1, 48)
        with pytest.raises(
            ValueError,
            match=r"look: expected a model with cross attention \(SCAN, BFAN\), got one vector per image; use match",
        ):
            predictor.look(images[0], TEXTS[0])


def test_a_training_that_starts_from_a_run_is_not_warmed_up_again(run: Path, tmp_path: Path) -> None:
    losses = {}
    for warmup in (0, 3, 4):  # the run has taken three steps
        changes = (f"start={run}", f"warmup_steps={warmup}", "training.steps=1")
        directory = trained("matching-scan-scenes", tmp_path / str(warmup), *changes)
        losses[warmup] = read_log(directory / LOG)[0]["ranking"]
    assert losses[3] == losses[0]
    assert losses[4] > 2 * losses[0]
