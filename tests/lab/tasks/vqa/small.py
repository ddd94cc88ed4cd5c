"""A small task on a few scenes, shared by the tests of this directory."""

from __future__ import annotations

import numpy as np
import torch

from foveate.lab.models import MCANSettings
from foveate.lab.tasks.images import Conv
from foveate.lab.tasks.vqa import VQA
from foveate.lab.tasks.vqa.settings import VQASettings

TINY = VQASettings(
    model=MCANSettings(16, heads=2, layers=1, dropout=0.0),
    images=Conv((8, 8, 8, 8), blocks=0),
    word_dim=8,
    max_tokens=20,
    min_count=1,
    group=True,
    limit=6,
    map_size=(7, 7),
)


def model_of(task: VQA) -> torch.nn.Module:
    torch.manual_seed(0)
    return task.build_model()


def batch_of(task: VQA, split: str = "val"):
    examples = task.examples(split, None)
    return task.collate([examples[n] for n in range(3)])


def image() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 255, (50, 70, 3), dtype=np.uint8)
