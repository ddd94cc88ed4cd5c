"""A small task on a few scenes, shared by the tests of this directory."""

from __future__ import annotations

from dataclasses import replace

from foveate.lab.models import LSTMCaptionerSettings
from foveate.lab.tasks import Captioning
from foveate.lab.tasks.captioning.settings import CaptioningSettings
from foveate.lab.tasks.images import Conv

MODEL = LSTMCaptionerSettings(hidden=8)


def settings(**changes) -> CaptioningSettings:
    small = CaptioningSettings(images=Conv((8, 8)), word_dim=8, model=MODEL, min_count=1, max_words=8, beams=2, limit=6)
    return replace(small, **changes)


def batch_of(task: Captioning, split: str = "val", count: int = 3):
    examples = task.examples(split, None)
    return task.collate([examples[i] for i in range(count)])
