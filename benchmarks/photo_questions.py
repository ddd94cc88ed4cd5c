"""Runs on questions whose region is known: accuracy and attention with intervals, beside maps that ignore the image.

    python benchmarks/photo_questions.py RUN ... --data DATA

Every run answers the same questions of val. Attention is measured on questions with boxes, on 14x14 cells as by
`foveate evaluate-attention`, over all of them and over those about two things. Intervals are of 95 %, over photographs.
The other runs are compared with the first one: a paired permutation test over photographs.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from foveate.apps.cli.evaluate_attention import find_cases
from foveate.lab import hub
from foveate.lab.data import DATASETS
from foveate.lab.train.batches import move, read_batches
from foveate.metrics import bootstrap_interval
from foveate.metrics.maps import baseline_maps
from foveate.metrics.statistics import paired_permutation_test
from foveate.watch.cases import Case
from foveate.watch.measure import MEASURES, SIZE, mean_region, score_maps

SHOWN = ("pointing", "mass", "auc", "js")
TYPICAL = 5000  # training questions whose mean box map is a baseline


def read_run(run: Path, data: Path | None, split: str) -> tuple[Tensor, list[Tensor]]:
    """Whether each question is answered right (Q,), and the map of each."""
    predictor = hub.load(run)
    task, model = predictor.task, predictor.model.eval()
    examples = task.examples(split, data)
    right, maps = [], []
    with torch.no_grad():
        for _, batch in read_batches(task, examples, [p.tolist() for p in torch.arange(len(examples)).split(32)], 0):
            answered = task.run(model, move(batch, torch.device("cpu")))
            best = [task.answers.answers[n] for n in answered.scores.argmax(1).tolist()]
            right += [float(a == question.answer) for a, question in zip(best, batch.questions, strict=True)]
            maps += list(answered.image[-1].map(*SIZE).double())
    return torch.tensor(right), maps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--dataset", default="flickr8k-questions")
    parser.add_argument("--split", default="val")
    given = parser.parse_args()
    torch.set_num_threads(1)
    data, train = (DATASETS[given.dataset].read(given.data, split) for split in (given.split, "train"))
    questions = [question for image in data.images for question in data.questions_of(image.id)]  # as examples have them
    known = [n for n, question in enumerate(questions) if question.boxes]
    two = np.array(["two" in questions[n].tags for n in known])
    cases = [Case(data.image(questions[n]), questions[n].text, questions[n].boxes) for n in known]
    truths = [(case.region(*SIZE), case.truth(*SIZE)) for case in cases]
    images = [case.image_id for case in cases]
    constant = {**baseline_maps(*SIZE), "mean of train": mean_region(find_cases(train, TYPICAL))}
    for name, one in constant.items():
        show(name, torch.cat([score_maps(one, *truth) for truth in truths]), images, two)
    kinds = ("all", *dict.fromkeys(question.question_type for question in questions))
    first: dict[str, Tensor] = {}
    for run in given.runs:
        right, maps = read_run(run, given.data, given.split)
        for kind in kinds:
            rows = [n for n, question in enumerate(questions) if kind in ("all", question.question_type)]
            own = bootstrap_interval(100 * right[rows].numpy(), clusters=[questions[n].image_id for n in rows])
            print(f"{run.name:24} accuracy {kind:10} {len(rows):6} {own}", flush=True)
        scores = torch.cat([score_maps(maps[n][None], *truth) for n, truth in zip(known, truths, strict=True)])
        show(run.name, scores, images, two)
        measured = {"accuracy": right, **{name: scores[:, MEASURES.index(name)] for name in SHOWN}}
        for name, values in measured.items():
            if name not in first:
                first[name] = values
                continue
            owner = [q.image_id for q in questions] if name == "accuracy" else images
            p = paired_permutation_test(values.numpy(), first[name].numpy(), clusters=owner)
            between = bootstrap_interval((values - first[name]).numpy(), clusters=owner)
            print(f"{run.name:24} {name} minus that of {given.runs[0].name}: {between}, p = {p:.4f}", flush=True)


def show(name: str, scores: Tensor, images: list[object], two: np.ndarray) -> None:
    """Print the measures over all questions with boxes and over those about two things."""
    for about, rows in (("all", np.ones_like(two)), ("two things", two)):
        owner = [image for image, counts in zip(images, rows, strict=True) if counts]
        own = [
            bootstrap_interval(scores[rows, MEASURES.index(m)].numpy(), clusters=owner, resamples=1000) for m in SHOWN
        ]
        cells = "  ".join(f"{m} {one}" for m, one in zip(SHOWN, own, strict=True))
        print(f"{name:24} attention {about:10} {rows.sum():6} {cells}", flush=True)


if __name__ == "__main__":
    main()
