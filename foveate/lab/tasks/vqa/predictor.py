"""A trained model that answers questions about images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, cast, overload

import torch
from torch import Tensor
from torch.nn import functional as F

from foveate.attention import Attended
from foveate.checks import check_counts
from foveate.errors import DataError
from foveate.lab.data.samples import Dataset, ImageRecord
from foveate.lab.data.vocabulary import PAD
from foveate.lab.features import ImageFeatures
from foveate.lab.models.answering import Answered, AnsweringModel
from foveate.lab.tasks.images import ImageLike, encoder_input
from foveate.lab.tasks.inputs import ImagePredictor, LabelledAttention, describe_grid
from foveate.lab.tasks.task import RunGraph, example_tokens
from foveate.lab.tasks.vqa.data import VQABatch

if TYPE_CHECKING:
    from foveate.lab.tasks.vqa.task import VQA  # noqa: F401  (the type argument of the base class)


@dataclass(frozen=True)
class Answer:
    """The answer to one question.

    Attributes:
        text: the answer.
        confidence: score of the answer in [0, 1]; `foveate evaluate` reports how often answers are right.
        best: the most likely answers with their scores; the first one is `text`.
        attention: over the image, of batch size one; `attention.map(H, W)[0]` is where the model looked.
        words: the tokens of the question, each with its attention weight.
        steps: attention over the image and over the tokens in every step of a model that takes several (r-DAN);
            `attention` and `words` are those of the last one.
        unknown: words of the question that the model does not know.
        scores_are: "independent" if each answer has a score of its own (sigmoid), so that several can be near 1 and
            they do not add up; "shares" if the scores of all answers add up to 1 (softmax).
        warning: if the image is unlike those that the run was trained on.
    """

    text: str
    confidence: float
    best: tuple[tuple[str, float], ...]
    attention: Attended
    words: tuple[tuple[str, float], ...]
    unknown: tuple[str, ...]
    scores_are: Literal["independent", "shares"] = "shares"
    warning: str | None = None
    steps: tuple[tuple[Attended, tuple[tuple[str, float], ...]], ...] = ()

    def __repr__(self) -> str:
        ranked = ", ".join(f"{text} {score:.2f}" for text, score in self.best[:5])
        words = ", ".join(f"{word} {weight:.2f}" for word, weight in self.words)
        lines = [f"Answer({self.text!r}, {self.confidence:.2f})", f"best ({self.scores_are} scores): {ranked}"]
        lines += [f"words: {words}", f"attention over {describe_grid(self.attention)}", *filter(None, [self.warning])]
        return "\n  ".join(lines)


@dataclass(frozen=True, repr=False)
class VQAPredictor(ImagePredictor["VQA", AnsweringModel]):
    """Answers questions about images: `fv.load(run).answer(image, question)`."""

    @overload
    def answer(self, image: ImageLike, question: str, *, top: int = 5, batch_size: int = 32) -> Answer: ...

    @overload
    def answer(
        self,
        image: ImageLike | Sequence[ImageLike],
        question: str | Sequence[str],
        *,
        top: int = 5,
        batch_size: int = 32,
    ) -> Answer | list[Answer]: ...

    def answer(
        self,
        image: ImageLike | Sequence[ImageLike],
        question: str | Sequence[str],
        *,
        top: int = 5,
        batch_size: int = 32,
    ) -> Answer | list[Answer]:
        """Answer a question about an image, or several in batches.

        Args:
            image: a path, the bytes of a file, an array (H, W, 3) of uint8 or of floats from 0 to 1, a tensor, a Pillow
                image, or a list of those.
            question: in plain words, or a list. One image is asked several questions, one question is asked about
                several images; lists of both have one length.
            top: number of answers to rank.
            batch_size: examples per forward pass.

        Returns:
            One answer, or a list if a list was passed.

        Raises DataError for a question without words and for an image that cannot be read.
        """
        images: list[ImageLike] = [*image] if isinstance(image, list | tuple) else [cast(ImageLike, image)]
        questions = [question] if isinstance(question, str) else list(question)
        one = not isinstance(image, list | tuple) and isinstance(question, str)
        count = max(len(images), len(questions)) if images and questions else 0
        images = images * count if len(images) == 1 else images
        questions = questions * count if len(questions) == 1 else questions
        found = self.answers(images, questions, top=top, batch_size=batch_size)
        return found[0] if one else found

    def graph(self) -> RunGraph:
        """The model as a graph from pixels and token ids to scores of answers, for `foveate export`."""

        def run(model: AnsweringModel, images: Tensor, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
            answered = model(encoder_input(model.image, images), tokens, mask)
            return answered.scores, answered.image[-1].weights

        # A graph has a fixed number of steps of the text encoder: as many as the longest question has.
        T = self.task.settings.max_tokens
        tokens = example_tokens(len(self.task.inputs.words), length=T)
        usage = (
            f"images (B, 3, H, W), token ids (B, {T}) padded with {PAD}, mask (B, {T}) True where there is a token\n"
            "-> scores (B, A) of the answers, weights (B, N)"
        )
        return self.graph_of(run, *tokens, names=("tokens", "mask"), outputs=("scores", "weights"), usage=usage)

    def scores_of(self, images: Tensor | ImageFeatures, text: str, said: str) -> Tensor:
        """Log-probabilities (B, 1) of an answer to a question about each image, with gradients, for `faithfulness`.

        Args:
            images: as `read_images` returns them.
            text: the question.
            said: the answer.
        """
        task, B = self.task, len(images if isinstance(images, Tensor) else images.values)
        tokens, mask = (part.to(self.device) for part in self._encode([text] * B))
        scores = task.run(self.model, VQABatch(images, None, tokens, mask, torch.zeros(0), [])).scores.float()
        place = task.answers.answers.index(said)
        known = F.logsigmoid(scores) if task.settings.loss == "bce" else scores.log_softmax(-1)
        return known[:, place, None]

    def _encode(self, questions: Sequence[str]) -> tuple[Tensor, Tensor]:
        task = self.task
        return task.inputs.encode([task.settings.tokenize(text) for text in questions], task.settings.max_tokens)

    def answers(
        self, images: Sequence[ImageLike], questions: Sequence[str], *, top: int = 5, batch_size: int = 32
    ) -> list[Answer]:
        """Answer one question per image; see `answer`."""
        check_counts("answer", top=top, batch_size=batch_size)
        if len(images) != len(questions):
            raise DataError(
                f"answer: expected one image per question, got {len(images)} and {len(questions)}; repeat the image"
            )
        for question in questions:
            if not self.task.settings.tokenize(question):
                raise DataError(f"answer: expected a question, got {question!r}; ask with at least one word")
        found: list[Answer] = []
        for start in range(0, len(images), batch_size):
            part = slice(start, start + batch_size)
            found += self._answer_batch(images[part], questions[part], top)
        return found

    def _samples(
        self, data: Dataset, limit: int | None
    ) -> Iterator[tuple[dict[str, Any], ImageRecord, LabelledAttention]]:
        for question in data.questions[:limit]:
            image = data.image(question)
            found = self.answer(image.pixels(), question.text)
            truth = {"question": question.text, "ground_truth": {"label": question.answer}}
            yield (
                truth,
                image,
                LabelledAttention({"label": found.text, "confidence": found.confidence}, found.attention),
            )

    def _answer_batch(self, images: Sequence[ImageLike], questions: Sequence[str], top: int) -> Iterator[Answer]:
        task = self.task
        tokens, mask = self._encode(questions)
        tokens, mask = tokens.to(self.device), mask.to(self.device)
        batch = VQABatch(self.read_images(images), None, tokens, mask, torch.zeros(0), [])
        with torch.no_grad():
            answered = task.run(self.model, batch)
        warnings = self.warnings(batch.images)
        return (
            replace(self._describe(answered, row, question, top), warning=warnings[row])
            for row, question in enumerate(questions)
        )

    def _describe(self, answered: Answered, row: int, question: str, top: int) -> Answer:
        task, words = self.task, self.task.settings.tokenize(question)
        scores = answered.scores[row].float()
        independent = task.settings.loss == "bce"
        confidence = scores.sigmoid() if independent else scores.softmax(-1)
        values, places = confidence.topk(min(top, len(task.answers)))
        best = tuple((task.answers.answers[i], v) for i, v in zip(places.tolist(), values.tolist(), strict=True))
        read = words[: task.settings.max_tokens]
        steps = tuple(
            (image[row], tuple(zip(read, question.weights[row, : len(read)].tolist(), strict=True)))
            for image, question in zip(answered.image, answered.question, strict=True)
        )
        attended, pairs = steps[-1]
        shares: Literal["independent", "shares"] = "independent" if independent else "shares"
        return Answer(*best[0], best, attended, pairs, task.inputs.unknown(words), shares, steps=steps)
