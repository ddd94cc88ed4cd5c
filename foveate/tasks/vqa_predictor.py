"""A trained model that answers people's questions about their pictures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch

from foveate.attention import Attended
from foveate.data.tokens import tokenize
from foveate.errors import DataError
from foveate.tasks.predictor import PictureInput, PicturePredictor, one_of
from foveate.tasks.vqa_data import VQABatch, encode_questions

if TYPE_CHECKING:
    from foveate.models import Answered
    from foveate.tasks.vqa import VQA


@dataclass(frozen=True)
class Answer:
    """An answer to one question.

    Attributes:
        text: the answer.
        confidence: of the model in it, in [0, 1]; how often that is right is for `foveate evaluate` to say.
        best: the most likely answers with their confidence, the first of them is `text`.
        attention: over the picture, of batch size one; `attention.map(H, W)[0]` is where the model looked.
        words: the words that were read, with how much the model attended to each.
        unknown: words of the question that the model has never seen.
    """

    text: str
    confidence: float
    best: tuple[tuple[str, float], ...]
    attention: Attended
    words: tuple[tuple[str, float], ...]
    unknown: tuple[str, ...]


@dataclass(frozen=True)
class VQAPredictor(PicturePredictor):
    """Answers questions about pictures: `fv.load(run).answer(image, question)`."""

    def answer(self, image: PictureInput, question: str, *, top: int = 5) -> Answer:
        """The answer to a question about a picture.

        Args:
            image: a path, the bytes of a file, an array (H, W, 3) of uint8 or a Pillow image.
            question: in plain words.
            top: how many answers to rank.

        A question without words and a picture that cannot be read raise DataError.
        """
        return self.answers([image], [question], top=top)[0]

    def answers(
        self, images: Sequence[PictureInput], questions: Sequence[str], *, top: int = 5, batch_size: int = 32
    ) -> list[Answer]:
        """The answers to questions, one about each picture; see `answer`."""
        if len(images) != len(questions):
            raise DataError(
                f"answer: expected one picture a question, got {len(images)} and {len(questions)}; repeat the picture"
            )
        for question in questions:
            if not tokenize(question):
                raise DataError(f"answer: expected a question, got {question!r}; ask with at least one word")
        found: list[Answer] = []
        for start in range(0, len(images), batch_size):
            part = slice(start, start + batch_size)
            found += self._answer_batch(images[part], questions[part], top)
        return found

    def _answer_batch(self, images: Sequence[PictureInput], questions: Sequence[str], top: int) -> Iterator[Answer]:
        task = cast("VQA", self.task)
        tokens, mask = encode_questions(questions, task.words, task.settings.max_tokens)
        batch = VQABatch(
            self.read_pictures(images),
            torch.arange(len(images), device=self.device),
            tokens.to(self.device),
            mask.to(self.device),
            torch.zeros(0),
            [],
        )
        with torch.no_grad():
            answered = task.run(self.model, batch)
        return (self._describe(answered, row, question, top) for row, question in enumerate(questions))

    def _describe(self, answered: Answered, row: int, question: str, top: int) -> Answer:
        task = cast("VQA", self.task)
        scores = answered.scores[row].float()
        confidence = scores.sigmoid() if task.settings.loss == "bce" else scores.softmax(-1)
        values, places = confidence.topk(min(top, len(task.answers)))
        best = tuple((task.answers.answers[i], v) for i, v in zip(places.tolist(), values.tolist(), strict=True))
        read = tokenize(question)[: task.settings.max_tokens]
        weights = answered.question[-1].weights[row, : len(read)].tolist()
        unknown = tuple(dict.fromkeys(word for word in tokenize(question) if word not in task.words))
        seen = one_of(answered.image[-1], row)
        return Answer(best[0][0], best[0][1], best, seen, tuple(zip(read, weights, strict=True)), unknown)
