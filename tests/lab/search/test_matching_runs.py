"""Search with the predictors of the matching task, small and untrained: the same order as that of `match`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

from foveate.apps.cli import main
from foveate.errors import DataError
from foveate.lab.data.samples import Dataset
from foveate.lab.models import MatchingDANSettings, MatchingModelSettings, SCANSettings
from foveate.lab.search import build_index, list_images, search_by_image, search_by_text
from foveate.lab.tasks.images import Conv
from foveate.lab.tasks.matching import Matching
from foveate.lab.tasks.matching.predictor import MatchingPredictor
from foveate.lab.tasks.matching.settings import MatchingSettings


def predictor(model: MatchingModelSettings, seed: int) -> tuple[MatchingPredictor, Matching]:
    torch.manual_seed(seed)
    task = Matching.from_data(MatchingSettings(model=model, images=Conv((8, 8)), word_dim=8, limit=8), None)
    return task.predictor(task.build_model().eval()), task


def save_images(data: Dataset, directory: Path) -> list[str]:
    directory.mkdir()
    for image in data.images:
        Image.fromarray(image.pixels()).save(directory / f"{image.id}.png")
    return list_images(directory)


def test_the_order_is_that_of_match(tmp_path: Path) -> None:
    (dan, task), (scan, _) = predictor(MatchingDANSettings(16), 0), predictor(SCANSettings(16), 1)
    data = task.examples("val", None).data
    paths, text = save_images(data, tmp_path / "photos"), data.captions[0].text
    index = build_index(tmp_path / "index", dan, paths, dtype="float32").index
    scores = dan.match(paths, [text])[:, 0]
    found = search_by_text(index, text, dan, top=4)
    assert [one.name for one in found] == [paths[n] for n in scores.topk(4).indices]
    assert [one.score for one in found] == pytest.approx(scores.topk(4).values.tolist(), abs=1e-5)

    again = search_by_text(index, text, dan, top=2, reranker=scan, first=len(paths))
    scores = scan.match(paths, [text])[:, 0]
    assert [one.name for one in again] == [paths[n] for n in scores.topk(2).indices]
    assert again[0].attention is not None
    assert again[0].attention.weights.shape[:2] == (1, len(again[0].words))

    texts = list(dict.fromkeys(caption.text for caption in data.captions))
    sentences = build_index(tmp_path / "texts", dan, texts, kind="texts", dtype="float32").index
    scores = dan.match(paths[:1], texts)[0]
    assert [one.name for one in search_by_image(sentences, paths[0], dan, top=3)] == [
        texts[n] for n in scores.topk(3).indices
    ]
    with pytest.raises(DataError, match="search: expected a run that embeds an image or a text as one vector, got"):
        search_by_text(index, text, scan)


@pytest.mark.slow
def test_from_training_to_search(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["limit=24", "epochs=1", "batch_size=8", "--quiet"]
    for model in ("mdan", "scan"):
        assert main(["train", f"matching-{model}-scenes", *small, "--out", str(tmp_path / model)]) == 0
    _, task = predictor(MatchingDANSettings(16), 0)
    save_images(task.examples("val", None).data, tmp_path / "photos")
    places = [str(tmp_path / name) for name in ("mdan", "photos", "index")]
    assert main(["index", *places]) == 0
    out = tmp_path / "found.png"
    options = ["--rerank", str(tmp_path / "scan"), "--top", "2", "--plot", str(out)]
    assert main(["search", places[2], "a red circle", *options]) == 0
    assert ".png" in capsys.readouterr().out
    assert out.stat().st_size > 1000
    assert main(["index", str(tmp_path / "scan"), places[1], str(tmp_path / "no")]) == 1
    assert "expected a run that embeds an image or a text as one vector" in capsys.readouterr().err
