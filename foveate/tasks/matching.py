"""Matching pictures with sentences: which belong together, judged by retrieval and by where the words look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from foveate.data.features import ImageFeatures, StoreDescription
from foveate.data.samples import Dataset
from foveate.data.vocabulary import Vocabulary
from foveate.encoders import TextEncoder, word_vectors
from foveate.errors import DataError
from foveate.losses import ranking_hinge
from foveate.metrics.grounding import Locations
from foveate.models import Fragments, Scorer
from foveate.tasks.examples import load_split
from foveate.tasks.matching_constraints import resourcing, swapping
from foveate.tasks.matching_data import CaptionPairs, MatchingBatch, MatchingExample, collate, forget
from foveate.tasks.matching_metrics import MatchingMetrics, MatchingPrediction
from foveate.tasks.matching_predictor import MatchingPredictor
from foveate.tasks.matching_settings import MatchingSettings
from foveate.tasks.pictures import encoder_input
from foveate.tasks.task import Loss, Task

# Captions whose words are looked at together, when a split is measured.
LOOKS = 64


@dataclass(frozen=True)
class Matching(Task):
    """Matching with any model, attention and data of the settings.

    Attributes:
        settings: what was chosen.
        words: the words that captions are read with.
        image_dim: size of the features, None when the model reads pictures.
        store: what the features are, to encode new pictures the same way.

    >>> from foveate.tasks.matching_settings import Scan
    >>> from foveate.tasks.pictures import Conv
    >>> settings = MatchingSettings(model=Scan(hidden=8), images=Conv((8, 8)), word_dim=8, min_count=1, limit=4)
    >>> task = Matching.from_data(settings, None)
    >>> batch = task.collate([task.examples("val", None)[number] for number in range(2)])
    >>> images, texts = task.embed(task.build_model(), batch)
    >>> len(images), len(texts)
    (2, 10)
    """

    Settings: ClassVar[type] = MatchingSettings
    objective: ClassVar[str] = "rsum"
    headlines: ClassVar[Mapping[str, str]] = {
        "rsum": "rsum",
        "i2t_r1": "i2t R@1",
        "i2t_r5": "i2t R@5",
        "i2t_r10": "i2t R@10",
        "t2i_r1": "t2i R@1",
        "t2i_r5": "t2i R@5",
        "t2i_r10": "t2i R@10",
        "attention_precision": "precision",
        "attention_recall": "recall",
        "attention_f1": "F1",
    }

    settings: MatchingSettings
    words: Vocabulary
    image_dim: int | None = None
    store: StoreDescription | None = None

    @classmethod
    def from_data(cls, settings: MatchingSettings, root: Path | None) -> Matching:
        """The task with the words of the training split."""
        data = cls._split(settings, root, "train")
        words = Vocabulary.from_tokens((caption.tokens for caption in data.captions), settings.min_count)
        return cls(settings, words, *settings.images.describe(root))

    @classmethod
    def from_vocabulary(cls, settings: MatchingSettings, vocabulary: Mapping[str, Any]) -> Matching:
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

    def build_model(self) -> nn.Module:
        """The network of the settings, which counts the batches it was trained on."""
        chosen = self.settings
        encoder = chosen.images.encoder(self.image_dim)
        model = chosen.model.build(len(self.words), chosen.word_dim, encoder, chosen.attention())
        model.register_buffer("batches", torch.zeros((), dtype=torch.long))
        return model

    def initialise(self, model: nn.Module) -> None:
        """Put in the picture encoder and the word vectors of the settings, or bring random ones to their size."""
        self.settings.images.initialise(cast(nn.Module, model.image))
        embedding = cast(TextEncoder, model.text).words.weight
        if self.settings.words is None:
            with torch.no_grad():
                embedding *= self.settings.word_std
        else:
            vectors = word_vectors(self.words.words, self.settings.words).vectors
            if vectors.shape != embedding.shape:
                raise DataError(
                    f"matching: expected word vectors of {embedding.shape[1]} numbers, got {vectors.shape[1]} in "
                    f"{self.settings.words}; set word_dim={vectors.shape[1]}"
                )
            with torch.no_grad():
                embedding.copy_(vectors)

    def examples(self, split: str, root: Path | None) -> CaptionPairs:
        """The pictures of a split with their captions; beyond training every picture once, with all of them."""
        settings = self.settings
        source = settings.images.source(root, split, self.store)
        each = settings.captions_each if split == "train" else None
        return CaptionPairs(self._split(settings, root, split), source, each=each)

    @staticmethod
    def _split(settings: MatchingSettings, root: Path | None, split: str) -> Dataset:
        name = settings.train_split if split == "train" else split
        need = settings.images.reads_pictures
        return load_split(settings.data, root, name, content="captions", limit=settings.limit, need_pictures=need)

    def collate(self, examples: Sequence[MatchingExample]) -> MatchingBatch:
        """One batch."""
        return collate(examples, self.words, self.settings.max_words, marks=self.settings.model.reads_marks)

    def embed(self, model: nn.Module, batch: MatchingBatch) -> tuple[Fragments, Fragments]:
        """The pictures and the captions of a batch in the model's space."""
        pictures = encoder_input(cast(nn.Module, model.image), batch.pictures)
        return model.embed_image(pictures), model.embed_text(batch.tokens, batch.mask)  # type: ignore[operator]

    def loss(self, model: nn.Module, batch: MatchingBatch) -> Loss:
        """Ranking, and the constraints on attention that are chosen: (9) of Chen et al. 2021."""
        settings = self.settings
        read = replace(batch, tokens=forget(batch.tokens, settings.forget)) if settings.forget else batch
        images, texts = self.embed(model, read)
        seen = cast(Tensor, model.batches)
        begin = settings.easy_batches, settings.ccr_after, settings.ccs_after
        batches = int(seen) if any(begin) else 0  # reading it waits for the device
        ranking = ranking_hinge(
            cast(Scorer, model.scorer)(images, texts),
            batch.owner,
            margin=settings.margin,
            negatives=settings.easy if batches < settings.easy_batches else settings.negatives,
            softness=settings.softness,
        )
        parts = {"ranking": ranking, **self._constrain(model, images, texts, read, batch.tokens, batches)}
        weights = {"ranking": 1.0, "ccr": settings.ccr, "ccs": settings.ccs}
        total = torch.stack([weights[name] * part for name, part in parts.items()]).sum()
        with torch.no_grad():
            seen += 1
        return Loss(total, len(batch.owner), parts)

    def _constrain(
        self, model: nn.Module, images: Fragments, texts: Fragments, batch: MatchingBatch, said: Tensor, batches: int
    ) -> dict[str, Tensor]:
        """CCR and CCS if they have a weight: zero until they begin, so that all batches have the same parts."""
        settings, scorer = self.settings, cast(Scorer, model.scorer)
        begins = {"ccr": settings.ccr_after, "ccs": settings.ccs_after}
        parts = {name: images.values.new_zeros(()) for name in begins if getattr(settings, name)}
        begun = [name for name in parts if batches >= begins[name]]
        looks = scorer.cross(images.take(batch.owner), texts) if begun else ()
        if "ccr" in begun:
            parts["ccr"] = resourcing(looks, scorer.aggregate, settings.ccr_margin)  # type: ignore[arg-type]
        if "ccs" in begun:
            again = partial(_states, model, batch.mask)
            parts["ccs"] = swapping(looks, again, batch.tokens, batch.owner, settings.ccs_margin, said=said)
        return parts

    def predict(self, model: nn.Module, batch: MatchingBatch) -> MatchingPrediction:
        """The pictures and captions in the model's space, and where the words look in their own picture."""
        images, texts = self.embed(model, batch)
        attended = None
        if self._words_look and any(phrase.boxes for caption in batch.captions for phrase in caption.phrases):
            attended = _attended(cast(Scorer, model.scorer), images, texts, batch.owner)
        return MatchingPrediction(images, texts, attended, _locations(images, batch.pictures))

    @property
    def _words_look(self) -> bool:
        return self.settings.model.attended is not None and getattr(self.settings.model, "direction", "t2i") == "t2i"

    def metrics(self) -> MatchingMetrics:
        """Fresh, empty metrics."""
        model = self.settings.model
        scorer = model.scorer(self.settings.attention())
        return MatchingMetrics(scorer, model.attended, folds=self.settings.folds, first=int(model.reads_marks))

    def predictor(self, model: nn.Module) -> MatchingPredictor:
        """The model that scores people's pictures with their sentences."""
        return MatchingPredictor(self, model)


def _states(model: nn.Module, mask: Tensor, tokens: Tensor) -> Tensor:
    """(C, T, D) of words (C, T), without dropout."""
    return cast(Fragments, model.embed_text(tokens, mask, dropout=False)).values  # type: ignore[operator]


def _attended(scorer: Scorer, images: Fragments, texts: Fragments, owner: Tensor) -> Tensor:
    """(C, T, N) True where a word attends to a location of its own picture."""
    parts = []
    for rows in torch.arange(len(owner), device=owner.device).split(LOOKS):
        looks = scorer.cross(images.take(owner[rows]), texts.take(rows))
        parts.append(next(look.attended for look in looks if look.by_words))
    return torch.cat(parts)


def _locations(images: Fragments, pictures: Tensor | ImageFeatures) -> list[Locations | None]:
    """The grid of each picture, or the boxes of its regions; None where neither is known."""
    if isinstance(images.grid, Tensor):
        return [(int(H), int(W)) for H, W in images.grid.tolist()]
    if images.grid is not None:
        return [(images.grid[0], images.grid[1])] * len(images)
    boxes = None if isinstance(pictures, Tensor) else pictures.boxes
    if boxes is None:
        return [None] * len(images)
    counts = [boxes.shape[1]] * len(images) if images.mask is None else images.mask.sum(-1).tolist()
    return [own[:count] for own, count in zip(boxes, counts, strict=True)]
