"""Dual attention networks: steps that look at the picture and at the words at the same time, guided by a memory."""

from __future__ import annotations

from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from foveate.attention import Attended, Grid
from foveate.checks import check_number
from foveate.encoders import TextEncoder
from foveate.encoders.images import ImageFeatures
from foveate.models.answering import Answered, ImageEncoder, Reading, of_questions
from foveate.models.matching import Fragments, InnerProduct


class ReasoningDAN(nn.Module):
    """r-DAN: both attentions share one memory of what has been seen and read.

    m⁰ = v⁰ ⊙ u⁰,  mᵏ = mᵏ⁻¹ + vᵏ ⊙ uᵏ,  scores = W_a mᴷ

    with v⁰ = tanh(P⁰ mean(v)), u⁰ = mean(u), and vᵏ, uᵏ by `GuidedAttention` with weights of their own in each step.
    The probabilities of the answers are the softmax of the scores.

    Args:
        text: encodes the words, to states of size D = text.dim; both directions summed in the paper.
        image: encodes the pictures, to features of any size `image.dim`.
        attend: reads the picture, `attend(scores, values, grid, mask) -> Attended`, in every step.
        attend_words: reads the words, in every step.
        answers: number of answers, A.
        steps: K.
        dropout: of the word states, of the hidden states of both attentions and of the last memory, in training.

    Means and attention pass over padding. The paper says how much is dropped, not where; the places are ours.

    Reference: Nam et al. 2017, eq. 3-15.

    >>> from foveate.attention import mechanism
    >>> from foveate.encoders import StoredFeatures
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
        image: ImageEncoder,
        attend: nn.Module,
        attend_words: nn.Module,
        *,
        answers: int,
        steps: int = 2,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        check_number("ReasoningDAN", "steps", steps, least=1, advice="2 in the paper")
        D = text.dim
        self.text, self.image = text, image
        self.dropout = nn.Dropout(dropout)
        self.first_look = nn.Linear(image.dim, D)
        self.looks = nn.ModuleList(GuidedAttention(image.dim, D, attend, dropout) for _ in range(steps))
        self.embeds = nn.ModuleList(nn.Linear(image.dim, D) for _ in range(steps))
        self.reads = nn.ModuleList(GuidedAttention(D, D, attend_words, dropout) for _ in range(steps))
        self.answers = nn.Linear(D, answers)

    def forward(
        self, pictures: ImageFeatures | Tensor, tokens: Tensor, mask: Tensor, index: Tensor | None = None
    ) -> Answered:
        """Answer questions.

        Args:
            pictures: what the image encoder reads, P pictures.
            tokens: (B, T) word numbers, padded at the end.
            mask: (B, T) True where a word counts.
            index: (B,) which picture each question is about, when they are not one to one.
        """
        features = self.image(pictures)
        seen = of_questions(features, index)
        words = self.dropout(self.text(tokens, mask).states)
        memory = self.first_look(masked_mean(seen.values, seen.mask)).tanh() * masked_mean(words, mask)
        images, questions = [], []
        for step, (module, read) in enumerate(zip(self.looks, self.reads, strict=True)):
            look = cast(GuidedAttention, module)
            scores = look.score(features.values, memory, index)
            image = look.attend(scores, seen.values, grid=seen.grid, mask=seen.mask)
            question = read(words, memory, None, mask)
            remember = partial(self.remember, step, memory)
            memory = remember(question.context, image.context)
            images.append(image)
            questions.append(question)
        reading = Reading(question.context, scores, seen.values, seen.mask, lambda *read: self.answer(remember(*read)))
        return Answered(self.answer(memory), tuple(images), tuple(questions), reading)

    def remember(self, step: int, memory: Tensor, question: Tensor, context: Tensor) -> Tensor:
        """The memory (B, D) after a step, from the memory before, what was read (B, D) and what was seen (B, V)."""
        return memory + self.embeds[step](context).tanh() * question

    def answer(self, memory: Tensor) -> Tensor:
        """(B, A) scores of the answers, from the last memory (B, D)."""
        return self.answers(self.dropout(memory))


class MatchingDAN(nn.Module):
    """m-DAN: each side has a memory of its own, so that a picture and a sentence are one vector each.

    m_v⁰ = v⁰ = tanh(P⁰ mean(v)),  m_vᵏ = m_vᵏ⁻¹ + vᵏ,  z_v = [v⁰; …; vᴷ];  m_u⁰ = u⁰ = mean(u), and so on
    S = z_v · z_u = Σ_k vᵏ · uᵏ

    with vᵏ, uᵏ by `GuidedAttention` with weights of their own in each step.

    Args:
        text: encodes the words, to states of size D = text.dim; both directions summed in the paper.
        image: encodes the pictures, to features of any size `image.dim`.
        attend: reads the picture, in every step.
        attend_words: reads the words, in every step.
        steps: K.
        dropout: of the word states and of the hidden states of both attentions, in training.

    Means and attention pass over padding. The paper says how much is dropped, not where; the places are ours.

    Reference: Nam et al. 2017, eq. 3-10, 13-14 and 16-22.

    >>> from foveate.attention import mechanism
    >>> from foveate.encoders import StoredFeatures
    >>> text = TextEncoder(10, word_dim=4, hidden=8, directions="sum")
    >>> model = MatchingDAN(text, StoredFeatures(6), mechanism("tvmax"), mechanism("softmax"))
    >>> seen = model.embed_image(ImageFeatures(torch.randn(2, 4, 6), grid=(2, 2)))
    >>> seen.values.shape, len(seen.looks)
    (torch.Size([2, 1, 24]), 2)
    """

    def __init__(
        self,
        text: TextEncoder,
        image: ImageEncoder,
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
        self.looks = nn.ModuleList(GuidedAttention(image.dim, D, attend, dropout) for _ in range(steps))
        self.embeds = nn.ModuleList(nn.Linear(image.dim, D) for _ in range(steps))
        self.reads = nn.ModuleList(GuidedAttention(D, D, attend_words, dropout) for _ in range(steps))

    def embed_image(self, pictures: ImageFeatures | Tensor) -> Fragments:
        """Pictures as one vector each, (I, 1, (K + 1) D), and where each step looked."""
        seen = self.image(pictures)
        found = memory = self.first_look(masked_mean(seen.values, seen.mask)).tanh()
        vectors, looks = [found], []
        for look, embed in zip(self.looks, self.embeds, strict=True):
            attended = look(seen.values, memory, seen.grid, seen.mask)
            found = embed(attended.context).tanh()
            memory = memory + found
            vectors.append(found)
            looks.append(attended)
        return Fragments(torch.cat(vectors, -1)[:, None], looks=tuple(looks))

    def embed_text(self, tokens: Tensor, mask: Tensor) -> Fragments:
        """Sentences (C, T) as one vector each, (C, 1, (K + 1) D), and which words each step read."""
        words = self.dropout(self.text(tokens, mask).states)
        memory = masked_mean(words, mask)
        vectors, looks = [memory], []
        for read in self.reads:
            attended = read(words, memory, None, mask)
            memory = memory + attended.context
            vectors.append(attended.context)
            looks.append(attended)
        return Fragments(torch.cat(vectors, -1)[:, None], looks=tuple(looks))

    def forward(self, pictures: ImageFeatures | Tensor, tokens: Tensor, mask: Tensor) -> Tensor:
        """Scores (I, C) of every picture with every sentence."""
        return self.scorer(self.embed_image(pictures), self.embed_text(tokens, mask))


class GuidedAttention(nn.Module):
    """Attention to locations of size `dim`, guided by a memory of size `hidden`: eq. 4-5 and 8-10.

    h_n = tanh(W v_n) ⊙ tanh(W_m m),  score_n = w_hᵀ h_n

    The visual `tanh(P ·)` of eq. 6 belongs to the model.
    """

    def __init__(self, dim: int, hidden: int, attend: nn.Module, dropout: float) -> None:
        super().__init__()
        self.locations, self.memory = nn.Linear(dim, hidden), nn.Linear(hidden, hidden)
        self.dropout, self.scores = nn.Dropout(dropout), nn.Linear(hidden, 1)
        self.attend = attend

    def forward(self, values: Tensor, memory: Tensor, grid: Grid | None, mask: Tensor | None) -> Attended:
        """Attend to values (B, N, dim) with a memory (B, hidden)."""
        return self.attend(self.score(values, memory), values, grid=grid, mask=mask)

    def score(self, values: Tensor, memory: Tensor, index: Tensor | None = None) -> Tensor:
        """(B, N) scores of values (B, N, dim), given a memory (B, hidden).

        With an index (B,), values are (P, N, dim) and those of the memory b are values[index[b]].
        """
        locations = self.locations(values).tanh()
        hidden = (locations if index is None else locations[index]) * self.memory(memory).tanh()[:, None]
        return self.scores(self.dropout(hidden)).squeeze(-1)


def masked_mean(x: Tensor, mask: Tensor | None) -> Tensor:
    """Mean of x (B, N, D) over the locations that count; zeros where none does.

    >>> masked_mean(torch.tensor([[[1.0], [3.0], [9.0]]]), torch.tensor([[True, True, False]])).tolist()
    [[2.0]]
    """
    if mask is None:
        return x.mean(1)
    return x.where(mask[..., None], 0).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
