"""Matching pictures with sentences: fragments in one space, and the score of every picture with every sentence."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn import functional

from foveate.attention import Attended, Grid
from foveate.checks import check_floating, check_mask, check_number, check_padding, check_shape
from foveate.encoders import TextEncoder
from foveate.encoders.images import ImageFeatures
from foveate.errors import ShapeError
from foveate.models.answering import ImageEncoder
from foveate.ops.precision import at_least_float32

BUDGET = 64 << 20
# Tensors of the size of a block's cosines that live at the same time, and how many more when a gradient is wanted.
LIVE, LIVE_WITH_GRADIENT = 6, 16
# Share of the pairs above which it is faster to compute the gradient of all.
DENSE = 0.1


@dataclass(frozen=True)
class Fragments:
    """Pictures as locations or sentences as words, B of them.

    Attributes:
        values: (B, N, D).
        mask: (B, N) True where a fragment counts, None when all do.
        grid: of the locations of pictures, as in `ImageFeatures`; None for words and regions.
        looks: attention that made them, one a step, for models that have some.

    >>> Fragments(torch.ones(2, 3, 4)).gram.shape
    torch.Size([2, 3, 3])
    """

    values: Tensor
    mask: Tensor | None = None
    grid: Grid | None = None
    looks: tuple[Attended, ...] = ()

    def __len__(self) -> int:
        return len(self.values)

    @cached_property
    def gram(self) -> Tensor:
        """(B, N, N) inner products of the fragments of each."""
        return self.values @ self.values.mT

    def counts(self) -> Tensor:
        """(B, N) True where a fragment counts."""
        return torch.ones_like(self.values[..., 0], dtype=torch.bool) if self.mask is None else self.mask

    def take(self, index: Tensor | slice) -> Fragments:
        """Some of them, by number; without their looks."""
        mask = None if self.mask is None else self.mask[index]
        grid = self.grid[index] if isinstance(self.grid, Tensor) else self.grid
        return Fragments(self.values[index], mask, grid)

    def at_least_float32(self) -> Fragments:
        """The same in float32 where they come in half precision."""
        return Fragments(at_least_float32(self.values), self.mask, self.grid)

    def unit(self) -> Fragments:
        """The same with every fragment of length one, or zero."""
        return Fragments(functional.normalize(self.values, dim=-1), self.mask, self.grid)


def join_fragments(parts: Sequence[Fragments]) -> Fragments:
    """All of several, one after the other; those with fewer fragments are padded at the end.

    >>> joined = join_fragments([Fragments(torch.ones(1, 2, 3)), Fragments(torch.ones(2, 1, 3))])
    >>> joined.values.shape, joined.mask.sum(-1).tolist()
    (torch.Size([3, 2, 3]), [2, 1, 1])
    """
    counts, grids = {part.values.shape[1] for part in parts}, [part.grid for part in parts]
    one_grid = not any(isinstance(grid, Tensor) for grid in grids) and len(set(grids)) == 1
    if len(counts) == 1 and one_grid and all(part.mask is None for part in parts):
        return Fragments(torch.cat([part.values for part in parts]), None, grids[0])
    values = torch.cat([_grow(part.values, max(counts)) for part in parts])
    masks = torch.cat([_grow(part.counts(), max(counts)) for part in parts])
    grid = None if None in [g for g in grids if not isinstance(g, Tensor)] else torch.cat(list(map(_own_grids, parts)))
    return Fragments(values, masks, grid)


def _grow(x: Tensor, N: int) -> Tensor:
    """(B, n, ...) padded with zeros to (B, N, ...)."""
    return torch.cat([x, x.new_zeros(len(x), N - x.shape[1], *x.shape[2:])], 1)


def _own_grids(part: Fragments) -> Tensor:
    if isinstance(part.grid, Tensor):
        return part.grid
    return torch.tensor([part.grid] * len(part), device=part.values.device)


@dataclass(frozen=True)
class CrossLook:
    """How the queries of some pairs look at the keys, in one direction; what the constraints on attention read.

    Attributes:
        queries, keys: the fragments of P pairs.
        scores: (P, Q, K) before the transform.
        weights: (P, Q, K).
        attended: (P, Q, K) True where the model counts a key as attended to.
        by_words: the queries are words; otherwise they are locations.
    """

    queries: Fragments
    keys: Fragments
    scores: Tensor
    weights: Tensor
    attended: Tensor
    by_words: bool

    def relevance(self) -> Tensor:
        """(P, Q) cosine of each query with what it read."""
        return functional.cosine_similarity(self.queries.values, self.weights @ self.keys.values, dim=-1)


class Scorer(nn.Module, ABC):
    """Scores every picture with every sentence by attention between their fragments.

    Called as `scorer(images, texts)`, with `Fragments` of unit vectors, it gives (I, C). Sentences of equal length are
    scored together, so that nothing is computed for padding; pictures and sentences come in blocks, so that memory
    stays under the budget; no (pictures x sentences x words x features) tensor exists. The gradient is exact, and is
    computed only for the pairs whose score has one when those are few: with the hardest negatives three in a row.

    Args:
        budget: bytes that a block may take. At least those of one picture with one sentence are needed, and, for the
            gradient of all pairs, of one picture with all sentences.
    """

    def __init__(self, budget: int = BUDGET) -> None:
        super().__init__()
        check_number(type(self).__name__, "budget", budget, least=1, advice="give it in bytes, 64 MB is a good start")
        self.budget = budget

    def forward(self, images: Fragments, texts: Fragments) -> Tensor:
        """Scores (I, C) of pictures (I, N, D) with sentences (C, T, D); zero for a sentence without words.

        Half precision is computed, and the scores are, in float32, also under autocast.
        """
        check_fragments(type(self).__name__, images, texts)
        seen, read = images.at_least_float32(), texts.at_least_float32()
        with torch.autocast(seen.values.device.type, enabled=False):
            return _Scores.apply(self, seen.grid, seen.values, seen.mask, read.values, read.mask)

    @abstractmethod
    def score(self, images: Fragments, texts: Fragments, *, paired: bool) -> Tensor:
        """Scores (X, Y) of all with all, whose words all count; or, paired, (P, 1) of each with its own."""

    @abstractmethod
    def cross(self, images: Fragments, texts: Fragments) -> tuple[CrossLook, ...]:
        """How P pictures and P sentences, pair by pair, look at each other: one or both directions."""

    def look(self, images: Fragments, texts: Fragments) -> Attended:
        """Where the words of P sentences look in their P pictures.

        Returns:
            `Attended` with weights (P, T, N), context (P, T, D) and the grid of the pictures.

        A model whose words are looked at, and do not look, raises ValueError.
        """
        seen = next((look for look in self.cross(images, texts) if look.by_words), None)
        if seen is None:
            raise ValueError(
                f"{type(self).__name__}: expected words that look at pictures, got pictures that look at words; "
                'use direction="t2i"'
            )
        return Attended(seen.weights @ seen.keys.values, seen.weights, None, images.grid, images.mask)

    def extra_repr(self) -> str:
        """The budget, for print."""
        return f"budget={self.budget}"


class InnerProduct(nn.Module):
    """Scores of pictures with sentences that are one vector each: their inner products.

    >>> InnerProduct()(Fragments(torch.ones(2, 1, 3)), Fragments(torch.ones(4, 1, 3))).shape
    torch.Size([2, 4])
    """

    def forward(self, images: Fragments, texts: Fragments) -> Tensor:
        """Scores (I, C) of pictures (I, 1, D) with sentences (C, 1, D)."""
        for name, part in (("images", images), ("texts", texts)):
            check_shape("InnerProduct", name, part.values, (None, 1, None), "(B, 1, D)")
        return images.values[:, 0] @ texts.values[:, 0].mT


class FragmentMatcher(nn.Module):
    """Brings pictures and sentences into one space, fragment by fragment, and scores them with SCAN or BFAN.

    v_n = W x_n + b and the states of the words, each divided by its length; scores = scorer(v, w)

    Args:
        text: encodes the words, D = text.dim; a bi-GRU with averaged directions in the papers.
        image: encodes the pictures, to features of any size `image.dim`.
        scorer: `SCAN` or `BFAN`.
        dropout: of the features and of the states of words, in training; the papers have none.

    Reference: Lee et al. 2018, §3; Liu et al. 2019, §3.

    >>> from foveate.attention import mechanism
    >>> from foveate.encoders import StoredFeatures
    >>> from foveate.models import SCAN
    >>> model = FragmentMatcher(TextEncoder(10, word_dim=4, hidden=8), StoredFeatures(6), SCAN(mechanism("softmax")))
    >>> tokens, mask = torch.ones(3, 5, dtype=torch.long), torch.ones(3, 5, dtype=torch.bool)
    >>> model(ImageFeatures(torch.randn(2, 4, 6), grid=(2, 2)), tokens, mask).shape
    torch.Size([2, 3])
    """

    def __init__(
        self,
        text: TextEncoder,
        image: ImageEncoder,
        scorer: Scorer,
        *,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.text, self.image, self.scorer = text, image, scorer
        self.features = nn.Linear(image.dim, text.dim)
        self.dropout = nn.Dropout(dropout)

    def embed_image(self, pictures: ImageFeatures | Tensor) -> Fragments:
        """The locations of pictures, (I, N, D) of length one."""
        seen = self.image(pictures)
        return Fragments(self.features(self.dropout(seen.values)), seen.mask, seen.grid).unit()

    def embed_text(self, tokens: Tensor, mask: Tensor, *, dropout: bool = True) -> Fragments:
        """The words of sentences (C, T), as (C, T, D) of length one; on request without dropout in training too."""
        states = self.text(tokens, mask).states
        return Fragments(self.dropout(states) if dropout else states, mask).unit()

    def forward(self, pictures: ImageFeatures | Tensor, tokens: Tensor, mask: Tensor) -> Tensor:
        """Scores (I, C) of every picture with every sentence."""
        return self.scorer(self.embed_image(pictures), self.embed_text(tokens, mask))


class _Scores(torch.autograd.Function):
    """Blocks forward; backward, what has a gradient is computed once more, with autograd."""

    @staticmethod
    def forward(ctx, scorer, grid, images, mask, texts, words):  # type: ignore[no-untyped-def]
        ctx.scorer, ctx.grid = scorer, grid
        ctx.save_for_backward(images, mask, texts, words)
        seen, read = Fragments(images, mask, grid), Fragments(texts, words)
        scores = images.new_zeros(len(images), len(texts))
        columns = _columns(scorer.budget, seen, LIVE)
        groups = _by_length(read, columns)
        largest = max((len(index) * length for index, length in groups), default=1)
        parts = [(rows, seen.take(rows)) for rows in _row_blocks(len(seen), columns // largest)]
        for index, length in groups:
            group = Fragments(texts[index, :length])
            for rows, part in parts:
                scores[rows, index] = scorer.score(part, group, paired=False)
        return scores

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        images, mask, texts, words = ctx.saved_tensors
        seen, read = Fragments(images, mask, ctx.grid), Fragments(texts, words)
        many = int(gradient.count_nonzero()) > DENSE * gradient.numel()
        backward = _backward_blocks if many else _backward_pairs
        of_images, of_texts = backward(ctx.scorer, seen, read, gradient)
        return None, None, of_images, None, of_texts, None


def _backward_blocks(scorer: Scorer, images: Fragments, texts: Fragments, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of all pairs, so many pictures with all sentences at a time."""
    of_images, of_texts = torch.zeros_like(images.values), torch.zeros_like(texts.values)
    groups = _by_length(texts)
    total = sum(len(index) * length for index, length in groups)
    for rows in _row_blocks(len(images), _columns(scorer.budget, images, LIVE_WITH_GRADIENT) // max(1, total)):
        part = _leaf(images.take(rows))
        leaves = [_leaf(Fragments(texts.values[index, :length])) for index, length in groups]
        with torch.enable_grad():
            scores = [scorer.score(part, leaf, paired=False) for leaf in leaves]
        upstream = [gradient[rows, index] for index, _ in groups]
        own, *others = torch.autograd.grad(scores, [part.values, *(leaf.values for leaf in leaves)], upstream)
        of_images[rows] = own
        for (index, length), other in zip(groups, others, strict=True):
            of_texts[index, :length] += other
    return of_images, of_texts


def _backward_pairs(scorer: Scorer, images: Fragments, texts: Fragments, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of the few pairs that have one."""
    of_images, of_texts = torch.zeros_like(images.values), torch.zeros_like(texts.values)
    N, D = images.values.shape[1:]
    for index, T in _by_length(texts):
        size = 2 * (N + T) * D + N * N + T * T + LIVE_WITH_GRADIENT * N * T
        at_once = max(1, scorer.budget // (size * gradient.element_size()))
        found = gradient[:, index].nonzero()
        for pairs in found.split(at_once) if len(found) else ():
            rows, columns = pairs.unbind(-1)
            part, leaf = _leaf(images.take(rows)), _leaf(Fragments(texts.values[index[columns], :T]))
            with torch.enable_grad():
                scores = scorer.score(part, leaf, paired=True)
            upstream = gradient[rows, index[columns], None]
            own, other = torch.autograd.grad(scores, (part.values, leaf.values), upstream)
            of_images.index_add_(0, rows, own)
            of_texts[:, :T].index_add_(0, index[columns], other)
    return of_images, of_texts


def _leaf(part: Fragments) -> Fragments:
    return Fragments(part.values.detach().requires_grad_(), part.mask, part.grid)


def check_fragments(where: str, images: Fragments, texts: Fragments, *, paired: bool = False) -> None:
    """Refuse fragments that do not fit each other, their mask or their grid, or, paired, of another number."""
    for name, part, letters in (("images", images, "(I, N, D)"), ("texts", texts, "(C, T, D)")):
        check_floating(where, name, part.values)
        count = len(images) if paired else None
        check_shape(where, name, part.values, (count, None, images.values.shape[-1]), letters)
    if images.mask is not None:
        check_mask(where, images.mask, images.values.shape[:2])
        check_shape(where, "mask of images", images.mask, tuple(images.values.shape[:2]), "(I, N)")
    if texts.mask is not None:
        check_padding(where, "mask of texts", texts.mask, texts.values.shape[:2], "(C, T)", "word")
    N = images.values.shape[1]
    if isinstance(images.grid, tuple) and math.prod(images.grid) != N:
        raise ShapeError(
            f"{where}: expected {math.prod(images.grid)} locations on a grid {images.grid}, got {N}; "
            "give the grid that the features were made on"
        )


def _lengths(texts: Fragments) -> Tensor:
    C, T, _ = texts.values.shape
    return torch.full((C,), T) if texts.mask is None else texts.mask.sum(-1).cpu()


def _by_length(texts: Fragments, columns: int | None = None) -> list[tuple[Tensor, int]]:
    """The numbers of sentences of equal length, and that length; at most so many words a group."""
    lengths, groups = _lengths(texts), []
    for length in lengths.unique().tolist():
        same = (lengths == length).nonzero().squeeze(1).to(texts.values.device)
        size = len(same) if columns is None else max(1, columns // max(1, length))
        groups += [(index, length) for index in same.split(size)] if length else []
    return groups


def _columns(budget: int, images: Fragments, live: int) -> int:
    """Words that one picture can be scored with at a time, when so many tensors live."""
    return max(1, budget // (live * images.values.element_size() * max(1, images.values.shape[1])))


def _row_blocks(count: int, size: int) -> Iterator[slice]:
    for start in range(0, count, max(1, size)):
        yield slice(start, min(count, start + max(1, size)))
