"""COCO: captions and instances as published, and Karpathy's splits of the captions."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from foveate.data.files import (
    coco_folders,
    coco_id,
    find_file,
    index_pictures,
    need_folder,
    pixel_box,
    read_json,
    records,
    unique,
    value,
)
from foveate.data.karpathy import SOURCE as KARPATHY_SOURCE
from foveate.data.karpathy import karpathy_dataset, picture_of
from foveate.data.samples import Caption, Dataset, Id, Object, Picture
from foveate.data.tokens import tokenize
from foveate.errors import DataError, UnknownName

SOURCE = "annotations and pictures come from cocodataset.org (annotations_trainval2014.zip, train2014.zip, ...)"
SPLITS = ("train", "val")
YEARS = (2014, 2017)


def read_coco(
    root: Path | None, split: str, *, year: int | None = None, images: Path | None = None, need_pictures: bool = True
) -> Dataset:
    """Pictures with their captions and objects, from the annotation files as published.

    In `root` or `root/annotations` are expected `captions_train2014.json` and `instances_train2014.json`; one of the
    two is enough. Outlines of instances are passed over while reading; instances of zero width or height, of which the
    published files have a few, are left out; a crowd is an object with the attribute {"crowd": "yes"}.

    Args:
        root: the folder.
        split: "train" or "val".
        year: 2014 or 2017; by default the first that is there.
        images: folder of the pictures; by default `root/train2014`, `root/images/train2014` or `root/images`.
        need_pictures: refuse a picture that is not on disk; False for work on stored features.
    """
    if split not in SPLITS:
        raise UnknownName("split of COCO", split, SPLITS)
    root = need_folder("read_coco", root, SOURCE)
    captions_path, instances_path, subset = _find(root, split, year)
    files = [path for path in (captions_path, instances_path) if path]
    contents = {path: read_json("read_coco", path, SOURCE, shorten=_without_outline) for path in files}
    listed: dict[Id, Mapping[str, Any]] = {}
    for path, content in contents.items():
        listed |= unique("read_coco", path, records("read_coco", path, content, "images"), "id")
    pictures = _pictures(root, subset, images, listed, files[0], need_pictures)
    captions = _captions(captions_path, contents[captions_path], listed) if captions_path else ()
    objects = _objects(instances_path, contents[instances_path], listed) if instances_path else {}
    return Dataset(f"coco-{subset[-4:]}", split, pictures, captions=captions, objects=objects)


def read_coco_karpathy(
    root: Path | None, split: str, *, images: Path | None = None, need_pictures: bool = True
) -> Dataset:
    """COCO's captions in Karpathy's splits, from `dataset_coco.json`.

    Args:
        root: folder with the file and the pictures (`train2014` and `val2014`, or the same in `images`).
        split: "train" (82 783 pictures), "restval", "val", "test"; usual training is "train+restval".
        images, need_pictures: as in `read_coco`.
    """
    root = need_folder("read_coco_karpathy", root, KARPATHY_SOURCE)
    path = find_file("read_coco_karpathy", [root, root / "annotations"], ["dataset_coco.json"], KARPATHY_SOURCE)
    content = read_json("read_coco_karpathy", path, KARPATHY_SOURCE)
    folders = [images] if images else coco_folders(root, "train2014") + coco_folders(root, "val2014")
    found = index_pictures(folders, lambda name: name)

    def find(entry: Mapping[str, Any]) -> tuple[Id, Path]:
        home = images or root / str(entry.get("filepath", ""))
        file = picture_of("read_coco_karpathy", path, found, entry, home, need_pictures)
        return value("read_coco_karpathy", path, entry, "cocoid", int), file

    return karpathy_dataset("read_coco_karpathy", path, content, split, find=find)


def _without_outline(record: dict[str, Any]) -> dict[str, Any]:
    record.pop("segmentation", None)
    return record


def _find(root: Path, split: str, year: int | None) -> tuple[Path | None, Path | None, str]:
    folders = [root, root / "annotations"]
    years = [year] if year else YEARS
    names = [f"{kind}_{split}{y}.json" for y in years for kind in ("captions", "instances")]
    subset = find_file("read_coco", folders, names, SOURCE).stem.partition("_")[2]
    captions, instances = (
        next((folder / name for folder in folders if (folder / name).is_file()), None)
        for name in (f"captions_{subset}.json", f"instances_{subset}.json")
    )
    return captions, instances, subset


def _pictures(
    root: Path, subset: str, images: Path | None, listed: Mapping[Id, Mapping[str, Any]], path: Path, need: bool
) -> tuple[Picture, ...]:
    folders = coco_folders(root, subset) if images is None else [need_folder("read_coco", images, SOURCE)]
    found = index_pictures(folders, coco_id)
    pictures = []
    for name, record in listed.items():
        file = found.get(name)
        if file is None and need:
            raise DataError(
                f"read_coco: expected the picture {name!r} of {path}, got none in "
                f"{', '.join(map(str, folders))}; {SOURCE}, or pass need_pictures=False to work on stored features"
            )
        width, height = (value("read_coco", path, record, side, int) for side in ("width", "height"))
        expected = (folders or [root])[0] / value("read_coco", path, record, "file_name", str)
        pictures.append(Picture(name, file or expected, width, height))
    return tuple(pictures)


def _captions(path: Path, content: Any, listed: Mapping[Id, Any]) -> tuple[Caption, ...]:
    found = []
    for name, record in unique("read_coco", path, records("read_coco", path, content, "annotations"), "id").items():
        image = _image_of(path, record, listed)
        text = value("read_coco", path, record, "caption", str).strip()
        found.append(Caption(name, image, text, tokenize(text)))
    return tuple(found)


def _objects(path: Path, content: Any, listed: Mapping[Id, Mapping[str, Any]]) -> dict[Id, tuple[Object, ...]]:
    categories = unique("read_coco", path, records("read_coco", path, content, "categories"), "id")
    names = {key: sys.intern(value("read_coco", path, c, "name", str)) for key, c in categories.items()}
    found: dict[Id, list[Object]] = {}
    for name, record in unique("read_coco", path, records("read_coco", path, content, "annotations"), "id").items():
        image = _image_of(path, record, listed)
        kind = names.get(record.get("category_id", ""))
        if kind is None:
            raise DataError(
                f"read_coco: expected a category of {path}, got {record.get('category_id')!r} for instance {name!r}; "
                "correct the record"
            )
        x, y, w, h = _corners(path, name, record)
        if w > 0 and h > 0:
            size = (listed[image]["width"], listed[image]["height"])
            box = pixel_box("read_coco", path, f"instance {name!r}", (x, y, x + w, y + h), size)
            attributes = {"crowd": "yes"} if record.get("iscrowd") else {}
            found.setdefault(image, []).append(Object(name, kind, box, attributes=attributes))
    return {image: tuple(things) for image, things in found.items()}


def _corners(path: Path, name: Id, record: Mapping[str, Any]) -> list[float]:
    box = record.get("bbox")
    if not (isinstance(box, list) and len(box) == 4 and all(isinstance(v, int | float) for v in box)):
        raise DataError(
            f"read_coco: expected bbox as [x, y, width, height], got {box!r} for instance {name!r} in {path}; "
            "correct the record"
        )
    return box


def _image_of(path: Path, record: Mapping[str, Any], listed: Mapping[Id, Any]) -> Id:
    image = value("read_coco", path, record, "image_id", (int, str))
    if image not in listed:
        raise DataError(
            f"read_coco: expected the picture {image!r} of annotation {record['id']!r} among the 'images' of {path}, "
            "got none; take the file from one release"
        )
    return image
