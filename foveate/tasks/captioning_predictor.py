"""A trained model that writes captions for people's pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch

from foveate.attention import Attended
from foveate.data.vocabulary import END, START
from foveate.models import Captioned, Captioner
from foveate.models.decoding import Decoded
from foveate.tasks.pictures import encoder_input
from foveate.tasks.predictor import PictureInput, PicturePredictor, one_of

if TYPE_CHECKING:
    from foveate.tasks.captioning import Captioning


@dataclass(frozen=True)
class Caption:
    """A caption of one picture.

    Attributes:
        text: the caption.
        words: its words.
        log_probability: of the whole caption, its end included.
        attention: of batch size one with one query a word or more: `attention.map(H, W)[0, t]` is where the model
            looked for word t.
        best: the captions that the search ended with and their log-probabilities, the first of them is `text`.
    """

    text: str
    words: tuple[str, ...]
    log_probability: float
    attention: Attended
    best: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class CaptionPredictor(PicturePredictor):
    """Writes captions: `fv.load(run).caption(image)`."""

    def caption(self, image: PictureInput, **search: Any) -> Caption:
        """The caption of a picture; see `captions`.

        Args:
            image: a path, the bytes of a file, an array (H, W, 3) of uint8 or a Pillow image.
            search: as in `captions`.
        """
        return self.captions([image], **search)[0]

    def captions(
        self,
        images: Sequence[PictureInput],
        *,
        beams: int | None = None,
        length_penalty: float | None = None,
        no_repeat: int | None = None,
        max_words: int | None = None,
        batch_size: int = 32,
    ) -> list[Caption]:
        """The captions of pictures.

        Args:
            images: as in `caption`.
            beams, length_penalty, no_repeat, max_words: of the search, see `beam_search`; those of the run when absent.
            batch_size: pictures at a time.

        A picture that cannot be read raises DataError.
        """
        asked = {"beams": beams, "length_penalty": length_penalty, "no_repeat": no_repeat, "max_words": max_words}
        search = {name: value for name, value in asked.items() if value is not None}
        found: list[Caption] = []
        for start in range(0, len(images), batch_size):
            pictures = self.read_pictures(images[start : start + batch_size])
            with torch.no_grad():
                decoded, captioned = self._task.write(self.model, pictures, **search)
            found += [self._describe(decoded, captioned, row) for row in range(len(decoded.words))]
        return found

    def sample(
        self, image: PictureInput, count: int = 5, *, temperature: float = 1.0, seed: int = 0
    ) -> list[tuple[str, float]]:
        """Captions drawn at random, the same for the same seed, with their log-probabilities.

        Args:
            image: as in `caption`.
            count: how many.
            temperature: below 1 keeps to likely words.
            seed: of the draws.
        """
        from foveate.tasks.captioning import NEVER

        model = cast(Captioner, self.model)
        pictures = encoder_input(model.image, self.read_pictures([image]))
        decoded = model.sample(
            pictures,
            start=START,
            end=END,
            never=NEVER,
            max_words=self._task.settings.max_words,
            count=count,
            temperature=temperature,
            generator=torch.Generator(self.device).manual_seed(seed),
        )
        return self._ranked(decoded, 0)

    @property
    def _task(self) -> Captioning:
        return cast("Captioning", self.task)

    def _describe(self, decoded: Decoded, captioned: Captioned, row: int) -> Caption:
        best = self._ranked(decoded, row)
        words = tuple(self._task.words.decode(decoded.words[row, 0].tolist()))
        return Caption(best[0][0], words, best[0][1], one_of(captioned.image, row), tuple(best))

    def _ranked(self, decoded: Decoded, row: int) -> list[tuple[str, float]]:
        pairs = zip(decoded.words[row].tolist(), decoded.log_probabilities[row].tolist(), strict=True)
        return [(self._task.text(numbers), value) for numbers, value in pairs if value > -torch.inf]
