"""Mutated files of every kind that foveate reads: each must raise DataError or be read without harm.

A longer run than the suite's, for every kind or for those named:

    python -m tests.lab.data.fuzz [--count 20000] [--seed 0] [KIND ...]
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import random
import tempfile
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from foveate.errors import DataError
from foveate.io import decode_image, image_size
from foveate.lab.data.coco import read_coco, read_coco_karpathy
from foveate.lab.data.entities import link_phrases
from foveate.lab.data.feature_store import FeatureRecord, FeatureStore, StoreDescription, stack_features
from foveate.lab.data.flickr import read_flickr
from foveate.lab.data.jsonl import read_folder
from foveate.lab.data.precomp import read_bottom_up, read_grid_feats, read_scan
from foveate.lab.data.samples import Caption, Dataset, ImageRecord
from foveate.lab.data.scenes.make import store_images
from foveate.lab.data.scenes.scene import Key
from foveate.lab.data.store_writer import write_store
from foveate.lab.data.vocabulary import SPECIAL, AnswerVocabulary, Vocabulary, tokenize
from foveate.lab.data.vqa_files import read_vqa
from foveate.lab.encoders.image_encoder import Preprocess
from foveate.lab.encoders.word_vectors import word_vectors
from tests.lab.data.mutations import mutate_block, mutate_bytes, mutate_cells, mutate_json, mutate_lines, mutate_xml

LARGEST = 1 << 26  # no result of a file of a few kilobytes may hold more bytes


@dataclass(frozen=True)
class Case:
    """One kind of file.

    Attributes:
        build: writes everything that the reader needs into a directory; returns the file to mutate.
        read: reads it and uses the result.
        mutate: makes other bytes of the whole file.
    """

    build: Callable[[Path], Path]
    read: Callable[[Path], None]
    mutate: Callable[[bytes, random.Random], bytes]


def _photos(directory: Path, *names: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name in names:
        Image.new("RGB", (40, 30), (9, 90, 200)).save(directory / name)


def _dump(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content))
    return path


def _use(data: Dataset) -> None:
    data.fingerprint()
    for question in data.questions:
        assert data.image(question).id == question.image_id
    for image in data.images:
        assert isinstance(image.source, Path)


def _coco(part: str) -> Callable[[Path], Path]:
    def build(root: Path) -> Path:
        _photos(root / "val2014", "COCO_val2014_000000000042.jpg", "COCO_val2014_000000000007.jpg")
        images = [
            {"id": n, "width": 40, "height": 30, "file_name": f"COCO_val2014_{n:012}.jpg", "license": 1}
            for n in (42, 7)
        ]
        captions = [{"id": n, "image_id": 42 if n % 2 else 7, "caption": f"A dog number {n}."} for n in range(4)]
        boxes = [{"id": 9, "image_id": 7, "category_id": 18, "bbox": [1, 2.5, 10, 12], "iscrowd": 0}]
        dog = [{"id": 18, "name": "dog", "supercategory": "animal"}]
        files = {
            "captions": _dump(root / "captions_val2014.json", {"images": images, "annotations": captions}),
            "instances": _dump(
                root / "instances_val2014.json", {"images": images, "annotations": boxes, "categories": dog}
            ),
        }
        return files[part]

    return build


def _karpathy(name: str) -> Callable[[Path], Path]:
    def build(root: Path) -> Path:
        _photos(root / "images", "1000_a.jpg", "1001_b.jpg")
        sentences = [{"raw": "A child sleeps .", "sentid": 3, "tokens": ["a"]}, {"raw": "Rain.", "sentid": 4}]
        images = [
            {"filename": "1000_a.jpg", "split": "val", "cocoid": 5, "filepath": "val2014", "sentences": sentences[:1]},
            {"filename": "1001_b.jpg", "split": "train", "cocoid": 6, "sentences": sentences[1:], "sentids": [4]},
        ]
        return _dump(root / f"dataset_{name}.json", {"images": images, "dataset": name})

    return build


def _vqa(part: str) -> Callable[[Path], Path]:
    def build(root: Path) -> Path:
        _photos(root / "images", "COCO_val2014_000000000042.jpg")
        questions = [
            {"question_id": n, "image_id": 42, "question": "What?", "multiple_choices": ["a", "b"]} for n in (1, 2)
        ]
        answers = [{"answer": "yes", "answer_confidence": "maybe", "answer_id": n} for n in range(3)]
        notes = [
            {
                "question_id": n,
                "image_id": 42,
                "answers": answers,
                "answer_type": "yes/no",
                "question_type": "is",
                "multiple_choice_answer": "yes",
            }
            for n in (1, 2)
        ]
        files = {
            "questions": _dump(root / "val_questions.json", {"questions": questions, "data_subtype": "val2014"}),
            "annotations": _dump(root / "val_annotations.json", {"annotations": notes, "data_subtype": "val2014"}),
        }
        return files[part]

    return build


XML = """<annotation><filename>1000.jpg</filename><size><width>40</width><height>30</height><depth>3</depth></size>
<object><name>1</name><bndbox><xmin>1</xmin><ymin>2</ymin><xmax>20</xmax><ymax>30</ymax></bndbox></object>
<object><name>2</name><name>3</name><nobndbox>1</nobndbox></object><object><name>4</name><scene>1</scene></object>
</annotation>"""
SENTENCES = (
    "[/EN#1/people A child] sleeps in [/EN#4/scene a bed] .\n[/EN#2/other Rain] , [/EN#0/notvisual it] rains .\n"
)


def _entities(part: str) -> Callable[[Path], Path]:
    def build(root: Path) -> Path:
        for name in ("Sentences", "Annotations"):
            (root / name).mkdir()
        (root / "Sentences" / "1000.txt").write_text(SENTENCES)
        (root / "Annotations" / "1000.xml").write_text(XML)
        return root / part

    return build


def _read_entities(root: Path) -> None:
    texts = ("A child sleeps in a bed.", "Rain, it rains.")
    captions = tuple(Caption(n, "1000_a.jpg", text, tokenize(text)) for n, text in enumerate(texts))
    data = Dataset("flickr", "val", (ImageRecord("1000_a.jpg", Path("x")),), captions=captions)
    _use(link_phrases(data, root).dataset)


def _folder(root: Path) -> Path:
    _photos(root / "images", "cat.jpg", "dog.png")
    lines = [
        {"image": "cat.jpg", "caption": "A cat.", "id": "c"},
        {"image": "dog.png", "question": "What?", "answers": ["dog", "a dog"], "answer_type": "other"},
        {"image": "dog.png", "question": "Who?", "answer": "dog", "choices": ["dog", "cat"], "id": 9},
        {"image": "cat.jpg", "object": "cat", "box": [1, 2.5, 30, 20]},
    ]
    (root / "val.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return root / "val.jsonl"


def _table(root: Path) -> Path:
    rng = np.random.default_rng(0)
    rows = []
    for number in (1, 42):
        boxes = np.array([[1, 2, 30, 20], [0, 0, 40, 30]], np.float32)
        cells = [str(number), "40", "30", "2", _base64(boxes), _base64(rng.standard_normal((2, 8)).astype(np.float32))]
        rows.append("\t".join(cells))
    (root / "t.tsv").write_text("\n".join(rows) + "\n")
    return root / "t.tsv"


def _base64(array: np.ndarray) -> str:
    return base64.b64encode(array.tobytes()).decode()


def _scan(part: str) -> Callable[[Path], Path]:
    def build(root: Path) -> Path:
        np.save(root / "dev_ims.npy", np.random.default_rng(0).standard_normal((4, 3, 8)).astype(np.float32))
        (root / "dev_caps.txt").write_text("a dog\nzwei hünde\nrain\nsun\n")
        (root / "dev_ids.txt").write_text("1\n2\n3\n42\n")
        return root / f"dev_{part}"

    return build


def _tensor(root: Path) -> Path:
    torch.save(torch.randn(1, 6, 3, 2, generator=torch.Generator().manual_seed(0)), root / "42.pth")
    return root / "42.pth"


def _read_records(records: Iterable[FeatureRecord]) -> None:
    found = list(records)
    assert sum(record.values.nbytes for record in found) < LARGEST
    assert all(record.values.shape[1] == found[0].values.shape[1] for record in found)
    with np.errstate(all="ignore"):
        assert all(record.values.astype(np.float16).ndim == 2 for record in found)


def _store(root: Path) -> Path:
    rng = np.random.default_rng(0)
    items = [
        FeatureRecord(f"p{n}", rng.standard_normal((4, 8)).astype(np.float16), boxes=rng.random((4, 4), np.float32))
        for n in range(3)
    ]
    write_store(root / "s.h5", items, StoreDescription("test"), dim=8, skipped={"lost": "why"})
    return root / "s.h5"


def _read_store(path: Path) -> None:
    for verify in (False, True):
        records = list(FeatureStore(path, verify=verify))
        _read_records(records)
        if records:
            stack_features(records)


def _image(kind: str, **options: Any) -> Callable[[Path], Path]:
    def build(root: Path) -> Path:
        pixels = np.random.default_rng(0).integers(0, 256, (12, 16, 3), dtype=np.uint8)
        file = io.BytesIO()
        exif = Image.Exif()
        exif[0x0112] = 6
        extra = {"exif": exif} if kind in ("JPEG", "PNG", "WEBP") else {}
        image = Image.fromarray(pixels)
        if kind == "TIFF":
            image = Image.fromarray(pixels[..., 0].astype(np.float32))
        image.save(file, kind, **extra, **options)
        (root / "x.jpg").write_bytes(file.getvalue())
        return root / "x.jpg"

    return build


def _read_image(path: Path) -> None:
    try:
        width, height = image_size(path)
    except DataError:
        width, height = 0, 0
    pixels = decode_image(path)
    assert pixels.dtype == np.uint8
    assert pixels.shape == (height, width, 3) or not width
    assert pixels.nbytes < LARGEST * 4


def _scenes_images(root: Path) -> Path:
    return store_images(root, "val", [Key(0, 1, n) for n in range(2)])


def _read_scenes(path: Path) -> None:
    from foveate.lab.data.scenes import make

    make._open.cache_clear()
    store_images(path.parent, "val", [Key(0, 1, n) for n in range(2)])
    assert all(make._stored(path, n).shape == (112, 112, 3) for n in range(2))


def _preprocess(root: Path) -> Path:
    (root / "p.json").write_text(Preprocess((4, 6), (0.5, 0.5, 0.5), (0.5, 0.25, 0.5)).describe())
    return root / "p.json"


def _read_preprocess(path: Path) -> None:
    prepare = Preprocess.from_description(path.read_text(errors="replace"))
    assert prepare(np.zeros((5, 7, 3), np.uint8)).numel() < LARGEST


def _words(root: Path) -> Path:
    (root / "v.txt").write_text("2 3\nred 1 2 3\nblue 4 5.5 -6e1\n")
    return root / "v.txt"


CASES: dict[str, Case] = {
    "store": Case(_store, _read_store, mutate_block),
    "coco captions": Case(_coco("captions"), lambda p: _use(read_coco(p.parent, "val")), mutate_json),
    "coco instances": Case(_coco("instances"), lambda p: _use(read_coco(p.parent, "val")), mutate_json),
    "coco, no images": Case(
        _coco("instances"), lambda p: _use(read_coco(p.parent, "val", need_images=False)), mutate_json
    ),
    "karpathy": Case(
        _karpathy("coco"), lambda p: _use(read_coco_karpathy(p.parent, "train", need_images=False)), mutate_json
    ),
    "flickr": Case(_karpathy("flickr8k"), lambda p: _use(read_flickr(p.parent, "val")), mutate_json),
    "vqa questions": Case(_vqa("questions"), lambda p: _use(read_vqa(p.parent, "val")), mutate_json),
    "vqa, no images": Case(
        _vqa("questions"), lambda p: _use(read_vqa(p.parent, "val", need_images=False)), mutate_json
    ),
    "vqa annotations": Case(_vqa("annotations"), lambda p: _use(read_vqa(p.parent, "val")), mutate_json),
    "entities boxes": Case(_entities("Annotations/1000.xml"), lambda p: _read_entities(p.parent.parent), mutate_xml),
    "entities sentences": Case(
        _entities("Sentences/1000.txt"), lambda p: _read_entities(p.parent.parent), mutate_bytes
    ),
    "folder": Case(_folder, lambda p: _use(read_folder(p.parent, "val")), mutate_lines),
    "bottom-up": Case(_table, lambda p: _read_records(read_bottom_up(p)), mutate_cells),
    "scan features": Case(_scan("ims.npy"), lambda p: _read_records(read_scan(p.parent, "dev")), mutate_bytes),
    "scan captions": Case(_scan("caps.txt"), lambda p: _read_records(read_scan(p.parent, "dev")), mutate_bytes),
    "scan ids": Case(_scan("ids.txt"), lambda p: _read_records(read_scan(p.parent, "dev")), mutate_bytes),
    "grid-feats": Case(_tensor, lambda p: _read_records(read_grid_feats(p.parent)), mutate_bytes),
    "scenes": Case(_scenes_images, _read_scenes, mutate_bytes),
    "words": Case(
        lambda root: _dump(root / "w.json", Vocabulary((*SPECIAL, "a", "dog")).to_json()),
        lambda p: Vocabulary.load(p).save(p),
        mutate_json,
    ),
    "answers": Case(
        lambda root: _dump(root / "w.json", AnswerVocabulary(("yes", "2")).to_json()),
        lambda p: AnswerVocabulary.load(p).save(p),
        mutate_json,
    ),
    "word vectors": Case(_words, lambda p: word_vectors(["red", "blue", "x"], p) and None, mutate_bytes),
    "preprocess": Case(_preprocess, _read_preprocess, mutate_json),
    **{f"image {kind}": Case(_image(kind), _read_image, mutate_bytes) for kind in ("JPEG", "PNG", "GIF", "WEBP")},
    **{f"image {kind}": Case(_image(kind), _read_image, mutate_bytes) for kind in ("BMP", "TIFF", "PPM")},
}


def fuzz(name: str, count: int, seed: int = 0) -> dict[str, int]:
    """Mutate one kind of file; raises AssertionError at the first that is neither read nor answered by DataError."""
    case, outcomes = CASES[name], {"read": 0, "DataError": 0}
    with tempfile.TemporaryDirectory() as directory, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # decoders warn about what they repair
        path = case.build(Path(directory))
        whole = path.read_bytes()
        case.read(path)
        for number in range(seed, seed + count):
            path.write_bytes(case.mutate(whole, random.Random(number)))
            try:
                case.read(path)
                outcomes["read"] += 1
            except DataError:
                outcomes["DataError"] += 1
            except Exception as error:
                raise AssertionError(f"{name}, seed {number}: {type(error).__name__}: {error}") from error
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", help=", ".join(CASES))
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1_000_000)
    options = parser.parse_args()
    for name in options.kinds or CASES:
        print(f"{name}: {fuzz(name, options.count, options.seed)}", flush=True)


if __name__ == "__main__":
    main()
