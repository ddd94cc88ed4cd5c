"""Visual question answering: pictures and questions to answers, judged by the answers and by where the model looks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from foveate.attention.attended import grid_size
from foveate.data.answers import AnswerVocabulary
from foveate.data.features import StoreDescription
from foveate.data.samples import Dataset
from foveate.data.tokens import tokenize
from foveate.data.vocabulary import Vocabulary
from foveate.encoders import TextEncoder, word_vectors
from foveate.errors import DataError
from foveate.losses import LOSSES
from foveate.metrics import AnswerAccuracy, LookMetrics, choose_answers
from foveate.metrics.vqa import Rule
from foveate.models import Answered
from foveate.ops.density import Density
from foveate.ops.resample import resample_map
from foveate.tasks.examples import load_split
from foveate.tasks.pictures import encoder_input
from foveate.tasks.task import Loss, Metrics, Task
from foveate.tasks.vqa_constraints import answer_resourcing, answer_swapping
from foveate.tasks.vqa_data import QuestionExamples, VQABatch, VQAExample, collate
from foveate.tasks.vqa_predictor import VQAPredictor
from foveate.tasks.vqa_settings import VQASettings


@dataclass(frozen=True)
class VQAPrediction:
    """What a batch was answered.

    Attributes:
        answers: the answer with the highest score, of the question's own choices where it has some.
        maps: (B, H, W) where the model looked, on the grid `look_size`.
        density: of the attention, where it is continuous.
    """

    answers: list[str]
    maps: Tensor
    density: Density | None


class VQAMetrics(Metrics):
    """Accuracy of the answers, and where the model looked; see `AnswerAccuracy` and `LookMetrics` for the names.

    Accuracy is told by answer type, question type and tag, looks by tag.
    """

    def __init__(self, rule: Rule, look_size: tuple[int, int]) -> None:
        self.answers, self.looks = AnswerAccuracy(rule), LookMetrics(look_size)

    def update(self, prediction: VQAPrediction, batch: VQABatch) -> None:
        self.answers.update(prediction.answers, batch.questions)
        groups = [sorted(question.tags) for question in batch.questions]
        self.looks.update(
            prediction.maps, density=prediction.density, region=batch.region, people=batch.people, groups=groups
        )

    def state(self) -> dict[str, Any]:
        return {"answers": self.answers.state(), "looks": self.looks.state()}

    def merge(self, state: Mapping[str, Any]) -> None:
        self.answers.merge(state["answers"])
        self.looks.merge(state["looks"])

    def compute(self) -> dict[str, float]:
        return self.answers.compute() | self.looks.compute()


@dataclass(frozen=True)
class VQA(Task):
    """Visual question answering with any model, attention and data of the settings.

    Attributes:
        settings: what was chosen.
        words: the words that questions are read with.
        answers: the answers to choose from.
        image_dim: size of the features, None when the model reads pictures.
        store: what the features are, to encode new pictures the same way.

    >>> from foveate.tasks.vqa_settings import Conv, Mcan
    >>> settings = VQASettings(model=Mcan(16, heads=2, layers=1), images=Conv((8, 8)), word_dim=8, limit=12)
    >>> task = VQA.from_data(settings, None)
    >>> batch = task.collate([task.examples("train", None)[0]])
    >>> task.build_model()(batch.pictures, batch.tokens, batch.mask, batch.index).image[-1].map().shape
    torch.Size([1, 28, 28])
    """

    Settings: ClassVar[type] = VQASettings
    objective: ClassVar[str] = "accuracy"
    headlines: ClassVar[Mapping[str, str]] = {
        "accuracy": "accuracy",
        "accuracy/yes/no": "yes/no",
        "accuracy/number": "number",
        "accuracy/other": "other",
        "accuracy/two-distant": "two distant",
        "js": "JS, bits",
        "js/two-distant": "JS, two distant",
        "mass": "mass in region",
        "area": "area",
        "components": "K*",
    }

    settings: VQASettings
    words: Vocabulary
    answers: AnswerVocabulary
    image_dim: int | None = None
    store: StoreDescription | None = None

    @classmethod
    def from_data(cls, settings: VQASettings, root: Path | None) -> VQA:
        """The task with the words and answers of the training split."""
        data = cls._split(settings, root, "train")
        words = Vocabulary.from_tokens(tokenize(question.text) for question in data.questions)
        answers = AnswerVocabulary.from_questions(data.questions, settings.min_count)
        answers = AnswerVocabulary(answers.answers[: settings.max_answers])
        return cls(settings, words, answers, *settings.images.describe(root))

    @classmethod
    def from_vocabulary(cls, settings: VQASettings, vocabulary: Mapping[str, Any]) -> VQA:
        """The task of a run."""
        store = vocabulary["store"]
        return cls(
            settings,
            Vocabulary.from_json(vocabulary["words"]),
            AnswerVocabulary.from_json(vocabulary["answers"]),
            vocabulary["image_dim"],
            None if store is None else StoreDescription(**store),
        )

    def vocabulary(self) -> dict[str, Any]:
        """Words, answers, and what the stored features are."""
        return {
            "words": self.words.to_json(),
            "answers": self.answers.to_json(),
            "image_dim": self.image_dim,
            "store": None if self.store is None else dict(vars(self.store)),
        }

    def build_model(self) -> nn.Module:
        """The network of the settings."""
        chosen = self.settings
        encoder = chosen.images.encoder(self.image_dim)
        return chosen.model.build(
            len(self.words), chosen.word_dim, encoder, chosen.attention(), answers=len(self.answers)
        )

    def initialise(self, model: nn.Module) -> None:
        """Put in what does not begin at random: the picture encoder and the word vectors of the settings."""
        self.settings.images.initialise(cast(nn.Module, model.image))
        if self.settings.words is not None:
            vectors = word_vectors(self.words.words, self.settings.words).vectors
            embedding = cast(TextEncoder, model.text).words.weight
            if vectors.shape != embedding.shape:
                raise DataError(
                    f"vqa: expected word vectors of {embedding.shape[1]} dimensions, got {vectors.shape[1]} from "
                    f"{self.settings.words}; set word_dim={vectors.shape[1]}"
                )
            with torch.no_grad():
                embedding.copy_(vectors)

    def examples(self, split: str, root: Path | None) -> QuestionExamples:
        """The questions of a split with their pictures, and the truth about where to look when it is needed."""
        settings = self.settings
        data = self._split(settings, root, split)
        source = settings.images.source(root, split, self.store)
        look = settings.look_size if split != "train" or settings.guidance else None
        return QuestionExamples(data, source, group=settings.group, look_size=look)

    @staticmethod
    def _split(settings: VQASettings, root: Path | None, split: str) -> Dataset:
        need = settings.images.reads_pictures
        return load_split(settings.data, root, split, content="questions", limit=settings.limit, need_pictures=need)

    def collate(self, examples: Sequence[VQAExample]) -> VQABatch:
        """One batch."""
        return collate(examples, self.words, self.answers, self.settings.max_tokens)

    def loss(self, model: nn.Module, batch: VQABatch) -> Loss:
        """The loss of the answers, and what is chosen of guidance and of the constraints, each with its weight."""
        chosen, answered = self.settings, self.run(model, batch)
        parts = {"answers": LOSSES[chosen.loss].function(answered.scores, batch.targets)}
        weights = {"answers": 1.0, "guidance": chosen.guidance, "ccr": chosen.ccr, "ccs": chosen.ccs}
        if chosen.guidance:
            parts["guidance"] = self._guidance(answered, batch.target_map())
        seen = answered.image[-1]
        if chosen.ccr:
            parts["ccr"] = answer_resourcing(answered.reading, seen.weights, batch.targets, margin=chosen.ccr_margin)
        if chosen.ccs:
            texts = _numbers(question.text for question in batch.questions).to(batch.index.device)
            parts["ccs"] = answer_swapping(
                answered.reading, seen.context, batch.targets, texts, batch.index, margin=chosen.ccs_margin
            )
        total = torch.stack([weights[name] * part for name, part in parts.items()]).sum()
        return Loss(total, len(batch.questions), parts)

    def _guidance(self, answered: Answered, target: Tensor | None) -> Tensor:
        """How far attention is from where it should be, on the model's own grid; zero where nobody knows."""
        seen = answered.image[-1]
        if target is None:
            return answered.scores.new_zeros(())
        if seen.grid is None:
            raise DataError("guidance: expected features on a grid, got regions; set guidance=0 or use other features")
        H, W = grid_size(seen.grid)
        return LOSSES[self.settings.guidance_loss].function(seen.map(H, W), resample_map(target, H, W))

    def run(self, model: nn.Module, batch: VQABatch) -> Answered:
        """The model on a batch: pictures are normalised on the way in."""
        pictures = encoder_input(cast(nn.Module, model.image), batch.pictures)
        return model(pictures, batch.tokens, batch.mask, batch.index)

    def predict(self, model: nn.Module, batch: VQABatch) -> VQAPrediction:
        """The answers, and where the model looked for them."""
        answered = self.run(model, batch)
        choices = [question.choices for question in batch.questions]
        seen = answered.image[-1]
        answers = choose_answers(answered.scores.cpu(), self.answers, choices)
        return VQAPrediction(answers, seen.map(*self.settings.look_size), seen.density)

    def metrics(self) -> VQAMetrics:
        """Accuracy and looks."""
        return VQAMetrics(self.settings.rule, self.settings.look_size)

    def predictor(self, model: nn.Module) -> VQAPredictor:
        """The model that answers people's questions."""
        return VQAPredictor(self, model)


def _numbers(texts: Iterable[str]) -> Tensor:
    """A number a text, the same for the same text."""
    known: dict[str, int] = {}
    return torch.tensor([known.setdefault(text, len(known)) for text in texts])
