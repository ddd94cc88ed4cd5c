"""Phrases of captions by maps that ignore image and words: uniform, centre, and the mean box map of the training set.

    python benchmarks/constant_maps.py --data DATA [--dataset flickr8k]

The rows that tables of attention in docs have beside models: precision, recall and F1 of the cells above mean weight,
over all phrases of val with a box, as `foveate evaluate` reports them for a matcher with that grid.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from foveate.lab.data import DATASETS
from foveate.metrics import relevant_cells
from foveate.metrics.grounding import GroundingMetrics
from foveate.metrics.maps import centre_maps, uniform_maps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="flickr8k")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--grids", type=int, nargs="+", default=[7, 10])
    given = parser.parse_args()
    train, val = (DATASETS[given.dataset].read(given.data, split, need_images=False) for split in ("train", "val"))
    for size in given.grids:
        phrases = [phrase.boxes for caption in train.captions for phrase in caption.phrases if phrase.boxes]
        mean = sum(relevant_cells(size, size, torch.tensor(boxes)).double() for boxes in phrases[::20])
        maps = {"uniform": uniform_maps(1, size, size), "centre": centre_maps(1, size, size), "mean of train": mean}
        for name, one in maps.items():
            weights, metrics = one.double().flatten() / one.sum(), GroundingMetrics("above-uniform")
            for caption in val.captions:
                rows = weights.expand(len(caption.tokens), -1)
                metrics.update(rows, caption.phrases, (size, size))
            found = metrics.compute()
            scores = "  ".join(f"{part} {found[f'attention_{part}']:.3f}" for part in ("precision", "recall", "f1"))
            print(f"{size}x{size} {name:14} {scores}  {found['phrases']:.0f} phrases", flush=True)


if __name__ == "__main__":
    main()
