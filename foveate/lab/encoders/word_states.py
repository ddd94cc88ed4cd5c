"""A text encoder on the states of a pretrained one: a vector per word, from its state and from a word vector."""

from __future__ import annotations

from torch import Tensor, nn

from foveate.lab.encoders.standardise import Standardise
from foveate.lab.encoders.text import EncodedText


class WordsInContext(nn.Module):
    """Word vectors plus the standardised states of a pretrained encoder, projected to one space: `V e_t + W s_t`.

    Args:
        vocabulary: number of tokens, V.
        word_dim: size of a word vector.
        hidden: D, size of the result.
        states: size of the pretrained states.
        dropout: probability for the states.
    """

    def __init__(self, vocabulary: int, word_dim: int, hidden: int, *, states: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dim = hidden
        self.words = nn.Embedding(vocabulary, word_dim)
        self.project, self.project_states = nn.Linear(word_dim, hidden), nn.Linear(states, hidden, bias=False)
        self.standardise, self.dropout = Standardise(states), nn.Dropout(dropout)

    def forward(self, tokens: Tensor, mask: Tensor, states: Tensor) -> EncodedText:
        """Vectors of sentences (C, T) with states (C, T, S); `last` is their mean."""
        inner = self.dropout(self.standardise(states, mask))
        vectors = (self.project(self.words(tokens)) + self.project_states(inner)).where(mask[..., None], 0)
        return EncodedText(vectors, vectors.sum(1) / mask.sum(1, keepdim=True).clamp_min(1), mask)
