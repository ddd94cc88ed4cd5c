"""How often embedded runs warn about images of several kinds; docs/own-data.md has the result.

    python benchmarks/familiarity.py DATA/images        (a directory of photographs that no run was trained on)

The photographs and the drawn shapes (Scenes, test) have no part in what a run remembers of its training images.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro

import foveate as fv
from foveate.lab.data import scenes
from foveate.lab.data.image_sources import example_photos
from foveate.lab.search import list_images

RUNS = ("scenes-captioning", "scenes-search", "photos-vqa", "photos-captioning", "photos-matching", "photos-search")
SEED, COUNT, MADE, BATCH = 7, 200, 20, 25


def kinds(directory: Path) -> dict[str, list[str | np.ndarray]]:
    """Images by kind: paths or pixels."""
    rng = np.random.default_rng(SEED)
    paths = list_images(directory)
    return {
        "photographs": [paths[int(k)] for k in rng.permutation(len(paths))[:COUNT]],
        "free photographs": [str(path) for path in example_photos().values()],
        "drawn shapes": [image.pixels() for image in scenes(split="test", count=COUNT).images],
        "noise": [rng.integers(0, 256, (200, 200, 3), np.uint8) for _ in range(MADE)],
        "one colour": [np.full((200, 200, 3), rng.integers(0, 256, 3), np.uint8) for _ in range(MADE)],
    }


def main(directory: tyro.conf.Positional[Path], runs: tuple[str, ...] = RUNS) -> None:
    """Print the number of warnings per run and kind of image."""
    torch.set_num_threads(1)
    images = kinds(directory)
    for name in runs:
        run: Any = fv.load(name)
        for kind, all_of in images.items():
            batches = (all_of[k : k + BATCH] for k in range(0, len(all_of), BATCH))
            warned = [warning for batch in batches for warning in run.warnings(run.read_images(batch))]
            print(f"{name}: {kind}: {sum(w is not None for w in warned)} of {len(warned)}", flush=True)


if __name__ == "__main__":
    tyro.cli(main)
