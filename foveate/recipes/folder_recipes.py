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

from foveate.models import LSTMCaptionerSettings, MCANSettings, SCANSettings
from foveate.tasks.captioning.settings import CaptioningSettings
from foveate.tasks.images import Extracted
from foveate.tasks.matching.settings import MatchingSettings, Ranking
from foveate.tasks.vqa.settings import VQASettings
from foveate.train import AdamW, Cosine, Recipe, Training

# Many epochs of few images, few epochs of many. Evaluated at the end only: to choose among weights by the few images of
# a small split would be chance, and CIDEr-D of a single one is always zero.
EPOCHS, STEPS = 150, 1500


def captioning_folder() -> Recipe:
    """A small captioner for your own photographs and captions.

    foveate train captioning-folder --data my_photos    (start=photos-captioning needs far fewer photographs)
    """
    return Recipe(
        "captioning-folder",
        "captioning",
        CaptioningSettings(
            dataset="folder",
            images=Extracted(),
            model=LSTMCaptionerSettings(hidden=256, score_dim=128, dropout=0.3),
            word_dim=256,
            min_count=None,
        ),
        Training(
            AdamW(1.5e-3, betas=(0.9, 0.98)),
            Cosine(warmup=0.5),
            epochs=EPOCHS,
            steps=STEPS,
            batch_size=8,
            clip=5.0,
            evaluate_every=EPOCHS,
        ),
        about="small captioner for your own photographs, at most ten minutes",
    )


def matching_folder() -> Recipe:
    """A small SCAN for your own photographs and captions; `model=mdan` has one vector per image, for `foveate index`.

    foveate train matching-folder --data my_photos
    """
    return Recipe(
        "matching-folder",
        "matching",
        MatchingSettings(
            dataset="folder",
            images=Extracted(),
            model=SCANSettings(hidden=256, bidirectional="concatenate", dropout=0.2),
            ranking=Ranking(warmup_steps=100, warmup_negatives="soft"),
            word_dim=256,
            word_std=0.06,
            min_count=None,
        ),
        Training(
            AdamW(7e-4), Cosine(warmup=0.5), epochs=EPOCHS, steps=STEPS, batch_size=32, clip=2.0, evaluate_every=EPOCHS
        ),
        about="SCAN for your own photographs and captions, at most ten minutes",
    )


def vqa_folder() -> Recipe:
    """A small MCAN for questions about your own photographs.

    foveate train vqa-folder --data my_photos
    """
    return Recipe(
        "vqa-folder",
        "vqa",
        VQASettings(
            dataset="folder",
            images=Extracted(),
            model=MCANSettings(hidden=128, heads=4, layers=1, dropout=0.2),
            loss="cross-entropy",
            word_dim=100,
            min_count=None,
            group=True,
        ),
        Training(
            AdamW(2e-3, betas=(0.9, 0.98), weight_decay=0.05),
            Cosine(warmup=0.5),
            epochs=EPOCHS,
            steps=STEPS,
            batch_size=16,
            clip=5.0,
            evaluate_every=EPOCHS,
        ),
        about="small MCAN for questions about your own photographs, a few minutes",
    )


FOLDER_RECIPES: dict[str, Callable[[], Recipe]] = {
    "captioning-folder": captioning_folder,
    "matching-folder": matching_folder,
    "vqa-folder": vqa_folder,
}
