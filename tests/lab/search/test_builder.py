from __future__ import annotations

from pathlib import Path

import pytest
import torch

from foveate.errors import DataError
from foveate.lab.search import Index, build_index, builder, list_images, read_texts
from tests.lab.search.runs import Colours, paint


def test_a_directory_becomes_an_index_and_grows_with_it(tmp_path: Path) -> None:
    paths, run = paint(tmp_path / "photos" / "deep", shades=2), Colours()
    assert list_images(tmp_path / "photos") == paths
    built = build_index(tmp_path / "i", run, paths, run="dan", weights="abc", batch_size=3)
    assert (built.added, built.skipped, len(built.index)) == (8, {}, 8)
    assert run.batches == [3, 3, 2]
    description = built.index.description
    assert (description.kind, description.run, description.weights) == ("images", "dan", "abc")
    assert (description.dim, description.dtype) == (3, "float16")
    expected = run.encode_image(paths).half()
    assert torch.equal(torch.cat([block for _, block in Index(tmp_path / "i").blocks(100)]), expected)
    run.batches.clear()
    more = paint(tmp_path / "photos" / "new", shades=1)
    again = build_index(tmp_path / "i", run, [*paths, *more, *more], weights="abc", batch_size=3)
    assert (again.added, len(again.index), run.batches) == (4, 12, [3, 1])
    assert build_index(tmp_path / "i", run, paths, weights="abc").added == 0


def test_what_is_embedded_is_saved_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "SAVE_EVERY", 4)
    paths = paint(tmp_path / "photos", shades=3)

    class Stopping(Colours):
        def encode_image(self, images):
            if len(self.batches) == 4:
                raise KeyboardInterrupt
            return super().encode_image(images)

    with pytest.raises(KeyboardInterrupt):
        build_index(tmp_path / "i", Stopping(), paths, batch_size=2)
    assert len(Index(tmp_path / "i")) == 8
    assert build_index(tmp_path / "i", Colours(), paths).added == 4
    assert [Index(tmp_path / "i").name(n) for n in range(12)] == paths


def test_unreadable_images_are_skipped_and_reported(tmp_path: Path) -> None:
    paths = paint(tmp_path / "photos", shades=1)
    Path(paths[1]).write_bytes(b"no image")
    built = build_index(tmp_path / "i", Colours(), paths)
    assert list(built.skipped) == [paths[1]]
    assert "expected a complete image" in built.skipped[paths[1]]
    assert (built.added, len(built.index)) == (3, 3)
    for path in paths:
        Path(path).write_bytes(b"no image")
    with pytest.raises(
        DataError, match=r"index: expected images to put into .*, got none that can be read; open_image"
    ):
        build_index(tmp_path / "j", Colours(), paths)
    assert not (tmp_path / "j").exists()


def test_texts(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("\ufeffa red thing\n\n  a blue thing \na red thing\n", encoding="utf-8")
    texts = read_texts(tmp_path / "t.txt")
    assert texts == ["a red thing", "a blue thing", "a red thing"]
    built = build_index(tmp_path / "i", Colours(), texts, kind="texts", dtype="float32")
    assert (built.added, built.index.description.kind, built.index.description.dtype) == (2, "texts", "float32")
    assert built.index.vector(1).tolist() == [0, 0, 1]
    assert build_index(tmp_path / "i", Colours(), ["green"], kind="texts").index.description.dtype == "float32"


def test_texts_without_a_word_are_skipped_and_reported(tmp_path: Path) -> None:
    class Strict(Colours):
        def encode_text(self, texts):
            for text in texts:
                if not any(letter.isalpha() for letter in text):
                    raise DataError(f"match: expected a sentence, got {text!r}")
            return super().encode_text(texts)

    built = build_index(tmp_path / "i", Strict(), ["red", "---", "blue", "!"], kind="texts")
    assert built.skipped == {text: f"match: expected a sentence, got {text!r}" for text in ("---", "!")}
    assert [built.index.name(n) for n in range(2)] == ["red", "blue"]


def test_names_outside_utf8_are_skipped_and_reported(tmp_path: Path) -> None:
    paths = paint(tmp_path / "photos", shades=1)
    broken = tmp_path / "photos" / "caf\udce9.png"
    try:
        Path(paths[0]).rename(broken)
    except (OSError, UnicodeEncodeError):
        pytest.skip("the file system takes no such name")
    built = build_index(tmp_path / "i", Colours(), list_images(tmp_path / "photos"))
    assert [name.isprintable() and "caf" in name for name in built.skipped] == [True]
    assert "expected a name in UTF-8" in next(iter(built.skipped.values()))
    assert built.added == 3


def test_errors(tmp_path: Path) -> None:
    paths = paint(tmp_path / "photos", shades=1)
    build_index(tmp_path / "i", Colours(), paths, weights="abc", run="runs/dan")
    with pytest.raises(
        DataError, match=r"index: expected weights = 'abc' as in .*, got 'x'; use the run 'runs/dan' with"
    ):
        build_index(tmp_path / "i", Colours(), paths, weights="x")
    with pytest.raises(DataError, match="index: expected kind = 'images' as in"):
        build_index(tmp_path / "i", Colours(), ["a"], kind="texts", weights="abc")
    with pytest.raises(DataError, match="index: expected dtype = 'float16' as in"):
        build_index(tmp_path / "i", Colours(), paths, weights="abc", dtype="float32")
    with pytest.raises(ValueError, match="build_index: expected batch_size >= 1, got 0"):
        build_index(tmp_path / "i", Colours(), paths, batch_size=0)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"index: expected images \(.bmp, .* in .*, got none; check the directory"):
        list_images(tmp_path / "empty")
    with pytest.raises(DataError, match=r"index: expected the directory .* got nothing there"):
        list_images(tmp_path / "nothing")
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(DataError, match=r"index: expected one text per line in .*, got none"):
        read_texts(tmp_path / "empty.txt")
    (tmp_path / "latin.txt").write_bytes("Mädchen".encode("latin-1"))
    with pytest.raises(DataError, match="index: expected a text file in UTF-8, got"):
        read_texts(tmp_path / "latin.txt")
