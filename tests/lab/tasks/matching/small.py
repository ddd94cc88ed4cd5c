"""A small task on a few scenes, shared by the tests of this directory."""

from __future__ import annotations

import numpy as np

from foveate.lab.data.feature_store import FeatureRecord
from foveate.lab.data.samples import Caption, Phrase
from foveate.lab.data.vocabulary import Vocabulary
from foveate.lab.models import (
    BFANSettings,
    DualSettings,
    MatchingDANSettings,
    MatchingModelSettings,
    SCANSettings,
)
from foveate.lab.tasks.images import Conv
from foveate.lab.tasks.matching import Matching
from foveate.lab.tasks.matching.data import MatchingBatch
from foveate.lab.tasks.matching.settings import MatchingSettings

SMALL = MatchingSettings(model=SCANSettings(hidden=8), images=Conv((8, 8, 8, 8)), word_dim=6, min_count=1, limit=4)


MODELS: dict[str, MatchingModelSettings] = {
    "scan": SCANSettings(hidden=8),
    "bfan": BFANSettings(hidden=8),
    "m-dan": MatchingDANSettings(hidden=8),
    "dual": DualSettings(hidden=8),
    "scan with the whole": SCANSettings(hidden=8, roots=True, whole=DualSettings(hidden=6)),
}


WORDS = Vocabulary.from_tokens([["a", "red", "disc", "dog", "left"]])


def caption(number: int, image: str, text: str, *phrases: Phrase) -> Caption:
    return Caption(number, image, text, tuple(text.split()), phrases)


def features(identity: str, value: float = 1.0) -> FeatureRecord:
    return FeatureRecord(identity, np.full((4, 3), value, np.float32), grid=(2, 2))


def batch_of(task: Matching, count: int = 4, split: str = "val") -> MatchingBatch:
    examples = task.examples(split, None)
    return task.collate([examples[number] for number in range(count)])
