"""Captioning: images to sentences, judged by human captions and by where the model looks for each word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from foveate.errors import DataError
from foveate.lab.data.samples import DataRoot
from foveate.lab.data.vocabulary import BOS, EOS, PAD, UNKNOWN
from foveate.lab.features import ImageFeatures
from foveate.lab.losses import kl_guidance, word_cross_entropy
from foveate.lab.metrics import CaptionQuality, WordAttentionMetrics
from foveate.lab.models import Captioned, Captioner
from foveate.lab.models.decoding import Decoded
from foveate.lab.tasks.captioning.constraints import sample_one_word, self_critical_loss, word_resourcing, word_swapping
from foveate.lab.tasks.captioning.data import CaptionBatch, CaptionExample, CaptionExamples, collate
from foveate.lab.tasks.captioning.predictor import CaptionPredictor
from foveate.lab.tasks.captioning.report import DEMO, PRESENTATION
from foveate.lab.tasks.captioning.settings import CaptioningSettings
from foveate.lab.tasks.guidance import phrase_targets, score_guidance
from foveate.lab.tasks.images import encoder_input
from foveate.lab.tasks.inputs import CaptionedTask, CombinedMetrics
from foveate.lab.tasks.presentation import Demo, Presentation
from foveate.lab.tasks.task import Loss

# Tokens that are never generated.
FORBIDDEN = (PAD, UNKNOWN, BOS)


@dataclass(frozen=True)
class CaptionPrediction:
    """The captions of a batch of images.

    Attributes:
        captions: one text per image.
        maps: (P, T, H, W) attention maps of the words; None for features without a grid.
        mask: (P, T) True where there is a word.
    """

    captions: list[str]
    maps: Tensor | None
    mask: Tensor


class CaptionMetrics(CombinedMetrics[CaptionPrediction, CaptionBatch]):
    """Quality of the captions and attention; see `CaptionQuality` and `WordAttentionMetrics` for the names."""

    def __init__(self, java: bool | None, spice: bool) -> None:
        self.quality, self.attention = CaptionQuality(java, spice), WordAttentionMetrics()
        super().__init__(quality=self.quality, attention=self.attention)

    def update(self, prediction: CaptionPrediction, batch: CaptionBatch) -> None:
        examples = batch.examples
        references = [[caption.text for caption in example.captions] for example in examples]
        objects = [example.objects for example in examples]
        self.quality.update([example.id for example in examples], prediction.captions, references, objects)
        if prediction.maps is not None:
            self.attention.update(prediction.maps, prediction.mask, [(str(e.id), str(e.id)) for e in examples])


@dataclass(frozen=True)
class Captioning(CaptionedTask[CaptioningSettings, Captioner, CaptionExample, CaptionBatch, CaptionPrediction]):
    """Captioning with any attention and dataset of the settings.

    Attributes:
        settings: everything that can be chosen.
        inputs: the tokens of captions and the origin of the features.
        trained: a trained run is evaluated with METEOR and the tokenizer of the evaluation server if Java is installed;
            evaluations during training do without, since they only choose among checkpoints.

    >>> from foveate.lab.models import LSTMCaptionerSettings
    >>> from foveate.lab.tasks.images import Conv
    >>> settings = CaptioningSettings(model=LSTMCaptionerSettings(hidden=8), images=Conv((8, 8)), word_dim=8, limit=4)
    >>> task = Captioning.from_data(settings, None)
    >>> batch = task.collate([task.examples("train", None)[0]])
    >>> task.run(task.build_model(), batch).image.map().shape[-2:]
    torch.Size([28, 28])
    """

    Settings: ClassVar[type] = CaptioningSettings
    objective: ClassVar[str] = "cider-d"
    presentation: ClassVar[Presentation] = PRESENTATION
    demo: ClassVar[Demo | None] = DEMO

    trained: bool = False

    def build_model(self) -> Captioner:
        """The network of the settings."""
        chosen = self.settings
        encoder = chosen.images.build_encoder(self.inputs.image_dim)
        return chosen.model.build(len(self.inputs.words), chosen.word_dim, encoder, chosen.attention())

    def initialise(self, model: Captioner, root: DataRoot = None) -> None:
        """Load the image encoder of the settings."""
        self.inputs.initialise(self.settings, model.image, None, None)

    def examples(self, split: str, root: DataRoot) -> CaptionExamples:
        """The images of a split with their captions."""
        source = self.settings.image_source(root, split, self.inputs.store)
        settings, rated = self.settings, split == "train" and self.settings.self_critical > 0
        return CaptionExamples(settings.read(split, root), source, views=settings.views(split), rated=rated)

    def collate(self, examples: Sequence[CaptionExample]) -> CaptionBatch:
        """One batch."""
        return collate(examples, self.inputs, self.settings.max_words)

    def loss(self, model: Captioner, batch: CaptionBatch, step: int) -> Loss:
        """The cross-entropy of the captions plus the constraints on attention, each with its weight.

        In self-critical training, the loss of captions that the model samples.
        """
        if self.settings.self_critical:
            return self._criticise(model, batch)
        captioned, chosen = self.run(model, batch), self.settings
        targets = batch.targets[batch.mask]
        parts = {"words": word_cross_entropy(captioned.scores, targets, smoothing=chosen.label_smoothing)}
        total = parts["words"]
        if chosen.guidance:
            parts["guidance"] = _guidance(model, captioned, batch)
            total = total + chosen.guidance * parts["guidance"]
        if chosen.ccr.weight or chosen.ccs.weight:
            sampled = sample_one_word(model, captioned, batch.tokens, batch.targets, batch.index)
            for name, constraint in (("ccr", word_resourcing), ("ccs", word_swapping)):
                setting = getattr(chosen, name)
                # Zero until it starts, so that all batches have the same parts.
                active = setting.active(step)
                parts[name] = constraint(sampled, margin=setting.margin) if active else total.new_zeros(())
                total = total + setting.weight * parts[name]
        return Loss(total, len(targets), parts)

    def _criticise(self, model: Captioner, batch: CaptionBatch) -> Loss:
        sampled = self.sample(model, batch.images, count=self.settings.self_critical)
        images = encoder_input(model.image, batch.images)
        found = self_critical_loss(model, images, sampled, batch.examples, self.inputs.words)
        count = found.rewards.numel()
        return Loss(found.total, count, {"words": found.total, "reward": found.rewards.sum().to(found.total)})

    def run(self, model: Captioner, batch: CaptionBatch) -> Captioned:
        """The output of the model for the captions of a batch; images are normalised first."""
        images = encoder_input(model.image, batch.images)
        captioned: Captioned = model(images, batch.tokens, batch.mask, batch.index)
        return captioned

    def write(self, model: Captioner, images: Tensor | ImageFeatures, **search: Any) -> tuple[Decoded, Captioned]:
        """Captions of images, and the attention for each word of the best one.

        Args:
            model: the captioner.
            images: of a batch.
            search: options of `beam_search` that differ from the settings.
        """
        names = ("max_words", "beams", "length_penalty", "no_repeat")
        options = {name: getattr(self.settings, name) for name in names}
        ready = encoder_input(model.image, images)
        found = model.caption(ready, bos=BOS, eos=EOS, forbidden=FORBIDDEN, **(options | search))
        return found, self.read(model, ready, found.words[:, 0], found.mask[:, 0])

    def greedy(self, model: Captioner, images: Tensor) -> tuple[Tensor, Tensor]:
        """Token ids and log-probabilities of the captions word by word, in a loop of fixed length."""
        ready = encoder_input(model.image, images)
        return model.greedy(ready, bos=BOS, eos=EOS, forbidden=FORBIDDEN, max_words=self.settings.max_words)

    def sample(self, model: Captioner, images: Tensor | ImageFeatures, **options: Any) -> Decoded:
        """Captions drawn at random; `options` as in `Captioner.sample`."""
        ready = encoder_input(model.image, images)
        return model.sample(ready, bos=BOS, eos=EOS, forbidden=FORBIDDEN, max_words=self.settings.max_words, **options)

    @staticmethod
    def read(model: Captioner, images: Tensor | ImageFeatures, words: Tensor, mask: Tensor) -> Captioned:
        """The output of the model for captions (B, T) that it wrote itself: position t is how it came to word t."""
        before = torch.cat([torch.full_like(words[:, :1], BOS), words[:, :-1]], 1)
        captioned: Captioned = model(images, before, torch.cat([torch.ones_like(mask[:, :1]), mask[:, :-1]], 1))
        return captioned

    def predict(self, model: Captioner, batch: CaptionBatch) -> CaptionPrediction:
        """The captions, and where the model looked for their words."""
        found, captioned = self.write(model, batch.images)
        words, mask, attended = found.words[:, 0], found.mask[:, 0], captioned.image
        maps = None if attended.grid is None else attended.map().cpu()
        return CaptionPrediction([self.text(row) for row in words.tolist()], maps, mask.cpu())

    def text(self, ids: Sequence[int]) -> str:
        """Token ids as a sentence."""
        return " ".join(self.inputs.words.decode(ids))

    def metrics(self) -> CaptionMetrics:
        """Quality of the captions and attention."""
        return CaptionMetrics(None if self.trained else False, self.trained and self.settings.spice)

    def result_rows(self, prediction: CaptionPrediction, batch: CaptionBatch) -> list[dict[str, Any]]:
        """The rows of COCO's result file."""
        pairs = zip(batch.examples, prediction.captions, strict=True)
        return [{"image_id": example.id, "caption": caption} for example, caption in pairs]

    def predictor(self, model: Captioner) -> CaptionPredictor:
        """The model behind `caption(image)`."""
        return CaptionPredictor(replace(self, trained=True), model)


# Words that name nothing: between phrases they are drawn to the whole image, before a noun to what it names.
EMPTY = frozenset((
    "is", "are", "and", "in", "on", "of", "with", "at", "to", "by", "from", "for", "while", "as", "that", "through",
    "over", "into",
))  # fmt: skip


def _guidance(model: Captioner, captioned: Captioned, batch: CaptionBatch) -> Tensor:
    """The divergence of both attentions of the words from the boxes of their phrases: a sum over the words of phrases.

    The output attention has the loss of its mechanism, whose gradient also reaches locations without weight; the input
    attention is softmax. The output attention of words that name nothing is drawn to the whole image.
    """
    attended = captioned.image
    if attended.grid is None:
        raise DataError("guidance: expected features on a grid, got regions; set guidance=0 or use other features")
    captions = [caption for example in batch.examples for caption in example.captions]
    shapes = attended.grid.tolist() if isinstance(attended.grid, Tensor) else [attended.grid] * len(captions)
    targets = phrase_targets(captions, [(H, W) for H, W in shapes], captioned.image_scores, first=0)
    targets = targets * batch.mask[..., None]
    guided = targets.any(-1)
    T = guided.shape[1]
    rows = [
        [word in EMPTY for word in caption.tokens[:T]] + [False] * (T - len(caption.tokens)) for caption in captions
    ]
    even = torch.tensor(rows, device=targets.device) & batch.mask & ~guided
    wide = targets + even[..., None].to(targets)  # rows need not sum to one
    own = score_guidance(model.attend, captioned.image_scores, wide, grid=attended.grid, mask=attended.mask)
    before = kl_guidance(captioned.input_weights[guided][:, None], targets[guided][:, None])
    return own + before
