"""Matching images with sentences: which belong together, judged by retrieval and by where the words look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from foveate.errors import DataError
from foveate.lab.data.samples import DataRoot
from foveate.lab.data.vocabulary import Vocabulary
from foveate.lab.encoders import WordsInContext, sentence_encoder
from foveate.lab.features import ImageFeatures
from foveate.lab.models import FragmentMatcher, Fragments, MatchingModel, Scorer
from foveate.lab.tasks.guidance import guide, phrase_targets
from foveate.lab.tasks.images import encoder_input
from foveate.lab.tasks.inputs import CaptionedTask, OtherRun
from foveate.lab.tasks.matching.constraints import resourcing, swapping, swapping_all
from foveate.lab.tasks.matching.data import CaptionPairs, MatchingBatch, MatchingExample, collate, drop_words
from foveate.lab.tasks.matching.predictor import MatchingPredictor
from foveate.lab.tasks.matching.report import DEMO, PRESENTATION
from foveate.lab.tasks.matching.retrieval_quality import MatchingMetrics, MatchingPrediction
from foveate.lab.tasks.matching.settings import MatchingSettings
from foveate.lab.tasks.presentation import Demo, Presentation
from foveate.lab.tasks.task import Loss
from foveate.metrics.grounding import Locations

# Captions whose attention is computed together when a split is evaluated.
CAPTIONS_AT_ONCE = 64


@dataclass(frozen=True)
class Matching(CaptionedTask[MatchingSettings, MatchingModel, MatchingExample, MatchingBatch, MatchingPrediction]):
    """Matching with any model, attention and dataset of the settings.

    Attributes:
        settings: everything that can be chosen.
        inputs: the tokens of captions and the origin of the features.

    >>> from foveate.lab.models import SCANSettings
    >>> from foveate.lab.tasks.images import Conv
    >>> settings = MatchingSettings(model=SCANSettings(hidden=8), images=Conv((8, 8)), word_dim=8, min_count=1, limit=4)
    >>> task = Matching.from_data(settings, None)
    >>> batch = task.collate([task.examples("val", None)[number] for number in range(2)])
    >>> images, texts = task.embed(task.build_model(), batch)
    >>> len(images), len(texts)
    (2, 10)
    """

    Settings: ClassVar[type] = MatchingSettings
    objective: ClassVar[str] = "rsum"
    presentation: ClassVar[Presentation] = PRESENTATION
    demo: ClassVar[Demo | None] = DEMO

    def build_model(self) -> MatchingModel:
        """The network of the settings."""
        chosen = self.settings
        encoder = chosen.images.build_encoder(self.inputs.image_dim)
        model = chosen.model.build(len(self.inputs.words), chosen.word_dim, encoder, chosen.attention())
        if chosen.ranking.parts == "fragments" and isinstance(model, FragmentMatcher):
            model.freeze_whole()
        return model

    def initialise(self, model: MatchingModel, root: DataRoot = None) -> None:
        """Load the image encoder and the word vectors of the settings, or scale random ones."""
        self.inputs.initialise(self.settings, model.image, model.text, self.settings.words, root)
        if self.settings.words is None:
            limit, weight = self.settings.word_range, model.text.words.weight
            with torch.no_grad():
                weight.mul_(self.settings.word_std) if limit is None else weight.uniform_(-limit, limit)
        if self.settings.dual_start is not None:
            assert isinstance(model, FragmentMatcher)  # the settings reject others
            start_from_dual(model, Path(self.settings.dual_start).expanduser(), self.inputs.words)

    def examples(self, split: str, root: DataRoot) -> CaptionPairs:
        """The images of a split with their captions; except for training, every image once with all of them."""
        settings = self.settings
        source = settings.image_source(root, split, self.inputs.store)
        each = settings.captions_per_example if split == "train" else None
        data = settings.read(split, root)
        if settings.model.reads_states:
            sentence_encoder().prepare(tuple(caption.tokens[: settings.max_words]) for caption in data.captions)
        return CaptionPairs(data, source, each=each, views=settings.views(split), pooled=settings.model.pools)

    def collate(self, examples: Sequence[MatchingExample]) -> MatchingBatch:
        """One batch."""
        settings = self.settings
        options = {"bos_eos": settings.model.uses_bos_eos, "reads_states": settings.model.reads_states}
        return collate(examples, self.inputs, settings.max_words, **options)

    def embed(self, model: MatchingModel, batch: MatchingBatch) -> tuple[Fragments, Fragments]:
        """The images and the captions of a batch in the common space."""
        images = encoder_input(model.image, batch.images)
        return model.embed_image(images), model.embed_text(batch.tokens, batch.mask, batch.states)

    def loss(self, model: MatchingModel, batch: MatchingBatch, step: int) -> Loss:
        """Ranking plus the constraints on attention, each with its weight: eq. 9 of Chen et al. 2021."""
        settings = self.settings
        dropout = settings.word_dropout
        read = replace(batch, tokens=drop_words(batch.tokens, dropout)) if dropout else batch
        images, texts = self.embed(model, read)
        parts = {
            "ranking": self._rank(model, images, texts, batch.owner, step),
            **self._constrain(model, images, texts, read, batch.tokens, step),
        }
        weights = {
            "ranking": 1.0,
            "guidance": settings.guidance,
            "ccr": settings.ccr.weight,
            "ccs": settings.ccs.weight,
        }
        total = torch.stack([weights[name] * part for name, part in parts.items()]).sum()
        return Loss(total, len(batch.owner), parts)

    def _rank(self, model: MatchingModel, images: Fragments, texts: Fragments, owner: Tensor, step: int) -> Tensor:
        """The ranking loss of the scores, or of the part that attention has in them."""
        ranking = self.settings.ranking
        seen = images if ranking.parts == "sum" else replace(images, whole=None)
        return ranking.compute(model.scorer(seen, texts), owner, step)

    def _constrain(
        self,
        model: MatchingModel,
        images: Fragments,
        texts: Fragments,
        batch: MatchingBatch,
        original: Tensor,
        step: int,
    ) -> dict[str, Tensor]:
        """Guidance, CCR and CCS if they have a weight; CCR and CCS are zero until they start.

        All batches have the same parts.
        """
        chosen = {"ccr": self.settings.ccr, "ccs": self.settings.ccs}
        parts = {name: images.values.new_zeros(()) for name, setting in chosen.items() if setting.weight}
        active = [name for name in parts if chosen[name].active(step)]
        guided = self.settings.guidance > 0
        if not active and not guided:
            return parts
        scorer = model.scorer
        assert isinstance(scorer, Scorer)  # the settings reject constraints for other models
        attention = scorer.cross_attend(images[batch.owner], texts)
        if guided:
            seen = _locations(images, batch.images)
            own = [seen[place] for place in batch.owner.tolist()]
            first = int(self.settings.model.uses_bos_eos)
            weights = next(cross.weights for cross in attention if cross.queries_are_words)
            parts["guidance"] = guide(weights, phrase_targets(batch.captions, own, weights, first=first))
        if "ccr" in active:
            parts["ccr"] = resourcing(attention, scorer.aggregate, chosen["ccr"].margin)
        if "ccs" in active:
            if chosen["ccs"].swaps == "all":
                return parts | {"ccs": swapping_all(attention, batch.tokens, batch.owner, chosen["ccs"].margin)}
            encode, margin = partial(_states, model, batch.mask), chosen["ccs"].margin
            parts["ccs"] = swapping(attention, encode, batch.tokens, batch.owner, margin, original=original)
        return parts

    def predict(self, model: MatchingModel, batch: MatchingBatch) -> MatchingPrediction:
        """The images and captions in the common space, and where the words look in their own image."""
        images, texts = self.embed(model, batch)
        attended = None
        has_boxes = any(phrase.boxes for caption in batch.captions for phrase in caption.phrases)
        if has_boxes and self.settings.model.words_attend and isinstance(model.scorer, Scorer):
            attended = _attended(model.scorer, images, texts, batch.owner)
        return MatchingPrediction(images, texts, attended, _locations(images, batch.images))

    def metrics(self) -> MatchingMetrics:
        """Retrieval and attention."""
        model = self.settings.model
        scorer = model.scorer(self.settings.attention())
        return MatchingMetrics(scorer, model.attended_rule, folds=self.settings.rank_parts, bos_eos=model.uses_bos_eos)

    def predictor(self, model: MatchingModel) -> MatchingPredictor:
        """The model behind `match(images, texts)`."""
        return MatchingPredictor(self, model)


def _states(model: MatchingModel, mask: Tensor, tokens: Tensor) -> Tensor:
    """(C, T, D) states of token ids (C, T), without dropout."""
    return model.embed_text(tokens, mask, dropout=False).values


def _attended(scorer: Scorer, images: Fragments, texts: Fragments, owner: Tensor) -> Tensor:
    """(C, T, N) True where a word attends to a location of its own image."""
    parts = []
    for rows in torch.arange(len(owner), device=owner.device).split(CAPTIONS_AT_ONCE):
        attention = scorer.cross_attend(images[owner[rows]], texts[rows])
        parts.append(next(cross.attended for cross in attention if cross.queries_are_words))
    return torch.cat(parts)


def _locations(fragments: Fragments, images: Tensor | ImageFeatures) -> list[Locations | None]:
    """Per image its grid, or the boxes of its regions; None if neither is known."""
    if isinstance(fragments.grid, Tensor):
        return [(int(H), int(W)) for H, W in fragments.grid.tolist()]
    if fragments.grid is not None:
        return [(fragments.grid[0], fragments.grid[1])] * len(fragments)
    boxes = None if isinstance(images, Tensor) else images.boxes
    if boxes is None:
        return [None] * len(fragments)
    counts = [boxes.shape[1]] * len(fragments) if fragments.mask is None else fragments.mask.sum(-1).tolist()
    return [own[:count] for own, count in zip(boxes, counts, strict=True)]


# A sentence has the mean of its states, a word its own: about the part of one word in the mean, for the same size.
STATES = 0.3
SOURCE = "a run of `dual`: foveate train matching-dual-flickr8k"


def start_from_dual(model: FragmentMatcher, run: Path, words: Vocabulary) -> None:
    """Copy the weights of a run of `dual` to a matcher of words and locations.

    A dual encoder compares the mean of the locations with the sum of the words, both by linear layers, so that these
    layers also compare one location with one word: a start from which attention finds what a word names at once.
    The layer of the means becomes that of the locations. The dual encoder beside the attention, if there is one, is the
    run itself.

    Args:
        model: with `text=minilm` and the sizes of the run.
        run: the directory of the run.
        words: the vocabulary of the model, which must be that of the run.

    Raises DataError if the run is of another model or vocabulary.
    """
    tensors, known = OtherRun.load("dual_start", run, SOURCE)
    if known != tuple(words.words):
        raise DataError(f"dual_start: expected the vocabulary of the data in {run}, got another; train it on this data")
    found, half = _layers(run, tensors), model.image.dim
    text = model.text
    assert isinstance(text, WordsInContext)  # the settings reject others
    pairs = [
        (text.words.weight, found["text.words.weight"]),
        (text.project.weight, found["text.project.weight"]),
        (text.project_states.weight, STATES * found["text.states.linear.weight"]),
        (model.features.weight, found["pooled.project.weight"][:, :half]),
        (model.features.bias, found["pooled.project.bias"]),
    ]
    if model.whole is not None:
        own = model.whole.state_dict()
        pairs += [(own[name], tensor) for name, tensor in found.items()]
    with torch.no_grad():
        text.project.bias.zero_()  # a sentence has it once, not once per word
        for target, tensor in pairs:
            if target.shape != tensor.shape:
                raise DataError(
                    f"dual_start: expected weights {tuple(target.shape)} in {run}, got {tuple(tensor.shape)}; use the "
                    "same hidden, word_dim and features as the run"
                )
            target.copy_(tensor)


def _layers(run: Path, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a dual encoder with pretrained states, by name."""
    for name in ("text.words.weight", "text.states.linear.weight", "pooled.project.weight"):
        if name not in tensors:
            raise DataError(
                f"dual_start: expected a dual encoder with text=minilm in {run}, got no {name}; pass {SOURCE}"
            )
    return tensors
