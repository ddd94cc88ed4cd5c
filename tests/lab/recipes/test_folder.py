"""Recipes for data of one's own: splits, features, vocabulary, training, and starting from a run with new words."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from foveate.apps.cli import main
from foveate.errors import DataError
from foveate.lab.data.feature_store import FeatureStore
from foveate.lab.hub import load
from foveate.lab.recipes import RECIPES
from foveate.lab.recipes.folder_recipes import FOLDER_RECIPES
from foveate.lab.tasks import TASKS
from foveate.lab.tasks.images import Extracted
from foveate.lab.train.override import override
from foveate.lab.train.recipe import train_recipe
from foveate.lab.train.start import adopt_start
from foveate.lab.train.weights import load_grown_weights, load_tensors, named_tensors, save_tensors
from tests.lab.data.test_folder import make_images, write_lines
from tests.lab.test_extract import TinyEncoder

SMALL = {
    "captioning-folder": ["model.hidden=8", "model.score_dim=8", "word_dim=8"],
    "matching-folder": ["model.hidden=8", "word_dim=8"],
    "vqa-folder": ["model.hidden=8", "model.heads=2", "word_dim=8"],
}


def make_data(root: Path, noun: str = "dog", count: int = 12) -> Path:
    names = make_images(root, count)
    lines: list[dict[str, Any]] = [
        {"image": n, "caption": f"a {noun} runs {k}"} for n in names for k in ("here", "there")
    ]
    lines += [{"image": n, "question": f"what is the {noun}?", "answer": noun} for n in names]
    write_lines(root / "all.jsonl", *lines)
    return root


@pytest.fixture(autouse=True)
def tiny_encoder(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every pretrained encoder is a tiny one; the result counts the images it encoded."""
    encoded: list[int] = []

    def build(name: str, *, size: int | None = None) -> TinyEncoder:
        encoder = TinyEncoder()
        encoder.name = name
        original = encoder.encode_pixels
        encoder.encode_pixels = lambda pixels: (encoded.append(len(pixels)), original(pixels))[1]  # type: ignore[method-assign]
        return encoder

    monkeypatch.setattr("foveate.lab.tasks.images.pretrained_encoder", build)
    monkeypatch.setattr("foveate.lab.encoders.pretrained.pretrained_encoder", build)
    return encoded


def small(name: str, *changes: str) -> Any:
    return override(RECIPES[name](), [*SMALL[name], "steps=2", "batch_size=4", *changes])


@pytest.mark.parametrize("name", sorted(FOLDER_RECIPES))
def test_a_directory_is_all_that_is_needed(name: str, tmp_path: Path, tiny_encoder: list[int]) -> None:
    data = make_data(tmp_path / "photos")
    history = train_recipe(small(name), tmp_path / "run", root=data, progress=False)
    assert history.best is not None
    assert sum(tiny_encoder) == 12
    assert len(FeatureStore(data / "efficientnet-lite0.h5")) == 12
    predictor = load(tmp_path / "run")
    image = data / "images" / "photo-00.png"
    call: dict[str, Callable[[], Any]] = {
        "captioning-folder": lambda: predictor.caption(image).text,
        "matching-folder": lambda: predictor.match(image, "a dog").shape,
        "vqa-folder": lambda: predictor.answer(image, "what is the dog?").text,
    }
    assert call[name]() is not None


def test_the_encoder_is_a_field_and_added_images_are_extracted(tmp_path: Path, tiny_encoder: list[int]) -> None:
    data = make_data(tmp_path / "photos")
    recipe = small("captioning-folder", "encoder=hf:some/model", "size=448")
    settings = recipe.settings
    settings.prepare_images(data)
    assert settings.images.path(data).name == "hf-some-model-448.h5"
    make_data(data, count=15)
    settings.prepare_images(data)
    settings.prepare_images(data)
    assert sum(tiny_encoder) == 15
    assert FeatureStore(settings.images.path(data)).ids == [f"photo-{n:02}.png" for n in range(15)]
    views = override(recipe, ["images.views=2"]).settings
    views.prepare_images(data)
    assert len(FeatureStore(views.images.path(data))) == 30


def test_a_store_of_foveate_extract_is_used(tmp_path: Path, tiny_encoder: list[int]) -> None:
    from foveate.lab.encoders import directory_images, extract_features

    data = make_data(tmp_path / "photos")
    extract_features(TinyEncoder(), directory_images(data / "images"), data / "efficientnet-lite0.h5")
    small("captioning-folder").settings.prepare_images(data)
    assert tiny_encoder == []


def test_features_need_a_directory() -> None:
    with pytest.raises(DataError, match="pass --data DIR"):
        Extracted().path(None)


@pytest.mark.parametrize("name", sorted(FOLDER_RECIPES))
def test_a_start_grows_the_vocabulary(name: str, tmp_path: Path) -> None:
    train_recipe(small(name), tmp_path / "first", root=make_data(tmp_path / "dogs"), progress=False)
    changes = [f"start={tmp_path / 'first'}", "steps=1", "lr=1e-9"]
    recipe = override(adopt_start(RECIPES[name](), changes), changes)
    assert recipe.settings.model == small(name).settings.model
    assert recipe.settings.word_dim == 8
    train_recipe(recipe, tmp_path / "second", root=make_data(tmp_path / "cats", "cat"), progress=False)
    old, new = load(tmp_path / "first").task, load(tmp_path / "second").task
    words = new.inputs.words.words
    assert words[: len(old.inputs.words)] == old.inputs.words.words
    assert "cat" in words
    assert "dog" in words
    if name == "vqa-folder":
        assert new.answers.answers == ("dog", "cat")
    before, after = (load_tensors(tmp_path / run / "model.safetensors")[0] for run in ("first", "second"))
    for key, tensor in before.items():
        torch.testing.assert_close(after[key][: len(tensor)] if tensor.ndim else after[key], tensor, atol=1e-6, rtol=0)


def test_a_start_of_another_task_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected a run of captioning to start from, got 'scenes-vqa' of vqa"):
        adopt_start(RECIPES["captioning-folder"](), ["start=scenes-vqa"])


def test_a_start_from_an_embedded_run_reads_images_as_it_does(tmp_path: Path) -> None:
    data = make_data(tmp_path / "photos", "zebra")
    out = tmp_path / "run"
    assert (
        main(
            ["train", "captioning-folder", "start=scenes-captioning", "steps=1", "--data", str(data), "--out", str(out)]
        )
        == 0
    )
    assert "zebra" in load(out).task.inputs.words
    assert "circle" in load(out).task.inputs.words
    assert not (data / "efficientnet-lite0.h5").exists()


def test_other_features_than_those_of_the_start(tmp_path: Path) -> None:
    data = make_data(tmp_path / "dogs")
    train_recipe(small("captioning-folder"), tmp_path / "first", root=data, progress=False)
    other = small("captioning-folder", f"start={tmp_path / 'first'}", "encoder=hf:other")
    with pytest.raises(DataError, match="start: expected features of efficientnet-lite0 as in the run, got hf:other"):
        train_recipe(other, tmp_path / "second", root=data, progress=False)


def test_weights_of_another_model_do_not_grow(tmp_path: Path) -> None:
    small_model, wide = torch.nn.Linear(3, 4), torch.nn.Linear(2, 9)
    save_tensors(tmp_path / "a.safetensors", named_tensors(small_model))
    with pytest.raises(DataError, match="the weights belong to another model"):
        load_grown_weights(wide, tmp_path / "a.safetensors")
    grown = torch.nn.Linear(3, 6)
    load_grown_weights(grown, tmp_path / "a.safetensors")
    assert torch.equal(grown.weight[:4], small_model.weight)
    torch.testing.assert_close(grown.bias[4:], small_model.bias.mean().expand(2))


def test_the_command_says_how_to_use_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, out = make_data(tmp_path / "photos"), tmp_path / "run"
    assert (
        main(
            [
                "train",
                "captioning-folder",
                *SMALL["captioning-folder"],
                "steps=1",
                "--data",
                str(data),
                "--out",
                str(out),
            ]
        )
        == 0
    )
    printed = capsys.readouterr().out
    assert f"foveate caption {out} image.jpg" in printed
    assert f"foveate evaluate {out} --data {data}" in printed
    assert main(["evaluate", str(out), "--data", str(data), "--split", "test", "--out", str(tmp_path / "m.json")]) == 0
    assert json.loads((tmp_path / "m.json").read_text())["split"] == "test"


def test_a_run_keeps_what_its_images_look_like(tmp_path: Path) -> None:
    data = make_data(tmp_path / "photos", count=40)
    train_recipe(small("captioning-folder"), tmp_path / "run", root=data, progress=False)
    predictor = load(tmp_path / "run")
    assert predictor.familiarity is not None
    assert predictor.familiarity.mean.shape == (8,)


def test_pooled_features_are_known_by_their_mean(tmp_path: Path) -> None:
    data = make_data(tmp_path / "photos", count=40)
    settings = override(RECIPES["matching-folder"](), ["model=dual", "word_dim=8"]).settings
    pooled, whole = (TASKS["matching"].from_data(s, data) for s in (settings, small("matching-folder").settings))
    found = []
    for task in (pooled, whole):
        examples = task.examples("val", data)
        found.append(task.mean_image_features(task.build_model(), [examples[n] for n in range(len(examples))]))
    torch.testing.assert_close(*found, atol=1e-3, rtol=0)


def test_a_stopped_run_can_be_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data, out = make_data(tmp_path / "photos"), tmp_path / "run"
    monkeypatch.setattr("foveate.signals.StopRequest.__bool__", lambda self: True)
    assert (
        main(["train", "captioning-folder", *SMALL["captioning-folder"], "--data", str(data), "--out", str(out)]) == 130
    )
    monkeypatch.undo()
    capsys.readouterr()
    report = tmp_path / "m.json"
    assert main(["evaluate", str(out), "--data", str(data), "--out", str(report)]) == 0
    assert f"on val of {data}" in " ".join(capsys.readouterr().out.split())
    written = json.loads(report.read_text())
    assert written["data"] == str(data)
    assert len(written["fingerprint"]) > 8
