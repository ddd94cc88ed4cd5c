"""A trained model that writes captions for images."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast, overload

import torch
from torch import Tensor

from foveate.attention import Attended
from foveate.checks import check_counts
from foveate.errors import DataError
from foveate.lab.data.samples import Dataset, ImageRecord
from foveate.lab.data.vocabulary import EOS
from foveate.lab.features import ImageFeatures
from foveate.lab.models import Captioned, Captioner
from foveate.lab.models.decoding import Decoded
from foveate.lab.tasks.images import ImageLike, encoder_input
from foveate.lab.tasks.inputs import ImagePredictor, LabelledAttention, WordAttention, describe_grid
from foveate.lab.tasks.task import RunGraph

if TYPE_CHECKING:
    from foveate.lab.tasks.captioning.task import Captioning  # noqa: F401  (the type argument of the base class)


@dataclass(frozen=True)
class GeneratedCaption:
    """The caption of one image.

    Attributes:
        text: the caption.
        words: its words.
        log_probability: of the whole caption, eos included.
        attention: of batch size one with one query per word: `attention.map(H, W)[0, t]` is where the model looked for
            word t.
        best: all captions the search ended with and their log-probabilities; the first one is `text`.
        warning: if the image is unlike those that the run was trained on.
    """

    text: str
    words: tuple[str, ...]
    log_probability: float
    attention: Attended
    best: tuple[tuple[str, float], ...]
    warning: str | None = None

    def __repr__(self) -> str:
        lines = [f"GeneratedCaption({self.text!r}, log probability {self.log_probability:.2f})"]
        lines += [f"{text!r}, {value:.2f}" for text, value in self.best[1:3]]
        lines += [f"attention of {len(self.words)} words over {describe_grid(self.attention)}"]
        return "\n  ".join([*lines, *filter(None, [self.warning])])


@dataclass(frozen=True, repr=False)
class CaptionPredictor(ImagePredictor["Captioning", Captioner]):
    """Writes captions: `fv.load(run).caption(image)`."""

    def graph(self) -> RunGraph:
        """The model as a graph from pixels to the token ids of greedy captions, for `foveate export`."""
        most = self.task.settings.max_words
        usage = f"images (B, 3, H, W) -> token ids (B, {most}), eos = {EOS} from the end on, and scores of each word"
        return self.graph_of(self.task.greedy, outputs=("tokens", "scores"), usage=usage)

    @overload
    def caption(self, image: ImageLike, **search: Any) -> GeneratedCaption: ...

    @overload
    def caption(self, image: Sequence[ImageLike], **search: Any) -> list[GeneratedCaption]: ...

    def caption(
        self, image: ImageLike | Sequence[ImageLike], **search: Any
    ) -> GeneratedCaption | list[GeneratedCaption]:
        """Caption an image, or several in batches.

        Args:
            image: a path, the bytes of a file, an array (H, W, 3) of uint8 or of floats from 0 to 1, a tensor, a Pillow
                image, or a list of those.
            search: options of `captions`.

        Returns:
            One caption, or a list if a list was passed.
        """
        if isinstance(image, list | tuple):
            return self.captions(image, **search)
        return self.captions([cast(ImageLike, image)], **search)[0]

    def look(self, image: ImageLike, text: str) -> WordAttention:
        """Where the model looks before it writes each word of a given caption (teacher forcing).

        Args:
            image: as in `caption`.
            text: the caption; its words need not be those that the model would write.

        Raises DataError for a caption without words.
        """
        words = self.task.settings.tokenize(text)
        if not words:
            raise DataError(f"look: expected a caption, got {text!r}; write at least one word")
        tokens, mask = self.task.inputs.encode([words], len(words))
        images = encoder_input(self.model.image, self.read_images([image]))
        with torch.no_grad():
            captioned = self.task.read(self.model, images, tokens.to(self.device), mask.to(self.device))
        return WordAttention(words, captioned.image[0])

    def scores_of(self, images: Tensor | ImageFeatures, text: str, said: str) -> Tensor:
        """Log-probabilities (B, T) of the words of a caption for each image, with gradients, for `faithfulness`.

        Args:
            images: as `read_images` returns them.
            text: not read; questions have one.
            said: the caption.
        """
        words, B = said.split(), len(images if isinstance(images, Tensor) else images.values)
        tokens, mask = (part.to(self.device) for part in self.task.inputs.encode([words] * B, len(words)))
        captioned = self.task.read(self.model, encoder_input(self.model.image, images), tokens, mask)
        known = captioned.scores.float().log_softmax(-1).reshape(B, len(words), -1)
        return known.gather(-1, tokens[..., None])[..., 0]

    def captions(
        self,
        images: Sequence[ImageLike],
        *,
        beams: int | None = None,
        length_penalty: float | None = None,
        no_repeat: int | None = None,
        max_words: int | None = None,
        batch_size: int = 32,
    ) -> list[GeneratedCaption]:
        """Caption several images.

        Args:
            images: as in `caption`.
            beams, length_penalty, no_repeat, max_words: of the search, see `beam_search`; by default those of the run.
            batch_size: images per forward pass.

        Raises DataError for an image that cannot be read.
        """
        check_counts("caption", batch_size=batch_size)
        given = {"beams": beams, "length_penalty": length_penalty, "no_repeat": no_repeat, "max_words": max_words}
        search = {name: value for name, value in given.items() if value is not None}
        found: list[GeneratedCaption] = []
        for start in range(0, len(images), batch_size):
            batch = self.read_images(images[start : start + batch_size])
            with torch.no_grad():
                decoded, captioned = self.task.write(self.model, batch, **search)
            warnings = self.warnings(batch)
            found += [replace(self._describe(decoded, captioned, n), warning=w) for n, w in enumerate(warnings)]
        return found

    def sample(
        self, image: ImageLike, count: int = 5, *, temperature: float = 1.0, seed: int = 0
    ) -> list[tuple[str, float]]:
        """Captions drawn at random, the same for the same seed, with their log-probabilities.

        Args:
            image: as in `caption`.
            count: number of captions.
            temperature: below 1 prefers likely words.
            seed: of the random numbers.
        """
        generator = torch.Generator(self.device).manual_seed(seed)
        images = self.read_images([image])
        decoded = self.task.sample(self.model, images, count=count, temperature=temperature, generator=generator)
        return self._ranked(decoded, 0)

    def _samples(
        self, data: Dataset, limit: int | None
    ) -> Iterator[tuple[dict[str, Any], ImageRecord, LabelledAttention]]:
        for image in data.images[:limit]:
            found = self.caption(image.pixels())
            truth = {"ground_truth": {"label": " | ".join(caption.text for caption in data.captions_of(image.id))}}
            label = {"label": found.text, "confidence": math.exp(found.log_probability)}
            yield truth, image, LabelledAttention(label, found.attention.mean_over_queries())

    def _describe(self, decoded: Decoded, captioned: Captioned, row: int) -> GeneratedCaption:
        best = self._ranked(decoded, row)
        words = tuple(self.task.inputs.words.decode(decoded.words[row, 0].tolist()))
        return GeneratedCaption(best[0][0], words, best[0][1], captioned.image[row], tuple(best))

    def _ranked(self, decoded: Decoded, row: int) -> list[tuple[str, float]]:
        pairs = zip(decoded.words[row].tolist(), decoded.log_probabilities[row].tolist(), strict=True)
        return [(self.task.text(ids), value) for ids, value in pairs if value > -torch.inf]
