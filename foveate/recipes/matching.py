"""Recipes of matching pictures with sentences.

The attention over the picture and the constraints on it are fields:

    words look sparsely, or in patches of the grid      mechanism=sparsemax | tvmax
    locations look at words (SCAN i2t)                  direction=i2t temperature=4 lse=5
    the constraints of 002, equation 9                  ccr=1 ccs=0.1 on Scenes, ccr=0.2 ccs=0.1 on Flickr8k
    a run on other data (002, table 3)                  foveate evaluate RUN --data OTHER
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from foveate.recipes.recipe import Recipe
from foveate.tasks.matching_settings import Bfan, MatchingSettings, Mdan, Model, Scan
from foveate.tasks.pictures import Conv, Stored
from foveate.train import SGD, Adam, Cosine, Steps, Training


def matching_scan_scenes() -> Recipe:
    """A tiny SCAN on Scenes, on an encoder that knows things but no words.

    rsum 508 on val (i2t R@1 84.6, t2i R@1 53.9), attention precision 0.68, recall 0.97, F1 0.74: softmax, seed 0, about
    six minutes of one core.

    foveate train matching-scan-scenes    (ccr=1 ccs=0.1 with constraints)
    """
    return Recipe(
        "matching-scan-scenes",
        "matching",
        MatchingSettings(
            data="scenes",
            model=Scan(hidden=128, directions="concatenate"),
            images=Conv(start="scenes", trained=False),
            easy_batches=100,
            ccs_after=375,
            word_dim=64,
            min_count=1,
            captions_each=2,
        ),
        Training(Adam(1e-3), Cosine(warmup=0.5), epochs=3, batch_size=32, clip=2.0),
        about="tiny SCAN on a small encoder that knows the things of Scenes; minutes on one core",
    )


def matching_bfan_scenes() -> Recipe:
    """A tiny BFAN on Scenes, on an encoder that knows things but no words.

    foveate train matching-bfan-scenes    (ccr=1 ccs=0.1 with constraints)
    """
    model = Bfan(hidden=128, directions="concatenate", focal="equal")
    base = _with_model("matching-bfan-scenes", matching_scan_scenes(), model)
    return replace(base, settings=replace(base.settings, ccr_margin=0.1))


def matching_mdan_scenes() -> Recipe:
    """A tiny m-DAN on Scenes, on an encoder that knows things but no words.

    rsum 432 on val (i2t R@1 55.4, t2i R@1 40.5): softmax, seed 0, about three minutes of one core.

    foveate train matching-mdan-scenes
    """
    return _with_model("matching-mdan-scenes", matching_scan_scenes(), Mdan(hidden=128, dropout=0.1), margin=1.0)


def matching_scan_flickr8k() -> Recipe:
    """A SCAN of 512 dimensions on Flickr8k, on 7x7 features of EfficientNet-Lite0 (extra photos).

    rsum 264 on val (i2t R@1 23.9, t2i R@1 18.5), attention F1 0.46: softmax, seed 0, about 20 minutes of one core. The
    first epoch takes all negatives, softly, the others the hardest one; soft ones throughout have 254 after ten.

    foveate extract efficientnet-lite0 DATA/images DATA/efficientnet-lite0.h5
    foveate train matching-scan-flickr8k --data DATA    (ccr=0.2 ccs=0.1 with constraints)
    """
    return Recipe(
        "matching-scan-flickr8k",
        "matching",
        MatchingSettings(
            data="flickr8k",
            model=Scan(hidden=512, directions="concatenate", dropout=0.2),
            images=Stored("efficientnet-lite0.h5"),
            easy="soft",
            easy_batches=235,
            ccr_margin=0.1,
            ccr_after=470,
            ccs_after=470,
            word_std=0.06,
        ),
        Training(Adam(7e-4), Cosine(warmup=0.5), epochs=4, batch_size=128, clip=2.0, evaluate_every=4),
        about="SCAN on stored 7x7 features, half an hour of one core",
    )


def matching_bfan_flickr8k() -> Recipe:
    """A BFAN of 512 dimensions on Flickr8k, otherwise as `matching-scan-flickr8k`.

    rsum 284 on val (i2t R@1 29.5, t2i R@1 20.8), attention F1 0.44: softmax, seed 0, about 35 minutes of one core; 274
    and 0.28 with focal=prob, whose focus is too narrow for things of many cells.

    foveate train matching-bfan-flickr8k --data DATA    (ccr=0.2 ccs=0.1 with constraints)
    """
    model = Bfan(hidden=512, directions="concatenate", dropout=0.3, focal="equal")
    base = _with_model("matching-bfan-flickr8k", matching_scan_flickr8k(), model)
    training = replace(base.training, epochs=5, evaluate_every=5)
    settings = replace(base.settings, easy_batches=150, ccr_after=588, ccs_after=588, forget=0.1)
    return replace(base, settings=settings, training=training)


def matching_mdan_flickr8k() -> Recipe:
    """An m-DAN of 512 dimensions on Flickr8k, otherwise as `matching-scan-flickr8k`.

    rsum 250 on val (i2t R@1 20.5, t2i R@1 17.2): softmax, seed 0, about 23 minutes of one core.

    foveate train matching-mdan-flickr8k --data DATA
    """
    base = _with_model("matching-mdan-flickr8k", matching_scan_flickr8k(), Mdan(dropout=0.3), margin=1.0)
    return replace(base, settings=replace(base.settings, softness=0.25))


def matching_scan_flickr30k() -> Recipe:
    """SCAN on Flickr30K as Lee et al. 2018 and 002 train it: 36 regions of bottom-up attention, 30 epochs.

    002, table 1, reports rsum 463.5, and 477.1 with both constraints, whose margins and weights it does not print. Not
    run here: it wants a GPU.

    foveate import scan FOLDER DATA/train.h5 --split train    (and val)
    foveate train matching-scan-flickr30k --data DATA
    """
    return Recipe(
        "matching-scan-flickr30k",
        "matching",
        MatchingSettings(data="flickr30k", model=Scan(), images=Stored("{split}.h5"), max_words=80),
        Training(Adam(2e-4), Steps(at=(15,), factor=0.1), epochs=30, batch_size=128, clip=2.0),
        about="002's setting; needs Flickr30K, region features and a GPU",
    )


def matching_scan_coco() -> Recipe:
    """SCAN on COCO as 002 trains it: Karpathy's splits, evaluated as 5K and as five folds of 1K; /10 at epoch 10 of 20.

    002, table 2, reports rsum 490.7 (1K), and 502.4 with both constraints. Not run here: it wants a GPU.

    foveate train matching-scan-coco --data DATA
    """
    base = matching_scan_flickr30k()
    settings = replace(base.settings, data="coco-karpathy", train_split="train+restval", folds=5)
    training = replace(base.training, optimiser=Adam(5e-4), schedule=Steps(at=(10,), factor=0.1), epochs=20)
    return replace(
        base,
        name="matching-scan-coco",
        settings=settings,
        training=training,
        about="002's setting; needs COCO, region features and a GPU",
    )


def matching_bfan_flickr30k() -> Recipe:
    """BFAN on Flickr30K as 002 trains it, otherwise as `matching-scan-flickr30k`.

    002, table 1, reports rsum 482.5, and 490.0 with both constraints. Not run here: it wants a GPU.

    foveate train matching-bfan-flickr30k --data DATA    (focal=equal for the other one)
    """
    return _with_model("matching-bfan-flickr30k", matching_scan_flickr30k(), Bfan())


def matching_bfan_coco() -> Recipe:
    """BFAN on COCO as 002 trains it, otherwise as `matching-scan-coco`.

    002, table 2, reports rsum 509.5 (1K), and 512.7 with both constraints. Not run here: it wants a GPU.

    foveate train matching-bfan-coco --data DATA
    """
    return _with_model("matching-bfan-coco", matching_scan_coco(), Bfan())


def matching_mdan_flickr30k() -> Recipe:
    """m-DAN on Flickr30K as in 004, §4: 14x14 features of a ResNet, random negatives with margin 100, 60 epochs.

    004, table 2, reports R@1 55.0 (sentences) and 39.4 (pictures). Not run here: it wants a GPU.

    foveate extract hf:microsoft/resnet-152 DATA/images DATA/train.h5 --size 448    (and val)
    foveate train matching-mdan-flickr30k --data DATA
    """
    return Recipe(
        "matching-mdan-flickr30k",
        "matching",
        MatchingSettings(
            data="flickr30k",
            model=Mdan(),
            images=Stored("{split}.h5"),
            margin=100.0,
            negatives="random",
            word_dim=512,
            min_count=1,
        ),
        Training(
            SGD(0.1, momentum=0.9, weight_decay=5e-4), Steps(at=(30,), factor=0.1), epochs=60, batch_size=128, clip=0.1
        ),
        about="004's setting; needs Flickr30K, features and a GPU",
    )


def _with_model(name: str, base: Recipe, model: Model, margin: float | None = None) -> Recipe:
    """The same training of another network."""
    kept = base.settings.margin if margin is None else margin
    kind = {Scan: "SCAN", Bfan: "BFAN", Mdan: "m-DAN"}
    about = base.about.replace(kind[type(base.settings.model)], kind[type(model)])
    return replace(base, name=name, settings=replace(base.settings, model=model, margin=kept), about=about)


MATCHING_RECIPES: dict[str, Callable[[], Recipe]] = {
    make().name: make
    for make in (
        matching_scan_scenes,
        matching_bfan_scenes,
        matching_mdan_scenes,
        matching_scan_flickr8k,
        matching_bfan_flickr8k,
        matching_mdan_flickr8k,
        matching_scan_flickr30k,
        matching_scan_coco,
        matching_bfan_flickr30k,
        matching_bfan_coco,
        matching_mdan_flickr30k,
    )
}
