"""Dual attention networks: steps of attention over the image and over the words, guided by a memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from foveate.attention import MECHANISMS, Attended, Grid
from foveate.checks import check_number
from foveate.lab.encoders import Standardise, TextEncoder
from foveate.lab.features import ImageFeatures
from foveate.lab.models.answering import Answered, AnsweringModel, AnyImageEncoder, Reading
from foveate.lab.models.families import AnsweringSettings, MatchingModelSettings, ModelSettings
from foveate.lab.models.fragments import Fragments, InnerProduct, MatchingModel
from foveate.ops.reading import masked_mean
from foveate.registry import lookup


@dataclass(frozen=True)
class DANSettings(ModelSettings):
    """The settings that both dual attention networks share.

    Attributes:
        hidden: D, size of all layers.
        reasoning_steps: K, number of steps.
        dropout: probability.
        word_mechanism: attention over the words, a row of `MECHANISMS`.
    """

    hidden: int = 512
    reasoning_steps: int = 2
    dropout: float = 0.5
    word_mechanism: str = "softmax"

    def __post_init__(self) -> None:
        super().__post_init__()
        lookup("mechanism", self.word_mechanism, MECHANISMS)

    def text(self, vocabulary: int, word_dim: int) -> TextEncoder:
        """The bidirectional encoder of the words."""
        return TextEncoder(vocabulary, word_dim=word_dim, hidden=self.hidden, directions="sum")


@dataclass(frozen=True)
class ReasoningDANSettings(DANSettings, AnsweringSettings):
    """r-DAN: attention over image and question in several steps with a shared memory.

    Attributes:
        projected: project the features to D numbers before the steps, see `ReasoningDAN`.
    """

    projected: bool = False

    def build(
        self, vocabulary: int, word_dim: int, image: AnyImageEncoder, attend: nn.Module, *, answers: int
    ) -> ReasoningDAN:
        text, attend_words = self.text(vocabulary, word_dim), MECHANISMS[self.word_mechanism].build()
        steps, dropout = self.reasoning_steps, self.dropout
        return ReasoningDAN(
            text, image, attend, attend_words, answers=answers, steps=steps, dropout=dropout, projected=self.projected
        )


@dataclass(frozen=True)
class MatchingDANSettings(DANSettings, MatchingModelSettings):
    """m-DAN: one vector per image and per sentence, by attention in several steps with separate memories."""

    @property
    def reads_states(self) -> bool:
        return False

    def scorer(self, attend: nn.Module) -> InnerProduct:
        return InnerProduct()

    def build(self, vocabulary: int, word_dim: int, image: AnyImageEncoder, attend: nn.Module) -> MatchingDAN:
        text, attend_words = self.text(vocabulary, word_dim), MECHANISMS[self.word_mechanism].build()
        return MatchingDAN(text, image, attend, attend_words, steps=self.reasoning_steps, dropout=self.dropout)


class ReasoningDAN(AnsweringModel):
    """r-DAN: the attention over the image and the attention over the words share one memory.

    m⁰ = v⁰ ⊙ u⁰,  mᵏ = mᵏ⁻¹ + vᵏ ⊙ uᵏ,  scores = W_a mᴷ

    with v⁰ = tanh(P⁰ mean(v)), u⁰ = mean(u), and vᵏ, uᵏ from `GuidedAttention`, with separate weights per step. The
    probabilities of the answers are the softmax of the scores.

    Args:
        text: encoder of the words, D = text.dim; both directions are summed in the paper.
        image: encoder of the images, with features of any size `image.dim`.
        attend: attention over the image in every step, `attend(scores, values, grid, mask) -> Attended`.
        attend_words: attention over the words in every step.
        answers: number of answers, A.
        steps: K.
        dropout: probability for the word states, the hidden states of both attentions and the last memory.
        projected: replace the features by `LayerNorm(relu(W x))` with D numbers, x their standardised roots ±√|x|: read
            once per image instead of once per question, with dropout before and after. Not in the paper.

    Means and attention ignore padding. The paper reports the dropout probability but not where it is applied; that is
    our choice.

    Reference: Nam et al. 2017, eq. 3-15.

    >>> from foveate.attention import mechanism
    >>> from foveate.lab.encoders import StoredFeatures
    >>> text = TextEncoder(10, word_dim=4, hidden=8, directions="sum")
    >>> model = ReasoningDAN(text, StoredFeatures(6), mechanism("tvmax"), mechanism("sparsemax"), answers=3)
    >>> features = ImageFeatures(torch.randn(2, 4, 6), grid=(2, 2))
    >>> tokens, mask = torch.ones(2, 5, dtype=torch.long), torch.ones(2, 5, dtype=torch.bool)
    >>> answered = model(features, tokens, mask)
    >>> answered.scores.shape, len(answered.image), answered.question[1].weights.shape
    (torch.Size([2, 3]), 2, torch.Size([2, 5]))
    """

    def __init__(
        self,
        text: TextEncoder,
        image: AnyImageEncoder,
        attend: nn.Module,
        attend_words: nn.Module,
        *,
        answers: int,
        steps: int = 2,
        dropout: float = 0.5,
        projected: bool = False,
    ) -> None:
        super().__init__()
        check_number("ReasoningDAN", "steps", steps, least=1, advice="2 in the paper")
        D = text.dim
        self.text, self.image = text, image
        self.dropout = nn.Dropout(dropout)
        self.project = Projection(image.dim, D, dropout) if projected else None
        size = D if projected else image.dim
        self.first_look = nn.Linear(size, D)
        self.looks, self.embeds, self.reads = _layers(size, D, attend, attend_words, steps, dropout)
        self.answers = nn.Linear(D, answers)

    def forward(
        self, images: ImageFeatures | Tensor, tokens: Tensor, mask: Tensor, index: Tensor | None = None
    ) -> Answered:
        """Answer questions; see `AnsweringModel.forward`."""
        features = self.image(images)
        if self.project is not None:
            features = replace(features, values=self.project(features.values, features.mask))
        seen = features if index is None else features[index]
        words = self.dropout(self.text(tokens, mask).states)
        memory = self.first_look(masked_mean(seen.values, seen.mask)).tanh() * masked_mean(words, mask)
        images_attended, words_attended = [], []
        for step, (module, read) in enumerate(zip(self.looks, self.reads, strict=True)):
            look = cast(GuidedAttention, module)
            # Scored before the images are repeated: images with several questions are projected once.
            scores = look.score(features.values, memory, index)
            image = look.attend(scores, seen.values, grid=seen.grid, mask=seen.mask)
            question = read(words, memory, None, mask)
            # Binds the memory before this step, which `reading` below needs after the last one.
            update = partial(self.update_memory, step, memory)
            memory = update(question.context, image.context)
            images_attended.append(image)
            words_attended.append(question)
        reading = Reading(
            question.context, scores, seen.values, seen.mask, lambda *parts: self.answer(update(*parts)), look.attend
        )
        return Answered(self.answer(memory), tuple(images_attended), tuple(words_attended), reading)

    def update_memory(self, step: int, memory: Tensor, question: Tensor, context: Tensor) -> Tensor:
        """The memory (B, D) after a step, from the previous one and the contexts of words (B, D) and image (B, V)."""
        change: Tensor = self.embeds[step](context).tanh() * question
        return memory + change

    def answer(self, memory: Tensor) -> Tensor:
        """(B, A) scores of the answers, from the last memory (B, D)."""
        scores: Tensor = self.answers(self.dropout(memory))
        return scores


class Projection(nn.Module):
    """`LayerNorm(relu(W x))` of the standardised roots of features, for the steps of r-DAN."""

    def __init__(self, dim: int, size: int, dropout: float) -> None:
        super().__init__()
        self.standardise, self.project, self.norm = Standardise(dim), nn.Linear(dim, size), nn.LayerNorm(size)
        self.dropout = nn.Dropout(dropout)

    def forward(self, values: Tensor, mask: Tensor | None) -> Tensor:
        """Project values (B, N, dim) to (B, N, size)."""
        roots = self.standardise(values.sign() * values.abs().sqrt(), mask)
        kept = self.dropout(torch.ones_like(roots[:, :1]))  # the same features everywhere in an image: few to draw
        projected: Tensor = self.dropout(self.norm(self.project(roots * kept).relu()))
        return projected


class MatchingDAN(MatchingModel):
    """m-DAN: image and sentence have separate memories, so that each becomes one vector.

    m_v⁰ = v⁰ = tanh(P⁰ mean(v)),  m_vᵏ = m_vᵏ⁻¹ + vᵏ,  z_v = [v⁰; …; vᴷ];  m_u⁰ = u⁰ = mean(u), and so on
    S = z_v · z_u = Σ_k vᵏ · uᵏ

    with vᵏ, uᵏ from `GuidedAttention`, with separate weights for each step.

    Args:
        text: encoder of the words, D = text.dim; both directions are summed in the paper.
        image: encoder of the images, with features of any size `image.dim`.
        attend: attention over the image in every step.
        attend_words: attention over the words in every step.
        steps: K.
        dropout: probability for the word states and the hidden states of both attentions.

    Means and attention ignore padding. The paper reports the dropout probability but not where it is applied; that is
    our choice.

    Reference: Nam et al. 2017, eq. 3-10, 13-14 and 16-22.

    >>> from foveate.attention import mechanism
    >>> from foveate.lab.encoders import StoredFeatures
    >>> text = TextEncoder(10, word_dim=4, hidden=8, directions="sum")
    >>> model = MatchingDAN(text, StoredFeatures(6), mechanism("tvmax"), mechanism("softmax"))
    >>> embedded = model.embed_image(ImageFeatures(torch.randn(2, 4, 6), grid=(2, 2)))
    >>> embedded.values.shape, len(embedded.attention)
    (torch.Size([2, 1, 24]), 2)
    """

    def __init__(
        self,
        text: TextEncoder,
        image: AnyImageEncoder,
        attend: nn.Module,
        attend_words: nn.Module,
        *,
        steps: int = 2,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        D = text.dim
        self.text, self.image, self.scorer = text, image, InnerProduct()
        self.dropout = nn.Dropout(dropout)
        self.first_look = nn.Linear(image.dim, D)
        self.looks, self.embeds, self.reads = _layers(image.dim, D, attend, attend_words, steps, dropout)

    def embed_image(self, images: ImageFeatures | Tensor) -> Fragments:
        """One vector per image, (I, 1, (K + 1) D), with the attention of each step over the image."""
        features = self.image(images)
        vector = memory = self.first_look(masked_mean(features.values, features.mask)).tanh()
        vectors, attention = [vector], []
        for look, embed in zip(self.looks, self.embeds, strict=True):
            attended = look(features.values, memory, features.grid, features.mask)
            vector = embed(attended.context).tanh()
            memory = memory + vector
            vectors.append(vector)
            attention.append(attended)
        return Fragments(torch.cat(vectors, -1)[:, None], attention=tuple(attention))

    def embed_text(
        self, tokens: Tensor, mask: Tensor, states: Tensor | None = None, *, dropout: bool = True
    ) -> Fragments:
        """One vector per sentence, (C, 1, (K + 1) D), with the attention of each step over the words."""
        own = self.text(tokens, mask).states
        words = self.dropout(own) if dropout else own
        memory = masked_mean(words, mask)
        vectors, attention = [memory], []
        for read in self.reads:
            attended = read(words, memory, None, mask)
            memory = memory + attended.context
            vectors.append(attended.context)
            attention.append(attended)
        return Fragments(torch.cat(vectors, -1)[:, None], attention=tuple(attention))


class GuidedAttention(nn.Module):
    """Attention to locations of size `dim`, guided by a memory of size `hidden`.

    h_n = tanh(W v_n) ⊙ tanh(W_m m),  score_n = w_hᵀ h_n

    The visual `tanh(P ·)` of eq. 6 belongs to the model.

    Reference: Nam et al. 2017, eq. 4-5 and 8-10.
    """

    recomputable: ClassVar[bool] = True

    def __init__(self, dim: int, hidden: int, attend: nn.Module, dropout: float) -> None:
        super().__init__()
        self.locations, self.memory = nn.Linear(dim, hidden), nn.Linear(hidden, hidden)
        self.dropout, self.scores = nn.Dropout(dropout), nn.Linear(hidden, 1)
        self.attend = attend

    def forward(self, values: Tensor, memory: Tensor, grid: Grid | None, mask: Tensor | None) -> Attended:
        """Attend to values (B, N, dim) with a memory (B, hidden)."""
        attended: Attended = self.attend(self.score(values, memory), values, grid=grid, mask=mask)
        return attended

    def score(self, values: Tensor, memory: Tensor, index: Tensor | None = None) -> Tensor:
        """Scores (B, N) of values (B, N, dim), given a memory (B, hidden).

        With an index (B,), the values are (P, N, dim), and the memory b is scored with values[index[b]].
        """
        locations = self.locations(values).tanh()
        # w_hᵀ (a ⊙ b) = aᵀ (w_h ⊙ b): the products of all locations and memories are never in memory.
        query = self.scores.weight * self.dropout(self.memory(memory).tanh())
        scores: Tensor = (locations if index is None else locations[index]) @ query[..., None]
        return scores.squeeze(-1) + self.scores.bias


def _layers(
    image_dim: int, D: int, attend: nn.Module, attend_words: nn.Module, steps: int, dropout: float
) -> tuple[nn.ModuleList, nn.ModuleList, nn.ModuleList]:
    """Attention over the image, projections of its context, and attention over the words, one of each per step."""
    looks = nn.ModuleList(GuidedAttention(image_dim, D, attend, dropout) for _ in range(steps))
    embeds = nn.ModuleList(nn.Linear(image_dim, D) for _ in range(steps))
    reads = nn.ModuleList(GuidedAttention(D, D, attend_words, dropout) for _ in range(steps))
    return looks, embeds, reads
