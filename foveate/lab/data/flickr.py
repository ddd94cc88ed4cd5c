"""Flickr8k and Flickr30k in Karpathy's splits, with the phrases and boxes of Flickr30k Entities where present."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from foveate.io import read_json
from foveate.lab.data.entities import link_phrases
from foveate.lab.data.files import find_file, index_images, need_directory
from foveate.lab.data.karpathy import SOURCE, image_of, karpathy_dataset
from foveate.lab.data.samples import Dataset, Id

IMAGE_DIRECTORIES = ("images", "flickr30k-images", "flickr30k_images", "Flicker8k_Dataset", "Flickr8k_Dataset")
ENTITIES_DIRECTORIES = ("entities", "Flickr30kEntities", "flickr30k_entities", ".")


def read_flickr(
    root: Path | None,
    split: str,
    *,
    name: str | None = None,
    image_dir: Path | None = None,
    entities: Path | None = None,
    need_images: bool = True,
) -> Dataset:
    """Read images with five captions each from `dataset_flickr8k.json` or `dataset_flickr30k.json`.

    If `root` also has Flickr30k Entities (`entities/Sentences` and `entities/Annotations`, or the two directories
    themselves), captions have phrases; `link_phrases` counts how many were linked.

    Args:
        root: directory with the file and the images.
        split: "train", "val" or "test".
        name: "flickr8k" or "flickr30k"; by default the one found.
        image_dir: directory of the images; by default one of `IMAGE_DIRECTORIES` in `root`, or `root`.
        entities: directory with `Sentences` and `Annotations`; by default searched in `root`.
        need_images: raise DataError if an image is not on disk; False to work with stored features.

    Returns:
        The dataset; the id of an image is its file name.
    """
    where = "read_flickr"
    root = need_directory(where, root, SOURCE)
    names = [f"dataset_{name}.json"] if name else ["dataset_flickr30k.json", "dataset_flickr8k.json"]
    path = find_file(where, [root], names, SOURCE)
    content = read_json(where, path, SOURCE)
    directories = (
        [need_directory(where, image_dir, SOURCE)] if image_dir else [root / f for f in IMAGE_DIRECTORIES] + [root]
    )
    home = next(directory for directory in directories if directory.is_dir())
    found = index_images([home], lambda file: file)

    def find(entry: Mapping[str, Any]) -> tuple[Id, Path]:
        file = image_of(where, path, found, entry, home, need_images)
        return file.name, file

    data = karpathy_dataset(where, path, content, split, find=find)
    directory = entities or next((root / f for f in ENTITIES_DIRECTORIES if (root / f / "Sentences").is_dir()), None)
    if directory is None:
        return data
    linked = link_phrases(data, directory)
    if linked.missing:
        print(
            f"{where}: phrases of {len(linked.missing)} of {len(data)} images of {split} are missing, for instance of "
            f"{linked.missing[0]}",
            file=sys.stderr,
        )
    return linked.dataset
