"""Recipes of visual question answering.

The attention over the image is a field: `foveate train vqa-mcan-scenes mechanism=tvmax`. `start=runs/<run> epochs=2`
fine-tunes a run with another mechanism, since the weights of the model are the same for all. From scratch, sparse maps
need `guidance_loss=scores mechanism_options.temperature=10`: a weight of sparsemax changes by 1 / temperature of what
its score changes, a weight of softmax in proportion to itself. At a temperature of 1 the scores of an untrained model
already leave most cells without attention. The variants of the papers have these names in `foveate list mechanisms`:

    discrete                                               mechanism=softmax
    one ellipse (Farinhas 2021)                            mechanism=continuous-softmax | continuous-sparsemax
    K ellipses (Farinhas 2021, K-MCA)                      mechanism=k-mca
    as many ellipses as needed (Farinhas et al. 2021)      mechanism=multimodal
    sparse, in patches (Martins et al. 2020)               mechanism=tvmax mechanism_options.smoothness=0.01
    a counter on the grid beside it (Nguyen et al. 2020)   model.counting=2
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from foveate.lab.models import MCANSettings, ReasoningDANSettings
from foveate.lab.tasks.images import Conv, Stored
from foveate.lab.tasks.vqa.settings import VQASettings
from foveate.lab.train import AdamW, Cosine, Recipe, Training


def vqa_mcan_scenes() -> Recipe:
    """A tiny MCAN on Scenes with a frozen encoder that was pretrained on objects, and guided attention (`guidance=1`).

    92.2 % on val with softmax, seed 0 (yes/no 86, number 90, other 97; of the kinds of questions only "relation", 65 %,
    and "same", 63 %, are not learnt), JS to the true regions 0.26 bits on 14x14, against 0.82 for a uniform map; about
    ten minutes on one core. Without guidance (`guidance=0`) it learns several times more slowly, and its attention is
    unrelated to the true regions.

    foveate train vqa-mcan-scenes
    """
    return _grouped(
        "vqa-mcan-scenes",
        VQASettings(
            dataset="scenes",
            model=MCANSettings(hidden=64, heads=4, layers=2, dropout=0.0),
            images=Conv(start="scenes", trained=False),
            guidance=1.0,
            word_dim=64,
            max_tokens=20,
        ),
        Training(AdamW(1.5e-3, betas=(0.9, 0.98)), Cosine(warmup=0.6), epochs=8, batch_size=8),
        about="tiny MCAN on a pretrained encoder, 92 % on val, about ten minutes",
    )


def vqa_rdan_scenes() -> Recipe:
    """A tiny r-DAN on Scenes, otherwise as `vqa-mcan-scenes`.

    foveate train vqa-rdan-scenes
    """
    model = ReasoningDANSettings(hidden=128, reasoning_steps=2, dropout=0.0)
    about = "tiny r-DAN on a pretrained encoder"
    return vqa_mcan_scenes().variant("vqa-rdan-scenes", about, model=model, loss="cross-entropy")


def vqa_mcan_coco() -> Recipe:
    """A small MCAN on questions about COCO photographs in VQA's format, with features of EfficientNet-Lite0.

    foveate extract efficientnet-lite0 DATA/images DATA/efficientnet-lite0.h5
    foveate train vqa-mcan-coco --data DATA    (words=glove word_dim=50 starts from GloVe, extra `words`)
    """
    return _grouped(
        "vqa-mcan-coco",
        VQASettings(
            dataset="vqa-coco",
            model=MCANSettings(hidden=128, heads=4, layers=1, dropout=0.2),
            images=Stored("efficientnet-lite0.h5"),
            loss="cross-entropy",
            word_dim=100,
            min_count=3,
        ),
        Training(AdamW(3e-3, betas=(0.9, 0.98), weight_decay=0.05), Cosine(warmup=0.5), epochs=6, batch_size=24),
        about="small MCAN on stored 7x7 features, about five minutes",
    )


def vqa_rdan_coco() -> Recipe:
    """A small r-DAN on questions about COCO photographs, otherwise as `vqa-mcan-coco`.

    foveate extract efficientnet-lite0 DATA/images DATA/efficientnet-lite0.h5
    foveate train vqa-rdan-coco --data DATA
    """
    base = vqa_mcan_coco()
    slower = {"optimiser": replace(base.training.optimiser, lr=2e-3)}
    model = ReasoningDANSettings(hidden=256, reasoning_steps=2, dropout=0.3)
    return base.variant("vqa-rdan-coco", "small r-DAN on stored 7x7 features, about four minutes", slower, model=model)


def vqa_rdan_flickr8k() -> Recipe:
    """An r-DAN on questions made from the captions of Flickr8k, its attention guided by what each is about.

    foveate extract efficientnet-lite0+efficientnet-lite2 DATA/images DATA/efficientnet-lite02-320-views.h5 \
        --size 320 --views 2
    foveate train vqa-rdan-flickr8k --data DATA
    """
    return _grouped(
        "vqa-rdan-flickr8k",
        VQASettings(
            dataset="flickr8k-questions",
            model=ReasoningDANSettings(hidden=256, reasoning_steps=2, dropout=0.3, projected=True),
            images=Stored("efficientnet-lite02-320-views.h5", views=2),
            loss="cross-entropy",
            guidance=0.5,
            guidance_loss="scores",
            word_dim=100,
            min_count=5,
            map_size=(10, 10),
        ),
        Training(
            AdamW(1e-3, betas=(0.9, 0.98), weight_decay=0.05),
            Cosine(warmup=0.3),
            epochs=2,
            batch_size=16,
            average=0.995,
            evaluate_every=2,
        ),
        about="r-DAN on questions about photographs with known regions",
    )


def _grouped(name: str, settings: VQASettings, training: Training, about: str) -> Recipe:
    """A recipe whose examples are images with all their questions, and whose gradients are clipped at 5."""
    return Recipe(name, "vqa", replace(settings, group=True), replace(training, clip=5.0), about=about)


VQA_RECIPES: dict[str, Callable[[], Recipe]] = {
    "vqa-mcan-scenes": vqa_mcan_scenes,
    "vqa-rdan-scenes": vqa_rdan_scenes,
    "vqa-mcan-coco": vqa_mcan_coco,
    "vqa-rdan-coco": vqa_rdan_coco,
    "vqa-rdan-flickr8k": vqa_rdan_flickr8k,
}
