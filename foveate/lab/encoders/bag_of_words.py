"""A text encoder that returns one vector per sentence: a bag of words, and the mean of pretrained states."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from foveate.errors import ShapeError
from foveate.lab.data.vocabulary import SPECIAL
from foveate.lab.encoders.text import Standardise
from foveate.ops.reading import masked_mean


class BagOfWords(nn.Module):
    """One vector per sentence: the sum of its word vectors and, if there are any, its mean pretrained state.

    t = W Σ_t e_t + W₁ s + MLP(s) with s the standardised mean of the states

    Args:
        vocabulary: number of tokens, V; special tokens have no part in the sum.
        word_dim: size of a word vector.
        hidden: D, size of the result.
        states: size of the pretrained states; None if there are none.
        dropout: probability for the mean state.
    """

    def __init__(
        self, vocabulary: int, word_dim: int, hidden: int, *, states: int | None = None, dropout: float = 0.5
    ) -> None:
        super().__init__()
        self.dim = hidden
        self.words = nn.Embedding(vocabulary, word_dim)
        self.project = nn.Linear(word_dim, hidden)
        self.states = None if states is None else _StateVector(states, hidden, dropout)

    def forward(self, tokens: Tensor, mask: Tensor, states: Tensor | None = None, *, dropout: bool = True) -> Tensor:
        """(C, D) vectors of sentences (C, T), with states (C, T, S) if the encoder uses them."""
        counted = mask & (tokens >= len(SPECIAL))
        vectors: Tensor = self.project(self.words(tokens).where(counted[..., None], 0).sum(1))
        if self.states is None:
            return vectors
        if states is None:
            raise ShapeError(
                f"BagOfWords: expected states {(*tokens.shape, 'S')}, got none; pass those of `sentence_encoder()`"
            )
        pretrained: Tensor = self.states(states, mask, dropout=dropout)
        return vectors + pretrained


class _StateVector(nn.Module):
    """A linear layer and a small network on the standardised mean of pretrained states."""

    def __init__(self, dim: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.standardise, self.dropout = Standardise(dim), dropout
        self.linear, self.inner, self.outer = nn.Linear(dim, hidden), nn.Linear(dim, 512), nn.Linear(512, hidden)

    def forward(self, states: Tensor, mask: Tensor, *, dropout: bool) -> Tensor:
        mean, training = self.standardise(masked_mean(states, mask)), self.training and dropout
        # Two draws of dropout: each part sees other features.
        inner = functional.gelu(self.inner(functional.dropout(mean, self.dropout, training)))
        vector: Tensor = self.outer(functional.dropout(inner, self.dropout / 2, training))
        linear: Tensor = self.linear(functional.dropout(mean, self.dropout, training))
        return vector + linear
