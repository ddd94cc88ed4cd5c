"""SCAN's precomputed directories as datasets: their captions, without the images or any other file."""

from __future__ import annotations

from pathlib import Path

from foveate.errors import UnknownName
from foveate.lab.data.files import need_directory
from foveate.lab.data.precomp import SCAN_SOURCE, open_scan
from foveate.lab.data.samples import Caption, Dataset, ImageRecord
from foveate.lab.data.vocabulary import tokenize

# SCAN's names of the splits by ours; "testall" is the 5K test split of COCO.
SPLITS = {"train": "train", "val": "dev", "test": "test", "testall": "testall"}


def read_scan_captions(root: Path | None, split: str, *, name: str) -> Dataset:
    """Read the captions of `f30k_precomp` or `coco_precomp`.

    The id of an image is that of `{split}_ids.txt`, or its position without that file, as in the feature store that
    `foveate import scan DIR/f30k_precomp DIR/f30k_precomp/train.h5 --split train` writes.

    Args:
        root: directory that contains the directory `name`, or that directory itself.
        split: "train", "val", "test" or "testall".
        name: "f30k_precomp" or "coco_precomp".
    """
    if split not in SPLITS:
        raise UnknownName(f"split of {name}", split, SPLITS)
    root = need_directory("read_scan_captions", root, SCAN_SOURCE)
    directory = root / name if (root / name).is_dir() else root
    data = open_scan(directory, SPLITS[split])
    images = tuple(ImageRecord(image, directory / image) for image in data.ids)
    captions = tuple(
        Caption(f"{image}#{number}", image, text, tokenize(text))
        for image, own in zip(data.ids, data.captions, strict=True)
        for number, text in enumerate(own)
    )
    return Dataset(name.replace("_", "-"), split, images, captions=captions)
