"""Small files in the formats of Flickr30k, Flickr30k Entities, SCAN, bottom-up attention and GloVe."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import numpy as np

from foveate.io import write_json
from foveate.lab.papers.tables.tiny.coco_files import DIM, SIDE, captions_of, features_of, save_image

REGIONS = 4
# Numbers of the images by split; the file of image 7 is 7007.jpg, since the names of Flickr's files are numbers.
SPLITS = {"train": range(16), "val": range(16, 22), "test": range(22, 30)}
SCAN_SPLITS = {"train": "train", "dev": "val", "test": "test", "testall": "test"}


def name_of(image: int) -> str:
    """The file name of an image without its suffix."""
    return str(7000 + image)


def every_image() -> list[int]:
    """The numbers of all images."""
    return [image for images in SPLITS.values() for image in images]


def flickr_karpathy(path: Path) -> None:
    """`dataset_flickr30k.json`."""
    images = []
    for split, own in SPLITS.items():
        for image in own:
            sentences = [
                {"raw": text, "sentid": image * 5 + number, "tokens": re.findall(r"\w+", text.lower())}
                for number, text in enumerate(captions_of(image))
            ]
            record = {"filename": f"{name_of(image)}.jpg", "imgid": image, "split": split}
            images.append(record | {"sentences": sentences})
    write_json(path, {"dataset": "flickr30k", "images": images})


def flickr_images(path: Path) -> None:
    """`flickr30k-images`."""
    path.mkdir()
    for image in every_image():
        save_image(path / f"{name_of(image)}.jpg", image)


def flickr_tokens(path: Path) -> None:
    """`results_20130124.token`: one caption per line."""
    lines = [
        f"{name_of(image)}.jpg#{number}\t{text}"
        for image in every_image()
        for number, text in enumerate(captions_of(image))
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def flickr_list(path: Path) -> None:
    """`flickr30k_train.txt`: the image files of a split."""
    images = SPLITS[path.stem.removeprefix("flickr30k_")]
    path.write_text("".join(f"{name_of(image)}.jpg\n" for image in images), encoding="utf-8")


def flickr_vgg(path: Path) -> None:
    """VGG features, one array per image."""
    path.mkdir()
    for image in every_image():
        np.save(path / f"{name_of(image)}.npy", features_of(image, 16).T.reshape(DIM, 4, 4))


def scan_directory(path: Path) -> None:
    """`f30k_precomp`: arrays of regions, captions and ids; an id is Karpathy's imgid."""
    path.mkdir(exist_ok=True)
    for name, split in SCAN_SPLITS.items():
        images = list(SPLITS[split])
        np.save(path / f"{name}_ims.npy", np.stack([features_of(image, REGIONS) for image in images]))
        captions = [caption for image in images for caption in captions_of(image)]
        (path / f"{name}_caps.txt").write_text("\n".join(captions) + "\n", encoding="utf-8")
        (path / f"{name}_ids.txt").write_text("\n".join(map(str, images)) + "\n", encoding="utf-8")


def flickr_boxes(path: Path) -> None:
    """A table of bottom-up attention: image_id, size, boxes and features in base64."""
    boxes = np.array([[11, 11, 29, 29], [0, 0, 39, 39], [0, 0, 12, 12], [25, 25, 39, 39]], np.float32)
    rows = []
    for image in every_image():
        packed = (base64.b64encode(array.tobytes()).decode() for array in (boxes, features_of(image, REGIONS)))
        rows.append("\t".join([name_of(image), str(SIDE), str(SIDE), str(REGIONS), *packed]))
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")


def entity_sentences(path: Path) -> None:
    """`Sentences`: the captions with the phrase of the ball marked."""
    path.mkdir()
    for image in every_image():
        lines = [
            re.sub(r"(?i)\b((?:a |the )?(?:red |blue )?ball)\b", r"[/EN#1/other \1]", text)
            for text in captions_of(image)
        ]
        (path / f"{name_of(image)}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def entity_annotations(path: Path) -> None:
    """`Annotations`: the box of the ball."""
    path.mkdir()
    box = "".join(f"<{side}>{at}</{side}>" for side, at in (("xmin", 12), ("ymin", 12), ("xmax", 28), ("ymax", 28)))
    for image in every_image():
        size = f"<size><width>{SIDE}</width><height>{SIDE}</height><depth>3</depth></size>"
        shape = f"<object><name>1</name><bndbox>{box}</bndbox></object>"
        (path / f"{name_of(image)}.xml").write_text(f"<annotation>{size}{shape}</annotation>", encoding="utf-8")


def glove(path: Path) -> None:
    """`glove.6B.300d.txt` with the words of the questions."""
    words = ["what", "color", "is", "the", "ball", "red", "how", "many", "balls", "are", "there"]
    draws = np.random.default_rng(0).normal(size=(len(words), 300))
    lines = [" ".join([word, *(f"{x:.4f}" for x in row)]) for word, row in zip(words, draws, strict=True)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
