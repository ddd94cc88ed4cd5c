"""Captioned images in tar shards and tables of Lance, read through a table of captions."""

from __future__ import annotations

import json
import os
import pickle
import tarfile
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from foveate.errors import DataError
from foveate.lab.data import DATASETS
from foveate.lab.data.caption_table import CaptionTable
from foveate.lab.data.image_sources import stored_images
from foveate.lab.data.shards import read_shards
from foveate.lab.data.tokenizers import TOKENIZERS

COLOURS = ("red", "green", "blue", "white", "black", "gray", "yellow", "cyan")


def encoded(colour: str) -> bytes:
    image = BytesIO()
    Image.new("RGB", (8, 6), colour).save(image, "png")
    return image.getvalue()


def write(path: Path, *members: tuple[str, bytes | str | dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, content in members:
            content = json.dumps(content) if isinstance(content, dict) else content
            raw = content.encode() if isinstance(content, str) else content
            info = tarfile.TarInfo(name)
            info.size = len(raw)
            archive.addfile(info, BytesIO(raw))


def pack(root: Path, per_shard: int = 3) -> Path:
    """Train and val in several shards, every image named by its colour."""
    for split, colours in (("train", COLOURS * 2), ("val", COLOURS[:4])):
        for start in range(0, len(colours), per_shard):
            rows = []
            for number, colour in enumerate(colours[start : start + per_shard], start):
                several = [f"A {colour} image.", f"The image is {colour}."]
                rows += [(f"{number:04}.png", encoded(colour)), (f"{number:04}.json", {"caption": several})]
            write(root / f"{split}-{start:05}.tar", *rows)
    return root


def lance(root: Path) -> Path:
    lancedb = pytest.importorskip("lancedb", reason='needs the extra "scale"')
    for split, colours in (("train", COLOURS * 2), ("val", COLOURS[:4])):
        rows = [
            {"image": encoded(c), "caption": [f"A {c} image.", f"The image is {c}."], "name": f"{n:04}"}
            for n, c in enumerate(colours)
        ]
        lancedb.connect(str(root)).create_table(split, rows)
    return root


@pytest.mark.parametrize("make", [pack, lance])
def test_images_and_captions_come_back(tmp_path: Path, make) -> None:
    data = DATASETS["shards"].read(make(tmp_path), "train")
    assert (len(data), len(data.captions)) == (16, 32)
    for position, colour in enumerate(COLOURS * 2):
        image = data.images[position]
        assert np.array_equal(image.pixels(), np.asarray(Image.open(BytesIO(encoded(colour))).convert("RGB")))
        assert [one.text for one in data.captions_of(image.id)] == [f"A {colour} image.", f"The image is {colour}."]
        assert data.captions_of(image.id) == tuple(data.captions[2 * position : 2 * position + 2])
        assert data.image(image.id) == data.image(data.captions[2 * position]) == image
    assert data.captions[-1].tokens == ("the", "image", "is", "cyan")
    assert len({image.id for image in data.images}) == 16
    assert len({caption.id for caption in data.captions}) == 32
    assert data.caption_counts().tolist() == [2] * 16
    assert len(DATASETS["shards"].read(tmp_path, "val")) == 4
    assert len(DATASETS["shards"].read(tmp_path, "all")) == 20


def test_ids_are_those_of_extraction(tmp_path: Path) -> None:
    pack(tmp_path)
    extracted = [record.id for record in stored_images(tmp_path)]
    assert sorted(image.id for image in read_shards(tmp_path, "all").images) == extracted


def test_subsets_and_other_tokens(tmp_path: Path) -> None:
    data = read_shards(pack(tmp_path), "train")
    few = DATASETS["shards"].read(tmp_path, "train", count=3)
    assert (len(few), len(few.captions), few.caption_counts().tolist()) == (3, 6, [2, 2, 2])
    with pytest.raises(
        DataError, match=r"shards train: expected the id of one of its 3 images, got 'train-00003.tar/0003"
    ):
        few.image(data.images[3].id)
    assert few.captions_of(data.images[3].id) == ()
    some = data.of_images("mine", [data.images[5], data.images[2]])
    assert [caption.image_id for caption in some.captions] == [data.images[5].id] * 2 + [data.images[2].id] * 2
    other = data.retokenized(TOKENIZERS["treebank"])
    assert other.captions[0].tokens == ("a", "red", "image", ".")
    prints = {one.fingerprint() for one in (data, few, other, read_shards(tmp_path, "val"))}
    assert len(prints) == 4
    assert data.fingerprint() == read_shards(tmp_path, "train").fingerprint()
    joined = DATASETS["shards"].read(tmp_path, "train+val")
    assert (len(joined), len(joined.captions_of(joined.images[-1].id))) == (20, 2)


def test_the_table_is_written_once_and_again_when_an_archive_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = read_shards(pack(tmp_path), "train").fingerprint()
    table = tmp_path / ".captions-train.safetensors"
    made = table.stat().st_mtime_ns
    assert read_shards(tmp_path, "train").fingerprint() == before
    assert table.stat().st_mtime_ns == made
    write(tmp_path / "train-00003.tar", ("a.png", encoded("red")), ("a.txt", "Only one."))
    changed = read_shards(tmp_path, "train")
    assert len(changed) == 14
    assert changed.fingerprint() != before
    raw = bytearray(table.read_bytes())
    raw[-1] ^= 1
    table.write_bytes(raw)
    with pytest.raises(DataError, match=r"shards: expected an intact table of captions, got .*captions-train"):
        CaptionTable(table)
    assert read_shards(tmp_path, "train").fingerprint() == changed.fingerprint()  # written again
    monkeypatch.setenv("FOVEATE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(os, "access", lambda *_: False)
    table.unlink()
    assert read_shards(tmp_path, "train").fingerprint() == changed.fingerprint()
    assert not table.exists()
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_samples_without_an_image_or_a_caption_are_counted(tmp_path: Path) -> None:
    write(
        tmp_path / "train" / "deep" / "0.tar",
        ("x/a.jpg", encoded("red")),
        ("x/a.txt", " A cat \n on a chair. \n"),
        ("x/b.txt", "no image"),
        ("x/c.png", encoded("red")),
        ("x/d.png", encoded("red")),
        ("x/d.txt", "  "),
        ("x/e.png", encoded("red")),
        ("x/e.json", "{broken"),
        ("x/e.txt", "Ein Mädchen"),
        ("x/f.seg.png", encoded("red")),
        ("x/f.json", {"text": "Other name", "width": 3}),
        ("x/f.txt", "not used"),
    )
    data = read_shards(tmp_path, "train")
    assert [image.id for image in data.images] == [f"train/deep/0.tar/x/{n}" for n in ("a.jpg", "e.png", "f.seg.png")]
    assert [caption.text for caption in data.captions] == ["A cat on a chair.", "Ein Mädchen", "Other name"]
    notes = CaptionTable(tmp_path / ".captions-train.safetensors").notes
    assert notes["skipped"] == {"without an image": 1, "without a caption": 2}


def test_it_goes_to_other_processes(tmp_path: Path) -> None:
    data = pickle.loads(pickle.dumps(read_shards(pack(tmp_path), "train")))
    assert data.captions[0].text == "A red image."
    assert data.images[0].pixels().shape == (6, 8, 3)


def test_errors(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"shards: expected a directory, got none; pass --data DIR: name the archives"):
        read_shards(None)
    with pytest.raises(DataError, match=r"shards: expected archives or tables of the split val in .*, got none; name"):
        read_shards(tmp_path, "val")
    write(tmp_path / "train.tar", ("a.txt", "no image"))
    with pytest.raises(DataError, match=r"shards: expected captioned images in .*, got 1 without an image; name the"):
        read_shards(tmp_path, "train")
    (tmp_path / "train.tar").write_bytes(b"x" * 2000)
    with pytest.raises(DataError, match=r"shards: expected a tar archive without compression, got .*train.tar"):
        read_shards(tmp_path, "train")
    rows = [("a.png", encoded("red")), ("a.txt", "one"), ("b.png", encoded("red")), ("b.txt", "x"), ("a.png", b"")]
    write(tmp_path / "train.tar", *rows, ("a.txt", "again"))
    with pytest.raises(DataError, match=r"shards: expected images with different names, got 'train.tar/a.png' twice"):
        read_shards(tmp_path, "train")
    write(tmp_path / "train.tar", ("a.png", b"broken"), ("a.txt", "one"))
    with pytest.raises(DataError):
        read_shards(tmp_path, "train").images[0].pixels()


def test_a_table_of_other_columns(tmp_path: Path) -> None:
    lancedb = pytest.importorskip("lancedb", reason='needs the extra "scale"')
    lancedb.connect(str(tmp_path)).create_table("train", [{"picture": b"", "caption": "x"}])
    with pytest.raises(DataError, match=r"shards: expected the columns image and caption in .*, got caption, picture"):
        read_shards(tmp_path, "train")
