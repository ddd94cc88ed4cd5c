"""Flickr30k from its own caption file and lists of images: the splits of Mao et al. 2015, which m-DAN uses."""

from __future__ import annotations

from pathlib import Path

from foveate.errors import DataError, UnknownName
from foveate.lab.data.files import find_file, need_directory, read_lines
from foveate.lab.data.samples import Caption, Dataset, ImageRecord
from foveate.lab.data.vocabulary import tokenize

SOURCE = "results_20130124.token comes with the Flickr30k images; the lists name one image file per line"
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
    where, root = "read_flickr_lists", need_directory("read_flickr_lists", root, SOURCE)
    tokens = find_file(where, [root, root / "flickr30k-images"], ["results_20130124.token"], SOURCE)
    listed = find_file(where, [root], [f"flickr30k_{split}.txt"], SOURCE)
    texts: dict[str, list[str]] = {}
    for number, line in enumerate(read_lines(where, tokens, SOURCE), 1):
        name, tab, text = line.partition("\t")
        if not tab or "#" not in name:
            raise DataError(
                f"{where}: expected <file>#<number><tab><caption>, got {line!r:.60} in line {number} of {tokens}"
            )
        texts.setdefault(name.rpartition("#")[0], []).append(text)
    images, captions = [], []
    for name in filter(None, map(str.strip, read_lines(where, listed, SOURCE))):
        file = name if name.endswith(".jpg") else f"{name}.jpg"
        path = root / "flickr30k-images" / file
        if file not in texts or (need_images and not path.is_file()):
            raise DataError(f"{where}: expected captions and the image of {file} of {listed}, got none; {SOURCE}")
        images.append(ImageRecord(file, path))
        captions += [Caption(f"{file}#{n}", file, text, tokenize(text)) for n, text in enumerate(texts[file])]
    return Dataset("flickr30k-mrnn", split, tuple(images), captions=tuple(captions))
