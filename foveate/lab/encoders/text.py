"""Text encoders: LSTM and GRU, independent of padding, and word vectors beside the states of a pretrained encoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from foveate.checks import check_padding, check_shape
from foveate.errors import ShapeError, WrongValue

LEAST = 1e-5


class Standardise(nn.Module):
    """`(x − mean) / deviation` per feature, over everything that was seen in training mode, the present batch included.

    The same statistics are used in training and in evaluation mode, so that a batch of one behaves as any other.

    Args:
        dim: number of features, the last axis.

    >>> layer = Standardise(1)
    >>> layer(torch.tensor([[1.0], [3.0]])).round(decimals=3).flatten().tolist()
    [-1.0, 1.0]
    >>> round(layer.eval()(torch.tensor([[5.0]])).item(), 3)
    3.0
    """

    count: Tensor
    mean: Tensor
    variance: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("variance", torch.ones(dim))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Standardise x (..., dim); `mask` (...) is True for the rows that count in the statistics."""
        if self.training:
            self._collect((x if mask is None else x[mask]).detach().reshape(-1, x.shape[-1]))
        return (x - self.mean) / (self.variance.sqrt() + LEAST)

    def _collect(self, rows: Tensor) -> None:
        """Merge the moments of rows (n, dim) with those seen before (Chan et al. 1979)."""
        if not len(rows):
            return
        mean, variance = rows.mean(0), rows.var(0, correction=0)
        share = len(rows) / (self.count + len(rows))
        difference = mean - self.mean
        # The initial variance of one has no share once anything was counted: share is 1 for the first rows.
        self.variance.lerp_(variance, share).add_(share * (1 - share) * difference.square())
        self.mean.add_(share * difference)
        self.count.add_(len(rows))


CELLS: dict[str, type[nn.LSTM] | type[nn.GRU]] = {"lstm": nn.LSTM, "gru": nn.GRU}
Directions = Literal["forward", "concatenate", "sum", "average"]


@dataclass(frozen=True)
class EncodedText:
    """The output of a text encoder.

    Attributes:
        states: (B, T, D) one state per token, zero where padded.
        last: (B, D) the state after the last token (backwards: after the first), zero for an empty text.
        mask: (B, T) True where a token counts.
    """

    states: Tensor
    last: Tensor
    mask: Tensor


class TextEncoder(nn.Module):
    """Word vectors followed by one recurrent layer in one or both directions.

    Padding is skipped: the states of a text do not depend on the other texts of the batch.

    Args:
        vocabulary: number of words, V; or the initial (V, word_dim) vectors, as returned by `word_vectors`.
        word_dim: size of a word vector; follows from the vectors if those are passed.
        hidden: size of the state of each direction.
        cell: "lstm" or "gru".
        directions: "forward" reads once; the others read in both directions and "concatenate" (D = 2·hidden), "sum" or
            "average" (D = hidden) the two states of a token.

    Used as: MCAN forward LSTM; dual attention networks bi-LSTM, sum; SCAN and BFAN bi-GRU, average.

    >>> import torch
    >>> encoder = TextEncoder(10, word_dim=4, hidden=6, cell="gru", directions="sum")
    >>> tokens, mask = torch.tensor([[1, 2, 3], [4, 0, 0]]), torch.tensor([[True, True, True], [True, False, False]])
    >>> encoder(tokens, mask).states.shape
    torch.Size([2, 3, 6])
    """

    def __init__(
        self,
        vocabulary: int | Tensor,
        *,
        word_dim: int | None = None,
        hidden: int = 512,
        cell: Literal["lstm", "gru"] = "lstm",
        directions: Directions = "forward",
    ) -> None:
        super().__init__()
        if cell not in CELLS or directions not in ("forward", "concatenate", "sum", "average"):
            raise WrongValue(
                "TextEncoder: expected cell 'lstm' or 'gru', directions 'forward', 'concatenate', 'sum' or 'average', "
                f"got {cell!r} and {directions!r}; correct the name"
            )
        self.name = cell if directions == "forward" else f"bi-{cell}"
        self.words = _embedding(vocabulary, word_dim)
        self.hidden, self.directions = hidden, directions
        self.dim = 2 * hidden if directions == "concatenate" else hidden
        both = directions != "forward"
        self.recurrent = CELLS[cell](self.words.embedding_dim, hidden, batch_first=True, bidirectional=both)

    def forward(self, tokens: Tensor, mask: Tensor) -> EncodedText:
        """Return the states of texts.

        Args:
            tokens: (B, T) token ids, padded at the end with any id.
            mask: (B, T) True where a token counts.
        """
        lengths = _lengths(tokens, mask)
        B, T = tokens.shape
        if B == 0 or T == 0:
            empty = self.words.weight.new_zeros(B, T, self.dim)
            return EncodedText(empty, self.words.weight.new_zeros(B, self.dim), mask)
        if torch.compiler.is_exporting():
            return self._read_unpacked(tokens, mask)
        # An empty text cannot be packed: it is read as one token and its states are zeroed below.
        packed = pack_padded_sequence(
            self.words(tokens), lengths.clamp_min(1).cpu(), batch_first=True, enforce_sorted=False
        )
        states, final = self.recurrent(packed)
        states = pad_packed_sequence(states, batch_first=True, total_length=T)[0]
        final = final[0] if isinstance(final, tuple) else final
        states, last = self._join(states.unflatten(-1, (-1, self.hidden))), self._join(final.transpose(0, 1))
        return EncodedText(states.where(mask[..., None], 0.0), last.where(mask.any(-1, keepdim=True), 0.0), mask)

    def _read_unpacked(self, tokens: Tensor, mask: Tensor) -> EncodedText:
        """The same without packed sequences, which an exported graph cannot hold; states may differ by rounding.

        Forwards the padding comes after the words, and does no harm; backwards it must come before them.
        """
        T = tokens.shape[1]
        length = mask.sum(-1, keepdim=True).clamp(min=1)
        words, places = self.words(tokens), torch.arange(T, device=tokens.device)
        states = self.recurrent(words)[0].unflatten(-1, (-1, self.hidden))
        final = _pick(states[..., 0, :], length - 1)
        if self.directions != "forward":
            # the words moved to the end of the row, read backwards, and moved back
            moved = _pick(words, (places - (T - length)).remainder(T))
            back = self.recurrent(moved)[0].unflatten(-1, (-1, self.hidden))[..., 1, :]
            back = _pick(back, (places + (T - length)).remainder(T))
            states = torch.stack([states[..., 0, :], back], -2)
            final = torch.cat([final, back[:, :1]], 1)
        states, last = self._join(states), self._join(final)
        return EncodedText(states.where(mask[..., None], 0.0), last.where(mask.any(-1, keepdim=True), 0.0), mask)

    def _join(self, states: Tensor) -> Tensor:
        """(..., directions, hidden) to (..., D)."""
        if self.directions in ("forward", "concatenate"):
            return states.flatten(-2)
        return states.sum(-2) if self.directions == "sum" else states.mean(-2)


def _embedding(vocabulary: int | Tensor, word_dim: int | None) -> nn.Embedding:
    if isinstance(vocabulary, int):
        return nn.Embedding(vocabulary, 300 if word_dim is None else word_dim)
    if vocabulary.ndim != 2 or word_dim not in (None, vocabulary.shape[1]):
        raise ShapeError(
            f"TextEncoder: expected word vectors (V, {word_dim or 'word_dim'}), got {tuple(vocabulary.shape)}; "
            "omit word_dim when passing vectors"
        )
    embedding: nn.Embedding = nn.Embedding.from_pretrained(vocabulary.clone(), freeze=False)
    return embedding


def _pick(x: Tensor, places: Tensor) -> Tensor:
    """Rows `places` (B, K) of x (B, T, D), as (B, K, D)."""
    return x.gather(1, places.unsqueeze(-1).expand(-1, -1, x.shape[-1]))


def _lengths(tokens: Tensor, mask: Tensor) -> Tensor:
    check_shape("TextEncoder", "tokens", tokens, (None, None), "(B, T)")
    check_padding("TextEncoder", "mask", mask, tokens.shape, "(B, T)", "token")
    return mask.sum(-1)


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
