"""What a table costs: steps, multiply-adds, and the hours they take at a given throughput."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from foveate.lab.papers.tables.table import PaperRow, PaperRun
from foveate.lab.recipes import RECIPES
from foveate.lab.train.override import override
from foveate.lab.train.recipe import Recipe

# Training examples of the published splits: questions, captions, or for captioning images with all their captions.
EXAMPLES = {
    ("vqa-v2", "train"): 443_757,
    ("vqa-v1", "train"): 248_349,
    ("vqa-v1", "train+val"): 369_861,
    ("f30k-precomp", "train"): 145_000,
    ("coco-precomp", "train"): 566_435,
    ("flickr30k", "train"): 145_000,
    ("flickr30k-mrnn", "train"): 148_915,
}
IMAGES = {("coco-karpathy", "train+restval"): 113_287, ("flickr30k", "train"): 29_000}
# Multiply-adds of the forward pass for one training example in matrix products, counted with torch's FlopCounterMode
# (test_cost.py counts again): one question of 14 tokens with its image, one caption of 14 tokens against the images of
# a batch of 128, one image with five captions of 12 tokens out of 10 000. Elementwise work such as EM is not counted.
MULTIPLY_ADDS = {
    "vqa-mcan-vqa2-grid": 1.68e10,
    "vqa-mcan-vqa2": 5.14e9,
    "vqa-rdan": 4.25e8,
    "matching-scan": 2.59e8,
    "matching-bfan": 2.6e8,
    "matching-mdan": 4.24e8,
    "captioning-lstm": 9.24e8,
}
# A backward pass has two matrix products for every one of the forward pass, and a multiply-add is two operations.
OPERATIONS_PER_MULTIPLY_ADD = 6


@dataclass(frozen=True)
class Cost:
    """The cost of a training.

    Attributes:
        steps: of the optimiser.
        multiply_adds: of the forward passes.
    """

    steps: int
    multiply_adds: float

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.steps + other.steps, self.multiply_adds + other.multiply_adds)

    def hours(self, throughput: float) -> float:
        """Hours of training, forward and backward, at `throughput` tera-operations per second.

        >>> Cost(1, 6e14).hours(1.0)
        1.0
        """
        return OPERATIONS_PER_MULTIPLY_ADD * self.multiply_adds / (throughput * 1e12) / 3600


def recipe_of(run: PaperRun) -> Recipe:
    """The recipe of a run with its changes."""
    return override(RECIPES[run.recipe](), run.changes)


def cost_of(run: PaperRun) -> Cost:
    """The cost of one training on the published data."""
    recipe = recipe_of(run)
    settings, training = recipe.settings, recipe.training
    key = (settings.dataset, settings.train_split)
    count = (IMAGES if recipe.task == "captioning" else EXAMPLES)[key]
    steps = math.ceil(count / (training.batch_size * training.accumulate)) * training.epochs
    each = next(number for name, number in MULTIPLY_ADDS.items() if _is_kind(recipe, name))
    return Cost(steps, each * count * training.epochs)


def _is_kind(recipe: Recipe, name: str) -> bool:
    if name == "vqa-mcan-vqa2-grid":
        return recipe.task == "vqa" and str(recipe.settings.images.store).startswith("grid-feats")
    return recipe.name.startswith(name)


def total(rows: Iterable[PaperRow], seeds: int = 1) -> Cost:
    """The cost of all trainings of some rows, each training once per seed."""
    runs = dict.fromkeys(run for row in rows for run in row.runs)
    return sum((cost_of(run) for run in runs for _ in range(seeds)), Cost(0, 0.0))
