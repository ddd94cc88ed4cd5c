"""The captioner of sparse and structured attention: one look before each word, and one after it has been thought of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from foveate.attention import Attended, Grid
from foveate.attention.shapes import mask_beside, weighted_sum
from foveate.checks import check_mask, check_shape
from foveate.encoders.images import ImageFeatures
from foveate.errors import ShapeError
from foveate.models.answering import ImageEncoder
from foveate.models.decoding import Decoded, State, beam_search, sample_words
from foveate.ops.simplex import softmax


@dataclass(frozen=True)
class Captioned:
    """What a captioner returns for captions that are given to it.

    Attributes:
        scores: (W, V) one row for each of the W words that count, in the order of `tokens[mask]`: the scores of the
            word that comes after it. Their softmax is the predictive probability.
        image: the output attention of every word, weights (B, T, N); where there is no word it means nothing.
        image_scores: (B, T, N) scores of the output attention, before its transform.
        values: (B, N, D) the projected features that both attentions read.
        look: (B, T, N) weights of the input attention, zero where there is no word.
        states, cells: (B, T, D) of the recurrence after each word, zero where there is none.
    """

    scores: Tensor
    image: Attended
    image_scores: Tensor
    values: Tensor
    look: Tensor
    states: Tensor
    cells: Tensor


@dataclass(frozen=True)
class Seen:
    """Pictures as the captioner reads them, with all that does not depend on the words.

    Attributes:
        values: (B, N, D) the projected features.
        keys, out_keys: (B, N, S) their part in the scores of the input and of the output attention.
        grid, mask: of the locations.
    """

    values: Tensor
    keys: Tensor
    out_keys: Tensor
    grid: Grid | None
    mask: Tensor | None

    def rows(self, index: Tensor) -> Seen:
        """Those of some pictures, one or several times."""
        picked = {name: part[index] for name, part in vars(self).items() if isinstance(part, Tensor)}
        return replace(self, **picked)


class AdditiveScores(nn.Module):
    """`z_n = wᵀ tanh(affine([v_n; h]))`, in two parts: what depends on the locations alone is made once a picture."""

    def __init__(self, dim: int, size: int) -> None:
        super().__init__()
        self.locations, self.state = nn.Linear(dim, size), nn.Linear(dim, size, bias=False)
        self.weight = nn.Parameter(torch.empty(size).uniform_(-(size**-0.5), size**-0.5))

    def forward(self, keys: Tensor, queries: Tensor) -> Tensor:
        """Scores (B, ..., N) of keys (B, N, S) = `locations(v)` and queries (B, ..., S) = `state(h)`."""
        B, N, S = keys.shape
        beside = keys.reshape(B, *[1] * (queries.ndim - 2), N, S)
        return (beside + queries[..., None, :]).tanh() @ self.weight


class Captioner(nn.Module):
    """Writes captions word by word; the attention that is read for a word is handed in.

    s_t = Σ_n softmax(z(v, h_{t−1}))_n v_n,   h_t = LSTM([y_{t−1}; s_t], h_{t−1}),
    s̃_t = attend(z̃(v, h_t), v),  r_t = tanh(affine(s̃_t)),  p(y_t) = softmax(affine([r_t; h_t]))

    with additive scores z and z̃ and v = W features. The recurrence begins at zero with the start mark. The output
    attention does not come back into the recurrence: with given captions it is made for all words at once.

    Args:
        image: encodes the pictures, to features of any size `image.dim`.
        attend: the output attention, `attend(scores, values, grid, mask) -> Attended`; the input one is softmax.
        vocabulary: number of words, V, marks included.
        word_dim: size of a word vector.
        hidden: D, size of the projected features and of the recurrence.
        score_dim: S, size of the tanh in the scores, much of the cost; D when absent. The paper does not tell.
        dropout: of the words, the projected features and [r; h], in training; the paper tells of none.

    Reference: Martins et al. 2020 (paper 003), §3, eq. 10.

    >>> from foveate.attention import mechanism
    >>> from foveate.encoders import StoredFeatures
    >>> model = Captioner(StoredFeatures(6), mechanism("tvmax"), vocabulary=10, word_dim=4, hidden=8).eval()
    >>> features = ImageFeatures(torch.randn(2, 4, 6), grid=(2, 2))
    >>> tokens, mask = torch.full((2, 5), 4), torch.ones(2, 5, dtype=torch.bool)
    >>> captioned = model(features, tokens, mask)
    >>> captioned.scores.shape, captioned.image.map().shape
    (torch.Size([10, 10]), torch.Size([2, 5, 2, 2]))
    >>> model.caption(features, start=2, end=3, max_words=7, beams=3).words.shape[:2]
    torch.Size([2, 3])
    """

    def __init__(
        self,
        image: ImageEncoder,
        attend: nn.Module,
        *,
        vocabulary: int,
        word_dim: int = 256,
        hidden: int = 512,
        score_dim: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.image, self.attend = image, attend
        self.features = nn.Linear(image.dim, hidden)
        self.words = nn.Embedding(vocabulary, word_dim)
        self.scores, self.out_scores = (AdditiveScores(hidden, score_dim or hidden) for _ in range(2))
        # The gates of the LSTM in two parts: what the words give is made for all of them at once.
        self.word_gates, self.gates = nn.Linear(word_dim, 4 * hidden), nn.Linear(2 * hidden, 4 * hidden, bias=False)
        self.read = nn.Linear(hidden, hidden)
        self.next_word = nn.Linear(2 * hidden, vocabulary)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, pictures: ImageFeatures | Tensor, tokens: Tensor, mask: Tensor, index: Tensor | None = None
    ) -> Captioned:
        """Read captions (teacher forcing).

        Args:
            pictures: what the image encoder reads, P pictures.
            tokens: (B, T) word numbers with the start mark first and without the end mark, padded at the end.
            mask: (B, T) True where a word counts; every caption has one at least.
            index: (B,) which picture each caption is about, when they are not one to one.
        """
        packed = _pack(tokens, mask)
        assert packed.sorted_indices is not None
        seen = self.see(pictures)
        rows = packed.sorted_indices if index is None else index[packed.sorted_indices]
        sorted_seen = seen.rows(rows)
        looks, states, cells = self._unroll(sorted_seen, packed)
        parts = looks, states, cells, self._look_after(sorted_seen, states, packed)
        looks, states, cells, scores = (_unpack(part, packed, tokens.shape[1]) for part in parts)
        seen = seen if index is None else seen.rows(index)
        attended = self.attend(scores, seen.values, grid=seen.grid, mask=seen.mask)
        following = self.next_scores(attended.context[mask], states[mask])
        return Captioned(following, attended, scores, seen.values, looks, states, cells)

    def see(self, pictures: ImageFeatures | Tensor) -> Seen:
        """Encode pictures and make what every word needs of them."""
        features = self.image(pictures)
        values = self.dropout(self.features(features.values))
        keys, out_keys = self.scores.locations(values), self.out_scores.locations(values)
        return Seen(values, keys, out_keys, features.grid, features.mask)

    def _unroll(self, seen: Seen, packed: PackedSequence) -> tuple[Tensor, Tensor, Tensor]:
        """Input attention, states and cells of packed captions, (W, ...): fewer and fewer rows go on, word by word."""
        sizes = packed.batch_sizes.tolist()
        words = self.word_gates(self.dropout(self.words(packed.data))).split(sizes)
        state = self._begin(sizes[0])
        looks, states, cells = [], [], []
        for size, word in zip(sizes, words, strict=True):
            if size < len(seen.values):
                seen, state = _first(seen, size), (state[0][:size], state[1][:size])
            look, state = self._advance(seen, state, word)
            looks.append(look)
            states.append(state[0])
            cells.append(state[1])
        return torch.cat(looks), torch.cat(states), torch.cat(cells)

    def _look_after(self, seen: Seen, states: Tensor, packed: PackedSequence) -> Tensor:
        """Scores (W, N) of the output attention; step by step, since all at once would leave the cache."""
        sizes, scores = packed.batch_sizes.tolist(), []
        for size, query in zip(sizes, self.out_scores.state(states).split(sizes), strict=True):
            seen = seen if size == len(seen.values) else _first(seen, size)
            scores.append(self.out_scores(seen.out_keys, query))
        return torch.cat(scores)

    def _advance(self, seen: Seen, state: State, word: Tensor) -> tuple[Tensor, State]:
        """One step of the recurrence, after the input attention: its weights and the new state."""
        scores = self.scores(seen.keys, self.scores.state(state[0]))
        look = softmax(scores, mask=mask_beside(scores, seen.mask))
        return look, self._recur(weighted_sum(look, seen.values), state, word)

    def _recur(self, context: Tensor, state: State, word: Tensor) -> State:
        """The LSTM's equations, given the words' part in its gates."""
        h, c = state
        i, f, g, o = (word + self.gates(torch.cat([context, h], -1))).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c

    def swapped_states(self, captioned: Captioned, rows: Tensor, places: Tensor, words: Tensor) -> Tensor:
        """States (R, D) as they would be had other words come at some places, everything before as it was.

        Args:
            captioned: what the model returned.
            rows, places: (R,) captions and places in them, after the first.
            words: (R,) what comes there instead.
        """
        context = weighted_sum(captioned.look[rows, places][:, None], captioned.values[rows])[:, 0]
        before = captioned.states[rows, places - 1], captioned.cells[rows, places - 1]
        return self._recur(context, before, self.word_gates(self.dropout(self.words(words))))[0]

    def _begin(self, *shape: int) -> State:
        zeros = self.features.weight.new_zeros(*shape, self.features.out_features)
        return zeros, zeros

    def next_scores(self, context: Tensor, states: Tensor) -> Tensor:
        """Scores (..., V) of the next word, from what the output attention read (..., D) and the states (..., D)."""
        both = torch.cat([self.read(context).tanh(), states], -1)
        return self.next_word(self.dropout(both))

    def _write(self, seen: Seen, state: State, words: Tensor) -> tuple[Tensor, State]:
        """Scores (B, K, V) of the words after the words (B, K), and the state there."""
        _, state = self._advance(seen, state, self.word_gates(self.words(words)))
        queries = self.out_scores.state(state[0])
        attended = self.attend(self.out_scores(seen.out_keys, queries), seen.values, grid=seen.grid, mask=seen.mask)
        return self.next_scores(attended.context, state[0]), state

    @torch.no_grad()
    def caption(
        self,
        pictures: ImageFeatures | Tensor,
        *,
        start: int,
        end: int,
        never: Sequence[int] = (),
        max_words: int = 20,
        beams: int = 1,
        length_penalty: float = 0.0,
        no_repeat: int | None = None,
    ) -> Decoded:
        """The most probable captions found by beam search, greedy with one beam; see `beam_search`."""
        seen = self.see(pictures)
        return beam_search(
            lambda state, words: self._write(seen, state, words),
            self._begin(len(seen.values), 1),
            start=start,
            end=end,
            never=never,
            max_words=max_words,
            beams=beams,
            length_penalty=length_penalty,
            no_repeat=no_repeat,
        )

    @torch.no_grad()
    def sample(
        self,
        pictures: ImageFeatures | Tensor,
        *,
        start: int,
        end: int,
        never: Sequence[int] = (),
        max_words: int = 20,
        count: int = 1,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> Decoded:
        """Captions drawn word by word from the predictive probabilities; see `sample_words`."""
        seen = self.see(pictures)
        return sample_words(
            lambda state, words: self._write(seen, state, words),
            self._begin(len(seen.values), count),
            start=start,
            end=end,
            never=never,
            max_words=max_words,
            temperature=temperature,
            generator=generator,
        )


def _pack(tokens: Tensor, mask: Tensor) -> PackedSequence:
    check_shape("Captioner", "tokens", tokens, (None, None), "(B, T)")
    check_mask("Captioner", mask, tokens.shape)
    check_shape("Captioner", "mask", mask, tuple(tokens.shape), "(B, T)")
    if not bool(mask[:, :1].all()) or bool((mask[:, 1:] & ~mask[:, :-1]).any()):
        raise ShapeError(
            "Captioner: expected captions with a first word and padding at the end only, got a masked word before "
            "another or none at all; begin every caption with the start mark"
        )
    return pack_padded_sequence(tokens, mask.sum(-1).cpu(), batch_first=True, enforce_sorted=False)


def _unpack(x: Tensor, packed: PackedSequence, T: int) -> Tensor:
    """(W, ...) rows of packed words as (B, T, ...) in the order that was given."""
    return pad_packed_sequence(packed._replace(data=x), batch_first=True, total_length=T)[0]


def _first(seen: Seen, size: int) -> Seen:
    """The first rows. Taken from what the step before took, so that a gradient never fills more than that step had."""
    cut = {name: part[:size] for name, part in vars(seen).items() if isinstance(part, Tensor)}
    return replace(seen, **cut)
