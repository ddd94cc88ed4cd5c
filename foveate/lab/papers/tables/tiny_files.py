"""Small files in the formats of COCO, VQA, VQA-HAT, Flickr30k with Entities, SCAN, bottom-up attention and GloVe."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from foveate.io import write_json

SIDE = 40  # pixels
DIM = 8  # features per location
# Image ids by subset; a test image is in no other subset.
SUBSETS = {
    "train2014": range(1, 13),
    "val2014": range(13, 28),
    "test2015": range(28, 34),
    "test-dev2015": range(28, 32),
}
COLOURS = ("red", "blue")
QUESTIONS = (
    ("What color is the ball?", COLOURS, "other"),
    ("Is the ball red?", ("yes", "no"), "yes/no"),
    ("How many balls are there?", ("1", "1"), "number"),
)
CAPTIONS = (
    "A {} ball on the grass .",
    "The {} ball lies on green grass .",
    "There is a {} ball .",
    "A ball that is {} .",
    "Someone left a {} ball outside .",
)


def colour_of(image: int) -> int:
    """0 for images with a red ball, 1 for a blue one."""
    return image % 2


def captions_of(image: int) -> list[str]:
    """Five captions of an image."""
    return [caption.format(COLOURS[colour_of(image)]) for caption in CAPTIONS]


def features_of(image: int, cells: int) -> np.ndarray:
    """(cells, DIM) features that tell the colour."""
    values = np.random.default_rng(image).normal(size=(cells, DIM)).astype(np.float32)
    values[:, colour_of(image)] += 2
    return values


def save_image(path: Path, image: int) -> None:
    """A disc of the colour of the image on green."""
    pixels = np.zeros((SIDE, SIDE, 3), np.uint8)
    pixels[..., 1] = 120
    y, x = np.mgrid[:SIDE, :SIDE]
    pixels[(y - SIDE / 2) ** 2 + (x - SIDE / 2) ** 2 < 80] = ((220, 20, 20), (20, 20, 220))[colour_of(image)]
    Image.fromarray(pixels).save(path)


def vqa_questions(path: Path) -> None:
    """`v2_OpenEnded_mscoco_train2014_questions.json` and its like."""
    subset = path.stem.split("_")[-2]
    choice = "MultipleChoice" in path.name
    questions = []
    for image in SUBSETS[subset]:
        for number, (text, answers, _) in enumerate(QUESTIONS):
            own = {"image_id": image, "question": text, "question_id": image * 10 + number}
            # Eighteen candidates, as published.
            candidates = [*dict.fromkeys([*answers, "yes", "no", "1"]), *(f"thing {n}" for n in range(20))][:18]
            questions.append(own | ({"multiple_choices": candidates} if choice else {}))
    write_json(path, {"data_subtype": subset, "questions": questions})


def vqa_annotations(path: Path) -> None:
    """`v2_mscoco_train2014_annotations.json` and its like: ten answers per question."""
    subset = path.stem.split("_")[-2]
    notes = []
    for image in SUBSETS[subset]:
        for number, (text, answers, kind) in enumerate(QUESTIONS):
            answer = answers[colour_of(image)]
            notes.append(
                {
                    "image_id": image,
                    "question_id": image * 10 + number,
                    "answer_type": kind,
                    "question_type": " ".join(text.lower().split()[:2]),
                    "multiple_choice_answer": answer,
                    "answers": [{"answer_id": n, "answer": answer, "answer_confidence": "yes"} for n in range(1, 11)],
                }
            )
    write_json(path, {"data_subtype": subset, "annotations": notes})


def hat_maps(path: Path) -> None:
    """`vqahat_val`: three maps per question."""
    path.mkdir()
    grey = np.zeros((SIDE, SIDE), np.uint8)
    grey[12:28, 12:28] = 200
    for image in SUBSETS["val2014"]:
        for number in range(1, 4):
            Image.fromarray(grey + np.uint8(number)).save(path / f"{image * 10}_{number}.png")


def coco_grids(path: Path) -> None:
    """`train2014` of grid-feats: one tensor per image, on grids of two sizes."""
    path.mkdir()
    for image in SUBSETS[path.name]:
        H, W = (3, 4) if image % 3 else (4, 3)
        values = features_of(image, H * W).T.reshape(1, DIM, H, W)
        torch.save(torch.from_numpy(values.copy()), path / f"{image}.pth")


def coco_vgg(path: Path) -> None:
    """`train2014` of VGG features: one array per image."""
    path.mkdir()
    for image in SUBSETS[path.name]:
        np.save(path / f"{image}.npy", features_of(image, 16).T.reshape(DIM, 4, 4))


def coco_images(path: Path) -> None:
    """`train2014` and its like, or a directory with train2014 and val2014."""
    subsets = [path.name] if path.name in SUBSETS else ["train2014", "val2014"]
    for subset in subsets:
        home = path if path.name in SUBSETS else path / subset
        home.mkdir(parents=True, exist_ok=True)
        for image in SUBSETS[subset]:
            save_image(home / f"COCO_{subset}_{image:012d}.jpg", image)


def coco_karpathy(path: Path) -> None:
    """`dataset_coco.json`: train from train2014; restval, val and test from val2014."""
    splits = {"restval": range(13, 15), "val": range(15, 21), "test": range(21, 28), "train": SUBSETS["train2014"]}
    images: list[dict[str, object]] = []
    for split, ids in splits.items():
        subset = "train2014" if split == "train" else "val2014"
        for image in ids:
            record = {"filepath": subset, "filename": f"COCO_{subset}_{image:012d}.jpg", "cocoid": image}
            images.append(record | {"imgid": len(images), "split": split, "sentences": _sentences(image)})
    write_json(path, {"dataset": "coco", "images": images})


def _sentences(image: int) -> list[dict[str, object]]:
    return [
        {"raw": text, "sentid": image * 10 + number, "tokens": re.findall(r"\w+", text.lower())}
        for number, text in enumerate(captions_of(image))
    ]


def coco_instances(path: Path) -> None:
    """`instances_val2014.json`: one ball per image."""
    subset = path.stem.removeprefix("instances_")
    images = [
        {"id": image, "width": SIDE, "height": SIDE, "file_name": f"COCO_{subset}_{image:012d}.jpg"}
        for image in SUBSETS[subset]
    ]
    notes = [{"id": image, "image_id": image, "category_id": 37, "bbox": [11, 11, 18, 18]} for image in SUBSETS[subset]]
    write_json(path, {"images": images, "annotations": notes, "categories": [{"id": 37, "name": "ball"}]})


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
