"""COCO: captions and instances as published, and Karpathy's splits of the captions."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from foveate.errors import DataError, UnknownName
from foveate.io import read_json
from foveate.lab.data.files import (
    coco_directories,
    coco_id,
    field_id,
    field_side,
    field_value,
    file_name,
    find_file,
    four_numbers,
    index_images,
    need_directory,
    pixel_box,
    records,
    unique,
)
from foveate.lab.data.karpathy import SOURCE as KARPATHY_SOURCE
from foveate.lab.data.karpathy import image_of, karpathy_dataset
from foveate.lab.data.nouns import COCO_NAMES
from foveate.lab.data.samples import Caption, Dataset, Id, ImageRecord, Object
from foveate.lab.data.vocabulary import tokenize

SOURCE = "annotations and images come from cocodataset.org (annotations_trainval2014.zip, train2014.zip, ...)"
SPLITS = ("train", "val")
YEARS = (2014, 2017)
KARPATHY_SPLITS = ("train", "restval", "val", "test")


def read_coco(
    root: Path | None, split: str, *, year: int | None = None, image_dir: Path | None = None, need_images: bool = True
) -> Dataset:
    """Read images with their captions and objects from the annotation files as published.

    The files `captions_train2014.json` and `instances_train2014.json` are expected in `root` or `root/annotations`; one
    of the two is enough. Segmentations are skipped while reading; instances of zero width or height, of which the
    published files have a few, are skipped; a crowd is an object with the attribute {"crowd": "yes"}.

    Args:
        root: the directory.
        split: "train" or "val".
        year: 2014 or 2017; by default the first one found.
        image_dir: directory of the images; by default `root/train2014`, `root/images/train2014` or `root/images`.
        need_images: raise DataError if an image is not on disk; False to work with stored features.
    """
    if split not in SPLITS:
        raise UnknownName("split of COCO", split, SPLITS)
    root = need_directory("read_coco", root, SOURCE)
    captions_path, instances_path, subset = _find(root, split, year)
    files = [path for path in (captions_path, instances_path) if path]
    contents = {path: read_json("read_coco", path, SOURCE, object_hook=_without_outline) for path in files}
    listed: dict[Id, Mapping[str, Any]] = {}
    for path, content in contents.items():
        listed |= unique("read_coco", path, records("read_coco", path, content, "images"), "id")
    images = _images(root, subset, image_dir, listed, files[0], need_images)
    captions = _captions(captions_path, contents[captions_path], listed) if captions_path else ()
    objects = _objects(instances_path, contents[instances_path], listed) if instances_path else {}
    return Dataset(f"coco-{subset[-4:]}", split, images, captions=captions, objects=objects)


def read_coco_karpathy(
    root: Path | None, split: str, *, image_dir: Path | None = None, need_images: bool = True
) -> Dataset:
    """Read COCO's captions in Karpathy's splits from `dataset_coco.json`, and objects where there are instances files.

    `instances_train2014.json` and `instances_val2014.json` are looked for in `root` and `root/annotations`.

    Args:
        root: directory with the file and the images (`train2014` and `val2014`, or the same in `images`).
        split: "train" (82783 images), "restval", "val", "test"; "train+restval" is the usual training set.
        image_dir, need_images: see `read_coco`.
    """
    root = need_directory("read_coco_karpathy", root, KARPATHY_SOURCE)
    path = find_file("read_coco_karpathy", [root, root / "annotations"], ["dataset_coco.json"], KARPATHY_SOURCE)
    content = read_json("read_coco_karpathy", path, KARPATHY_SOURCE)
    directories = [image_dir] if image_dir else coco_directories(root, "train2014") + coco_directories(root, "val2014")
    found = index_images(directories, lambda name: name)

    def find(entry: Mapping[str, Any]) -> tuple[Id, Path]:
        home = image_dir or root / str(entry.get("filepath", ""))
        file = image_of("read_coco_karpathy", path, found, entry, home, need_images)
        return field_value("read_coco_karpathy", path, entry, "cocoid", int), file

    data = karpathy_dataset("read_coco_karpathy", path, content, split, splits=KARPATHY_SPLITS, find=find)
    return replace(data, objects=_karpathy_objects(root, {image.id for image in data.images}))


def _karpathy_objects(root: Path, images: set[Id]) -> dict[Id, tuple[Object, ...]]:
    """The objects of these images from the instances files, as far as they are there."""
    found: dict[Id, tuple[Object, ...]] = {}
    for subset in ("train2014", "val2014"):
        name = f"instances_{subset}.json"
        path = next((home / name for home in (root, root / "annotations") if (home / name).is_file()), None)
        if path is not None:
            content = read_json("read_coco_karpathy", path, SOURCE, object_hook=_without_outline)
            listed = unique("read_coco_karpathy", path, records("read_coco_karpathy", path, content, "images"), "id")
            found |= _objects(path, content, listed)
    return {image: things for image, things in found.items() if image in images}


def _without_outline(record: dict[str, Any]) -> dict[str, Any]:
    record.pop("segmentation", None)
    return record


def _find(root: Path, split: str, year: int | None) -> tuple[Path | None, Path | None, str]:
    directories = [root, root / "annotations"]
    years = [year] if year else YEARS
    names = [f"{kind}_{split}{y}.json" for y in years for kind in ("captions", "instances")]
    subset = find_file("read_coco", directories, names, SOURCE).stem.partition("_")[2]
    captions, instances = (
        next((directory / name for directory in directories if (directory / name).is_file()), None)
        for name in (f"captions_{subset}.json", f"instances_{subset}.json")
    )
    return captions, instances, subset


def _images(
    root: Path, subset: str, image_dir: Path | None, listed: Mapping[Id, Mapping[str, Any]], path: Path, need: bool
) -> tuple[ImageRecord, ...]:
    directories = (
        coco_directories(root, subset) if image_dir is None else [need_directory("read_coco", image_dir, SOURCE)]
    )
    found = index_images(directories, coco_id)
    images = []
    for name, record in listed.items():
        file = found.get(name)
        if file is None and need:
            raise DataError(
                f"read_coco: expected the image {name!r} of {path}, got none in "
                f"{', '.join(map(str, directories))}; {SOURCE}, or pass need_images=False to work with stored features"
            )
        width, height = (field_side("read_coco", path, record, side) for side in ("width", "height"))
        expected = file_name("read_coco", path, field_value("read_coco", path, record, "file_name", str))
        images.append(ImageRecord(name, file or (directories or [root])[0] / expected, width, height))
    return tuple(images)


def _captions(path: Path, content: Any, listed: Mapping[Id, Any]) -> tuple[Caption, ...]:
    found = []
    for name, record in unique("read_coco", path, records("read_coco", path, content, "annotations"), "id").items():
        image = _image_of(path, record, listed)
        text = field_value("read_coco", path, record, "caption", str).strip()
        found.append(Caption(name, image, text, tokenize(text)))
    return tuple(found)


def _objects(path: Path, content: Any, listed: Mapping[Id, Mapping[str, Any]]) -> dict[Id, tuple[Object, ...]]:
    categories = unique("read_coco", path, records("read_coco", path, content, "categories"), "id")
    names = {key: sys.intern(field_value("read_coco", path, c, "name", str)) for key, c in categories.items()}
    found: dict[Id, list[Object]] = {}
    for name, record in unique("read_coco", path, records("read_coco", path, content, "annotations"), "id").items():
        image = _image_of(path, record, listed)
        category = field_id("read_coco", path, record, "category_id")
        kind = names.get(category)
        if kind is None:
            raise DataError(
                f"read_coco: expected a category of {path}, got {category!r} for instance {name!r}; correct the record"
            )
        x, y, w, h = _corners(path, name, record)
        if w > 0 and h > 0:
            size = (listed[image]["width"], listed[image]["height"])
            box = pixel_box("read_coco", path, f"instance {name!r}", (x, y, x + w, y + h), size)
            attributes = {"crowd": "yes"} if record.get("iscrowd") else {}
            found.setdefault(image, []).append(Object(name, kind, box, COCO_NAMES.get(kind, ()), attributes))
    return {image: tuple(things) for image, things in found.items()}


def _corners(path: Path, name: Id, record: Mapping[str, Any]) -> tuple[float, float, float, float]:
    box = four_numbers(record.get("bbox"))
    if box is None:
        got = f"{record.get('bbox')!r:.80}"
        raise DataError(
            f"read_coco: expected bbox as [x, y, width, height], got {got} for instance {name!r} in {path}; "
            "correct the record"
        )
    return box


def _image_of(path: Path, record: Mapping[str, Any], listed: Mapping[Id, Any]) -> Id:
    image = field_id("read_coco", path, record, "image_id")
    if image not in listed:
        raise DataError(
            f"read_coco: expected the image {image!r} of annotation {record['id']!r} among the 'images' of {path}, "
            "got none; take the file from one release"
        )
    return image
