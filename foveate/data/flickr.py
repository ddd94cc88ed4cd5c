"""Flickr8k and Flickr30k in Karpathy's splits, with the phrases and boxes of Flickr30k Entities where present."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from foveate.data.entities import link_phrases
from foveate.data.files import find_file, index_pictures, need_folder, read_json
from foveate.data.karpathy import SOURCE, karpathy_dataset, picture_of
from foveate.data.samples import Dataset, Id

PICTURE_FOLDERS = ("images", "flickr30k-images", "flickr30k_images", "Flicker8k_Dataset", "Flickr8k_Dataset")
ENTITIES_FOLDERS = ("entities", "Flickr30kEntities", "flickr30k_entities", ".")


def read_flickr(
    root: Path | None,
    split: str,
    *,
    name: str | None = None,
    images: Path | None = None,
    entities: Path | None = None,
    need_pictures: bool = True,
) -> Dataset:
    """Pictures with five captions each, from `dataset_flickr8k.json` or `dataset_flickr30k.json`.

    Where `root` also has Flickr30k Entities (`entities/Sentences` and `entities/Annotations`, or the two folders
    themselves), captions carry their phrases; `link_phrases` tells how many were linked.

    Args:
        root: folder with the file and the pictures.
        split: "train", "val" or "test".
        name: "flickr8k" or "flickr30k"; by default the one that is there.
        images: folder of the pictures; by default one of `PICTURE_FOLDERS` in `root`, or `root`.
        entities: folder with `Sentences` and `Annotations`; by default searched in `root`.
        need_pictures: refuse a picture that is not on disk; False for work on stored features.

    Returns:
        The dataset; the id of a picture is its file name.
    """
    where = "read_flickr"
    root = need_folder(where, root, SOURCE)
    names = [f"dataset_{name}.json"] if name else ["dataset_flickr30k.json", "dataset_flickr8k.json"]
    path = find_file(where, [root], names, SOURCE)
    content = read_json(where, path, SOURCE)
    folders = [need_folder(where, images, SOURCE)] if images else [root / f for f in PICTURE_FOLDERS] + [root]
    home = next(folder for folder in folders if folder.is_dir())
    found = index_pictures([home], lambda file: file)

    def find(entry: Mapping[str, Any]) -> tuple[Id, Path]:
        return entry.get("filename", ""), picture_of(where, path, found, entry, home, need_pictures)

    data = karpathy_dataset(where, path, content, split, find=find)
    folder = entities or next((root / f for f in ENTITIES_FOLDERS if (root / f / "Sentences").is_dir()), None)
    return link_phrases(data, folder).dataset if folder else data
