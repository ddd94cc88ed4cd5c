"""A trained model that finds which of people's pictures and sentences belong together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar, cast

import torch
from torch import Tensor, nn

from foveate.attention import Attended
from foveate.data.tokens import tokenize
from foveate.errors import DataError
from foveate.models import Fragments, Scorer
from foveate.models.matching import join_fragments
from foveate.tasks.matching_data import encode_sentences
from foveate.tasks.pictures import encoder_input
from foveate.tasks.predictor import PictureInput, PicturePredictor

if TYPE_CHECKING:
    from foveate.tasks.matching import Matching

Item = TypeVar("Item")


@dataclass(frozen=True)
class WordLooks:
    """Where the words of one sentence look in one picture.

    Attributes:
        words: that were read.
        attention: over the picture, of batch size one with one query a word: `attention.map(H, W)[0, t]` is where
            word t looks.
    """

    words: tuple[str, ...]
    attention: Attended


@dataclass(frozen=True)
class MatchingPredictor(PicturePredictor):
    """Scores pictures with sentences: `fv.load(run).match(images, texts)`."""

    def match(self, images: Sequence[PictureInput] | Fragments, texts: Sequence[str] | Fragments) -> Tensor:
        """Scores (I, C) of every picture with every sentence; the higher, the better they fit.

        Args:
            images: pictures as paths, bytes, arrays or Pillow images, or what `embed_image` gave.
            texts: sentences, or what `embed_text` gave.

        A sentence without words and a picture that cannot be read raise DataError.
        """
        seen = images if isinstance(images, Fragments) else self.embed_image(images)
        read = texts if isinstance(texts, Fragments) else self.embed_text(texts)
        with torch.no_grad():
            return cast(nn.Module, self.model.scorer)(seen, read)

    def embed_image(self, images: Sequence[PictureInput], *, batch_size: int = 32) -> Fragments:
        """Pictures in the model's space: values (I, N, D), of which N is 1 where a picture is one vector."""
        return self._batched(list(images), self._embed_images, batch_size)

    def embed_text(self, texts: Sequence[str], *, batch_size: int = 256) -> Fragments:
        """Sentences in the model's space: values (C, T, D), of which T is 1 where a sentence is one vector."""
        for text in texts:
            if not tokenize(text):
                raise DataError(f"match: expected a sentence, got {text!r}; write at least one word")
        return self._batched(list(texts), self._embed_texts, batch_size)

    def look(self, image: PictureInput, text: str) -> WordLooks:
        """Where the words of a sentence look in a picture; ValueError for a model whose words do not look."""
        scorer, task = self.model.scorer, cast("Matching", self.task)
        if not isinstance(scorer, Scorer):
            raise ValueError(
                "look: expected SCAN or BFAN, got a model whose words and locations do not meet; use match"
            )
        seen, read = self.embed_image([image]), self.embed_text([text])
        with torch.no_grad():
            attended = scorer.look(seen, read)
        words = tokenize(text)[: task.settings.max_words]
        inner = slice(int(task.settings.model.reads_marks), int(task.settings.model.reads_marks) + len(words))
        return WordLooks(
            words, replace(attended, weights=attended.weights[:, inner], context=attended.context[:, inner])
        )

    def unknown(self, text: str) -> tuple[str, ...]:
        """Words of a sentence that the model has never seen."""
        known = cast("Matching", self.task).words
        return tuple(dict.fromkeys(word for word in tokenize(text) if word not in known))

    def _embed_images(self, images: Sequence[PictureInput]) -> Fragments:
        pictures = encoder_input(cast(nn.Module, self.model.image), self.read_pictures(images))
        return cast(Fragments, self.model.embed_image(pictures))  # type: ignore[operator]

    def _embed_texts(self, texts: Sequence[str]) -> Fragments:
        task = cast("Matching", self.task)
        settings = task.settings
        tokens, mask = encode_sentences(
            [tokenize(text) for text in texts], task.words, settings.max_words, marks=settings.model.reads_marks
        )
        return cast(Fragments, self.model.embed_text(tokens.to(self.device), mask.to(self.device)))  # type: ignore[operator]

    def _batched(self, items: list[Item], embed: Callable[[list[Item]], Fragments], size: int) -> Fragments:
        if not items:
            raise DataError("match: expected at least one picture and one sentence, got none; give some")
        with torch.no_grad():
            return join_fragments([embed(items[start : start + size]) for start in range(0, len(items), size)])
