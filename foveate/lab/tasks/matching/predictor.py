"""A trained model that scores how well images and sentences match."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar, cast

import torch
from torch import Tensor
from torch.nn import functional

from foveate.checks import check_counts
from foveate.errors import DataError, WrongValue
from foveate.lab.features import ImageFeatures
from foveate.lab.models import Fragments, MatchingModel, Scorer
from foveate.lab.models.fragments import InnerProduct, join_fragments
from foveate.lab.tasks.images import ImageLike, encoder_input
from foveate.lab.tasks.inputs import ImagePredictor, WordAttention
from foveate.lab.tasks.matching.data import pretrained_states
from foveate.lab.tasks.task import RunGraph, example_tokens

if TYPE_CHECKING:
    from foveate.lab.tasks.matching.task import Matching  # noqa: F401  (the type argument of the base class)

Item = TypeVar("Item")


@dataclass(frozen=True, repr=False)
class MatchingPredictor(ImagePredictor["Matching", MatchingModel]):
    """Scores images with sentences: `fv.load(run).match(images, texts)`."""

    def match(
        self, images: ImageLike | Sequence[ImageLike] | Fragments, texts: str | Sequence[str] | Fragments
    ) -> Tensor:
        """Scores (I, C) of every image with every sentence; a higher score is a better match.

        Args:
            images: one image or several, or the output of `encode_image`.
            texts: one sentence or several, or the output of `encode_text`.

        Raises DataError for a sentence without words and for an image that cannot be read.
        """
        locations = images if isinstance(images, Fragments) else self.encode_image(images)
        words = texts if isinstance(texts, Fragments) else self.encode_text(texts)
        with torch.no_grad():
            scores: Tensor = self.model.scorer(locations, words)
        return scores

    def graph(self) -> RunGraph:
        """The model as a graph from pixels and token ids to scores of all pairs, for `foveate export`."""
        if self.task.settings.model.reads_states:
            raise DataError(
                "export: expected a model that reads token ids, got one that reads pretrained states; export the model "
                "with foveate.export.to_onnx"
            )

        def run(model: MatchingModel, images: Tensor, tokens: Tensor) -> Tensor:
            locations = model.embed_image(encoder_input(model.image, images))
            words = replace(model.embed_text(tokens, torch.ones_like(tokens, dtype=torch.bool), None), mask=None)
            scorer = model.scorer
            scores: Tensor = (
                scorer.score_one_length(locations, words) if isinstance(scorer, Scorer) else scorer(locations, words)
            )
            return scores

        tokens = example_tokens(len(self.task.inputs.words))[0]
        usage = (
            "images (I, 3, H, W) of uint8 pixels, token ids (C, T) of sentences of one length, without padding -> "
            "scores (I, C) of every image with every sentence"
        )
        return self.graph_of(run, tokens, names=("tokens",), outputs=("scores",), usage=usage)

    @property
    def has_one_vector(self) -> bool:
        """True for a run in which an image is one vector, and a sentence is one (m-DAN, the dual encoder)."""
        return isinstance(self.model.scorer, InnerProduct)

    def embed_image(self, images: ImageLike | Sequence[ImageLike], *, batch_size: int = 32) -> Tensor | Fragments:
        """Images as unit vectors (I, D), whose inner products with those of `embed_text` are `similarity`.

        A run with several vectors per image (SCAN, BFAN) returns the `Fragments` of `encode_image`, for `match`.
        """
        return self._unit(self.encode_image(images, batch_size=batch_size))

    def embed_text(self, texts: str | Sequence[str], *, batch_size: int = 256) -> Tensor | Fragments:
        """Sentences as unit vectors (C, D); see `embed_image`."""
        return self._unit(self.encode_text(texts, batch_size=batch_size))

    def similarity(
        self, images: ImageLike | Sequence[ImageLike] | Tensor, texts: str | Sequence[str] | Tensor
    ) -> Tensor:
        """Cosine similarities (I, C) of every image with every sentence, between -1 and 1.

        Args:
            images: one image or several, or the output (I, D) of `embed_image`.
            texts: one sentence or several, or the output (C, D) of `embed_text`.

        Raises DataError for a run with several vectors per image; `match` scores with any run.
        """
        if not self.has_one_vector:
            raise DataError(
                f"similarity: expected a run with one vector per image, got {type(self.model.scorer).__name__}, which "
                "compares the locations of an image with the words of a sentence; use match"
            )
        known = isinstance(images, Tensor) and images.ndim == 2
        seen = images if known else self.embed_image(cast(ImageLike, images))
        read = texts if isinstance(texts, Tensor) else self.embed_text(texts)
        return cast(Tensor, seen) @ cast(Tensor, read).mT

    def _unit(self, encoded: Fragments) -> Tensor | Fragments:
        return functional.normalize(encoded.values[:, 0], dim=-1) if self.has_one_vector else encoded

    def encode_image(self, images: ImageLike | Sequence[ImageLike], *, batch_size: int = 32) -> Fragments:
        """Images as the model compares them: values (I, N, D), of any length; N is 1 if an image is one vector."""
        several: list[ImageLike] = [*images] if isinstance(images, list | tuple) else [cast(ImageLike, images)]
        return self._batched(several, self._embed_images, batch_size)

    def encode_text(self, texts: str | Sequence[str], *, batch_size: int = 256) -> Fragments:
        """Sentences as the model compares them: values (C, T, D), of any length; T is 1 if a sentence is one vector."""
        several = [texts] if isinstance(texts, str) else list(texts)
        for text in several:
            if not self.task.settings.tokenize(text):
                raise DataError(f"match: expected a sentence, got {text!r}; write at least one word")
        return self._batched(several, self._embed_texts, batch_size)

    @property
    def words_attend(self) -> bool:
        """True for a run in which words attend to images, so that `look` applies."""
        return self.task.settings.model.words_attend

    def look(self, image: ImageLike, text: str) -> WordAttention:
        """Where the words of a sentence look in an image; raises ValueError for a model whose words do not attend."""
        scorer, settings = self.model.scorer, self.task.settings
        if not isinstance(scorer, Scorer):
            raise WrongValue(
                "look: expected a model with cross attention (SCAN, BFAN), got one vector per image; use match"
            )
        with torch.no_grad():
            attended = scorer.look(self.encode_image([image]), self.encode_text([text]))
        words = settings.tokenize(text)[: settings.max_words]
        start = int(settings.model.uses_bos_eos)
        inner = slice(start, start + len(words))
        weights, context = attended.weights[:, inner], attended.context[:, inner]
        return WordAttention(words, replace(attended, weights=weights, context=context))

    def unknown(self, text: str) -> tuple[str, ...]:
        """Words of a sentence that the model does not know."""
        return self.task.inputs.unknown(self.task.settings.tokenize(text))

    def scores_of(self, images: Tensor | ImageFeatures, text: str, said: str = "") -> Tensor:
        """Similarities (B, 1) of each image with a sentence, with gradients, for `faithfulness`.

        Args:
            images: as `read_images` returns them.
            text: the sentence.
            said: not read; answers and captions have one.
        """
        found: Tensor = self.model.scorer(
            self.model.embed_image(encoder_input(self.model.image, images)), self._embed_texts([text])
        )
        return found

    def _embed_images(self, images: Sequence[ImageLike]) -> Fragments:
        return self.model.embed_image(encoder_input(self.model.image, self.read_images(images)))

    def _embed_texts(self, texts: Sequence[str]) -> Fragments:
        settings, sentences = self.task.settings, [self.task.settings.tokenize(text) for text in texts]
        tokens, mask = self.task.inputs.encode(sentences, settings.max_words, bos_eos=settings.model.uses_bos_eos)
        states = None
        if settings.model.reads_states:
            states = pretrained_states(sentences, settings.max_words).to(self.device)
        return self.model.embed_text(tokens.to(self.device), mask.to(self.device), states)

    def _batched(self, items: list[Item], embed: Callable[[list[Item]], Fragments], size: int) -> Fragments:
        if not items:
            raise DataError("match: expected at least one image and one sentence, got none; pass some")
        check_counts("match", batch_size=size)
        with torch.no_grad():
            return join_fragments([embed(items[start : start + size]) for start in range(0, len(items), size)])
