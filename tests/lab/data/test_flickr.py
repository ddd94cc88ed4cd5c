"""Flickr8k and Flickr30k in Karpathy's layout."""

import json

import pytest
from PIL import Image

from foveate.errors import DataError, UnknownName
from foveate.lab.data.flickr import read_flickr

NAMES = ("1000268201_693b08cb0e.jpg", "1001773457_577c3a7d70.jpg", "1002674143_1b742ab4b8.jpg")


def make(root, name="flickr8k", directory="images"):
    images = []
    for i, (file, split) in enumerate(zip(NAMES, ("train", "val", "test"), strict=True)):
        sentences = [
            {"tokens": ["a", "dog"], "raw": f"A dog runs {j} .", "imgid": i, "sentid": 5 * i + j} for j in range(5)
        ]
        images.append(
            {"sentids": [5 * i + j for j in range(5)], "imgid": i, "sentences": sentences, "split": split}
            | {"filename": file}
        )
        (root / directory).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (6, 4)).save(root / directory / file)
    (root / f"dataset_{name}.json").write_text(json.dumps({"images": images, "dataset": name}))
    return root


@pytest.mark.parametrize("name", ["flickr8k", "flickr30k"])
def test_splits_and_captions(tmp_path, name):
    root = make(tmp_path, name)
    for i, split in enumerate(("train", "val", "test")):
        data = read_flickr(root, split)
        assert (data.name, data.split) == (name, split)
        assert [p.id for p in data.images] == [NAMES[i]]
        assert [c.id for c in data.captions_of(NAMES[i])] == list(range(5 * i, 5 * i + 5))
        assert data.captions[2].tokens == ("a", "dog", "runs", "2")
        assert data.captions[2].text == "A dog runs 2 ."
        assert data.captions[2].phrases == ()
        assert data.images[0].pixels().shape == (4, 6, 3)


@pytest.mark.parametrize("directory", ["images", "flickr30k-images", "Flicker8k_Dataset", "."])
def test_image_directories(tmp_path, directory):
    assert read_flickr(make(tmp_path, directory=directory), "val").images[0].source == tmp_path / directory / NAMES[1]


def test_name_and_images_are_chosen(tmp_path):
    make(tmp_path, "flickr8k")
    make(tmp_path, "flickr30k")
    assert read_flickr(tmp_path, "val").name == "flickr30k"
    assert read_flickr(tmp_path, "val", name="flickr8k").name == "flickr8k"
    (tmp_path / "images").rename(tmp_path / "photos")
    assert read_flickr(tmp_path, "val", image_dir=tmp_path / "photos").images[0].source.parent.name == "photos"
    with pytest.raises(DataError, match=f"read_flickr: expected the image {NAMES[1]} of .*flickr30k.json, got none in"):
        read_flickr(tmp_path, "val")
    assert len(read_flickr(tmp_path, "val", need_images=False)) == 1


def test_phrases_come_along_when_the_directory_is_there(tmp_path, capsys):
    root = make(tmp_path)
    home = tmp_path / "elsewhere"
    for directory in ("Sentences", "Annotations"):
        (home / directory).mkdir(parents=True)
    lines = [f"[/EN#7/animals A dog] runs {j} ." for j in reversed(range(5))]
    (home / "Sentences" / "1001773457.txt").write_text("\n".join(lines) + "\n")
    box = "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>5</xmax><ymax>10</ymax></bndbox>"
    (home / "Annotations" / "1001773457.xml").write_text(
        f"<annotation><size><width>10</width><height>10</height><depth>3</depth></size>"
        f"<object><name>7</name>{box}</object></annotation>"
    )
    assert read_flickr(root, "val").captions[0].phrases == ()
    data = read_flickr(root, "val", entities=home)
    assert [data.captions[0].words(p) for p in data.captions[0].phrases] == [("a", "dog")]
    home.rename(root / "entities")
    assert read_flickr(root, "val").captions == data.captions
    assert capsys.readouterr().err == ""
    unlinked = read_flickr(root, "train")  # its image has no files, and captions do not need any
    assert (len(unlinked), unlinked.captions[0].phrases) == (1, ())
    said = f"read_flickr: phrases of 1 of 1 images of train are missing, for instance of {NAMES[0]}\n"
    assert capsys.readouterr().err == said


def test_errors(tmp_path):
    with pytest.raises(
        DataError, match=r"expected dataset_flickr30k.json or dataset_flickr8k.json in .*caption_datasets.zip"
    ):
        read_flickr(tmp_path, "val")
    with pytest.raises(UnknownName, match=r"split of dataset_flickr8k.json: expected a known name, got 'restval'"):
        read_flickr(make(tmp_path), "restval")
    content = json.loads((tmp_path / "dataset_flickr8k.json").read_text())
    content["images"][1]["filename"] = content["images"][0]["filename"]
    content["images"][1]["split"] = "train"
    (tmp_path / "dataset_flickr8k.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=f"expected images with different ids, got '{NAMES[0]}' twice"):
        read_flickr(tmp_path, "train")
