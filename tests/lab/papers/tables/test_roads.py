"""The road from the publishers' files to the tables, through the command line: formats, changes, ensembles."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from foveate.apps.cli import main
from foveate.lab.data import FeatureStore
from foveate.lab.models import MCANSettings
from foveate.lab.papers.tables import TABLES
from foveate.lab.papers.tables.tiny_files import DIM, SIDE, SUBSETS, features_of
from foveate.lab.papers.tables.tiny_tables import TINY_SETTINGS, make_files
from foveate.lab.recipes import RECIPES
from foveate.metrics import box_maps

BOXES = np.array([[0, 0, 20, 40], [20, 0, 40, 40]], np.float32)


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def run(*arguments: str) -> None:
    assert main([str(argument) for argument in arguments]) == 0


def train(recipe: str, out: str, *changes: str) -> None:
    small = TINY_SETTINGS[type(RECIPES[recipe]().settings.model)]
    run("train", recipe, *small, *changes, "--data", ".", "--out", out, "--quiet")


def test_openvqa_arrays_keep_boxes(tmp_path: Path) -> None:
    Path("train2014").mkdir()
    for image in (9, 25):
        name = Path("train2014", f"COCO_train2014_{image:012d}.jpg.npz")
        np.savez(name, x=features_of(image, 2).T, bbox=BOXES, image_w=SIDE, image_h=SIDE, num_bbox=2)
    run("import", "openvqa", "train2014", "store.h5")
    record = FeatureStore("store.h5").get("9")
    assert record.values.shape == (2, DIM)
    assert record.boxes.tolist() == (BOXES / SIDE).tolist()
    assert record.size == (SIDE, SIDE)


@pytest.mark.parametrize(("shape", "grid"), [((6, DIM), None), ((DIM, 2, 3), (2, 3)), ((2, 3, DIM), (2, 3))])
def test_folders_of_arrays(shape: tuple[int, ...], grid: tuple[int, int] | None) -> None:
    Path("arrays").mkdir()
    np.save("arrays/7.npy", np.arange(np.prod(shape), dtype=np.float32).reshape(shape))
    np.save("arrays/7_info.npy", np.zeros(3))
    run("import", "npy", "arrays", "store.h5")
    record = FeatureStore("store.h5").get("7")
    assert (record.values.shape, record.grid) == ((6, DIM), grid)


def test_lmdb_is_read_and_runs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    lmdb = pytest.importorskip("lmdb")
    entry = {"features": features_of(9, 2), "bbox": BOXES, "image_width": SIDE, "image_height": SIDE, "num_boxes": 2}
    with lmdb.open("base", map_size=1 << 20) as base, base.begin(write=True) as transaction:
        transaction.put(b"COCO_val2014_000000000009", pickle.dumps(entry))
        transaction.put(b"keys", pickle.dumps([b"x"]))
    run("import", "lmdb", "base", "store.h5")
    assert FeatureStore("store.h5").get("9").boxes.shape == (2, 4)
    with lmdb.open("evil", map_size=1 << 20) as base, base.begin(write=True) as transaction:
        transaction.put(b"9", pickle.dumps(Path("x")))
    assert main(["import", "lmdb", "evil", "evil.h5"]) == 1
    assert "never created" in capsys.readouterr().err


def test_scan_numbers_become_names() -> None:
    make_files(TABLES["002-table-4"], Path())
    run("import", "scan", "f30k_precomp", "named.h5", "--split", "dev", "--names", "dataset_flickr30k.json")
    assert FeatureStore("named.h5").ids[:2] == ["7016", "7017"]
    run("import", "scan", "f30k_precomp", "numbered.h5", "--split", "dev")
    assert FeatureStore("numbered.h5").ids[:2] == ["16", "17"]


def test_scan_directory_trains_alone_and_runs_are_averaged(capsys: pytest.CaptureFixture[str]) -> None:
    make_files(TABLES["002-table-1"], Path())
    for ours, theirs in (("train", "train"), ("val", "dev")):
        run("import", "scan", "f30k_precomp", f"f30k_precomp/{ours}.h5", "--split", theirs)
    train("matching-scan-flickr30k", "a")
    train("matching-scan-flickr30k-i2t", "b")
    values = {}
    for name, more in (("a", ()), ("b", ()), ("both", ("--ensemble", "b"))):
        run("evaluate", "b" if name == "b" else "a", "--data", ".", "--out", f"{name}.json", *more)
        values[name] = json.loads(Path(f"{name}.json").read_text())["metrics"]["rsum"]
    assert "a + b on val" in capsys.readouterr().out
    assert len(set(values.values())) > 1


def test_missing_word_vectors_say_what_to_fetch(capsys: pytest.CaptureFixture[str]) -> None:
    make_files(TABLES["000-shares"], Path())
    for ours in ("train", "val"):
        run("import", "grid-feats", f"grid-feats/{SUBSETS_OF[ours]}", f"grid-feats/{ours}.h5")
    Path("glove.6B.300d.txt").unlink()
    small = TINY_SETTINGS[MCANSettings]
    assert main(["train", "vqa-mcan-vqa2-grid", *small, "--data", ".", "--out", "run", "--quiet"]) == 1
    assert "fetch glove.6B.zip" in capsys.readouterr().err


SUBSETS_OF = {"train": "train2014", "val": "val2014", "test": "test2015"}


def test_predict_takes_changes_and_reads_test_dev_from_test() -> None:
    make_files(TABLES["000-table-1"], Path())
    for ours in ("train", "val", "test"):
        run("import", "grid-feats", f"grid-feats/{SUBSETS_OF[ours]}", f"grid-feats/{ours}.h5")
    train("vqa-mcan-vqa2-unimodal", "run")
    changes = TABLES["001-table-6.3"].rows[-1].changes  # test-MCA
    run("predict", "run", *changes, "--data", ".", "--split", "test-dev", "--out", "rows.json", "--device", "cpu")
    rows = json.loads(Path("rows.json").read_text())
    assert [row["question_id"] // 10 for row in rows[::3]] == list(SUBSETS["test-dev2015"])


def test_regions_are_judged_on_their_boxes() -> None:
    make_files(TABLES["000-table-2"], Path())
    for subset in ("train2014", "val2014"):
        Path("npz", subset).mkdir(parents=True)
        for image in SUBSETS[subset]:
            np.savez(
                Path("npz", subset, f"COCO_{subset}_{image:012d}.jpg.npz"),
                x=features_of(image, 2).T,
                bbox=BOXES,
                image_w=SIDE,
                image_h=SIDE,
            )
    Path("regions").mkdir()
    for ours in ("train", "val"):
        run("import", "openvqa", f"npz/{SUBSETS_OF[ours]}", f"regions/{ours}.h5")
    train("vqa-mcan-vqa2", "run", "store=regions/{split}.h5")
    run("evaluate", "run", "dataset=vqa-hat", "--data", ".", "--out", "found.json")
    assert 0 <= json.loads(Path("found.json").read_text())["metrics"]["js"] <= 1


def test_maps_of_boxes_sum_to_one() -> None:
    weights = torch.tensor([[0.25, 0.75], [0.0, 0.0]])
    boxes = torch.tensor([[0.0, 0.0, 0.5, 1.0], [0.5, 0.0, 1.0, 1.0]]).expand(2, 2, 4)
    maps = box_maps(weights, boxes, 2, 4)
    assert maps[0].tolist() == [[0.0625, 0.0625, 0.1875, 0.1875]] * 2
    assert maps[1].sum() == 0


def test_a_released_list_of_answers_is_used() -> None:
    make_files(TABLES["000-shares"], Path())
    for ours in ("train", "val"):
        run("import", "grid-feats", f"grid-feats/{SUBSETS_OF[ours]}", f"grid-feats/{ours}.h5")
    Path("answer_dict.json").write_text(json.dumps([{"yes": 1, "no": 0, "maybe": 2}, {"0": "no"}]))
    train("vqa-mcan-vqa2-grid", "run", "answer_list=answer_dict.json")
    vocabulary = json.loads(Path("run/vocabulary.json").read_text())
    assert vocabulary["answers"]["answers"] == ["no", "yes", "maybe"]
    train("vqa-mcan-vqa2-grid", "both", "train_split=train+val")
    assert json.loads(Path("both/vocabulary.json").read_text())["answers"]["answers"][:2] == ["1", "blue"]


def test_paper_recipes_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    run("list", "recipes")
    out = capsys.readouterr().out
    assert all(name in out for name in RECIPES)
