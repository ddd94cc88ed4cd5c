"""Visual question answering: images and questions to answers, judged by the answers and by where the model looks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from foveate.attention.arguments import grid_size, map_weights
from foveate.errors import DataError
from foveate.lab.data.samples import DataRoot
from foveate.lab.data.vocabulary import AnswerVocabulary, Vocabulary
from foveate.lab.losses import LOSSES, choose_swaps, content_resourcing, content_swapping
from foveate.lab.metrics import AnswerAccuracy, choose_answers
from foveate.lab.metrics.accuracy import Rule, question_keys
from foveate.lab.models import Answered, AnsweringModel, ReasoningDAN
from foveate.lab.models.answering import Reading
from foveate.lab.tasks.guidance import score_guidance
from foveate.lab.tasks.images import encoder_input
from foveate.lab.tasks.inputs import CombinedMetrics, ImageTextTask, Inputs, OtherRun
from foveate.lab.tasks.presentation import Demo, Presentation
from foveate.lab.tasks.task import Loss
from foveate.lab.tasks.vqa.data import QuestionExamples, VQABatch, VQAExample, choose_vocabulary, collate
from foveate.lab.tasks.vqa.predictor import VQAPredictor
from foveate.lab.tasks.vqa.report import DEMO, PRESENTATION
from foveate.lab.tasks.vqa.settings import VQASettings
from foveate.metrics import AttentionMetrics, box_maps
from foveate.ops.density import Density
from foveate.ops.resample import resample_map
from foveate.ops.support import above_uniform


@dataclass(frozen=True)
class VQAPrediction:
    """The answers to a batch of questions.

    Attributes:
        answers: the answer with the highest score, among the choices of the question if it has any.
        maps: (B, H, W) attention maps on the grid `map_size`, of regions spread over their boxes; None for
            regions without boxes.
        density: of the attention, if it is continuous.
    """

    answers: list[str]
    maps: Tensor | None
    density: Density | None


class VQAMetrics(CombinedMetrics[VQAPrediction, VQABatch]):
    """Accuracy and attention; see `AnswerAccuracy` and `AttentionMetrics` for the names.

    Accuracy is also reported by answer type, question type and tag, attention by tag.
    """

    def __init__(self, rule: Rule, map_size: tuple[int, int]) -> None:
        self.answers, self.attention = AnswerAccuracy(rule), AttentionMetrics(map_size)
        super().__init__(answers=self.answers, attention=self.attention)

    def update(self, prediction: VQAPrediction, batch: VQABatch) -> None:
        self.answers.update(prediction.answers, batch.questions)
        if prediction.maps is None:
            return
        groups = [sorted(question.tags) for question in batch.questions]
        self.attention.update(
            prediction.maps,
            density=prediction.density,
            region=batch.region,
            human_maps=batch.human_maps,
            groups=groups,
            keys=question_keys(batch.questions),
        )


@dataclass(frozen=True)
class VQA(ImageTextTask[VQASettings, AnsweringModel, VQAExample, VQABatch, VQAPrediction]):
    """Visual question answering with any model, attention and dataset of the settings.

    Attributes:
        settings: everything that can be chosen.
        inputs: the tokens of questions and the origin of the features.
        answers: the answers to choose from.

    >>> from foveate.lab.models import MCANSettings
    >>> from foveate.lab.tasks.images import Conv
    >>> model = MCANSettings(hidden=16, heads=2, layers=1)
    >>> task = VQA.from_data(VQASettings(model=model, images=Conv((8, 8)), word_dim=8, limit=12), None)
    >>> batch = task.collate([task.examples("train", None)[0]])
    >>> task.run(task.build_model(), batch).image[-1].map().shape
    torch.Size([1, 28, 28])
    """

    Settings: ClassVar[type] = VQASettings
    objective: ClassVar[str] = "accuracy"
    presentation: ClassVar[Presentation] = PRESENTATION
    demo: ClassVar[Demo | None] = DEMO

    answers: AnswerVocabulary

    @classmethod
    def from_data(cls, settings: VQASettings, root: DataRoot) -> VQA:
        """The task with the tokens and answers of the training split."""
        questions = settings.read("train", root).questions
        inputs = Inputs.from_data(settings, root, (settings.tokenize(question.text) for question in questions))
        return cls(settings, inputs, choose_vocabulary(settings, questions, root))

    @classmethod
    def from_vocabulary(cls, settings: VQASettings, vocabulary: Mapping[str, Any]) -> VQA:
        """The task of a run."""
        return cls(
            settings, Inputs.from_json(vocabulary, ("answers",)), AnswerVocabulary.from_json(vocabulary["answers"])
        )

    def vocabulary(self) -> dict[str, Any]:
        """Tokens, answers and the origin of the features."""
        return self.inputs.to_json() | {"answers": self.answers.to_json()}

    def grown_from(self, old: VQA) -> VQA:
        """The task with the tokens and answers of a run first, then its own."""
        new = tuple(answer for answer in self.answers.answers if answer not in old.answers)
        answers = AnswerVocabulary(old.answers.answers + new)
        return replace(self, inputs=self.inputs.grown_from(old.inputs), answers=answers)

    def build_model(self) -> AnsweringModel:
        """The network of the settings."""
        chosen = self.settings
        encoder = chosen.images.build_encoder(self.inputs.image_dim)
        vocabulary, answers = len(self.inputs.words), len(self.answers)
        return chosen.model.build(vocabulary, chosen.word_dim, encoder, chosen.attention(), answers=answers)

    def initialise(self, model: AnsweringModel, root: DataRoot = None) -> None:
        """Load the image encoder, the word vectors and the layers of a matching run, as the settings say."""
        self.inputs.initialise(self.settings, model.image, model.text, self.settings.words, root)
        if self.settings.matching_start is not None:
            assert isinstance(model, ReasoningDAN)  # the settings reject others
            start_from_matching(model, Path(self.settings.matching_start).expanduser(), self.inputs.words)

    def examples(self, split: str, root: DataRoot) -> QuestionExamples:
        """The questions of a split with their images, and where to look if that is needed."""
        settings = self.settings
        source = settings.image_source(root, split, self.inputs.store)
        map_size = settings.map_size if split != "train" or settings.guidance else None
        data, views = settings.read(split, root), settings.views(split)
        return QuestionExamples(data, source, group=settings.group, map_size=map_size, views=views)

    def collate(self, examples: Sequence[VQAExample]) -> VQABatch:
        """One batch."""
        return collate(examples, self.inputs, self.answers, self.settings)

    def loss(self, model: AnsweringModel, batch: VQABatch, step: int) -> Loss:
        """The loss of the answers plus guidance and constraints, each with its weight."""
        chosen, answered = self.settings, self.run(model, batch)
        parts = {"answers": LOSSES[chosen.loss].function(answered.scores, batch.targets)}
        weights = {"answers": 1.0, "guidance": chosen.guidance, "ccr": chosen.ccr.weight, "ccs": chosen.ccs.weight}
        if chosen.guidance:
            parts["guidance"] = self._guidance(answered, batch.target_map())
        for name, constraint in (("ccr", self._resource), ("ccs", self._swap)):
            if weights[name]:  # zero until it starts, so that all batches have the same parts
                active = getattr(chosen, name).active(step)
                parts[name] = constraint(answered, batch) if active else answered.scores.new_zeros(())
        total = torch.stack([weights[name] * part for name, part in parts.items()]).sum()
        return Loss(total, len(batch.questions), parts)

    def _resource(self, answered: Answered, batch: VQABatch) -> Tensor:
        weights, margin = answered.image[-1].weights, self.settings.ccr.margin
        return answer_resourcing(answered.reading, weights, batch.targets, margin=margin)

    def _swap(self, answered: Answered, batch: VQABatch) -> Tensor:
        texts = _ids(question.text for question in batch.questions).to(batch.tokens.device)
        images = torch.arange(len(texts), device=texts.device) if batch.index is None else batch.index
        context, margin = answered.image[-1].context, self.settings.ccs.margin
        return answer_swapping(answered.reading, context, batch.targets, texts, images, margin=margin)

    def _guidance(self, answered: Answered, target: Tensor | None) -> Tensor:
        """Divergence of attention from where it should be, on the model's own grid; zero if nothing is known."""
        attended = answered.image[-1]
        if target is None:
            return answered.scores.new_zeros(())
        if attended.grid is None:
            raise DataError("guidance: expected features on a grid, got regions; set guidance=0 or use other features")
        H, W = grid_size(attended.grid)
        of = self.settings.guidance_loss
        if of == "scores" or of == "density":
            reading = answered.reading
            targets = map_weights(target, attended.grid, reading.scores.shape[-1])
            return score_guidance(reading.attend, reading.scores, targets, grid=attended.grid, mask=reading.mask, of=of)
        return LOSSES[of].function(attended.map(H, W), resample_map(target, H, W))

    def run(self, model: AnsweringModel, batch: VQABatch) -> Answered:
        """The output of the model for a batch; images are normalised first."""
        images = encoder_input(model.image, batch.images)
        answered: Answered = model(images, batch.tokens, batch.mask, batch.index)
        return answered

    def predict(self, model: AnsweringModel, batch: VQABatch) -> VQAPrediction:
        """The answers, and where the model looked for them."""
        answered = self.run(model, batch)
        choices = [question.choices for question in batch.questions]
        answers = choose_answers(answered.scores.cpu(), self.answers, choices)
        attended, images = answered.image[-1], batch.images
        if isinstance(images, Tensor) or images.grid is not None:
            return VQAPrediction(answers, attended.map(*self.settings.map_size), attended.density)
        # Regions have no grid: attention is judged on their boxes, if these are known.
        boxes = images.boxes if images.boxes is None or batch.index is None else images.boxes[batch.index]
        maps = None if boxes is None else box_maps(attended.weights, boxes, *self.settings.map_size)
        return VQAPrediction(answers, maps, None)

    def metrics(self) -> VQAMetrics:
        """Accuracy and attention."""
        return VQAMetrics(self.settings.rule, self.settings.map_size)

    def result_rows(self, prediction: VQAPrediction, batch: VQABatch) -> list[dict[str, Any]]:
        """The rows of VQA's result file."""
        pairs = zip(batch.questions, prediction.answers, strict=True)
        return [{"question_id": question.id, "answer": answer} for question, answer in pairs]

    def predictor(self, model: AnsweringModel) -> VQAPredictor:
        """The model behind `answer(image, question)`."""
        return VQAPredictor(self, model)


def _ids(texts: Iterable[str]) -> Tensor:
    """One id per text, equal for equal texts."""
    known: dict[str, int] = {}
    return torch.tensor([known.setdefault(text, len(known)) for text in texts])


SOURCE = "a run of m-DAN: foveate train matching-mdan-flickr8k"
WORDS = "text.words.weight"


def start_from_matching(model: ReasoningDAN, run: Path, words: Vocabulary) -> int:
    """Copy the layers that r-DAN and m-DAN share: text encoder, projections, attention over image and words.

    Args:
        model: with the hidden size, the steps, the word_dim and the features of the run.
        run: the directory of the run.
        words: the vocabulary of the model; a word that the run knows takes its vector, others keep their random one.

    Returns:
        the number of words whose vectors were copied.

    Raises DataError if the run is of another model or has other sizes.
    """
    found, words_of_run = OtherRun.load("matching_start", run, SOURCE)
    own = {name: x for name, x in model.state_dict().items() if name != WORDS and not name.startswith("answers.")}
    wrong = [name for name, x in own.items() if name not in found or found[name].shape != x.shape]
    if wrong or WORDS not in found:
        name = (wrong or [WORDS])[0]
        shape = tuple(found[name].shape) if name in found else "none"
        raise DataError(
            f"matching_start: expected {name} {tuple(model.state_dict()[name].shape)} in {run}, got {shape}; pass "
            f"{SOURCE}, with the same hidden, reasoning_steps, word_dim and features"
        )
    known = {word: row for row, word in enumerate(words_of_run)}
    rows = [(row, known[word]) for row, word in enumerate(words.words) if word in known]
    with torch.no_grad():
        for name, target in own.items():
            target.copy_(found[name])
        mine, theirs = torch.tensor(rows).T
        model.state_dict()[WORDS][mine] = found[WORDS][theirs]
    return len(rows)


def answer_resourcing(reading: Reading, weights: Tensor, targets: Tensor, *, margin: float = 0.2) -> Tensor:
    """CCR for answers: the right answer must follow from the attended locations more than from the others.

    A location is attended to if its weight is above 1 / n. The relevance of a context is the probability of the right
    answers given that context, so that 0 <= margin < 1.

    Args:
        reading: of the last attention over the image.
        weights: (B, N) discrete weights of that attention.
        targets: (B, A) accuracy of each answer.
        margin: γ₂ of `content_resourcing`.

    Returns:
        a scalar, summed over the batch.

    Reference: Chen et al. 2021, §4.5, outlines it for captions; the version for answers is ours.
    """
    attended = above_uniform(weights, reading.mask)
    return content_resourcing(
        reading.question[:, None],
        reading.values,
        reading.scores[:, None],
        attended[:, None],
        margin=margin,
        mask=reading.mask,
        relevance=lambda questions, contexts: relevance(reading, questions[:, 0], contexts[:, 0], targets)[:, None],
    )


def answer_swapping(
    reading: Reading, context: Tensor, targets: Tensor, texts: Tensor, images: Tensor, *, margin: float = 0.2
) -> Tensor:
    """CCS for answers: the context must answer its own question better than another question in its place.

    The other question is the most different one of the batch with other words and another image.

    Args:
        reading: of the last attention over the image.
        context: (B, V) context of that attention.
        targets: (B, A) accuracy of each answer.
        texts, images: (B,) ids, equal for equal questions and for equal images.
        margin: γ₃ of `content_swapping`.

    Returns:
        a scalar, summed over the batch.

    Reference: Chen et al. 2021, eq. 7-8 and §4.5.
    """
    swaps = choose_swaps(reading.question, texts, images)
    own = relevance(reading, reading.question, context, targets)
    other = relevance(reading, reading.question[swaps.index], context, targets)
    return content_swapping(own, other, swaps.found, margin=margin)


def relevance(reading: Reading, questions: Tensor, contexts: Tensor, targets: Tensor) -> Tensor:
    """(B,) probability of the right answers, from questions (B, D) and contexts (B, V)."""
    probability = reading.answer(questions, contexts).softmax(-1)
    return (probability * targets).sum(-1) / targets.sum(-1).clamp_min(1)
