"""Small files in the formats of COCO, VQA and VQA-HAT."""

from __future__ import annotations

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
