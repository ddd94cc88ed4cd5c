"""Is one matcher better than another on the same queries? Recalls of both, and a paired test over the images.

    python benchmarks/paired_matching.py runs/scan runs/dual --data DATA

An image contributes its own recalls at 1, 5 and 10 and the mean of those of its captions; rsum is 100 times the mean
over the images. The test flips the sign of the difference of every image at random.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor

from foveate.lab import hub
from foveate.lab.metrics.retrieval import LEVELS, rank_matrix
from foveate.lab.models.fragments import join_fragments
from foveate.lab.train.batches import read_batches
from foveate.metrics.statistics import bootstrap_interval, paired_permutation_test


def contributions(run: Path, data: Path | None, split: str) -> Tensor:
    """(I,) what each image of the split contributes to rsum / 100."""
    predictor = hub.load(run)
    task, model = predictor.task, predictor.model
    examples = task.examples(split, data)
    numbers = list(torch.arange(len(examples)).split(64))
    images, texts, owner = [], [], []
    with torch.no_grad():
        for rows, batch in read_batches(task, examples, [part.tolist() for part in numbers], 0):
            seen, read = task.embed(model, batch)
            images.append(seen)
            texts.append(read)
            owner.append(batch.owner + rows[0])
        scores = model.scorer(join_fragments(images), join_fragments(texts))
    owners = torch.cat(owner)
    i2t, t2i = rank_matrix(scores, owners)
    found = [sum((ranks.rank <= k).double() for k in LEVELS) for ranks in (i2t, t2i)]
    captions = torch.zeros(len(found[0]), dtype=torch.double).index_add_(0, owners, found[1])
    return found[0] + captions / torch.bincount(owners)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs=2, type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--split", default="val")
    given = parser.parse_args()
    first, second = (contributions(run, given.data, given.split) for run in given.runs)
    for run, own in zip(given.runs, (first, second), strict=True):
        print(f"{run}: rsum {100 * own.mean():.1f}")
    between = bootstrap_interval(100 * (first - second))
    print(f"difference {between}, p = {paired_permutation_test(first, second):.4f} over {len(first)} images")


if __name__ == "__main__":
    main()
