"""Your own images with annotations in JSON Lines."""

import json

import pytest
from PIL import Image

from foveate.errors import DataError
from foveate.lab.data import DATASETS
from foveate.lab.data.jsonl import read_folder
from foveate.lab.data.samples import DataDirectory
from foveate.ops.boxes import Box


@pytest.fixture
def root(tmp_path):
    (tmp_path / "images" / "deep").mkdir(parents=True)
    Image.new("RGB", (200, 100)).save(tmp_path / "images" / "cat.jpg")
    Image.new("RGB", (20, 10)).save(tmp_path / "images" / "deep" / "dog.PNG")
    return tmp_path


def write(root, *records, split="train"):
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    (root / f"{split}.jsonl").write_text("\n".join(lines) + "\n")


def test_lines_become_samples(root):
    write(
        root,
        {"image": "cat.jpg", "caption": "A cat on a chair."},
        {"image": "deep/dog.PNG"},
        "",
        {"image": "cat.jpg", "question": "What?", "answers": ["cat", "a cat"], "answer_type": "other", "id": "q7"},
        {"image": "cat.jpg", "question": "Where?", "answer": "chair", "choices": ["chair", "floor"]},
        {"image": "cat.jpg", "question": "Why?"},
        {"image": "cat.jpg", "object": "cat", "box": [10, 20, 110, 100.5]},
    )
    data = read_folder(root, "train")
    assert (data.name, data.split) == (root.name, "train")
    assert [p.id for p in data.images] == ["cat.jpg", "deep/dog.PNG"]
    assert data.image("deep/dog.PNG").pixels().shape == (10, 20, 3)
    assert data.captions[0].tokens == ("a", "cat", "on", "a", "chair")
    first, second, third = data.questions
    assert (first.id, first.answers, first.answer, first.answer_type) == ("q7", ("cat", "a cat"), None, "other")
    assert (second.answers, second.answer, second.choices) == (("chair",), "chair", ("chair", "floor"))
    assert (third.answers, third.answer) == ((), None)
    assert data.objects_of("cat.jpg")[0].name == "cat"
    assert data.objects_of("cat.jpg")[0].box == Box(0.05, 0.2, 0.55, 1.0)


def test_all_images_of_a_directory(root):
    data = read_folder(root)
    assert [p.id for p in data.images] == ["cat.jpg", "deep/dog.PNG"]
    write(root, {"image": "cat.jpg"}, split="all")
    assert [p.id for p in read_folder(root).images] == ["cat.jpg"]
    assert len(read_folder(root / "images" / "deep")) == 1


def test_images_beside_the_file(tmp_path):
    Image.new("RGB", (2, 2)).save(tmp_path / "a.png")
    write(tmp_path, {"image": "a.png", "caption": "x"})
    assert len(read_folder(tmp_path, "train")) == 1


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ("{", r"read_folder: expected a JSON object in line 2 of .*train.jsonl, got .*; correct the line"),
        ("[1]", r"expected a JSON object in line 2 of .*train.jsonl, got \[1\]"),
        ({"caption": "x"}, r"expected 'image' \(str\) in line 2 of .*train.jsonl, got none in"),
        (
            {"image": "owl.jpg"},
            r"expected the image 'owl.jpg' of line 2 of .*train.jsonl in .*images or .*, got no file",
        ),
        ({"image": "cat.jpg", "caption": 5}, r"expected 'caption' \(str\)"),
        (
            {"image": "cat.jpg", "question": "?", "answers": "cat"},
            "'answers' as a list of strings in line 2 of .*, got 'cat'",
        ),
        ({"image": "cat.jpg", "question": "?", "choices": [1]}, "expected 'choices' as a list of strings"),
        ({"image": "cat.jpg", "question": "?", "answer_type": "x"}, "yes/no, number, other, got 'x' in line 2"),
        (
            {"image": "cat.jpg", "object": "cat"},
            r"expected box as \[left, top, right, bottom\] in line 2 of .*, got None",
        ),
        (
            {"image": "cat.jpg", "object": "cat", "box": [0, 0, 300, 5]},
            "inside the 200 x 100 image, .* for line 2 of",
        ),
        ({"image": "cat.jpg", "caption": "again", "id": 1}, "expected captions with different ids, got 1 twice"),
    ],
)
def test_broken_lines_are_named(root, record, message):
    write(root, {"image": "cat.jpg", "caption": "x"}, record)
    with pytest.raises(DataError, match=message):
        read_folder(root, "train")


def test_empty_directories_and_files(tmp_path):
    with pytest.raises(
        DataError, match=r"expected images \(.bmp, .*\) in .*, got none; pass the directory they are in"
    ):
        read_folder(tmp_path)
    with pytest.raises(
        DataError, match=r"expected the file .*val.jsonl, got none; make a directory of images with a file"
    ):
        read_folder(tmp_path, "val")
    write(tmp_path, "", split="val")
    with pytest.raises(DataError, match=r"expected lines in .*val.jsonl, got none"):
        read_folder(tmp_path, "val")
    with pytest.raises(DataError, match="expected a directory, got none"):
        read_folder(None)


def test_a_truncated_image_is_named_when_opened(root):
    data = (root / "images" / "cat.jpg").read_bytes()
    (root / "images" / "cat.jpg").write_bytes(data[: len(data) // 2])
    with pytest.raises(DataError, match=r"cat.jpg"):
        read_folder(root).images[0].pixels()


@pytest.mark.parametrize("way", ["absolute", "dots", "link", "linked directory"])
def test_images_outside_need_permission(tmp_path, way):
    root, private = tmp_path / "data", tmp_path / "private"
    (root / "images").mkdir(parents=True)
    private.mkdir()
    Image.new("RGB", (2, 2)).save(private / "secret.png")
    name = {"absolute": str(private / "secret.png"), "dots": "../../private/secret.png"}.get(way, "cat.png")
    if way == "link":
        (root / "images" / "cat.png").symlink_to(private / "secret.png")
    if way == "linked directory":
        (root / "images" / "deep").symlink_to(private)
        name = "deep/secret.png"
    write(root, {"image": name, "caption": "x"})
    with pytest.raises(
        DataError, match=r"expected images inside .*data, got .*private/secret\.png in line 1 of .*--allow-outside"
    ):
        read_folder(root, "train")
    assert read_folder(root, "train", allow_outside=True).images[0].pixels().shape == (2, 2, 3)
    assert DATASETS["folder"].read(DataDirectory(root, allow_outside=True), "train").images[0].id == name


def test_linked_images_of_a_whole_directory_need_permission(tmp_path):
    root = tmp_path / "data"
    root.mkdir()
    Image.new("RGB", (2, 2)).save(tmp_path / "secret.png")
    (root / "cat.png").symlink_to(tmp_path / "secret.png")
    with pytest.raises(DataError, match=r"expected images inside .*data, got .*secret\.png in the directory"):
        read_folder(root)
    assert len(read_folder(root, allow_outside=True)) == 1


def test_links_inside_are_followed(root):
    (root / "images" / "same.jpg").symlink_to(root / "images" / "cat.jpg")
    assert len(read_folder(root)) == 3
    (root.parent / "alias").symlink_to(root)
    assert len(read_folder(root.parent / "alias")) == 3
