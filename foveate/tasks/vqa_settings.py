"""Everything about visual question answering that can be chosen: data, model, pictures, attention, losses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias, cast

from torch import nn

from foveate.attention import MECHANISMS, mechanism
from foveate.data.features import FeatureStore, StoreDescription
from foveate.encoders import (
    ConvEncoder,
    PictureEncoder,
    Preprocess,
    StoredFeatures,
    TextEncoder,
    encoder_of,
    pretrained_encoder,
)
from foveate.encoders.table import describe_encoder
from foveate.losses import LOSSES
from foveate.metrics.vqa import RULES, Rule
from foveate.models import MCAN, ReasoningDAN
from foveate.models.answering import ImageEncoder
from foveate.ops.basis import GaussianBasis
from foveate.registry import lookup
from foveate.tasks.vqa_data import SOURCES
from foveate.tasks.vqa_encoder import put_weights

PictureSource: TypeAlias = Preprocess | FeatureStore | PictureEncoder


@dataclass(frozen=True)
class Mcan:
    """The size of an MCAN: hidden 512, 8 heads and 6 layers are the paper's small one."""

    hidden: int = 512
    heads: int = 8
    layers: int = 6
    dropout: float = 0.1

    def build(self, words: int, word_dim: int, image: ImageEncoder, attend: nn.Module, answers: int) -> nn.Module:
        """The network, for so many words and answers."""
        text = TextEncoder(words, word_dim=word_dim, hidden=self.hidden)
        return MCAN(text, image, attend, answers=answers, heads=self.heads, layers=self.layers, dropout=self.dropout)


@dataclass(frozen=True)
class Rdan:
    """The size of an r-DAN, and the mechanism with which it attends to the words."""

    hidden: int = 512
    steps: int = 2
    dropout: float = 0.5
    word_mechanism: str = "softmax"

    def __post_init__(self) -> None:
        lookup("mechanism", self.word_mechanism, MECHANISMS)

    def build(self, words: int, word_dim: int, image: ImageEncoder, attend: nn.Module, answers: int) -> nn.Module:
        """The network, for so many words and answers."""
        text = TextEncoder(words, word_dim=word_dim, hidden=self.hidden, directions="sum")
        reads = mechanism(self.word_mechanism)
        return ReasoningDAN(text, image, attend, reads, answers=answers, steps=self.steps, dropout=self.dropout)


@dataclass(frozen=True)
class Conv:
    """Pictures through a small convolutional encoder inside the model; see `ConvEncoder`.

    Attributes:
        channels, blocks, size: of the encoder.
        start: "scenes" begins with an encoder that knows the things of Scenes, see `vqa_encoder`; "random" with none.
        trained: train it with the model; otherwise it stays as it began.
    """

    reads_pictures: ClassVar[bool] = True

    channels: tuple[int, ...] = (16, 32, 64, 96)
    blocks: int = 1
    size: int = 112
    start: Literal["random", "scenes"] = "random"
    trained: bool = True

    def describe(self, root: Path | None) -> tuple[int | None, StoreDescription | None]:
        """No features before the model: nothing to describe."""
        return None, None

    def source(self, root: Path | None, split: str, description: StoreDescription | None) -> PictureSource:
        """How a picture becomes pixels."""
        return self.encoder(None).preprocess

    def encoder(self, dim: int | None) -> ConvEncoder:
        """The encoder inside the model."""
        return ConvEncoder(self.channels, blocks=self.blocks, size=self.size).requires_grad_(self.trained)

    def initialise(self, encoder: nn.Module) -> None:
        """Put the weights in that the encoder begins with."""
        if self.start == "scenes":
            put_weights(cast(ConvEncoder, encoder))


@dataclass(frozen=True)
class Stored:
    """Pictures as features of a store; `store` is a path, taken inside the folder of the data when not absolute.

    A "{split}" in it stands for the name of the split, where each has a store of its own.
    """

    reads_pictures: ClassVar[bool] = False

    store: str = "features.h5"

    def describe(self, root: Path | None) -> tuple[int | None, StoreDescription | None]:
        """Size of the features and what they are, from the store of the training split."""
        store = self._open(root, "train")
        return store.dim, store.description

    def source(self, root: Path | None, split: str, description: StoreDescription | None) -> PictureSource:
        """The store of a split."""
        return self._open(root, split)

    def encoder(self, dim: int | None) -> ImageEncoder:
        """The encoder inside the model, which only hands features on."""
        return _handed_on(dim)

    def initialise(self, encoder: nn.Module) -> None:
        """Nothing to put in."""

    def _open(self, root: Path | None, split: str) -> FeatureStore:
        path = Path(self.store.replace("{split}", split)).expanduser()
        return FeatureStore(path if root is None else Path(root) / path)


@dataclass(frozen=True)
class Frozen:
    """Pictures through a pretrained encoder that is not trained further; its features are kept in memory.

    For small data, where a store is not worth the trouble. `encoder_name` is one that `foveate extract` takes.
    """

    reads_pictures: ClassVar[bool] = True

    encoder_name: str = "efficientnet-lite0"

    def describe(self, root: Path | None) -> tuple[int | None, StoreDescription | None]:
        """Size of the features and what they are."""
        encoder = pretrained_encoder(self.encoder_name)
        return encoder.dim, describe_encoder(encoder)

    def source(self, root: Path | None, split: str, description: StoreDescription | None) -> PictureSource:
        """The encoder of the description."""
        assert description is not None
        return encoder_of(description)

    def encoder(self, dim: int | None) -> ImageEncoder:
        """The encoder inside the model, which only hands features on."""
        return _handed_on(dim)

    def initialise(self, encoder: nn.Module) -> None:
        """Nothing to put in."""


def _handed_on(dim: int | None) -> StoredFeatures:
    assert dim is not None  # `describe` gave it
    return StoredFeatures(dim)


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

    >>> VQASettings(mechanism="tvmx")
    Traceback (most recent call last):
    foveate.errors.UnknownName: mechanism: expected a known name, got 'tvmx'; did you mean 'tvmax'?
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

    def attention(self) -> nn.Module:
        """The mechanism with its options."""
        options, basis = dict(self.mechanism_options), self.mechanism_options.get("basis")
        if isinstance(basis, Mapping):
            options["basis"] = GaussianBasis.grid(**basis)
        return mechanism(self.mechanism, **options)
