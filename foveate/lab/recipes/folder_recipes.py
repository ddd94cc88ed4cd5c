"""Recipes for data of your own: a directory of images and annotations, described in docs/own-data.md.

Nothing else is needed: splits are drawn if there are none, features are extracted if they are not there, and the size
of the vocabulary follows from the data.

    another encoder                          encoder=efficientnet-lite1 | efficientnet-lite2 | hf:<model>
    another model                            model=bfan | mdan, model=rdan
    from a trained run, with new words       start=photos-captioning | runs/<run>
    other splits                             split_seed=1
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from foveate.lab.models import LSTMCaptionerSettings, MCANSettings, SCANSettings
from foveate.lab.tasks.captioning.settings import CaptioningSettings
from foveate.lab.tasks.images import Extracted
from foveate.lab.tasks.matching.settings import MatchingSettings, Ranking
from foveate.lab.tasks.vqa.settings import VQASettings
from foveate.lab.train import AdamW, Cosine, Recipe, Training

# Many epochs of few images, few epochs of many. Evaluated at the end only: to choose among weights by the few images of
# a small split would be chance, and CIDEr-D of a single one is always zero.
EPOCHS, STEPS = 150, 1500


def _folder_recipe(task: str, settings: Any, optimiser: AdamW, batch_size: int, clip: float, about: str) -> Recipe:
    """A recipe for a directory of your own, with features and vocabulary that follow from it."""
    settings = replace(settings, dataset="folder", images=Extracted(), min_count=None)
    training = Training(
        optimiser,
        Cosine(warmup=0.5),
        epochs=EPOCHS,
        steps=STEPS,
        batch_size=batch_size,
        clip=clip,
        evaluate_every=EPOCHS,
    )
    return Recipe(f"{task}-folder", task, settings, training, about=about)


def captioning_folder() -> Recipe:
    """A small captioner for your own photographs and captions.

    foveate train captioning-folder --data my_photos    (start=photos-captioning needs far fewer photographs)
    """
    model = LSTMCaptionerSettings(hidden=256, score_dim=128, dropout=0.3)
    return _folder_recipe(
        "captioning",
        CaptioningSettings(model=model, word_dim=256),
        AdamW(1.5e-3, betas=(0.9, 0.98)),
        batch_size=8,
        clip=5.0,
        about="small captioner for your own photographs, at most ten minutes",
    )


def matching_folder() -> Recipe:
    """A small SCAN for your own photographs and captions; `model=mdan` has one vector per image, for `foveate index`.

    foveate train matching-folder --data my_photos
    """
    model = SCANSettings(hidden=256, bidirectional="concatenate", dropout=0.2)
    ranking = Ranking(warmup_steps=100, warmup_negatives="soft")
    return _folder_recipe(
        "matching",
        MatchingSettings(model=model, ranking=ranking, word_dim=256, word_std=0.06),
        AdamW(7e-4),
        batch_size=32,
        clip=2.0,
        about="SCAN for your own photographs and captions, at most ten minutes",
    )


def vqa_folder() -> Recipe:
    """A small MCAN for questions about your own photographs.

    foveate train vqa-folder --data my_photos
    """
    model = MCANSettings(hidden=128, heads=4, layers=1, dropout=0.2)
    return _folder_recipe(
        "vqa",
        VQASettings(model=model, loss="cross-entropy", word_dim=100, group=True),
        AdamW(2e-3, betas=(0.9, 0.98), weight_decay=0.05),
        batch_size=16,
        clip=5.0,
        about="small MCAN for questions about your own photographs, a few minutes",
    )


FOLDER_RECIPES: dict[str, Callable[[], Recipe]] = {
    "captioning-folder": captioning_folder,
    "matching-folder": matching_folder,
    "vqa-folder": vqa_folder,
}
