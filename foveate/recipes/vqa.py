"""Recipes of visual question answering.

The attention over the picture is a field: `foveate train vqa-mcan-scenes mechanism=tvmax`. A mechanism is fine-tuned
from a run trained with another by `start=runs/<run> epochs=2`: the weights are the same for all. The papers' variants,
by the names of `foveate list mechanisms`:

    discrete                        mechanism=softmax
    one ellipse (001)               mechanism=continuous-softmax | continuous-sparsemax
    K ellipses (001, K-MCA)         mechanism=k-mca
    as many as needed (000)         mechanism=multimodal
    sparse, in patches (003)        mechanism=tvmax mechanism_options.smoothness=0.01
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from foveate.recipes.recipe import Recipe
from foveate.tasks.pictures import Conv, Stored
from foveate.tasks.vqa_settings import Mcan, Rdan, VQASettings
from foveate.train import SGD, Adam, AdamW, Cosine, Steps, Training


def vqa_mcan_scenes() -> Recipe:
    """A tiny MCAN on Scenes, on an encoder that knows things but no questions, shown where to look (`guidance=1`).

    92.2 % on val with softmax, seed 0 (yes/no 86, number 90, other 97; of the kinds only "relation", 65 %, and "same",
    63 %, are not learnt), JS to the true regions 0.26 bits on 14x14 where a uniform map has 0.82; about ten minutes of
    one core. Without guidance (`guidance=0`) it learns several times more slowly, and looks where it likes.

    foveate train vqa-mcan-scenes
    """
    return Recipe(
        "vqa-mcan-scenes",
        "vqa",
        VQASettings(
            data="scenes",
            model=Mcan(hidden=64, heads=4, layers=2, dropout=0.0),
            images=Conv(start="scenes", trained=False),
            guidance=1.0,
            word_dim=64,
            max_tokens=20,
            group=True,
        ),
        Training(AdamW(1.5e-3, betas=(0.9, 0.98)), Cosine(warmup=0.6), epochs=8, batch_size=8, clip=5.0),
        about="92 % on val, about ten minutes",
    )


def vqa_rdan_scenes() -> Recipe:
    """A tiny r-DAN on Scenes, on an encoder that knows things but no questions, shown where to look (`guidance=1`).

    foveate train vqa-rdan-scenes
    """
    return Recipe(
        "vqa-rdan-scenes",
        "vqa",
        VQASettings(
            data="scenes",
            model=Rdan(hidden=128, steps=2, dropout=0.0),
            images=Conv(start="scenes", trained=False),
            loss="cross-entropy",
            guidance=1.0,
            word_dim=64,
            max_tokens=20,
            group=True,
        ),
        Training(AdamW(1.5e-3, betas=(0.9, 0.98)), Cosine(warmup=0.6), epochs=8, batch_size=8, clip=5.0),
        about="tiny r-DAN on a small encoder that knows the things of Scenes",
    )


def vqa_mcan_coco() -> Recipe:
    """A small MCAN on questions about COCO photographs in VQA's layout, on features of EfficientNet-Lite0.

    foveate extract efficientnet-lite0 DATA/images DATA/efficientnet-lite0.h5
    foveate train vqa-mcan-coco --data DATA    (words=glove word_dim=50 begins with GloVe, extra `words`)
    """
    return Recipe(
        "vqa-mcan-coco",
        "vqa",
        VQASettings(
            data="vqa-coco",
            model=Mcan(hidden=128, heads=4, layers=1, dropout=0.2),
            images=Stored("efficientnet-lite0.h5"),
            loss="cross-entropy",
            word_dim=100,
            min_count=3,
            group=True,
        ),
        Training(
            AdamW(3e-3, betas=(0.9, 0.98), weight_decay=0.05), Cosine(warmup=0.5), epochs=6, batch_size=24, clip=5.0
        ),
        about="small MCAN on stored 7x7 features, about five minutes",
    )


def vqa_rdan_coco() -> Recipe:
    """A small r-DAN on questions about COCO photographs in VQA's layout, on features of EfficientNet-Lite0.

    foveate extract efficientnet-lite0 DATA/images DATA/efficientnet-lite0.h5
    foveate train vqa-rdan-coco --data DATA
    """
    return Recipe(
        "vqa-rdan-coco",
        "vqa",
        VQASettings(
            data="vqa-coco",
            model=Rdan(hidden=256, steps=2, dropout=0.3),
            images=Stored("efficientnet-lite0.h5"),
            loss="cross-entropy",
            word_dim=100,
            min_count=3,
            group=True,
        ),
        Training(
            AdamW(2e-3, betas=(0.9, 0.98), weight_decay=0.05), Cosine(warmup=0.5), epochs=6, batch_size=24, clip=5.0
        ),
        about="small r-DAN on stored 7x7 features, about four minutes",
    )


def vqa_mcan_vqa2() -> Recipe:
    """MCAN-small with discrete attention on VQA v2 as in 001, chapter 6: 14x14 features of a ResNet, 13 epochs.

    001, table 6.3, reports 65.83 % on test-dev. Not run here: it wants a GPU. 003's is mechanism=tvmax.

    foveate extract hf:microsoft/resnet-152 DATA/train2014 DATA/train.h5 --size 448    (and val, test2015)
    foveate train vqa-mcan-vqa2 --data DATA
    """
    return Recipe(
        "vqa-mcan-vqa2",
        "vqa",
        VQASettings(data="vqa-v2", images=Stored("{split}.h5"), words="glove.6B.300d.txt"),
        Training(
            Adam(1e-4, betas=(0.9, 0.98), eps=1e-9), Steps(at=(10, 12), factor=0.2, warmup=4), epochs=13, batch_size=64
        ),
        about="001's setting; needs VQA v2, features and a GPU",
    )


def vqa_mcan_vqa2_continuous() -> Recipe:
    """`vqa-mcan-vqa2` with the continuous attention of 001, chapter 6: 100 basis functions, padding.

    001, table 6.3, reports on test-dev 65.96 % for one Gaussian, 65.79 % for mechanism=continuous-sparsemax, 65.97 %
    for mechanism=k-mca and 65.85 % for mechanism=k-mca mechanism_options.components=4. 49 basis functions:
    mechanism_options.basis={"count": 49}. test-MCA is a run of this evaluated with mechanism=multimodal.
    """
    base = vqa_mcan_vqa2()
    options = {"basis": {"count": 100, "variance": 0.001}, "padding": True, "floor": 1e-6}
    settings = replace(base.settings, mechanism="continuous-softmax", mechanism_options=options)
    return replace(base, name="vqa-mcan-vqa2-continuous", settings=settings)


def vqa_mcan_vqa2_multimodal() -> Recipe:
    """MCAN-small with multimodal attention on VQA v2 as in 000, §6: grid features of up to 608 locations, 15 epochs.

    Base rate 5e-5 and x0.2 every two epochs after the 10th, as the released code has it (the paper prints 5e-4). Its
    penalty of 5 counts the likelihood of a whole batch and is about 0.6 by example; unimodal is mechanism=
    continuous-softmax with the fields of a mixture taken out. Not run here: it wants a GPU.

    foveate import grid-feats FOLDER DATA/train.h5    (and val, test)
    foveate train vqa-mcan-vqa2-multimodal --data DATA
    """
    options = {"basis": {"count": 100, "variance": 0.001}, "max_components": 4, "penalty": 0.625, "floor": 1e-6}
    return Recipe(
        "vqa-mcan-vqa2-multimodal",
        "vqa",
        VQASettings(
            data="vqa-v2",
            images=Stored("{split}.h5"),
            mechanism="multimodal",
            mechanism_options=options,
            words="glove.6B.300d.txt",
        ),
        Training(
            Adam(5e-5, betas=(0.9, 0.98), eps=1e-9),
            Steps(at=(10, 12, 14), factor=0.2, warmup=4),
            epochs=15,
            batch_size=64,
        ),
        about="000's setting; needs VQA v2, grid features and a GPU",
    )


def vqa_rdan_vqa1() -> Recipe:
    """r-DAN on VQA v1 as in 004, §4: 14x14 features of a ResNet, 2 000 answers, 60 epochs.

    004 reports 64.3 % on test-dev with `min(n/3, 1)`. Not run here: it wants a GPU.

    foveate extract hf:microsoft/resnet-152 DATA/train2014 DATA/train.h5 --size 448    (and val)
    foveate train vqa-rdan-vqa1 --data DATA
    """
    return Recipe(
        "vqa-rdan-vqa1",
        "vqa",
        VQASettings(
            data="vqa-v1",
            model=Rdan(),
            images=Stored("{split}.h5"),
            loss="cross-entropy",
            word_dim=512,
            max_tokens=20,
            min_count=1,
            max_answers=2000,
            rule="lenient",
        ),
        Training(
            SGD(0.1, momentum=0.9, weight_decay=5e-4), Steps(at=(30,), factor=0.1), epochs=60, batch_size=128, clip=0.1
        ),
        about="004's setting; needs VQA v1, features and a GPU",
    )


VQA_RECIPES: dict[str, Callable[[], Recipe]] = {
    make().name: make
    for make in (
        vqa_mcan_scenes,
        vqa_rdan_scenes,
        vqa_mcan_coco,
        vqa_rdan_coco,
        vqa_mcan_vqa2,
        vqa_mcan_vqa2_continuous,
        vqa_mcan_vqa2_multimodal,
        vqa_rdan_vqa1,
    )
}
