"""Linear baselines for questions about photographs.

    python benchmarks/vqa_baselines.py DATA STORE

DATA is a directory in the format of `vqa-coco`, STORE the features of its images. Trains on the train split and prints
the accuracy on the validation split. Inputs:

- nothing: the most frequent answer
- question words: single words and pairs of consecutive words
- words and image: the same with the mean of the image features, without interaction

Softmax regression over the answers that occur at least three times, nine epochs of AdamW. Two minutes on one core.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from scenes_baselines import table, words_of
from torch import Tensor, nn

from foveate.lab.data import DATASETS
from foveate.lab.data.feature_store import FeatureStore
from foveate.lab.data.samples import ANSWER_TYPES, Dataset

PASSES, BATCH, RATE, DECAY = 9, 128, 3e-3, 0.01
IMAGE_SCALE = 0.05  # scale of the image features relative to the indicators of words


def means_of(data: Dataset, store: FeatureStore) -> Tensor:
    """(questions, D) the mean of the image features of each question."""
    means = {image.id: store.get(image).values.astype(np.float32).mean(0) for image in data.images}
    return torch.from_numpy(np.stack([means[question.image_id] for question in data.questions]))


def guess(train: Tensor, val: Tensor, answers: list[str]) -> list[str]:
    """Softmax regression."""
    known = [answer for answer, count in Counter(answers).items() if count >= 3]
    number = {answer: place for place, answer in enumerate(known)}
    rows = torch.tensor([row for row, answer in enumerate(answers) if answer in number])
    right = torch.tensor([number.get(answer, -1) for answer in answers])
    torch.manual_seed(0)
    model = nn.Linear(train.shape[1], len(known))
    nn.init.zeros_(model.weight)
    optimiser = torch.optim.AdamW(model.parameters(), RATE, weight_decay=DECAY)
    for _ in range(PASSES):
        for batch in rows[torch.randperm(len(rows))].split(BATCH):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(train[batch]), right[batch]).backward()
            optimiser.step()
    with torch.no_grad():
        return [known[place] for place in model(val).argmax(-1).tolist()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("store", type=Path)
    given = parser.parse_args()
    train, val = (DATASETS["vqa-coco"].read(given.data, split, need_images=False) for split in ("train", "val"))
    answers, store = [question.answer for question in train.questions], FeatureStore(given.store)
    words = [torch.from_numpy(seen.toarray()) for seen in words_of(train, val, longest=2, word=r"\w+")]
    looks = [means_of(data, store) for data in (train, val)]
    scaled = [IMAGE_SCALE * (look - looks[0].mean(0)) / looks[0].std(0) for look in looks]
    rows = {
        "nothing": [Counter(answers).most_common(1)[0][0]] * len(val.questions),
        "question words": guess(*words, answers),
        "words and image": guess(*(torch.cat(pair, 1) for pair in zip(words, scaled, strict=True)), answers),
    }
    types = {name: (lambda question, name=name: question.answer_type == name) for name in ANSWER_TYPES}
    print(table(rows, val, {"all": lambda question: True, **types}))


if __name__ == "__main__":
    main()
