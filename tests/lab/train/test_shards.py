"""Training from tar shards and tables of Lance: as from files, and the same after an interruption."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from foveate.lab.data.feature_store import FeatureRecord, StoreDescription
from foveate.lab.data.store_writer import write_store
from foveate.lab.recipes import RECIPES
from foveate.lab.tasks import TASKS
from foveate.lab.train import Recipe, override, train_recipe
from tests.lab.data.test_shards import COLOURS, lance, pack
from tests.lab.train.test_loop import assert_same

SMALL = ["dataset=shards", "limit=none", "batch_size=4", "epochs=2", "steps=none"]
TASK_RECIPES = {
    "captioning": ["captioning-lstm-scenes", "min_count=1", "hidden=16", "word_dim=16"],
    "matching": ["matching-mdan-scenes", "min_count=1", "hidden=16", "word_dim=16"],
}


def small(task: str, *changes: str) -> Recipe:
    name, *own = TASK_RECIPES[task]
    return override(RECIPES[name](), [*SMALL, *own, *changes])


def run(recipe: Recipe, out: Path, root: Path, **options) -> None:
    train_recipe(recipe, out, root=root, progress=False, **options)


def as_files(root: Path) -> Path:
    """What `pack` writes as files."""
    root.mkdir()
    for split, colours in (("train", COLOURS * 2), ("val", COLOURS[:4])):
        lines = []
        for number, colour in enumerate(colours):
            Image.new("RGB", (8, 6), colour).save(root / f"{split}{number:04}.png")
            captions = [f"A {colour} image.", f"The image is {colour}."]
            lines.append(json.dumps({"image": f"{split}{number:04}.png", "caption": captions}))
        (root / f"{split}.jsonl").write_text("\n".join(lines))
    return root


@pytest.mark.parametrize("task", TASK_RECIPES)
def test_shards_train_as_files_do(tmp_path: Path, task: str) -> None:
    run(small(task), tmp_path / "shards", pack(tmp_path / "tar"))
    run(small(task, "dataset=folder"), tmp_path / "files", as_files(tmp_path / "images"))
    assert_same(tmp_path / "shards", tmp_path / "files")


@pytest.mark.parametrize("make", [pack, lance])
def test_an_interruption_changes_nothing(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    recipe, root = small("captioning"), tmp_path / "data"
    root.mkdir()
    run(recipe, tmp_path / "whole", make(root))

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(recipe, tmp_path / "cut", root, on_evaluation=interrupt)
    run(recipe, tmp_path / "cut", root, resume=True)
    assert_same(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize("make", [pack, lance])
def test_workers_change_nothing(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    (tmp_path / "data").mkdir()
    root = make(tmp_path / "data")
    run(small("matching"), tmp_path / "none", root)
    run(small("matching", "workers=2"), tmp_path / "two", root)
    assert_same(tmp_path / "none", tmp_path / "two")


def test_every_caption_is_in_one_example(tmp_path: Path) -> None:
    pack(tmp_path)
    for each in (1, 2):
        task = TASKS["matching"].from_data(small("matching").settings, tmp_path)
        from foveate.lab.tasks.matching.data import CaptionPairs

        data = task.settings.read("train", tmp_path)
        pairs = CaptionPairs(data, task.settings.image_source(tmp_path, "train", None), each=each)
        assert len(pairs) == 32 // each
        seen = [caption.id for number in range(len(pairs)) for caption in pairs[number].captions]
        assert seen == [caption.id for caption in data.captions]


def test_features_of_shards_leave_out_what_extraction_skipped(tmp_path: Path) -> None:
    pack(tmp_path)
    data = TASKS["captioning"].Settings(dataset="shards").read("all", tmp_path)
    kept = [image.id for image in data.images if image.id != "train-00003.tar/0004.png"]
    records = [FeatureRecord(str(name), np.full((4, 8), len(str(name)), np.float32), grid=(2, 2)) for name in kept]
    skipped = {"train-00003.tar/0004.png": "broken"}
    write_store(tmp_path / "f.h5", records, StoreDescription("example"), dim=8, skipped=skipped)
    recipe = small("captioning", "images=stored", "images.store=f.h5")
    run(recipe, tmp_path / "run", tmp_path)
    task = TASKS["captioning"].from_data(recipe.settings, tmp_path)
    assert len(task.examples("train", tmp_path)) == 15
    assert "train-00003.tar/0004.png" not in {task.examples("train", tmp_path)[n].id for n in range(15)}
