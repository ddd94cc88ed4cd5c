"""Settings of models: a row of `MODELS` is a frozen dataclass of sizes that builds its network.

A family is what a task can use: every model that answers questions, writes captions, or matches images with sentences.
The settings of a task name the family, and the rows of the table that belong to it are the choices a user has.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, TypeVar

from torch import nn

from foveate.checks import CheckedSizes

if TYPE_CHECKING:
    from foveate.lab.models.answering import AnsweringModel, AnyImageEncoder
    from foveate.lab.models.captioner import Captioner
    from foveate.lab.models.fragments import InnerProduct, MatchingModel, Scorer

Settings = TypeVar("Settings", bound="ModelSettings")


@dataclass(frozen=True)
class ModelSettings(CheckedSizes, ABC):  # each family has its own signature of build
    """A row of `MODELS`; its fields are everything about the network that can be chosen."""


@dataclass(frozen=True)
class AnsweringSettings(ModelSettings):
    """The family of models that answer questions about images."""

    @abstractmethod
    def build(
        self, vocabulary: int, word_dim: int, image: AnyImageEncoder, attend: nn.Module, *, answers: int
    ) -> AnsweringModel:
        """The network with random weights.

        Args:
            vocabulary: number of tokens, V.
            word_dim: size of a word vector.
            image: encoder of the images.
            attend: attention over the image.
            answers: number of answers, A.
        """


@dataclass(frozen=True)
class CaptioningModelSettings(ModelSettings):
    """The family of models that write captions."""

    @abstractmethod
    def build(self, vocabulary: int, word_dim: int, image: AnyImageEncoder, attend: nn.Module) -> Captioner:
        """The network with random weights; the arguments of `AnsweringSettings.build`."""


@dataclass(frozen=True)
class MatchingModelSettings(ModelSettings):
    """The family of models that match images with sentences.

    Class attributes:
        attended_rule: which locations count as attended to, see `GroundingMetrics`; None if words do not attend to the
            image.
        uses_bos_eos: captions are read with bos and eos around them.
        cross_attention: words and locations attend to each other, so that the constraints CCR and CCS apply.
        attends: False for a model without any attention over the image.
        pools: only the mean and the maximum of the features are used, so that features may be pooled before.
    """

    attended_rule: ClassVar[Literal["above-uniform", "above-zero"] | None] = None
    uses_bos_eos: ClassVar[bool] = False
    cross_attention: ClassVar[bool] = False
    attends: ClassVar[bool] = True
    pools: ClassVar[bool] = False

    @property
    def words_attend(self) -> bool:
        """True if every word has attention weights over the image."""
        return self.attended_rule is not None

    @property
    @abstractmethod
    def reads_states(self) -> bool:
        """True if sentences are passed with the states of a pretrained encoder, see `SentenceEncoder`."""

    @abstractmethod
    def scorer(self, attend: nn.Module) -> Scorer | InnerProduct:
        """The module that scores images with sentences; it has no weights."""

    @abstractmethod
    def build(self, vocabulary: int, word_dim: int, image: AnyImageEncoder, attend: nn.Module) -> MatchingModel:
        """The network with random weights; the arguments of `AnsweringSettings.build`."""
