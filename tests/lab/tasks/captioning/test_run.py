"""A run of captioning from recipe to captions: trained, loaded, asked, drawn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from foveate.apps.cli.answer import caption, draw_words
from foveate.errors import DataError
from foveate.lab import hub
from foveate.lab.data.scenes import make_scenes
from foveate.lab.recipes.captioning_recipes import CAPTIONING_RECIPES
from foveate.lab.tasks.captioning.predictor import CaptionPredictor
from foveate.lab.train import override, train_recipe

SMALL = ["limit=4", "hidden=16", "word_dim=8", "max_words=6", "batch_size=2", "training.steps=6", "lr=0.02"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("runs") / "run"
    recipe = override(CAPTIONING_RECIPES["captioning-lstm-scenes"](), SMALL)
    history = train_recipe(recipe, directory, progress=False)
    assert "cider-d" in history.best.metrics
    assert "meteor" not in history.best.metrics
    return directory


@pytest.fixture(scope="module")
def loaded(run: Path) -> CaptionPredictor:
    predictor = hub.load(run)
    assert isinstance(predictor, CaptionPredictor)
    return predictor


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "scene.png"
    Image.fromarray(make_scenes(split="val", count=1).images[0].pixels()).save(path)
    return path


def test_a_loaded_run_writes_captions(loaded: CaptionPredictor, image: Path) -> None:
    found = loaded.caption(image, beams=3)
    assert found.text == " ".join(found.words) == found.best[0][0]
    assert found.log_probability == found.best[0][1]
    assert len(found.best) == 3
    values = [value for _, value in found.best]
    assert values == sorted(values, reverse=True)
    assert found.attention.weights.shape[:2][0] == 1
    assert found.attention.weights.shape[1] >= len(found.words)
    torch.testing.assert_close(found.attention.map(4, 4).sum((-2, -1))[0, 0].item(), 1.0)


def test_an_image_alone_and_among_others_has_the_same_caption(loaded: CaptionPredictor) -> None:
    images = [image.pixels() for image in make_scenes(split="val", count=3).images]
    together = loaded.captions(images, batch_size=2)
    assert [found.text for found in together] == [loaded.caption(pixels).text for pixels in images]


def test_options_of_the_search(loaded: CaptionPredictor, image: Path) -> None:
    assert len(loaded.caption(image, max_words=2).words) <= 2
    assert len(loaded.caption(image, beams=1).best) == 1
    words = loaded.caption(image, beams=2, no_repeat=1, max_words=12).words
    assert len(set(words)) == len(words)
    short, long = (loaded.caption(image, beams=6, length_penalty=p, max_words=12) for p in (0.0, 5.0))
    assert len(long.words) >= len(short.words)
    assert short.log_probability >= long.log_probability


def test_samples_repeat_with_their_seed(loaded: CaptionPredictor, image: Path) -> None:
    first, again, other = (loaded.sample(image, 4, seed=seed) for seed in (0, 0, 1))
    assert first == again != other
    assert len(first) == 4
    assert len({text for text, _ in loaded.sample(image, 4, temperature=1e-4)}) == 1


def test_the_command_prints_and_draws(
    run: Path, image: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = caption(str(run), image, beams=2, samples=3)
    printed = capsys.readouterr().out
    assert printed.splitlines()[0] == found.text
    assert "probability" in printed
    assert "samples" in printed
    seen = found if found.words else caption(str(run), image, length_penalty=9.0)
    draw_words(image, seen, tmp_path / "strip.png")
    assert np.asarray(Image.open(tmp_path / "strip.png")).std() > 0


def test_nothing_to_draw(loaded: CaptionPredictor, image: Path, tmp_path: Path) -> None:
    found = loaded.caption(image)
    empty = type(found)("", (), 0.0, found.attention, ())
    with pytest.raises(DataError, match="caption: expected words to draw, got an empty caption"):
        draw_words(image, empty, tmp_path / "strip.png")


def test_runs_of_other_tasks_are_refused(image: Path) -> None:
    message = r"caption: expected a run with the call 'caption', got 'scenes-vqa' of VQA; train one with foveate train "
    with pytest.raises(DataError, match=message + "captioning-lstm-scenes"):
        caption("scenes-vqa", image)
