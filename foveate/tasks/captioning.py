"""Captioning: pictures to sentences, judged by what people wrote and by where the model looks for each word."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from foveate.data.features import ImageFeatures, StoreDescription
from foveate.data.samples import Dataset
from foveate.data.vocabulary import END, PAD, START, UNKNOWN, Vocabulary
from foveate.losses import word_cross_entropy
from foveate.metrics import CaptionQuality, WordLooks
from foveate.models import Captioned, Captioner
from foveate.models.decoding import Decoded
from foveate.tasks.captioning_constraints import draw_words, word_resourcing, word_swapping
from foveate.tasks.captioning_data import CaptionBatch, CaptionExample, CaptionExamples, collate
from foveate.tasks.captioning_predictor import CaptionPredictor
from foveate.tasks.captioning_settings import CaptioningSettings
from foveate.tasks.examples import load_split
from foveate.tasks.pictures import encoder_input
from foveate.tasks.task import Loss, Metrics, Task

NEVER = (PAD, UNKNOWN, START)


@dataclass(frozen=True)
class CaptionPrediction:
    """The captions of a batch of pictures.

    Attributes:
        captions: one text a picture.
        maps: (P, T, H, W) where the model looked for each word; None for features without a grid.
        mask: (P, T) True where there is a word.
    """

    captions: list[str]
    maps: Tensor | None
    mask: Tensor


class CaptionMetrics(Metrics):
    """How good the captions are, and where the model looked; see `CaptionQuality` and `WordLooks` for the names."""

    def __init__(self, java: bool | None, spice: bool) -> None:
        self.quality, self.looks = CaptionQuality(java, spice), WordLooks()

    def update(self, prediction: CaptionPrediction, batch: CaptionBatch) -> None:
        examples = batch.examples
        people = [[caption.text for caption in example.captions] for example in examples]
        things = [example.things for example in examples]
        self.quality.update([example.id for example in examples], prediction.captions, people, things)
        if prediction.maps is not None:
            self.looks.update(prediction.maps, prediction.mask)

    def state(self) -> dict[str, Any]:
        return {"quality": self.quality.state(), "looks": self.looks.state()}

    def merge(self, state: Mapping[str, Any]) -> None:
        self.quality.merge(state["quality"])
        self.looks.merge(state["looks"])

    def compute(self) -> dict[str, float]:
        return self.quality.compute() | self.looks.compute()


@dataclass(frozen=True)
class Captioning(Task):
    """Captioning with any attention and data of the settings.

    Attributes:
        settings: what was chosen.
        words: that captions are read and written with.
        image_dim: size of the features, None when the model reads pictures.
        store: what the features are, to encode new pictures the same way.
        trained: a trained run is measured with METEOR and the tokenizer of the evaluation server where Java is there;
            evaluations during training do without, since they only choose among weights.

    >>> from foveate.tasks.pictures import Conv
    >>> task = Captioning.from_data(CaptioningSettings(images=Conv((8, 8)), word_dim=8, hidden=8, limit=4), None)
    >>> batch = task.collate([task.examples("train", None)[0]])
    >>> task.run(task.build_model(), batch).image.map().shape[-2:]
    torch.Size([28, 28])
    """

    Settings: ClassVar[type] = CaptioningSettings
    objective: ClassVar[str] = "cider-d"
    headlines: ClassVar[Mapping[str, str]] = {
        "cider-d": "CIDEr-D",
        "bleu-4": "BLEU-4",
        "rouge-l": "ROUGE-L",
        "meteor": "METEOR",
        "rep": "REP",
        "js between words": "JS between words",
        "zero area": "zero area",
        "mentioned": "objects",
        "words": "words",
    }

    settings: CaptioningSettings
    words: Vocabulary
    image_dim: int | None = None
    store: StoreDescription | None = None
    trained: bool = False

    @classmethod
    def from_data(cls, settings: CaptioningSettings, root: Path | None) -> Captioning:
        """The task with the words of the training split."""
        data = cls._split(settings, root, "train")
        words = Vocabulary.from_tokens((caption.tokens for caption in data.captions), settings.min_count)
        return cls(settings, words, *settings.images.describe(root))

    @classmethod
    def from_vocabulary(cls, settings: CaptioningSettings, vocabulary: Mapping[str, Any]) -> Captioning:
        """The task of a run."""
        store = vocabulary["store"]
        return cls(
            settings,
            Vocabulary.from_json(vocabulary["words"]),
            vocabulary["image_dim"],
            None if store is None else StoreDescription(**store),
        )

    def vocabulary(self) -> dict[str, Any]:
        """Words, and what the stored features are."""
        return {
            "words": self.words.to_json(),
            "image_dim": self.image_dim,
            "store": None if self.store is None else dict(vars(self.store)),
        }

    def build_model(self) -> Captioner:
        """The network of the settings."""
        chosen = self.settings
        return Captioner(
            chosen.images.encoder(self.image_dim),
            chosen.attention(),
            vocabulary=len(self.words),
            word_dim=chosen.word_dim,
            hidden=chosen.hidden,
            score_dim=chosen.score_dim,
            dropout=chosen.dropout,
        )

    def initialise(self, model: nn.Module) -> None:
        """Put in what does not begin at random: the picture encoder of the settings."""
        self.settings.images.initialise(cast(nn.Module, model.image))

    def examples(self, split: str, root: Path | None) -> CaptionExamples:
        """The pictures of a split with their captions."""
        data = self._split(self.settings, root, split)
        return CaptionExamples(data, self.settings.images.source(root, split, self.store))

    @staticmethod
    def _split(settings: CaptioningSettings, root: Path | None, split: str) -> Dataset:
        name = settings.train_split if split == "train" else split
        need = settings.images.reads_pictures
        return load_split(settings.data, root, name, content="captions", limit=settings.limit, need_pictures=need)

    def collate(self, examples: Sequence[CaptionExample]) -> CaptionBatch:
        """One batch."""
        return collate(examples, self.words, self.settings.max_words)

    def loss(self, model: nn.Module, batch: CaptionBatch) -> Loss:
        """The cross-entropy of the words that people wrote, and the constraints on attention that are chosen."""
        captioned, chosen = self.run(model, batch), self.settings
        targets = batch.targets[batch.mask]
        parts = {"words": word_cross_entropy(captioned.scores, targets)}
        total = parts["words"]
        if chosen.ccr or chosen.ccs:
            drawn = draw_words(cast(Captioner, model), captioned, batch.tokens, batch.targets, batch.index)
            parts["ccr"] = word_resourcing(drawn, margin=chosen.ccr_margin)
            parts["ccs"] = word_swapping(drawn, margin=chosen.ccs_margin)
            total = total + chosen.ccr * parts["ccr"] + chosen.ccs * parts["ccs"]
        return Loss(total, len(targets), parts)

    def run(self, model: nn.Module, batch: CaptionBatch) -> Captioned:
        """The model on the captions of a batch: pictures are normalised on the way in."""
        pictures = encoder_input(cast(nn.Module, model.image), batch.pictures)
        return model(pictures, batch.tokens, batch.mask, batch.index)

    def write(self, model: nn.Module, pictures: Tensor | ImageFeatures, **search: Any) -> tuple[Decoded, Captioned]:
        """Captions of pictures, and the looks for each word of the best one.

        Args:
            model: a `Captioner`.
            pictures: of a batch.
            search: options of `beam_search` that differ from the settings.
        """
        chosen, writer = self.settings, cast(Captioner, model)
        options = {name: getattr(chosen, name) for name in ("max_words", "beams", "length_penalty", "no_repeat")}
        ready = encoder_input(cast(nn.Module, writer.image), pictures)
        found = writer.caption(ready, start=START, end=END, never=NEVER, **(options | search))
        return found, self.read(writer, ready, found.words[:, 0], found.mask[:, 0])

    @staticmethod
    def read(model: Captioner, pictures: Tensor | ImageFeatures, words: Tensor, mask: Tensor) -> Captioned:
        """The model on captions (B, T) that it wrote itself: position t is how it came to word t."""
        before = torch.cat([torch.full_like(words[:, :1], START), words[:, :-1]], 1)
        return model(pictures, before, torch.cat([torch.ones_like(mask[:, :1]), mask[:, :-1]], 1))

    def predict(self, model: nn.Module, batch: CaptionBatch) -> CaptionPrediction:
        """The captions, and where the model looked for their words."""
        found, captioned = self.write(model, batch.pictures)
        words, mask = found.words[:, 0], found.mask[:, 0]
        seen = captioned.image
        maps = None if seen.grid is None else seen.map().cpu()
        return CaptionPrediction([self.text(row) for row in words.tolist()], maps, mask.cpu())

    def text(self, numbers: Sequence[int]) -> str:
        """Word numbers as a sentence."""
        return " ".join(self.words.decode(numbers))

    def metrics(self) -> CaptionMetrics:
        """Quality of the captions and looks."""
        return CaptionMetrics(None if self.trained else False, self.trained and self.settings.spice)

    def predictor(self, model: nn.Module) -> CaptionPredictor:
        """The model that writes captions for people's pictures."""
        return CaptionPredictor(replace(self, trained=True), model)
