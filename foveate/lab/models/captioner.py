"""The captioner of sparse and structured attention: an LSTM with one attention before and one after each word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from foveate.attention import Attended, Grid
from foveate.attention.arguments import mask_beside
from foveate.checks import check_mask, check_shape
from foveate.errors import ShapeError
from foveate.lab.encoders import Standardise
from foveate.lab.features import ImageFeatures
from foveate.lab.models.answering import AnyImageEncoder
from foveate.lab.models.decoding import Decoded, State, Step, beam_search, sample_words
from foveate.lab.models.families import CaptioningModelSettings
from foveate.lab.models.scores import SCORES, ScoreKind
from foveate.ops.reading import weighted_sum
from foveate.ops.simplex import softmax
from foveate.registry import lookup


@dataclass(frozen=True)
class LSTMCaptionerSettings(CaptioningModelSettings):
    """The captioner of sparse and structured attention: an LSTM with attention before and after each word.

    Attributes:
        hidden, score_dim, dropout, roots, scores: as in `Captioner`.
    """

    hidden: int = 512
    score_dim: int | None = None
    dropout: float = 0.0
    roots: bool = False
    scores: ScoreKind = "additive"

    def build(self, vocabulary: int, word_dim: int, image: AnyImageEncoder, attend: nn.Module) -> Captioner:
        return Captioner(
            image,
            attend,
            vocabulary=vocabulary,
            word_dim=word_dim,
            hidden=self.hidden,
            score_dim=self.score_dim,
            dropout=self.dropout,
            roots=self.roots,
            scores=self.scores,
        )


@dataclass(frozen=True)
class Captioned:
    """Output of a captioner for given captions (teacher forcing).

    Attributes:
        scores: (W, V) one row for each of the W tokens that count, in the order of `tokens[mask]`: the scores of the
            token that follows it. Their softmax is the predictive distribution.
        image: the output attention of every token, with weights (B, T, N); undefined where there is no token.
        image_scores: (B, T, N) scores of the output attention, before its transform.
        values: (B, N, D) the projected features, the values of both attentions.
        input_weights: (B, T, N) weights of the input attention, zero where there is no token.
        states, cells: (B, T, D) of the recurrence after each token, zero where there is none.
    """

    scores: Tensor
    image: Attended
    image_scores: Tensor
    values: Tensor
    input_weights: Tensor
    states: Tensor
    cells: Tensor


@dataclass(frozen=True)
class EncodedImages:
    """Encoded images with everything that does not depend on the words, computed once per image.

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

    def __getitem__(self, index: Tensor | slice) -> EncodedImages:
        """Select images by position; positions may be repeated."""
        selected = {name: part[index] for name, part in vars(self).items() if isinstance(part, Tensor)}
        return replace(self, **selected)


class Captioner(nn.Module):
    """Writes captions word by word with any attention over the image.

    s_t = Σ_n softmax(z(v, h_{t−1}))_n v_n,   h_t = LSTM([y_{t−1}; s_t], h_{t−1}),
    s̃_t = attend(z̃(v, h_t), v),  r_t = tanh(affine(s̃_t)),  p(y_t) = softmax(affine([r_t; h_t]))

    with additive scores z and z̃ and v = W features. The recurrence starts from zeros with the bos token. The output
    attention is not fed back into the recurrence, so that for given captions it is computed for all tokens at once.

    Args:
        image: encoder of the images, with features of any size `image.dim`.
        attend: the output attention, `attend(scores, values, grid, mask) -> Attended`; the input attention is softmax.
        vocabulary: number of tokens, V, special tokens included.
        word_dim: size of a word vector.
        hidden: D, size of the projected features and of the recurrence.
        score_dim: S, size of the tanh layer in the scores, which takes much of the time; None uses D. The paper does
            not report it.
        dropout: probability for the word vectors, the projected features and [r; h]; the paper reports none.
        roots: standardise the roots ±√|x| of the features instead of taking them as they are.
        scores: how state and locations are compared, a row of `foveate.lab.models.scores.SCORES`: "additive" as in the
            paper, "product", "dot", "scaled-dot" or "general".

    Reference: Martins et al. 2020, §3, eq. 10.

    >>> from foveate.attention import mechanism
    >>> from foveate.lab.encoders import StoredFeatures
    >>> model = Captioner(StoredFeatures(6), mechanism("tvmax"), vocabulary=10, word_dim=4, hidden=8).eval()
    >>> features = ImageFeatures(torch.randn(2, 4, 6), grid=(2, 2))
    >>> tokens, mask = torch.full((2, 5), 4), torch.ones(2, 5, dtype=torch.bool)
    >>> captioned = model(features, tokens, mask)
    >>> captioned.scores.shape, captioned.image.map().shape
    (torch.Size([10, 10]), torch.Size([2, 5, 2, 2]))
    >>> model.caption(features, bos=2, eos=3, max_words=7, beams=3).words.shape[:2]
    torch.Size([2, 3])
    """

    def __init__(
        self,
        image: AnyImageEncoder,
        attend: nn.Module,
        *,
        vocabulary: int,
        word_dim: int = 256,
        hidden: int = 512,
        score_dim: int | None = None,
        dropout: float = 0.0,
        roots: bool = False,
        scores: ScoreKind = "additive",
    ) -> None:
        super().__init__()
        self.image, self.attend = image, attend
        self.standardise = Standardise(image.dim) if roots else None
        self.features = nn.Linear(image.dim, hidden)
        self.words = nn.Embedding(vocabulary, word_dim)
        self.scores, self.out_scores = (lookup("scores", scores, SCORES)(hidden, score_dim or hidden) for _ in range(2))
        # The gates of the LSTM are split in two, so that the part of the words is computed for all tokens at once.
        self.word_gates, self.gates = nn.Linear(word_dim, 4 * hidden), nn.Linear(2 * hidden, 4 * hidden, bias=False)
        self.read = nn.Linear(hidden, hidden)
        self.next_word = nn.Linear(2 * hidden, vocabulary)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, images: ImageFeatures | Tensor, tokens: Tensor, mask: Tensor, index: Tensor | None = None
    ) -> Captioned:
        """Run the model on given captions (teacher forcing).

        Args:
            images: input of the image encoder, P images.
            tokens: (B, T) token ids with bos and without eos, padded at the end.
            mask: (B, T) True where there is a token; every caption has at least one.
            index: (B,) the image that each caption is about; None if caption b is about image b.
        """
        packed = _pack(tokens, mask)
        assert packed.sorted_indices is not None
        encoded = self.encode_images(images)
        # The recurrence runs on captions sorted by length, so that those that have ended can be dropped from the end.
        sorted_images = encoded[packed.sorted_indices if index is None else index[packed.sorted_indices]]
        weights, states, cells = self._unroll(sorted_images, packed)
        parts = weights, states, cells, self._output_scores(sorted_images, states, packed)
        weights, states, cells, scores = (_unpack(part, packed, tokens.shape[1]) for part in parts)
        encoded = encoded if index is None else encoded[index]
        attended = self.attend(scores, encoded.values, grid=encoded.grid, mask=encoded.mask)
        following = self.next_scores(attended.context[mask], states[mask])
        return Captioned(following, attended, scores, encoded.values, weights, states, cells)

    def encode_images(self, images: ImageFeatures | Tensor) -> EncodedImages:
        """Encode and project images, and compute the keys of both attentions."""
        features = self.image(images)
        read = features.values
        if self.standardise is not None:
            read = self.standardise(read.sign() * read.abs().sqrt(), features.mask)
        values = self.dropout(self.features(read))
        keys, out_keys = self.scores.locations(values), self.out_scores.locations(values)
        return EncodedImages(values, keys, out_keys, features.grid, features.mask)

    def _unroll(self, images: EncodedImages, packed: PackedSequence) -> tuple[Tensor, Tensor, Tensor]:
        """Weights of the input attention, states and cells of packed captions, each (W, ...)."""
        sizes = packed.batch_sizes.tolist()
        words = self.word_gates(self.dropout(self.words(packed.data))).split(sizes)
        state = self._initial_state(sizes[0])
        weights, states, cells = [], [], []
        for size, word in zip(sizes, words, strict=True):
            if size < len(images.values):
                # Sliced from the previous slice: the gradient of a step then has the size of that step, not of the
                # whole batch.
                images, state = images[:size], (state[0][:size], state[1][:size])
            own, state = self._advance(images, state, word)
            weights.append(own)
            states.append(state[0])
            cells.append(state[1])
        return torch.cat(weights), torch.cat(states), torch.cat(cells)

    def _output_scores(self, images: EncodedImages, states: Tensor, packed: PackedSequence) -> Tensor:
        """Scores (W, N) of the output attention."""
        sizes, scores = packed.batch_sizes.tolist(), []
        # Step by step: the tanh of all steps at once would not fit into the cache.
        for size, query in zip(sizes, self.out_scores.state(states).split(sizes), strict=True):
            images = images if size == len(images.values) else images[:size]
            scores.append(self.out_scores(images.out_keys, query))
        return torch.cat(scores)

    def _advance(self, images: EncodedImages, state: State, word: Tensor) -> tuple[Tensor, State]:
        """Input attention and one step of the recurrence: the attention weights and the new state."""
        scores = self.scores(images.keys, self.scores.state(state[0]))
        weights = softmax(scores, mask=mask_beside(scores, images.mask))
        return weights, self._recur(weighted_sum(weights, images.values), state, word)

    def _recur(self, context: Tensor, state: State, word: Tensor) -> State:
        """The equations of the LSTM; `word` is the part of the words in its gates."""
        h, c = state
        i, f, g, o = (word + self.gates(torch.cat([context, h], -1))).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c

    def swapped_states(self, captioned: Captioned, rows: Tensor, places: Tensor, words: Tensor) -> Tensor:
        """States (R, D) after other words at some positions, with everything before them unchanged.

        Args:
            captioned: output of the model.
            rows, places: (R,) captions and positions in them, after the first one.
            words: (R,) token ids to put there instead.
        """
        context = weighted_sum(captioned.input_weights[rows, places][:, None], captioned.values[rows])[:, 0]
        before = captioned.states[rows, places - 1], captioned.cells[rows, places - 1]
        return self._recur(context, before, self.word_gates(self.dropout(self.words(words))))[0]

    def _initial_state(self, *shape: int) -> State:
        zeros = self.features.weight.new_zeros(*shape, self.features.out_features)
        return zeros, zeros

    def next_scores(self, context: Tensor, states: Tensor) -> Tensor:
        """Scores (..., V) of the next token, from contexts (..., D) of the output attention and states (..., D)."""
        both = torch.cat([self.read(context).tanh(), states], -1)
        scores: Tensor = self.next_word(self.dropout(both))
        return scores

    def _decode_step(self, images: EncodedImages, state: State, words: Tensor) -> tuple[Tensor, State]:
        """Scores (B, K, V) of the tokens that follow the tokens (B, K), and the state after these."""
        _, state = self._advance(images, state, self.word_gates(self.words(words)))
        scores = self.out_scores(images.out_keys, self.out_scores.state(state[0]))
        attended = self.attend(scores, images.values, grid=images.grid, mask=images.mask)
        return self.next_scores(attended.context, state[0]), state

    @torch.no_grad()
    def caption(self, images: ImageFeatures | Tensor, **search: Any) -> Decoded:
        """The most probable captions by beam search; one beam is greedy search.

        Args:
            images: input of the image encoder.
            search: options of `beam_search`: bos, eos, forbidden, max_words, beams, length_penalty, no_repeat.
        """
        step, state = self._decoder(images, 1)
        return beam_search(step, state, **search)

    @torch.no_grad()
    def greedy(
        self, images: ImageFeatures | Tensor, *, bos: int, eos: int, forbidden: Sequence[int], max_words: int
    ) -> tuple[Tensor, Tensor]:
        """The most probable word at each of `max_words` steps: a loop of fixed length, for exported graphs.

        Returns:
            (B, T) token ids, eos from the end on, and (B, T, V) log-probabilities of the steps.
        """
        step, state = self._decoder(images, 1)
        word = torch.full_like(state[0][..., 0], bos, dtype=torch.long)
        done, words, scores = word != bos, [], []
        for _ in range(max_words):
            following, state = step(state, word)
            following = following.index_fill(-1, torch.tensor(list(forbidden), device=word.device), -torch.inf)
            scores.append(following.log_softmax(-1))
            word = torch.where(done, eos, following.argmax(-1))
            done = done | (word == eos)
            words.append(word)
        return torch.cat(words, 1), torch.cat(scores, 1)

    @torch.no_grad()
    def sample(self, images: ImageFeatures | Tensor, *, count: int = 1, **options: Any) -> Decoded:
        """Captions sampled word by word from the predictive distribution.

        Args:
            images: input of the image encoder.
            count: captions per image.
            options: of `sample_words`: bos, eos, forbidden, max_words, temperature, generator.
        """
        step, state = self._decoder(images, count)
        return sample_words(step, state, **options)

    def _decoder(self, images: ImageFeatures | Tensor, count: int) -> tuple[Step, State]:
        """The step of a search over `count` captions per image, and the state before the first token."""
        encoded = self.encode_images(images)
        return partial(self._decode_step, encoded), self._initial_state(encoded.values.shape[0], count)


def _pack(tokens: Tensor, mask: Tensor) -> PackedSequence:
    check_shape("Captioner", "tokens", tokens, (None, None), "(B, T)")
    check_mask("Captioner", mask, tokens.shape)
    check_shape("Captioner", "mask", mask, tuple(tokens.shape), "(B, T)")
    if not bool(mask[:, :1].all()) or bool((mask[:, 1:] & ~mask[:, :-1]).any()):
        raise ShapeError(
            "Captioner: expected captions with a first token and padding at the end only, got a masked token before "
            "another one or an empty caption; begin every caption with bos"
        )
    return pack_padded_sequence(tokens, mask.sum(-1).cpu(), batch_first=True, enforce_sorted=False)


def _unpack(x: Tensor, packed: PackedSequence, T: int) -> Tensor:
    """(W, ...) rows of packed tokens as (B, T, ...) in the original order, zero where there is no token."""
    return pad_packed_sequence(packed._replace(data=x), batch_first=True, total_length=T)[0]
