"""Recipes of visual question answering.

The attention over the image is a field: `foveate train vqa-mcan-scenes mechanism=tvmax`. `start=runs/<run> epochs=2`
fine-tunes a run with another mechanism, since the weights of the model are the same for all. The variants of the papers
have these names in `foveate list mechanisms`:

    discrete                                               mechanism=softmax
    one ellipse (Farinhas 2021)                            mechanism=continuous-softmax | continuous-sparsemax
    K ellipses (Farinhas 2021, K-MCA)                      mechanism=k-mca
    as many ellipses as needed (Farinhas et al. 2021)      mechanism=multimodal
    sparse, in patches (Martins et al. 2020)               mechanism=tvmax mechanism_options.smoothness=0.01
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from foveate.models import MCANSettings, ReasoningDANSettings
from foveate.tasks.images import Conv, Stored
from foveate.tasks.vqa.settings import VQASettings
from foveate.train import SGD, Adam, AdamW, Cosine, Recipe, Steps, Training


def vqa_mcan_scenes() -> Recipe:
    """A tiny MCAN on Scenes with a frozen encoder that was pretrained on objects, and guided attention (`guidance=1`).

    92.2 % on val with softmax, seed 0 (yes/no 86, number 90, other 97; of the kinds of questions only "relation", 65 %,
    and "same", 63 %, are not learnt), JS to the true regions 0.26 bits on 14x14, against 0.82 for a uniform map; about
    ten minutes on one core. Without guidance (`guidance=0`) it learns several times more slowly, and its attention is
    unrelated to the true regions.

    foveate train vqa-mcan-scenes
    """
    return Recipe(
        "vqa-mcan-scenes",
        "vqa",
        VQASettings(
            dataset="scenes",
            model=MCANSettings(hidden=64, heads=4, layers=2, dropout=0.0),
            images=Conv(start="scenes", trained=False),
            guidance=1.0,
            word_dim=64,
            max_tokens=20,
            group=True,
        ),
        Training(AdamW(1.5e-3, betas=(0.9, 0.98)), Cosine(warmup=0.6), epochs=8, batch_size=8, clip=5.0),
        about="tiny MCAN on a pretrained encoder, 92 % on val, about ten minutes",
    )


def vqa_rdan_scenes() -> Recipe:
    """A tiny r-DAN on Scenes, otherwise as `vqa-mcan-scenes`.

    foveate train vqa-rdan-scenes
    """
    base, model = vqa_mcan_scenes(), ReasoningDANSettings(hidden=128, reasoning_steps=2, dropout=0.0)
    settings = replace(base.settings, model=model, loss="cross-entropy")
    return replace(base, name="vqa-rdan-scenes", settings=settings, about="tiny r-DAN on a pretrained encoder")


def vqa_mcan_coco() -> Recipe:
    """A small MCAN on questions about COCO photographs in VQA's format, with features of EfficientNet-Lite0.

    foveate extract efficientnet-lite0 DATA/images DATA/efficientnet-lite0.h5
    foveate train vqa-mcan-coco --data DATA    (words=glove word_dim=50 starts from GloVe, extra `words`)
    """
    return Recipe(
        "vqa-mcan-coco",
        "vqa",
        VQASettings(
            dataset="vqa-coco",
            model=MCANSettings(hidden=128, heads=4, layers=1, dropout=0.2),
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
    """A small r-DAN on questions about COCO photographs, otherwise as `vqa-mcan-coco`.

    foveate extract efficientnet-lite0 DATA/images DATA/efficientnet-lite0.h5
    foveate train vqa-rdan-coco --data DATA
    """
    base = vqa_mcan_coco()
    settings = replace(base.settings, model=ReasoningDANSettings(hidden=256, reasoning_steps=2, dropout=0.3))
    training = replace(base.training, optimiser=replace(base.training.optimiser, lr=2e-3))
    about = "small r-DAN on stored 7x7 features, about four minutes"
    return replace(base, name="vqa-rdan-coco", settings=settings, training=training, about=about)


def vqa_mcan_vqa2() -> Recipe:
    """MCAN-small with discrete attention on VQA v2 as in Farinhas 2021, chapter 6: 14x14 ResNet features, 13 epochs.

    Table 6.3 reports 65.83 % on test-dev. Martins et al. 2020 use mechanism=tvmax. Not run here, since it needs a GPU.

    foveate extract hf:microsoft/resnet-152 DATA/train2014 DATA/train.h5 --size 448    (and val, test2015)
    foveate train vqa-mcan-vqa2 --data DATA
    """
    return Recipe(
        "vqa-mcan-vqa2",
        "vqa",
        VQASettings(dataset="vqa-v2", images=Stored("{split}.h5"), words="glove.6B.300d.txt"),
        Training(
            Adam(1e-4, betas=(0.9, 0.98), eps=1e-9), Steps(at=(10, 12), factor=0.2, warmup=4), epochs=13, batch_size=64
        ),
        about="MCAN as in Farinhas 2021; needs VQA v2, features and a GPU",
    )


def vqa_mcan_vqa2_continuous() -> Recipe:
    """`vqa-mcan-vqa2` with the continuous attention of Farinhas 2021, chapter 6: 100 basis functions, padding.

    Table 6.3 reports on test-dev 65.96 % for one Gaussian, 65.79 % for mechanism=continuous-sparsemax, 65.97 % for
    mechanism=k-mca and 65.85 % for mechanism=k-mca mechanism_options.components=4. For 49 basis functions, set
    mechanism_options.basis={"count": 49}. test-MCA is a run of this recipe evaluated with mechanism=multimodal.
    """
    base = vqa_mcan_vqa2()
    options = {"basis": {"count": 100, "variance": 0.001}, "padding": True, "floor": 1e-6}
    settings = replace(base.settings, mechanism="continuous-softmax", mechanism_options=options)
    about = "MCAN with continuous attention as in Farinhas 2021; needs VQA v2, features and a GPU"
    return replace(base, name="vqa-mcan-vqa2-continuous", settings=settings, about=about)


def vqa_mcan_vqa2_multimodal() -> Recipe:
    """MCAN-small with multimodal attention on VQA v2 as in Farinhas et al. 2021, §6: up to 608 locations, 15 epochs.

    The learning rate is 5e-5, multiplied by 0.2 every two epochs after the 10th, as in the released code (the paper
    prints 5e-4). The paper's penalty of 5 applies to the likelihood of a whole batch; per example it is about 0.6. The
    unimodal variant is mechanism=continuous-softmax without the options of a mixture. Not run here, since it needs a
    GPU.

    foveate import grid-feats DIR DATA/train.h5    (and val, test)
    foveate train vqa-mcan-vqa2-multimodal --data DATA
    """
    options = {"basis": {"count": 100, "variance": 0.001}, "max_components": 4, "penalty": 0.625, "floor": 1e-6}
    return Recipe(
        "vqa-mcan-vqa2-multimodal",
        "vqa",
        VQASettings(
            dataset="vqa-v2",
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
        about="MCAN as in Farinhas et al. 2021; needs VQA v2, grid features and a GPU",
    )


def vqa_rdan_vqa1() -> Recipe:
    """r-DAN on VQA v1 as in Nam et al. 2017, §4: 14x14 features of a ResNet, 2 000 answers, 60 epochs.

    They report 64.3 % on test-dev with `min(n/3, 1)`. Not run here, since it needs a GPU.

    foveate extract hf:microsoft/resnet-152 DATA/train2014 DATA/train.h5 --size 448    (and val)
    foveate train vqa-rdan-vqa1 --data DATA
    """
    return Recipe(
        "vqa-rdan-vqa1",
        "vqa",
        VQASettings(
            dataset="vqa-v1",
            model=ReasoningDANSettings(),
            images=Stored("{split}.h5"),
            loss="cross-entropy",
            word_dim=512,
            max_tokens=20,
            min_count=1,
            max_answers=2000,
            rule="lenient",
        ),
        dan_training(),
        about="r-DAN as in Nam et al. 2017; needs VQA v1, features and a GPU",
    )


def dan_training() -> Training:
    """How Nam et al. 2017 train both of their networks."""
    optimiser = SGD(0.1, momentum=0.9, weight_decay=5e-4)
    return Training(optimiser, Steps(at=(30,), factor=0.1), epochs=60, batch_size=128, clip=0.1)


VQA_RECIPES: dict[str, Callable[[], Recipe]] = {
    "vqa-mcan-scenes": vqa_mcan_scenes,
    "vqa-rdan-scenes": vqa_rdan_scenes,
    "vqa-mcan-coco": vqa_mcan_coco,
    "vqa-rdan-coco": vqa_rdan_coco,
    "vqa-mcan-vqa2": vqa_mcan_vqa2,
    "vqa-mcan-vqa2-continuous": vqa_mcan_vqa2_continuous,
    "vqa-mcan-vqa2-multimodal": vqa_mcan_vqa2_multimodal,
    "vqa-rdan-vqa1": vqa_rdan_vqa1,
}
