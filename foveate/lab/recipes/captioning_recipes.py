"""Recipes of captioning.

The output attention is a field: `foveate train captioning-lstm-scenes mechanism=tvmax`; the weights of the model are
the same for all mechanisms. Martins et al. 2020 compare softmax, mechanism=sparsemax and mechanism=tvmax
mechanism_options.smoothness=0.01. A batch contains `batch_size` images, each with all its captions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from foveate.lab.models import LSTMCaptionerSettings
from foveate.lab.tasks.captioning.settings import CaptioningSettings
from foveate.lab.tasks.images import Conv, Stored
from foveate.lab.train import AdamW, Cosine, Recipe, Training


def captioning_lstm_scenes() -> Recipe:
    """A small captioner on Scenes with a frozen encoder that was pretrained on objects.

    Softmax, seed 0, val, 3 beams, plain tokenizer: CIDEr-D 0.97, BLEU-4 0.296, REP 15.3, in about four minutes on one
    core; docs/results-captioning.md has all mechanisms.

    foveate train captioning-lstm-scenes
    """
    return Recipe(
        "captioning-lstm-scenes",
        "captioning",
        CaptioningSettings(
            dataset="scenes",
            images=Conv(start="scenes", trained=False),
            model=LSTMCaptionerSettings(hidden=128),
            word_dim=64,
            min_count=1,
            max_words=30,
        ),
        Training(AdamW(3e-3, betas=(0.9, 0.98)), Cosine(warmup=0.5), epochs=4, batch_size=16, clip=5.0),
        about="small captioner on a pretrained encoder, about four minutes",
    )


def captioning_lstm_flickr8k() -> Recipe:
    """A small captioner on Flickr8k with features of EfficientNet-Lite0.

    Softmax, seed 0, val, 3 beams, plain tokenizer: CIDEr-D 0.455, BLEU-4 0.188, ROUGE-L 0.442, in about eight minutes
    on one core; docs/results-captioning.md has all mechanisms.

    foveate extract efficientnet-lite0 DATA/images DATA/efficientnet-lite0.h5
    foveate train captioning-lstm-flickr8k --data DATA
    """
    return Recipe(
        "captioning-lstm-flickr8k",
        "captioning",
        CaptioningSettings(
            dataset="flickr8k",
            images=Stored("efficientnet-lite0.h5"),
            model=LSTMCaptionerSettings(hidden=256, score_dim=128, dropout=0.3),
            word_dim=256,
        ),
        Training(AdamW(1.5e-3, betas=(0.9, 0.98)), Cosine(warmup=0.5), epochs=3, batch_size=16, clip=5.0),
        about="small captioner on stored 7x7 features, about eight minutes",
    )


def captioning_lstm_flickr8k_joined() -> Recipe:
    """A captioner on Flickr8k with joined features, label smoothing and averaged weights; trained by cross-entropy.

    Softmax, seed 0, val, 3 beams: CIDEr-D 0.498, BLEU-4 0.203, ROUGE-L 0.452,
    METEOR 0.197, in 16 minutes on one core beside other work.

    foveate extract efficientnet-lite0+efficientnet-lite1+efficientnet-lite2 DATA/images DATA/efficientnet-lite012.h5
    foveate train captioning-lstm-flickr8k-joined --data DATA
    """
    base = captioning_lstm_flickr8k()
    return base.variant(
        "captioning-lstm-flickr8k-joined",
        "captioner on joined features, label smoothing, averaged weights",
        {"average": 0.995, "evaluate_every": base.training.epochs},
        images=Stored("efficientnet-lite012.h5"),
        word_dim=192,
        label_smoothing=0.1,
    )


def captioning_lstm_flickr8k_views() -> Recipe:
    """The captioner of `captioning-lstm-flickr8k-joined` trained on four views of every image, twice.

    Softmax, val, 3 beams: CIDEr-D 0.531 and 0.549, BLEU-4 0.218 and 0.220,
    METEOR 0.203 and 0.206, REP 2.9 and 2.4, seeds 0 and 1, in 20 to 30 minutes on one core beside other work.

    foveate extract efficientnet-lite0+efficientnet-lite1+efficientnet-lite2 DATA/images \
        DATA/efficientnet-lite012-views.h5 --views 4
    foveate train captioning-lstm-flickr8k-views --data DATA
    """
    return captioning_lstm_flickr8k_joined().variant(
        "captioning-lstm-flickr8k-views",
        "captioner on joined features, four views per image",
        {"epochs": 2, "evaluate_every": 2},
        images=Stored("efficientnet-lite012-views.h5", views=4),
    )


def captioning_lstm_flickr8k_guided() -> Recipe:
    """A captioner on cells of 32 pixels, both of whose attentions are drawn to the boxes of the training phrases.

    The embedded run `photos-captioning`. Softmax, seed 0, val, 3 beams: CIDEr-D 0.543, BLEU-4 0.222; on 300 phrases
    pointing 0.69 and AUC 0.86 (centre 0.55 and 0.74); twenty minutes on one core.

    foveate extract efficientnet-lite0+efficientnet-lite2 DATA/images DATA/efficientnet-lite02-320-views.h5 \
        --size 320 --views 2
    foveate train captioning-lstm-flickr8k-guided --data DATA
    """
    base = captioning_lstm_flickr8k_views()
    return base.variant(
        "captioning-lstm-flickr8k-guided",
        "captioner on 10x10 cells, attention guided by boxes",
        {"epochs": 4, "evaluate_every": 4},
        model=replace(base.settings.model, roots=True, scores="product"),
        images=Stored("efficientnet-lite02-320-views.h5", views=2),
        guidance=1.0,
    )


CAPTIONING_RECIPES: dict[str, Callable[[], Recipe]] = {
    "captioning-lstm-scenes": captioning_lstm_scenes,
    "captioning-lstm-flickr8k": captioning_lstm_flickr8k,
    "captioning-lstm-flickr8k-joined": captioning_lstm_flickr8k_joined,
    "captioning-lstm-flickr8k-views": captioning_lstm_flickr8k_views,
    "captioning-lstm-flickr8k-guided": captioning_lstm_flickr8k_guided,
}
