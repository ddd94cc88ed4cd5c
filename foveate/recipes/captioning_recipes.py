"""Recipes of captioning.

The output attention is a field: `foveate train captioning-lstm-scenes mechanism=tvmax`; the weights of the model are
the same for all mechanisms. Martins et al. 2020 compare softmax, mechanism=sparsemax and mechanism=tvmax
mechanism_options.smoothness=0.01. A batch contains `batch_size` images, each with all its captions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from foveate.models import LSTMCaptionerSettings
from foveate.tasks.captioning.settings import CaptioningSettings
from foveate.tasks.images import Conv, Stored
from foveate.train import Adam, AdamW, Cosine, Decay, Recipe, Training


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

    Not trained to its end yet: no score is known.

    foveate extract efficientnet-lite0+efficientnet-lite1+efficientnet-lite2 DATA/images DATA/efficientnet-lite012.h5
    foveate train captioning-lstm-flickr8k-joined --data DATA
    """
    base = captioning_lstm_flickr8k()
    settings = replace(
        base.settings,
        images=Stored("efficientnet-lite012.h5"),
        model=LSTMCaptionerSettings(hidden=384, score_dim=128, dropout=0.4),
        label_smoothing=0.1,
    )
    training = replace(base.training, epochs=4, batch_size=32, average=0.995, evaluate_every=4)
    about = "captioner on joined features, label smoothing, averaged weights"
    return replace(base, name="captioning-lstm-flickr8k-joined", settings=settings, training=training, about=about)


def captioning_lstm_coco() -> Recipe:
    """The setting of Martins et al. 2020, §4, on COCO in Karpathy's splits: 8x8 features of a ResNet, 50 epochs.

    Their table 1 reports on test CIDEr 0.967, BLEU-4 29.9, METEOR 24.9, ROUGE-L 52.9, SPICE 18.4, REP 3.76; for
    mechanism=sparsemax 0.990, 31.5, 25.3, 53.5, 18.9, 3.69; for mechanism=tvmax with a smoothness of 0.01 0.974, 29.9,
    25.1, 53.1, 18.5, 3.17. They do not report the batch size; 16 images is our choice. Not run here, since it needs a
    GPU.

    foveate extract hf:microsoft/resnet-152 DATA/images DATA/resnet-152.h5 --size 256
    foveate train captioning-lstm-coco --data DATA
    """
    return Recipe(
        "captioning-lstm-coco",
        "captioning",
        CaptioningSettings(
            dataset="coco-karpathy",
            train_split="train+restval",
            images=Stored("resnet-152.h5"),
        ),
        Training(Adam(1e-4, betas=(0.8, 0.999)), Decay(after=10, factor=0.99), epochs=50, batch_size=16),
        about="captioner as in Martins et al. 2020; needs COCO, features and a GPU",
    )


def captioning_lstm_flickr30k() -> Recipe:
    """The setting of Martins et al. 2020, §4, on Flickr30k in Karpathy's splits; otherwise as `captioning-lstm-coco`.

    Their table 1 reports on test CIDEr 0.443, BLEU-4 19.9, METEOR 19.1, ROUGE-L 44.2, SPICE 13.5, REP 6.09; sparsemax
    0.444, 20.7, 19.3, 44.3, 13.7, 5.84; TVmax 0.438, 20.5, 19.0, 44.2, 13.3, 3.97. Not run here, since it needs a GPU.

    foveate extract hf:microsoft/resnet-152 DATA/images DATA/resnet-152.h5 --size 256
    foveate train captioning-lstm-flickr30k --data DATA
    """
    base = captioning_lstm_coco()
    settings = replace(base.settings, dataset="flickr30k", train_split="train")
    about = "captioner as in Martins et al. 2020; needs Flickr30k, features and a GPU"
    return replace(base, name="captioning-lstm-flickr30k", settings=settings, about=about)


CAPTIONING_RECIPES: dict[str, Callable[[], Recipe]] = {
    "captioning-lstm-scenes": captioning_lstm_scenes,
    "captioning-lstm-flickr8k": captioning_lstm_flickr8k,
    "captioning-lstm-flickr8k-joined": captioning_lstm_flickr8k_joined,
    "captioning-lstm-coco": captioning_lstm_coco,
    "captioning-lstm-flickr30k": captioning_lstm_flickr30k,
}
