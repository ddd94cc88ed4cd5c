"""Directories of one's own: formats, the division into splits, and the check."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from foveate.apps.cli import main
from foveate.errors import DataError
from foveate.io import decode_image
from foveate.lab.data import DATASETS, read_folder
from foveate.lab.data.folder_check import check_folder
from foveate.lab.data.jsonl import divide


def make_images(root: Path, count: int, *, inside: str = "images") -> list[str]:
    (root / inside).mkdir(parents=True, exist_ok=True)
    names = [f"photo-{n:02}.png" for n in range(count)]
    for n, name in enumerate(names):
        pixels = np.random.default_rng(n).integers(0, 256, (40, 60, 3), np.uint8)
        Image.fromarray(pixels).save(root / inside / name)
    return names


def write_lines(path: Path, *records: dict[str, object] | str) -> None:
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


class TestSplits:
    def test_by_image_and_seed(self, tmp_path: Path) -> None:
        names = make_images(tmp_path, 30)
        write_lines(tmp_path / "all.jsonl", *({"image": n, "caption": f"{n} {k}"} for n in names for k in range(2)))
        parts = {split: {i.id for i in read_folder(tmp_path, split).images} for split in ("train", "val", "test")}
        assert {split: len(part) for split, part in parts.items()} == {"train": 24, "val": 3, "test": 3}
        assert set.union(*parts.values()) == set(names)
        assert len(read_folder(tmp_path, "val").captions) == 6
        other = {i.id for i in DATASETS["folder"].read(tmp_path, "val", split_seed=1).images}
        assert other != parts["val"]
        assert len(read_folder(tmp_path)) == 30

    def test_folds(self, tmp_path: Path) -> None:
        names = make_images(tmp_path, 7)
        write_lines(tmp_path / "all.jsonl", *({"image": n, "caption": n} for n in names))
        read = partial(DATASETS["folder"].read, tmp_path)
        held = [[i.id for i in read("val", fold=(number, 3)).images] for number in range(3)]
        assert sorted(name for part in held for name in part) == names  # every image once
        assert sorted(map(len, held)) == [2, 2, 3]
        for number, own in enumerate(held):
            assert {i.id for i in read("train", fold=(number, 3)).images} == set(names) - set(own)
        with pytest.raises(DataError, match=r"expected at most 7 folds, one per image, got 8"):
            read("val", fold=(0, 8))
        write_lines(tmp_path / "all.jsonl", *({"image": n, "caption": n, "split": "train"} for n in names))
        with pytest.raises(DataError, match=r"expected data without splits for folds"):
            read("val", fold=(0, 3))
        with pytest.raises(DataError, match=r"expected data without splits for folds"):
            DATASETS["scenes"].read(None, "val", fold=(0, 3))

    def test_few_images(self) -> None:
        assert sorted(divide(["a", "b"], 0).values()) == ["train", "val"]
        assert list(divide(["a"], 0).values()) == ["train"]
        assert sorted(divide(map(str, range(10)), 0).values()) == ["test"] + ["train"] * 8 + ["val"]

    def test_written_in_the_lines(self, tmp_path: Path) -> None:
        make_images(tmp_path, 3)
        rows = [("photo-00.png", "train"), ("photo-01.png", "validation"), ("photo-02.png", "test")]
        write_lines(tmp_path / "notes.jsonl", *({"image": n, "caption": "x", "split": s} for n, s in rows))
        assert [i.id for i in read_folder(tmp_path, "val").images] == ["photo-01.png"]
        write_lines(tmp_path / "notes.jsonl", {"image": "photo-00.png", "split": "mine"})
        with pytest.raises(DataError, match="expected split to be one of train, val, test, got 'mine' in line 1"):
            read_folder(tmp_path, "val")

    def test_files_of_splits_are_not_divided(self, tmp_path: Path) -> None:
        make_images(tmp_path, 2)
        write_lines(tmp_path / "train.jsonl", {"image": "photo-00.png", "caption": "x"})
        with pytest.raises(DataError, match=r"expected the file .*val.jsonl, got none"):
            read_folder(tmp_path, "val")
        assert [i.id for i in read_folder(tmp_path).images] == ["photo-00.png"]

    def test_too_few_for_a_split(self, tmp_path: Path) -> None:
        make_images(tmp_path, 2)
        write_lines(tmp_path / "all.jsonl", *({"image": f"photo-0{n}.png", "caption": "x"} for n in range(2)))
        with pytest.raises(DataError, match="expected images of the split test among 2"):
            read_folder(tmp_path, "test")


class TestFormats:
    def test_csv(self, tmp_path: Path) -> None:
        make_images(tmp_path, 2)
        (tmp_path / "captions.csv").write_text(
            'file_name;text;question;answers;label;left;top;right;bottom\n'
            'photo-00.png;"A dog; it runs.";;;;;;;\n'
            "photo-01.png;;How many?;two|2;;;;;\n"
            "photo-01.png;;;;dog;6;4;36;24\n"
        )  # fmt: skip
        data = read_folder(tmp_path)
        assert [c.text for c in data.captions] == ["A dog; it runs."]
        assert data.questions[0].answers == ("two", "2")
        assert data.objects_of("photo-01.png")[0].box == pytest.approx((0.1, 0.1, 0.6, 0.6))

    def test_csv_with_a_missing_column(self, tmp_path: Path) -> None:
        make_images(tmp_path, 1)
        (tmp_path / "all.csv").write_text("image,caption\nphoto-00.png,A dog, it runs.\n")
        with pytest.raises(DataError, match=r"expected 2 columns in line 2 of .*all.csv.*quotes"):
            read_folder(tmp_path)

    def test_coco(self, tmp_path: Path) -> None:
        make_images(tmp_path, 3)
        images = [{"id": n + 5, "file_name": f"photo-0{n}.png", "width": 60, "height": 40} for n in range(3)]
        captions = [{"id": 1, "image_id": 5, "caption": "A dog."}, {"id": 2, "image_id": 6, "caption": "A cat."}]
        boxes = [{"id": 1, "image_id": 5, "category_id": 3, "bbox": [6, 4, 30, 20]}]
        kinds = [{"id": 3, "name": "dog"}]
        (tmp_path / "captions.json").write_text(json.dumps({"images": images, "annotations": captions}))
        both = {"images": images, "annotations": boxes, "categories": kinds}
        (tmp_path / "instances.json").write_text(json.dumps(both))
        data = read_folder(tmp_path)
        assert [c.text for c in data.captions] == ["A dog.", "A cat."]
        assert [(o.name, o.box) for o in data.objects_of("photo-00.png")] == [
            ("dog", pytest.approx((0.1, 0.1, 0.6, 0.6)))
        ]
        assert len(data) == 3
        assert len(read_folder(tmp_path, "train")) == 2

    def test_hugging_face(self, tmp_path: Path) -> None:
        datasets = pytest.importorskip("datasets", reason="needs the extra datasets")
        make_images(tmp_path, 4)
        files = [str(tmp_path / "images" / f"photo-0{n}.png") for n in range(4)]
        rows = {"image": files, "captions": [["A dog.", "It runs."], ["A cat."], ["x"], ["y"]]}
        features = datasets.Features(
            {"image": datasets.Image(), "captions": datasets.Sequence(datasets.Value("string"))}
        )
        whole = datasets.Dataset.from_dict(rows, features=features)
        whole.save_to_disk(tmp_path / "one")
        datasets.DatasetDict({"train": whole, "validation": whole.select([1])}).save_to_disk(tmp_path / "two")
        data = read_folder(tmp_path / "one")
        assert len(data) == 4
        assert [c.text for c in data.captions_of("all/1")] == ["A dog.", "It runs."]
        assert np.array_equal(data.images[2].pixels(), decode_image(files[2]))
        assert len(read_folder(tmp_path / "one", "train")) == 3
        assert [c.text for c in read_folder(tmp_path / "two", "val").captions] == ["A cat."]


@pytest.fixture
def thirty(tmp_path: Path) -> Path:
    names = make_images(tmp_path, 30)
    lines = [{"image": name, "caption": f"A photograph of noise, number {n}."} for n, name in enumerate(names)]
    lines += [{"image": name, "question": "Is it noise?", "answer": "yes"} for name in names[:5]]
    lines += [{"image": names[0], "object": "dot", "box": [0, 0, 9, 9]}]
    write_lines(tmp_path / "all.jsonl", *lines)
    return tmp_path


class TestCheck:
    def test_counts_and_next_commands(self, thirty: Path, capsys: pytest.CaptureFixture[str]) -> None:
        plot = thirty / "samples.png"
        assert main(["check", str(thirty), "--plot", str(plot)]) == 0
        printed = capsys.readouterr().out
        assert "foveate train captioning-folder --data" in printed
        assert "foveate train vqa-folder --data" in printed
        assert decode_image(plot).shape[1] > 400
        report = check_folder(thirty)
        assert report.counts["all"]["images"] == 30
        assert report.counts["all"]["objects"] == 1
        assert report.counts["train"]["captions"] == 24
        assert report.problems == report.notes == []

    def test_every_mistake_is_listed_with_its_line(self, thirty: Path, capsys: pytest.CaptureFixture[str]) -> None:
        good = (thirty / "all.jsonl").read_text()
        bad = ["{", '{"image": "owl.jpg"}', '{"image": "photo-01.png", "box": [1, 2]}']
        (thirty / "all.jsonl").write_text("\n".join(bad) + "\n" + good + '{"image": "photo-02.png", "captoin": "x"}\n')
        broken = thirty / "images" / "photo-03.png"
        broken.write_bytes(broken.read_bytes()[:100])
        assert main(["check", str(thirty)]) == 1
        seen = capsys.readouterr()
        assert "got 4; correct what is listed above" in seen.err
        for text in ("line 1 of", "line 2 of", "line 3 of", "photo-03.png", "did you mean 'caption'?", "line 40 of"):
            assert text in seen.out

    def test_notes(self, thirty: Path) -> None:
        (thirty / "images" / "copy.png").write_bytes((thirty / "images" / "photo-00.png").read_bytes())
        notes = check_folder(thirty).notes
        assert any("copy.png and images/photo-00.png are the same image" in n or "same image" in n for n in notes)
        assert any("1 image files have no annotation, for instance images/copy.png" in n for n in notes)

    def test_images_in_two_splits(self, tmp_path: Path) -> None:
        make_images(tmp_path, 2)
        for split in ("train", "val"):
            write_lines(tmp_path / f"{split}.jsonl", {"image": "photo-00.png", "caption": "x"})
        assert "1 images are in several splits, for instance photo-00.png" in check_folder(tmp_path).notes

    def test_images_alone(self, tmp_path: Path) -> None:
        make_images(tmp_path, 2, inside=".")
        assert check_folder(tmp_path).counts == {"all": {"images": 2}}
        with pytest.raises(DataError, match="check: expected a directory, got none; pass --data DIR"):
            check_folder(None)
