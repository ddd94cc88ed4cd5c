"""Recipes of matching images with sentences.

The attention over the image and the constraints on it are fields:

    sparse attention, or in patches of the grid         mechanism=sparsemax | tvmax
    locations attend to words (SCAN i2t)                direction=i2t temperature=4 lse=5
    the constraints of Chen et al. 2021, eq. 9          ccr=1 ccs=0.1 on Scenes, ccr=0.2 ccs=0.1 on Flickr8k
    a run on other data (Chen et al. 2021, table 3)     foveate evaluate RUN --data OTHER
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from foveate.lab.models import BFANSettings, DualSettings, MatchingDANSettings, MatchingModelSettings, SCANSettings
from foveate.lab.tasks.images import Conv, Stored
from foveate.lab.tasks.matching.settings import MatchingSettings, Ranking
from foveate.lab.tasks.task_settings import Constraint
from foveate.lab.train import Adam, AdamW, Cosine, Recipe, Training


def matching_scan_scenes() -> Recipe:
    """A tiny SCAN on Scenes with a frozen encoder that was pretrained on objects.

    rsum 508 on val (i2t R@1 84.6, t2i R@1 53.9), attention precision 0.68, recall 0.97, F1 0.74: softmax, seed 0, about
    six minutes on one core.

    foveate train matching-scan-scenes    (ccr=1 ccs=0.1 with constraints)
    """
    return Recipe(
        "matching-scan-scenes",
        "matching",
        MatchingSettings(
            dataset="scenes",
            model=SCANSettings(hidden=128, bidirectional="concatenate"),
            images=Conv(start="scenes", trained=False),
            ranking=Ranking(warmup_steps=100),
            ccs=Constraint(after=375),
            word_dim=64,
            min_count=1,
            captions_per_example=2,
        ),
        Training(Adam(1e-3), Cosine(warmup=0.5), epochs=3, batch_size=32, clip=2.0),
        about="tiny SCAN on a pretrained encoder, a few minutes on one core",
    )


def matching_bfan_scenes() -> Recipe:
    """A tiny BFAN on Scenes, otherwise as `matching-scan-scenes`.

    foveate train matching-bfan-scenes    (ccr=1 ccs=0.1 with constraints)
    """
    model = BFANSettings(hidden=128, bidirectional="concatenate", focal="equal")
    base = _with_model("matching-bfan-scenes", matching_scan_scenes(), model)
    return replace(base, settings=replace(base.settings, ccr=Constraint(margin=0.1)))


def matching_mdan_scenes() -> Recipe:
    """A tiny m-DAN on Scenes, otherwise as `matching-scan-scenes`.

    rsum 432 on val (i2t R@1 55.4, t2i R@1 40.5): softmax, seed 0, about three minutes on one core.

    foveate train matching-mdan-scenes
    """
    return _with_model(
        "matching-mdan-scenes", matching_scan_scenes(), MatchingDANSettings(hidden=128, dropout=0.1), margin=1.0
    )


def matching_scan_flickr8k() -> Recipe:
    """A SCAN of 512 dimensions on Flickr8k with 7x7 features of EfficientNet-Lite0 (extra `photos`).

    rsum 264 on val (i2t R@1 23.9, t2i R@1 18.5), attention F1 0.46: softmax, seed 0, about 20 minutes on one core. The
    first epoch uses soft negatives, the others the hardest one; soft negatives throughout reach 254 after ten epochs.

    foveate extract efficientnet-lite0 DATA/images DATA/efficientnet-lite0.h5
    foveate train matching-scan-flickr8k --data DATA    (ccr=0.2 ccs=0.1 with constraints)
    """
    return Recipe(
        "matching-scan-flickr8k",
        "matching",
        MatchingSettings(
            dataset="flickr8k",
            model=SCANSettings(hidden=512, bidirectional="concatenate", dropout=0.2),
            images=Stored("efficientnet-lite0.h5"),
            ranking=Ranking(warmup_steps=235, warmup_negatives="soft"),
            ccr=Constraint(margin=0.1, after=470),
            ccs=Constraint(after=470),
            word_std=0.06,
        ),
        Training(Adam(7e-4), Cosine(warmup=0.5), epochs=4, batch_size=128, clip=2.0, evaluate_every=4),
        about="SCAN on stored 7x7 features, half an hour on one core",
    )


def matching_bfan_flickr8k() -> Recipe:
    """A BFAN of 512 dimensions on Flickr8k, otherwise as `matching-scan-flickr8k`.

    rsum 284 on val (i2t R@1 29.5, t2i R@1 20.8), attention F1 0.44: softmax, seed 0, about 35 minutes on one core; 274
    and 0.28 with focal=prob, whose focus is too narrow for objects that cover many cells.

    foveate train matching-bfan-flickr8k --data DATA    (ccr=0.2 ccs=0.1 with constraints)
    """
    model = BFANSettings(hidden=512, bidirectional="concatenate", dropout=0.3, focal="equal")
    base = _with_model("matching-bfan-flickr8k", matching_scan_flickr8k(), model)
    training = replace(base.training, epochs=5, evaluate_every=5)
    settings = replace(
        base.settings,
        ranking=replace(base.settings.ranking, warmup_steps=150),
        ccr=replace(base.settings.ccr, after=588),
        ccs=replace(base.settings.ccs, after=588),
        word_dropout=0.1,
    )
    return replace(base, settings=settings, training=training)


def matching_mdan_flickr8k() -> Recipe:
    """An m-DAN of 512 dimensions on Flickr8k, otherwise as `matching-scan-flickr8k`.

    rsum 250 on val (i2t R@1 20.5, t2i R@1 17.2): softmax, seed 0, about 23 minutes on one core.

    foveate train matching-mdan-flickr8k --data DATA
    """
    base = _with_model("matching-mdan-flickr8k", matching_scan_flickr8k(), MatchingDANSettings(dropout=0.3), margin=1.0)
    ranking = replace(base.settings.ranking, softness=0.25)
    return replace(base, settings=replace(base.settings, ranking=ranking))


def matching_dual_flickr8k() -> Recipe:
    """The dual encoder without attention on Flickr8k: pooled features, a bag of words and MiniLM, InfoNCE.

    rsum 338.5 on val with seed 0 (i2t R@1 37.2, t2i R@1 27.7), about four minutes on one core; other seeds are in
    docs/results-matching.md.

    foveate extract efficientnet-lite0+efficientnet-lite1+efficientnet-lite2 DATA/images DATA/efficientnet-lite012.h5
    foveate train matching-dual-flickr8k --data DATA    (images.store=efficientnet-lite0.h5 for Lite0 alone)
    """
    return Recipe(
        "matching-dual-flickr8k",
        "matching",
        MatchingSettings(
            dataset="flickr8k",
            model=DualSettings(text="minilm"),
            images=Stored("efficientnet-lite012.h5"),
            ranking=Ranking(loss="infonce", temperature=0.04),
            word_std=0.02,
            word_dropout=0.2,
        ),
        Training(
            AdamW(1e-3, weight_decay=0.1),
            Cosine(warmup=5),
            epochs=10,
            batch_size=512,
            average=0.99,
            evaluate_every=10,
        ),
        about="dual encoder without attention, words and MiniLM, about four minutes on one core",
    )


def matching_dual_flickr8k_views() -> Recipe:
    """The dual encoder trained on four views of every image: itself, a crop, and the mirror images of both.

    rsum 349.7 and 349.5 on val, seeds 0 and 1 (i2t R@1 40.4, t2i R@1 29.3).

    foveate extract efficientnet-lite0+efficientnet-lite1+efficientnet-lite2 DATA/images \
        DATA/efficientnet-lite012-views.h5 --views 4
    foveate train matching-dual-flickr8k-views --data DATA
    """
    return matching_dual_flickr8k().variant(
        "matching-dual-flickr8k-views",
        "dual encoder without attention, four views per image, about six minutes on one core",
        {"schedule": Cosine(warmup=1), "epochs": 3, "evaluate_every": 3},
        images=Stored("efficientnet-lite012-views.h5", views=4),
    )


def matching_dual_flickr8k_words() -> Recipe:
    """The dual encoder with a bag of words alone, which needs no sentence encoder, on Lite0 alone.

    Otherwise as `matching-dual-flickr8k`; the embedded run `photos-search`. rsum 280 on val (i2t R@1 26.5, t2i R@1
    20.8), seed 0, about four minutes on one core.

    foveate train matching-dual-flickr8k-words --data DATA
    """
    return matching_dual_flickr8k().variant(
        "matching-dual-flickr8k-words",
        "dual encoder without attention, words alone, four minutes on one core",
        {"schedule": Cosine(warmup=7), "epochs": 20, "evaluate_every": 6},
        model=DualSettings(),
        images=Stored("efficientnet-lite0.h5"),
    )


def matching_scan_flickr8k_whole() -> Recipe:
    """SCAN beside the dual encoder: the same features, text, loss and regularisation, plus attention of words.

    The score is the sum of the dual encoder's cosine and of SCAN's mean relevance. SCAN starts from the layers of the
    dual encoder and is trained by itself, the dual encoder stays as it is: the difference to it is due to attention.
    rsum 332 on val, below the 338 of the dual encoder alone; attention F1 0.45: seed 0, about six minutes on one core.

    foveate train matching-dual-flickr8k --data DATA --out runs/dual
    foveate train matching-scan-flickr8k-whole dual_start=runs/dual --data DATA
    """
    base = matching_dual_flickr8k()
    whole = base.settings.model
    model = SCANSettings(
        hidden=512, dropout=0.5, roots=True, text="minilm", whole=whole, aggregate="mean", temperature=4.0
    )
    return base.variant(
        "matching-scan-flickr8k-whole",
        "SCAN beside the dual encoder, same features and text",
        {
            "optimiser": AdamW(5e-4, weight_decay=0.1),
            "schedule": Cosine(warmup=0.15),
            "epochs": 1,
            "batch_size": 64,
            "evaluate_every": 1,
        },
        model=model,
        ranking=Ranking(loss="infonce", temperature=0.04, parts="fragments"),
        captions_per_example=5,
    )


def matching_scan_flickr8k_guided() -> Recipe:
    """SCAN beside the dual encoder of views, its words guided by the boxes of the training phrases.

    As `matching-scan-flickr8k-whole`, with sharper attention (a temperature of 9) and `guidance=0.3`, which pulls a
    word towards the boxes of its phrase (Flickr30k Entities). rsum 352.9 and 352.6 on val, 3.2 above the dual
    encoder with both seeds; attention precision 0.53, recall 0.80, F1 0.52; about eight minutes on one core.

    foveate train matching-dual-flickr8k-views --data DATA --out runs/dual
    foveate train matching-scan-flickr8k-guided dual_start=runs/dual --data DATA
    """
    base = matching_scan_flickr8k_whole()
    return base.variant(
        "matching-scan-flickr8k-guided",
        "SCAN beside the dual encoder, words guided by boxes",
        model=replace(base.settings.model, temperature=9.0, whole_weight=4.0),
        images=Stored("efficientnet-lite012-views.h5"),
        captions_per_example=2,
        guidance=0.3,
    )


def matching_dual_flickr8k_fine() -> Recipe:
    """The dual encoder of `matching-dual-flickr8k-views` on 10x10 cells of two encoders, two views per image.

    rsum 355.4 on val (i2t R@1 40.0, t2i R@1 29.4), seed 0, about five minutes on one core.

    foveate extract efficientnet-lite0+efficientnet-lite2 DATA/images DATA/efficientnet-lite02-320-views.h5 \
        --size 320 --views 2
    foveate train matching-dual-flickr8k-fine --data DATA
    """
    return matching_dual_flickr8k_views().variant(
        "matching-dual-flickr8k-fine",
        "dual encoder without attention, 10x10 cells, two views",
        {"epochs": 6, "evaluate_every": 6},
        images=Stored("efficientnet-lite02-320-views.h5", views=2),
    )


def matching_scan_flickr8k_fine() -> Recipe:
    """SCAN of `matching-scan-flickr8k-guided` on 10x10 cells, with more guidance.

    rsum 360.0 on val, seed 0, 4.6 above the dual encoder; on 300 phrases pointing 0.70 and AUC 0.86 (centre 0.55 and
    0.74); about eight minutes on one core. The attention of this run alone is the embedded run `photos-matching`.

    foveate train matching-dual-flickr8k-fine --data DATA --out runs/dual
    foveate train matching-scan-flickr8k-fine dual_start=runs/dual --data DATA
    """
    return matching_scan_flickr8k_guided().variant(
        "matching-scan-flickr8k-fine",
        "SCAN beside the dual encoder, 10x10 cells, words guided by boxes",
        {"batch_size": 32},
        images=Stored("efficientnet-lite02-320-views.h5"),
        guidance=1.0,
    )


def matching_scan_flickr8k_minilm() -> Recipe:
    """SCAN of `matching-scan-flickr8k-whole` without the dual encoder beside it: attention alone.

    rsum 287 on val for the attention of that run alone, F1 0.45, seed 0.

    foveate train matching-dual-flickr8k --data DATA --out runs/dual
    foveate train matching-scan-flickr8k-minilm dual_start=runs/dual --data DATA
    """
    base = matching_scan_flickr8k_whole()
    return base.variant(
        "matching-scan-flickr8k-minilm",
        "SCAN alone, started from the dual encoder",
        model=replace(base.settings.model, whole=None),
        ranking=replace(base.settings.ranking, parts="sum"),
    )


def _with_model(name: str, base: Recipe, model: MatchingModelSettings, margin: float | None = None) -> Recipe:
    """The same training with another model."""
    ranking = base.settings.ranking if margin is None else replace(base.settings.ranking, margin=margin)
    kind: dict[type, str] = {SCANSettings: "SCAN", BFANSettings: "BFAN", MatchingDANSettings: "m-DAN"}
    about = base.about.replace(kind[type(base.settings.model)], kind[type(model)])
    return replace(base, name=name, settings=replace(base.settings, model=model, ranking=ranking), about=about)


MATCHING_RECIPES: dict[str, Callable[[], Recipe]] = {
    "matching-scan-scenes": matching_scan_scenes,
    "matching-bfan-scenes": matching_bfan_scenes,
    "matching-mdan-scenes": matching_mdan_scenes,
    "matching-scan-flickr8k": matching_scan_flickr8k,
    "matching-bfan-flickr8k": matching_bfan_flickr8k,
    "matching-mdan-flickr8k": matching_mdan_flickr8k,
    "matching-dual-flickr8k": matching_dual_flickr8k,
    "matching-dual-flickr8k-views": matching_dual_flickr8k_views,
    "matching-dual-flickr8k-words": matching_dual_flickr8k_words,
    "matching-scan-flickr8k-whole": matching_scan_flickr8k_whole,
    "matching-scan-flickr8k-guided": matching_scan_flickr8k_guided,
    "matching-dual-flickr8k-fine": matching_dual_flickr8k_fine,
    "matching-scan-flickr8k-fine": matching_scan_flickr8k_fine,
    "matching-scan-flickr8k-minilm": matching_scan_flickr8k_minilm,
}
