"""`--no-verify` and `--allow-outside`: every command that reads stores, indexes or folders has them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from foveate.apps.cli.main import main
from foveate.apps.studio import RunCatalogue
from foveate.lab.data.feature_store import FeatureRecord, StoreDescription
from foveate.lab.data.store_writer import import_features
from foveate.lab.search import Index, IndexDescription
from foveate.lab.train.records import CONFIG
from tests.lab.search.test_exact_index import flip

SMALL = ["hidden=8", "heads=2", "layers=1", "word_dim=8", "min_count=1", "steps=1", "batch_size=2"]
PIXELS = ["vqa-mcan-scenes", "dataset=folder", "guidance=0", *SMALL, "images.size=32"]
STORED = [*PIXELS[:-1], "images=stored"]
READERS = ["train", "evaluate", "compare", "predict"]


def words(name: str, recipe: list[str], run: Path, out: Path, data: Path) -> list[str]:
    """The command `name` on `data`; those that read a run read `run`."""
    places = ["--out", str(out), "--data", str(data)]
    return {
        "train": ["train", *recipe, *places, "--quiet", "--resume"],
        "evaluate": ["evaluate", str(run), "--data", str(data)],
        "compare": ["compare", *recipe, "--mechanisms=softmax", "--seeds=1", "--scratch=", *places],
        "predict": ["predict", str(run), "--out", str(out.with_suffix(".json")), "--data", str(data), "--split", "val"],
    }[name]


def write_lines(root: Path, image: str) -> None:
    for split in ("train", "val"):
        lines = [json.dumps({"image": image, "question": "What?", "answer": word}) for word in ("cat", "dog")]
        (root / f"{split}.jsonl").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A directory whose lines name an image elsewhere, and a run that was trained on it."""
    home = tmp_path_factory.mktemp("outside")
    (home / "data").mkdir()
    Image.new("RGB", (8, 8)).save(home / "elsewhere.png")
    write_lines(home / "data", "../elsewhere.png")
    arguments = words("train", PIXELS, Path(), home / "run", home / "data")
    assert main([*arguments, "--allow-outside"]) == 0
    return home / "data", home / "run"


@pytest.mark.parametrize("name", READERS)
def test_images_outside_need_the_option(outside, name, tmp_path, capsys):
    data, run = outside
    arguments = words(name, PIXELS, run, tmp_path / "out", data)
    assert main(arguments) == 1
    assert "or pass --allow-outside" in capsys.readouterr().err
    assert main([*arguments, "--allow-outside"]) == 0


def test_attention_is_measured_on_images_outside_only_with_the_option(tmp_path, capsys):
    (tmp_path / "data").mkdir()
    Image.new("RGB", (64, 64)).save(tmp_path / "elsewhere.png")
    line = {"image": "../elsewhere.png", "object": "cat", "box": [0, 0, 20, 20]}
    (tmp_path / "data" / "train.jsonl").write_text(json.dumps(line) + "\n")
    arguments = ["evaluate-attention", "scenes-vqa", "--data", str(tmp_path / "data"), "--split", "train"]
    assert main(arguments) == 1
    assert "or pass --allow-outside" in capsys.readouterr().err
    assert main([*arguments, "--allow-outside"]) == 0


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A directory with a store in which one bit of the features is flipped, and a run that was trained on it."""
    home = tmp_path_factory.mktemp("damaged")
    (home / "data").mkdir()
    Image.new("RGB", (8, 8)).save(home / "data" / "cat.png")
    write_lines(home / "data", "cat.png")
    values = np.random.default_rng(0).normal(size=(4, 10)).astype(np.float16)
    store = home / "data" / "features.h5"
    import_features(iter([FeatureRecord("cat.png", values, (2, 2))]), store, StoreDescription("made-up"))
    flip(store, store.read_bytes().index(values.tobytes()))
    assert main([*words("train", STORED, Path(), home / "run", home / "data"), "--no-verify"]) == 0
    return home / "data", home / "run"


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_store_needs_the_option(damaged, name, tmp_path, capsys):
    data, run = damaged
    arguments = words(name, STORED, run, tmp_path / "out", data)
    assert main(arguments) == 1
    assert "features.h5" in capsys.readouterr().err
    assert main([*arguments, "--no-verify"]) == 0
    if name == "compare":  # imported features have no encoder for the examples of the report
        assert "Examples could not be drawn: encoder_of: expected" in (tmp_path / "out" / "report.html").read_text()


def test_neither_is_saved_with_a_run(outside, damaged):
    for _, run in (outside, damaged):
        assert "verify" not in (run / CONFIG).read_text()
        assert "outside" not in (run / CONFIG).read_text()


class Embedder:
    """Embeds anything as the same vector."""

    def encode_text(self, texts: list[str]) -> torch.Tensor:
        return torch.ones(len(texts), 4)


@pytest.fixture
def moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An index of texts whose manifest was changed by hand."""
    index = Index.create(tmp_path / "index", IndexDescription(4, "texts", "run", "w", "float16"))
    index.add(["one", "two"], torch.randn(2, 4))
    manifest = tmp_path / "index" / "index.json"
    manifest.write_text(manifest.read_text().replace('"run": "run"', '"run": "new"'))
    monkeypatch.setattr("foveate.lab.hub.load_embedder", lambda *_: (Embedder(), "new", "w"))
    return tmp_path / "index"


def test_search_and_index_read_a_changed_manifest_only_with_the_option(moved, tmp_path, capsys):
    (tmp_path / "more.txt").write_text("two\n")
    for arguments in (["search", str(moved), "a cat"], ["index", "new", str(tmp_path / "more.txt"), str(moved)]):
        assert main(arguments) == 1
        assert "another checksum" in capsys.readouterr().err
        assert main([*arguments, "--no-verify"]) == 0


def test_the_studio_passes_the_option_on(monkeypatch):
    served = []
    monkeypatch.setattr("foveate.apps.studio.app.serve", lambda *_, verify, **__: served.append(verify))
    assert main(["studio"]) == 0
    assert main(["studio", "--no-verify"]) == 0
    assert served == [True, False]
    assert RunCatalogue(Path("nowhere")).verify
    assert not RunCatalogue(Path("nowhere"), verify=False).verify
