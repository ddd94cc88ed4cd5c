"""Baselines for Scenes that see only part of the input.

    python benchmarks/scenes_baselines.py [--train 4000] [--val 500]

Trains on the train split and prints the accuracy on the validation split, in percent of the agreed answers. Inputs:

- prior: only the kind of question; the most frequent answer
- question string: the exact question in lower case; the most frequent answer to it, otherwise to its kind
- question words: sequences of one to four words; logistic regression
- image: the pixels averaged over a 7 x 7 and a 14 x 14 grid, colour histograms, and the kind; ridge regression
- both, linear: question words and image together, without interaction; logistic regression
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

import numpy as np
from scipy.sparse import csr_matrix, hstack
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.preprocessing import StandardScaler

from foveate.lab.data.samples import ANSWER_TYPES, Dataset, Question
from foveate.lab.data.scenes import make_scenes

Guess = Sequence[str]


def by_majority(train: Dataset, val: Dataset, key: Callable[[Question], str]) -> Guess:
    """The most frequent answer to training questions with the same key, otherwise with the same kind."""
    seen: dict[str, Counter[str]] = defaultdict(Counter)
    for question in train.questions:
        seen[key(question)][question.answer] += 1
        seen[f"kind {question.question_type}"][question.answer] += 1
    return [
        (seen.get(key(question)) or seen[f"kind {question.question_type}"]).most_common(1)[0][0]
        for question in val.questions
    ]


def words_of(train: Dataset, val: Dataset, longest: int = 4, word: str = "[a-z]+") -> tuple[csr_matrix, csr_matrix]:
    """Indicators of sequences of one to several words that occur at least twice."""
    counter = CountVectorizer(ngram_range=(1, longest), min_df=2, binary=True, token_pattern=word, dtype=np.float32)
    return counter.fit_transform([q.text for q in train.questions]), counter.transform([q.text for q in val.questions])


def pooled(data: Dataset) -> dict[int, np.ndarray]:
    """Per image, the mean colours on two grids and a histogram of 4 x 4 x 4 colours."""
    features = {}
    for image in data.images:
        pixels = image.pixels().astype(np.float32)
        cells = [pixels.reshape(n, 112 // n, n, 112 // n, 3).mean(axis=(1, 3)).ravel() / 255 for n in (7, 14)]
        bins = (pixels.reshape(-1, 3) // 64).astype(int) @ (16, 4, 1)
        features[image.id] = np.concatenate([*cells, np.sqrt(np.bincount(bins, minlength=64) / len(bins))])
    return features


def by_image(train: Dataset, val: Dataset, seen: dict, unseen: dict) -> Guess:
    """Ridge regression on the pooled image, one per kind of question."""
    guesses = {}
    for kind in sorted({q.question_type for q in train.questions}):
        asked = [q for q in train.questions if q.question_type == kind]
        tested = [q for q in val.questions if q.question_type == kind]
        scale = StandardScaler().fit([seen[q.image_id] for q in asked])
        model = RidgeClassifier(alpha=1000.0)
        model.fit(scale.transform([seen[q.image_id] for q in asked]), [q.answer for q in asked])
        answers = model.predict(scale.transform([unseen[q.image_id] for q in tested]))
        guesses.update(zip((q.id for q in tested), answers, strict=True))
    return [guesses[q.id] for q in val.questions]


def by_words(train: Dataset, val: Dataset, words: tuple[csr_matrix, csr_matrix]) -> Guess:
    """Logistic regression on the words."""
    model = LogisticRegression(C=0.1, max_iter=300).fit(words[0], [q.answer for q in train.questions])
    return list(model.predict(words[1]))


def by_both(train: Dataset, val: Dataset, words: tuple[csr_matrix, csr_matrix], seen: dict, unseen: dict) -> Guess:
    """Logistic regression on the words and the histogram of colours."""
    looks = [
        csr_matrix(np.stack([features[q.image_id][-64:] for q in data.questions]))
        for data, features in ((train, seen), (val, unseen))
    ]
    both = [hstack([w, look], format="csr") for w, look in zip(words, looks, strict=True)]
    return by_words(train, val, (both[0], both[1]))


def share(questions: Sequence[Question], guess: Guess, counts: Callable[[Question], bool]) -> float:
    """Percentage of the selected questions whose agreed answer is predicted."""
    hits = [q.answer == g for q, g in zip(questions, guess, strict=True) if counts(q)]
    return 100 * float(np.mean(hits)) if hits else float("nan")


def table(rows: dict[str, Guess], val: Dataset, columns: dict[str, Callable[[Question], bool]]) -> str:
    """A Markdown table with one row per baseline."""
    lines = ["| sees | " + " | ".join(columns) + " |", "|---|" + "---|" * len(columns)]
    for name, guess in rows.items():
        cells = " | ".join(f"{share(val.questions, guess, counts):.1f}" for counts in columns.values())
        lines.append(f"| {name} | {cells} |")
    numbers = " | ".join(str(sum(map(counts, val.questions))) for counts in columns.values())
    return "\n".join([*lines, f"| (questions) | {numbers} |"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=int, default=4000)
    parser.add_argument("--val", type=int, default=500)
    args = parser.parse_args()
    train, val = (make_scenes(split=split, count=getattr(args, split)) for split in ("train", "val"))
    words, seen, unseen = words_of(train, val), pooled(train), pooled(val)
    rows = {
        "prior": by_majority(train, val, lambda q: f"kind {q.question_type}"),
        "question string": by_majority(train, val, lambda q: q.text.lower()),
        "question words": by_words(train, val, words),
        "image": by_image(train, val, seen, unseen),
        "both, linear": by_both(train, val, words, seen, unseen),
    }
    types = {name: (lambda q, name=name: q.answer_type == name) for name in ANSWER_TYPES}
    tags = {name: (lambda q, name=name: name in q.tags) for name in ("two-distant", "small")}
    kinds = sorted({q.question_type for q in val.questions})
    print(table(rows, val, {"all": lambda q: True, **types, **tags}), end="\n\n")
    print(table(rows, val, {kind: (lambda q, kind=kind: q.question_type == kind) for kind in kinds}))


if __name__ == "__main__":
    main()
