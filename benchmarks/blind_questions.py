"""Answers to questions by their words alone: a linear model, and the most common answer of each kind of question.

python benchmarks/blind_questions.py flickr8k-questions --data DATA
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from foveate.lab.data import DATASETS, AnswerVocabulary, Question, Vocabulary, tokenize
from foveate.metrics import bootstrap_interval

EPOCHS, BATCH = 12, 256


def common_answers(train: Sequence[Question], val: Sequence[Question]) -> list[bool]:
    """Whether the most common answer of the kind of a question is right."""
    counts: dict[str | None, Counter[str | None]] = defaultdict(Counter)
    for question in train:
        counts[question.question_type][question.answer] += 1
    return [counts[q.question_type].most_common(1)[0][0] == q.answer for q in val]


def linear_words(train: Sequence[Question], val: Sequence[Question], seed: int = 0) -> list[bool]:
    """Whether a linear model of the words of a question, and of their pairs, is right."""
    torch.manual_seed(seed)

    def grams(question: Question) -> list[str]:
        words = tokenize(question.text)
        return [*words, *(f"{a} {b}" for n, a in enumerate(words) for b in words[n + 1 :])]

    words = Vocabulary.from_tokens([grams(question) for question in train])
    answers = AnswerVocabulary.from_questions(train, 5).answers
    place = {answer: n for n, answer in enumerate(answers)}
    encode = lambda questions: [torch.tensor(words.encode(grams(q))) for q in questions]  # noqa: E731
    inputs, targets = encode(train), torch.tensor([place.get(q.answer or "", -1) for q in train])
    model = nn.EmbeddingBag(len(words), len(answers), mode="sum")
    nn.init.zeros_(model.weight)
    optimiser = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(inputs)).split(BATCH):
            offsets = torch.tensor([0, *(len(inputs[r]) for r in rows[:-1].tolist())]).cumsum(0)
            scores = model(torch.cat([inputs[r] for r in rows.tolist()]), offsets)
            loss = nn.functional.cross_entropy(scores, targets[rows], ignore_index=-1)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    with torch.no_grad():
        best = [int(model(own, torch.tensor([0])).argmax()) for own in encode(val)]
    return [answers[n] == q.answer for n, q in zip(best, val, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", choices=[name for name, row in DATASETS.items() if "questions" in row.contents])
    parser.add_argument("--data", type=Path)
    chosen = parser.parse_args()
    train, val = (DATASETS[chosen.dataset].read(chosen.data, split).questions for split in ("train", "val"))
    images = [question.image_id for question in val]
    for name, right in (("most common", common_answers(train, val)), ("linear words", linear_words(train, val))):
        kinds = [None, *sorted({question.question_type or "" for question in val})]
        for kind in kinds:
            rows = [n for n, question in enumerate(val) if kind in (None, question.question_type)]
            values = torch.tensor([float(right[n]) for n in rows]).numpy()
            print(f"{name:13} {kind or 'all':10} {len(rows):6} ", end="")
            print(bootstrap_interval(100 * values, clusters=[images[n] for n in rows]))


if __name__ == "__main__":
    main()
