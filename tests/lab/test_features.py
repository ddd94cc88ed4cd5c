"""A run knows which images are like those it was trained on, and says so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from foveate.apps.cli import main
from foveate.errors import DataError
from foveate.lab import hub
from foveate.lab.data import DATASETS
from foveate.lab.data.image_sources import example_photos
from foveate.lab.features import LEAST, Familiarity, ImageFeatures, mean_features
from foveate.lab.tasks.images import encoder_input
from foveate.lab.train.recipe import run_directory
from foveate.lab.train.records import FAMILIARITY
from foveate.lab.train.weights import load_tensors, save_tensors

RUNS = ("scenes-vqa", "scenes-captioning", "scenes-matching", "scenes-search")


def test_the_distance_is_that_from_the_main_directions() -> None:
    generator = torch.Generator().manual_seed(0)
    plane = torch.randn(200, 2, generator=generator) @ torch.randn(2, 12, generator=generator)
    images = 5 + 10 * plane + torch.randn(200, 12, generator=generator)
    found = Familiarity.fit(images[:100], images[100:])
    assert found is not None
    distances = found.distance(images)
    assert float((distances[100:] <= 1).float().mean()) >= 0.98
    # Further along a main direction is nothing new, aside of it is.
    away = images[:1] + 100 * found.directions[:1]
    torch.testing.assert_close(found.distance(away), distances[:1], atol=1e-3, rtol=0)
    aside = torch.linalg.svd(found.directions).Vh[-1:]
    assert float(found.distance(images[:1] + 100 * aside)) > 5


def test_few_images_say_nothing() -> None:
    assert Familiarity.fit(torch.randn(LEAST - 1, 4), torch.randn(4, 4)) is None
    assert Familiarity.fit(torch.randn(LEAST, 4), torch.zeros(0, 4)) is None


def test_padding_does_not_count() -> None:
    values = torch.tensor([[[1.0], [3.0], [9.0]]])
    assert mean_features(ImageFeatures(values)).item() == pytest.approx(13 / 3)
    assert mean_features(ImageFeatures(values, mask=torch.tensor([[True, True, False]]))).item() == 2


@pytest.mark.parametrize("run", RUNS)
def test_embedded_runs_know_scenes_from_photographs(run: str) -> None:
    predictor = hub.load(run)
    scenes = [image.pixels() for image in DATASETS["scenes"].read(None, "test", count=40).images]
    own = predictor.warnings(predictor.read_images(scenes))
    assert sum(warning is not None for warning in own) <= 4
    photos = [str(path) for path in example_photos().values()]
    warned = predictor.warnings(predictor.read_images(photos))
    assert all(
        warning is not None and "unlike those that the run was trained on (scenes)" in warning for warning in warned
    )


def test_results_and_the_command_line_carry_the_warning(capsys: pytest.CaptureFixture[str]) -> None:
    photo = str(example_photos()["grace_hopper"])
    scene = DATASETS["scenes"].read(None, "val", count=1).images[0].pixels()
    captioner = hub.load("scenes-captioning")
    assert captioner.caption(scene).warning is None
    assert captioner.caption(photo).warning is not None
    assert hub.load("scenes-vqa").answer(photo, "What colour is it?").warning is not None
    matcher = hub.load("scenes-matching")
    assert matcher.warnings(matcher.read_images([photo]))[0] is not None
    assert main(["answer", "scenes-vqa", photo, "What colour is it?"]) == 0
    seen = capsys.readouterr()
    assert "unlike those" in seen.err
    assert "score, each on its own" in seen.out
    assert main(["caption", "scenes-captioning", photo]) == 0
    assert "unlike those" in capsys.readouterr().err


def test_scores_are_named_for_what_they_are() -> None:
    scene = DATASETS["scenes"].read(None, "val", count=1).images[0].pixels()
    independent = hub.load("scenes-vqa").answer(scene, "Is there a circle?", top=99)
    assert independent.scores_are == "independent"
    shares = hub.load("scenes-vqa", ["loss=cross-entropy"]).answer(scene, "Is there a circle?", top=99)
    assert shares.scores_are == "shares"
    assert sum(score for _, score in shares.best) == pytest.approx(1, abs=1e-4)


def test_a_run_without_it_and_a_damaged_one(tmp_path: Path) -> None:
    copy = hub.save_pretrained("scenes-captioning", tmp_path / "run")
    assert (copy / FAMILIARITY).is_file()
    tensors, _ = load_tensors(run_directory("scenes-captioning") / FAMILIARITY)
    for wrong in (
        {"mean": tensors["mean"]},
        {**tensors, "limit": torch.tensor([-1.0])},
        {**tensors, "mean": torch.zeros(3)},
    ):
        save_tensors(copy / FAMILIARITY, wrong)
        damaged = hub.load(copy)
        with pytest.raises(DataError, match="familiarity: expected mean"):
            damaged.warnings(damaged.read_images([np.zeros((20, 20, 3), np.uint8)]))
    (copy / FAMILIARITY).unlink()
    pixels = np.zeros((20, 20, 3), np.uint8)
    assert hub.load(copy).caption(pixels).warning is None


def test_mean_features_are_those_of_the_encoder() -> None:
    predictor = hub.load("scenes-captioning")
    examples = predictor.task.examples("val", None)
    found = predictor.task.mean_image_features(predictor.model, [examples[0], examples[1]])
    images = predictor.read_images([examples.data.images[int(examples.rows[n])].pixels() for n in range(2)])
    with torch.no_grad():
        expected = predictor.model.image(encoder_input(predictor.model.image, images)).values.mean(1)
    torch.testing.assert_close(found, expected)
