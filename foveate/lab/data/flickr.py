"""Flickr8k and Flickr30k in Karpathy's splits, with the phrases and boxes of Flickr30k Entities where present.

Flickr30k is also read with its own caption file and lists of images: the splits of Mao et al. 2015, which m-DAN uses.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from foveate.errors import DataError, UnknownName
from foveate.io import read_json
from foveate.lab.data.entities import link_phrases
from foveate.lab.data.files import find_file, index_images, need_directory, read_lines
from foveate.lab.data.karpathy import SOURCE, image_of, karpathy_dataset
from foveate.lab.data.samples import Caption, Dataset, Id, ImageRecord
from foveate.lab.data.vocabulary import tokenize

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


LISTS_SOURCE = "results_20130124.token comes with the Flickr30k images; the lists name one image file per line"
SPLITS = ("train", "val", "test")


def read_flickr_lists(root: Path | None, split: str, *, need_images: bool = True) -> Dataset:
    """Read the images of `flickr30k_<split>.txt` with their captions from `results_20130124.token`.

    Args:
        root: directory with the files, and the images in `flickr30k-images`.
        split: "train" (29 783 images), "val" or "test" (1 000 each).
        need_images: raise DataError if an image is not on disk; False to work with stored features.
    """
    if split not in SPLITS:
        raise UnknownName("split of flickr30k-mrnn", split, SPLITS)
    where, root = "read_flickr_lists", need_directory("read_flickr_lists", root, LISTS_SOURCE)
    tokens = find_file(where, [root, root / "flickr30k-images"], ["results_20130124.token"], LISTS_SOURCE)
    listed = find_file(where, [root], [f"flickr30k_{split}.txt"], LISTS_SOURCE)
    texts: dict[str, list[str]] = {}
    for number, line in enumerate(read_lines(where, tokens, LISTS_SOURCE), 1):
        name, tab, text = line.partition("\t")
        if not tab or "#" not in name:
            raise DataError(
                f"{where}: expected <file>#<number><tab><caption>, got {line!r:.60} in line {number} of {tokens}"
            )
        texts.setdefault(name.rpartition("#")[0], []).append(text)
    images, captions = [], []
    for name in filter(None, map(str.strip, read_lines(where, listed, LISTS_SOURCE))):
        file = name if name.endswith(".jpg") else f"{name}.jpg"
        path = root / "flickr30k-images" / file
        if file not in texts or (need_images and not path.is_file()):
            raise DataError(f"{where}: expected captions and the image of {file} of {listed}, got none; {LISTS_SOURCE}")
        images.append(ImageRecord(file, path))
        captions += [Caption(f"{file}#{n}", file, text, tokenize(text)) for n, text in enumerate(texts[file])]
    return Dataset("flickr30k-mrnn", split, tuple(images), captions=tuple(captions))
