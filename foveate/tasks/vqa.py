"""Visual question answering: pictures and questions to answers, judged by the answers and by where the model looks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias, cast

import torch
from torch import Tensor, nn

from foveate.attention import MECHANISMS, mechanism
from foveate.data.answers import AnswerVocabulary
from foveate.data.features import FeatureStore, StoreDescription
from foveate.data.tokens import tokenize
from foveate.data.vocabulary import Vocabulary
from foveate.encoders import (
    ConvEncoder,
    PictureEncoder,
    Preprocess,
    StoredFeatures,
    TextEncoder,
    encoder_of,
    pretrained_encoder,
    word_vectors,
)
from foveate.encoders.table import describe_encoder
from foveate.errors import DataError
from foveate.losses import LOSSES
from foveate.metrics import AnswerAccuracy, LookMetrics, choose_answers
from foveate.metrics.vqa import RULES, Rule
from foveate.models import MCAN, Answered, ReasoningDAN
from foveate.models.answering import ImageEncoder
from foveate.ops.basis import GaussianBasis
from foveate.ops.density import Density
from foveate.registry import lookup
from foveate.tasks.task import Loss, Metrics, Task
from foveate.tasks.vqa_data import SOURCES, QuestionExamples, VQABatch, VQAExample, collate, load_split
from foveate.tasks.vqa_predictor import VQAPredictor


@dataclass(frozen=True)
class Mcan:
    """The size of an MCAN: hidden 512, 8 heads and 6 layers are the paper's small one."""

    hidden: int = 512
    heads: int = 8
    layers: int = 6
    dropout: float = 0.1


@dataclass(frozen=True)
class Rdan:
    """The size of an r-DAN, and the transform with which it attends to the words."""

    hidden: int = 512
    steps: int = 2
    dropout: float = 0.5
    word_mechanism: str = "softmax"


@dataclass(frozen=True)
class Conv:
    """Pictures through a small convolutional encoder that is trained with the model; see `ConvEncoder`."""

    channels: tuple[int, ...] = (32, 64, 128, 256)
    blocks: int = 1
    size: int = 112


@dataclass(frozen=True)
class Stored:
    """Pictures as features of a store; `store` is a path, taken inside the folder of the data when not absolute.

    A "{split}" in it stands for the name of the split, where each has a store of its own.
    """

    store: str = "features.h5"


@dataclass(frozen=True)
class Frozen:
    """Pictures through a pretrained encoder that is not trained further; its features are kept in memory.

    For small data, where a store is not worth the trouble. `encoder` is a name that `foveate extract` takes.
    """

    encoder: str = "efficientnet-lite0"


Model: TypeAlias = Mcan | Rdan
Images: TypeAlias = Conv | Stored | Frozen


@dataclass(frozen=True)
class VQASettings:
    """Everything about visual question answering that can be chosen.

    Attributes:
        data: a row of `SOURCES`.
        model: which network, and its size.
        images: how pictures become features.
        mechanism, mechanism_options: the attention over the picture, a row of `MECHANISMS`. A basis is written as the
            arguments of `GaussianBasis.grid`, for instance {"count": 49, "variance": 0.001}.
        loss: "bce" over every answer, or "cross-entropy" over the softmax of them.
        guidance: weight of the loss that pulls attention towards the true region or people's maps; 0 leaves it free.
        guidance_loss: which one, "kl" or "js".
        word_dim: size of a word vector.
        words: where word vectors come from: "glove" or a text file; None starts at random.
        max_tokens: words of a question that are read.
        min_count: an answer must be the agreed one of so many training questions.
        max_answers: keep only so many of the most frequent answers; None keeps all.
        group: one example is a picture with all its questions, so that it is encoded once; otherwise one question.
        limit: use only the first so many pictures of every split; None uses all.
        rule: how answers are counted, "official" or "lenient".
        look_size: rows and columns of the grid on which attention is compared with the truth.
    """

    data: str = "scenes"
    model: Model = field(default_factory=Mcan)
    images: Images = field(default_factory=Conv)
    mechanism: str = "softmax"
    mechanism_options: Mapping[str, Any] = field(default_factory=dict)
    loss: Literal["bce", "cross-entropy"] = "bce"
    guidance: float = 0.0
    guidance_loss: Literal["kl", "js"] = "kl"
    word_dim: int = 300
    words: str | None = None
    max_tokens: int = 14
    min_count: int = 9
    max_answers: int | None = None
    group: bool = False
    limit: int | None = None
    rule: Rule = "official"
    look_size: tuple[int, int] = (14, 14)

    def __post_init__(self) -> None:
        lookup("data", self.data, SOURCES)
        lookup("mechanism", self.mechanism, MECHANISMS)
        lookup("loss", self.loss, LOSSES)
        lookup("loss", self.guidance_loss, LOSSES)
        lookup("rule", self.rule, RULES)
        if isinstance(self.model, Rdan):
            lookup("mechanism", self.model.word_mechanism, MECHANISMS)


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

    >>> settings = VQASettings(model=Mcan(16, heads=2, layers=1), images=Conv((8, 8)), word_dim=8, limit=12)
    >>> task = VQA.from_data(settings, None)
    >>> batch = task.collate([task.examples("train", None)[0]])
    >>> task.build_model()(batch.pictures, batch.tokens, batch.mask, batch.index).image[-1].map().shape
    torch.Size([1, 28, 28])
    """

    Settings: ClassVar[type] = VQASettings
    objective: ClassVar[str] = "accuracy"

    settings: VQASettings
    words: Vocabulary
    answers: AnswerVocabulary
    image_dim: int | None = None
    store: StoreDescription | None = None

    @classmethod
    def from_data(cls, settings: VQASettings, root: Path | None) -> VQA:
        """The task with the words and answers of the training split."""
        data = load_split(settings.data, root, "train", settings.limit, need_pictures=_reads_pictures(settings))
        words = Vocabulary.from_tokens(tokenize(question.text) for question in data.questions)
        answers = AnswerVocabulary.from_questions(data.questions, settings.min_count)
        answers = AnswerVocabulary(answers.answers[: settings.max_answers])
        if isinstance(settings.images, Conv):
            return cls(settings, words, answers)
        if isinstance(settings.images, Frozen):
            encoder = pretrained_encoder(settings.images.encoder)
            return cls(settings, words, answers, encoder.dim, describe_encoder(encoder))
        store = open_store(settings.images, root, "train")
        return cls(settings, words, answers, store.dim, store.description)

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
        chosen = self.settings.model
        attend = mechanism(self.settings.mechanism, **_options(self.settings.mechanism_options))
        sizes: dict[str, Any] = {"word_dim": self.settings.word_dim, "hidden": chosen.hidden}
        if isinstance(chosen, Mcan):
            text = TextEncoder(len(self.words), **sizes)
            shape: dict[str, Any] = {"heads": chosen.heads, "layers": chosen.layers, "dropout": chosen.dropout}
            return MCAN(text, self._image_encoder(), attend, answers=len(self.answers), **shape)
        text = TextEncoder(len(self.words), directions="sum", **sizes)
        return ReasoningDAN(
            text,
            self._image_encoder(),
            attend,
            mechanism(chosen.word_mechanism),
            answers=len(self.answers),
            steps=chosen.steps,
            dropout=chosen.dropout,
        )

    def _image_encoder(self) -> ImageEncoder:
        images = self.settings.images
        if isinstance(images, Conv):
            return ConvEncoder(images.channels, blocks=images.blocks, size=images.size)
        assert self.image_dim is not None
        return StoredFeatures(self.image_dim)

    def initialise(self, model: nn.Module) -> None:
        """Put the word vectors of the settings in."""
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
        data = load_split(settings.data, root, split, settings.limit, need_pictures=_reads_pictures(settings))
        look = settings.look_size if split != "train" or settings.guidance else None
        return QuestionExamples(data, self._source(root, split), group=settings.group, look_size=look)

    def _source(self, root: Path | None, split: str) -> Preprocess | FeatureStore | PictureEncoder:
        images = self.settings.images
        if isinstance(images, Stored):
            return open_store(images, root, split)
        if isinstance(images, Frozen):
            assert self.store is not None
            return encoder_of(self.store)
        return cast(ConvEncoder, self._image_encoder()).preprocess

    def collate(self, examples: Sequence[VQAExample]) -> VQABatch:
        """One batch."""
        return collate(examples, self.words, self.answers, self.settings.max_tokens)

    def loss(self, model: nn.Module, batch: VQABatch) -> Loss:
        """The loss of the answers, and of guidance where that is chosen and the truth known."""
        answered = self.run(model, batch)
        total = LOSSES[self.settings.loss].function(answered.scores, batch.targets)
        parts = {"answers": total}
        target = batch.target_map()
        if self.settings.guidance and target is not None:
            guide = LOSSES[self.settings.guidance_loss].function
            parts["guidance"] = guide(answered.image[-1].map(*self.settings.look_size), target)
            total = total + self.settings.guidance * parts["guidance"]
        return Loss(total, len(batch.questions), parts)

    def run(self, model: nn.Module, batch: VQABatch) -> Answered:
        """The model on a batch: pictures are normalised on the way in."""
        pictures = batch.pictures
        if isinstance(pictures, Tensor):
            pictures = cast(PictureEncoder, model.image).preprocess.normalise(pictures)
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


def open_store(images: Stored, root: Path | None, split: str) -> FeatureStore:
    """The store of a split's features."""
    path = Path(images.store.replace("{split}", split)).expanduser()
    return FeatureStore(path if root is None else Path(root) / path)


def _reads_pictures(settings: VQASettings) -> bool:
    return not isinstance(settings.images, Stored)


def _options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a mechanism, with a basis made of the numbers that describe it."""
    basis = options.get("basis")
    return dict(options) | ({"basis": GaussianBasis.grid(**basis)} if isinstance(basis, Mapping) else {})
