"""Matching images with sentences: fragments in a common space, and the score of every image with every sentence."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from foveate.attention import Attended, Grid
from foveate.checks import at_least_float32, check_floating, check_mask, check_number, check_padding, check_shape
from foveate.errors import ShapeError, WrongValue
from foveate.lab.encoders import BagOfWords, TextEncoder, WordsInContext
from foveate.lab.features import ImageFeatures
from foveate.lab.models.answering import AnyImageEncoder
from foveate.lab.models.cross_attention import Aggregate

BUDGET = 64 << 20
# Number of tensors with the size of a block's cosines that are alive at the same time, without and with a gradient.
LIVE, LIVE_WITH_GRADIENT = 6, 16
# Fraction of the pairs above which it is faster to compute the gradient of all of them.
DENSE = 0.1


@dataclass(frozen=True)
class Fragments:
    """The fragments of B images or sentences: locations or words.

    Attributes:
        values: (B, N, D) one vector per fragment.
        mask: (B, N) True where a fragment counts; None if all do.
        grid: of the locations of images, as in `ImageFeatures`; None for words and regions.
        attention: attention from which the vectors were computed, one per step, for models that have any.
        whole: (B, E) one vector for all of an image or sentence, whose inner products are added to the scores; None for
            models that compare fragments only.

    >>> fragments = Fragments(torch.ones(2, 3, 4))
    >>> fragments.gram.shape, len(fragments[:1])
    (torch.Size([2, 3, 3]), 1)
    """

    values: Tensor
    mask: Tensor | None = None
    grid: Grid | None = None
    attention: tuple[Attended, ...] = ()
    whole: Tensor | None = None

    def __repr__(self) -> str:
        size, grid = tuple(self.values.shape), self.grid if isinstance(self.grid, tuple) else None
        padded = "" if self.mask is None else ", padded"
        return f"Fragments(values {size}, grid={grid}{padded})"

    def __len__(self) -> int:
        return len(self.values)

    @cached_property
    def gram(self) -> Tensor:
        """(B, N, N) inner products of the fragments of each image or sentence."""
        return self.values @ self.values.mT

    def full_mask(self) -> Tensor:
        """(B, N) True where a fragment counts, also if `mask` is None."""
        return torch.ones_like(self.values[..., 0], dtype=torch.bool) if self.mask is None else self.mask

    def __getitem__(self, index: Tensor | slice) -> Fragments:
        """Select images or sentences by position, without `attention`; positions may be repeated."""
        mask = None if self.mask is None else self.mask[index]
        grid = self.grid[index] if isinstance(self.grid, Tensor) else self.grid
        whole = None if self.whole is None else self.whole[index]
        return Fragments(self.values[index], mask, grid, whole=whole)

    def at_least_float32(self) -> Fragments:
        """The fragments with half precision converted to float32."""
        whole = None if self.whole is None else at_least_float32(self.whole)
        return Fragments(at_least_float32(self.values), self.mask, self.grid, whole=whole)

    def to(self, device: torch.device) -> Fragments:
        """The fragments on a device, without `attention`."""
        mask = None if self.mask is None else self.mask.to(device)
        grid = self.grid.to(device) if isinstance(self.grid, Tensor) else self.grid
        whole = None if self.whole is None else self.whole.to(device)
        return Fragments(self.values.to(device), mask, grid, whole=whole)

    def unit(self) -> Fragments:
        """The fragments divided by their lengths; zero vectors stay zero."""
        return Fragments(functional.normalize(self.values, dim=-1), self.mask, self.grid, whole=self.whole)


def join_fragments(parts: Sequence[Fragments]) -> Fragments:
    """Concatenate batches; those with fewer fragments are padded at the end, and `attention` is left out of several.

    >>> joined = join_fragments([Fragments(torch.ones(1, 2, 3)), Fragments(torch.ones(2, 1, 3))])
    >>> joined.values.shape, joined.mask.sum(-1).tolist()
    (torch.Size([3, 2, 3]), [2, 1, 1])
    """
    if len(parts) == 1:
        return parts[0]
    counts, grids = {part.values.shape[1] for part in parts}, [part.grid for part in parts]
    one_grid = not any(isinstance(grid, Tensor) for grid in grids) and len(set(grids)) == 1
    wholes = [part.whole for part in parts if part.whole is not None]
    whole = torch.cat(wholes) if wholes else None
    if len(counts) == 1 and one_grid and all(part.mask is None for part in parts):
        return Fragments(torch.cat([part.values for part in parts]), None, grids[0], whole=whole)
    values = torch.cat([_grow(part.values, max(counts)) for part in parts])
    masks = torch.cat([_grow(part.full_mask(), max(counts)) for part in parts])
    grid = None if any(grid is None for grid in grids) else torch.cat([_own_grids(part) for part in parts])
    return Fragments(values, masks, grid, whole=whole)


def _grow(x: Tensor, N: int) -> Tensor:
    """(B, n, ...) padded with zeros to (B, N, ...)."""
    return torch.cat([x, x.new_zeros(len(x), N - x.shape[1], *x.shape[2:])], 1)


def _own_grids(part: Fragments) -> Tensor:
    """(B, 2) grids, one per image."""
    if isinstance(part.grid, Tensor):
        return part.grid
    return torch.tensor([part.grid] * len(part), device=part.values.device)


@dataclass(frozen=True)
class CrossAttended:
    """Cross attention of P pairs in one direction, as the constraints on attention use it.

    Attributes:
        queries, keys: the fragments of the pairs.
        scores: (P, Q, K) before the transform.
        weights: (P, Q, K) attention weights.
        attended_to: computes `attended` from the weights and the mask of the keys.
        queries_are_words: True if words attend to locations, False if locations attend to words.
    """

    queries: Fragments
    keys: Fragments
    scores: Tensor
    weights: Tensor
    attended_to: Callable[[Tensor, Tensor | None], Tensor]
    queries_are_words: bool

    @property
    def attended(self) -> Tensor:
        """(P, Q, K) True where a key counts as attended to."""
        return self.attended_to(self.weights, self.keys.mask)

    def relevance(self) -> Tensor:
        """(P, Q) cosine of each query with its context."""
        return functional.cosine_similarity(self.queries.values, self.weights @ self.keys.values, dim=-1)


class Scorer(nn.Module, ABC):
    """Scores every image with every sentence by attention between their fragments.

    `scorer(images, texts)` takes `Fragments` of unit vectors and returns scores (I, C). Sentences of equal length are
    scored together, so that nothing is computed for padding. Images and sentences are processed in blocks, so that
    memory stays within the budget; no tensor of size images x sentences x words x features is ever created. The
    gradient is exact. If few scores have a gradient, as with the hardest negatives, it is computed for these pairs
    only.

    Args:
        budget: bytes that a block may take. The minimum is one image with one sentence or, for the gradient of all
            pairs, one image with all sentences.
    """

    aggregate: Aggregate

    def __init__(self, budget: int = BUDGET) -> None:
        super().__init__()
        check_number(
            type(self).__name__, "budget", budget, least=1, advice="pass a number of bytes, for instance 64 MB"
        )
        self.budget = budget

    def forward(self, images: Fragments, texts: Fragments) -> Tensor:
        """Scores (I, C) of images (I, N, D) with sentences (C, T, D); zero for a sentence without words.

        If both have a vector for the whole, the inner products of these are added. Half precision is computed in
        float32, also under autocast; the scores are float32.
        """
        check_fragments(type(self).__name__, images, texts)
        images, texts = images.at_least_float32(), texts.at_least_float32()
        with torch.autocast(images.values.device.type, enabled=False):
            scores = _scores(self, images.grid, images.values, images.mask, texts.values, texts.mask)
            if images.whole is None or texts.whole is None:
                return scores
            return scores + images.whole @ texts.whole.mT

    def score_one_length(self, images: Fragments, texts: Fragments) -> Tensor:
        """Scores (I, C) of sentences that all have T words: one step without groups, for exported graphs."""
        scores = self.score(images, texts, paired=False)
        return scores if images.whole is None or texts.whole is None else scores + images.whole @ texts.whole.mT

    @abstractmethod
    def score(self, images: Fragments, texts: Fragments, *, paired: bool) -> Tensor:
        """Scores (X, Y) of all pairs, or (P, 1) of image p with sentence p if `paired`; no word is masked."""

    @abstractmethod
    def cross_attend(self, images: Fragments, texts: Fragments) -> tuple[CrossAttended, ...]:
        """Cross attention of P images with P sentences, pair by pair, in one or both directions."""

    def look(self, images: Fragments, texts: Fragments) -> Attended:
        """Where the words of P sentences look in their P images.

        Returns:
            `Attended` with weights (P, T, N), context (P, T, D) and the grid of the images.

        Raises ValueError if only locations attend to words.
        """
        both = self.cross_attend(images, texts)
        by_words = next((cross for cross in both if cross.queries_are_words), None)
        if by_words is None:
            raise WrongValue(
                f"{type(self).__name__}: expected words that attend to images, got images that attend to words; "
                'use direction="t2i"'
            )
        context = by_words.weights @ by_words.keys.values
        return Attended(context, by_words.weights, None, images.grid, images.mask)

    def extra_repr(self) -> str:
        """The budget, for print."""
        return f"budget={self.budget}"


class InnerProduct(nn.Module):
    """Scores of images and sentences that are one vector each: their inner products.

    >>> InnerProduct()(Fragments(torch.ones(2, 1, 3)), Fragments(torch.ones(4, 1, 3))).shape
    torch.Size([2, 4])
    """

    def forward(self, images: Fragments, texts: Fragments) -> Tensor:
        """Scores (I, C) of images (I, 1, D) with sentences (C, 1, D)."""
        check_shape("InnerProduct", "images", images.values, (None, 1, None), "(B, 1, D)")
        check_shape("InnerProduct", "texts", texts.values, (None, 1, None), "(B, 1, D)")
        return images.values[:, 0] @ texts.values[:, 0].mT


class MatchingModel(nn.Module, ABC):
    """A model that embeds images and sentences in one space and scores every image with every sentence.

    Attributes:
        text, image: the encoders.
        scorer: module that scores fragments; it has no weights.
    """

    text: TextEncoder | BagOfWords | WordsInContext
    image: AnyImageEncoder
    scorer: Scorer | InnerProduct

    @abstractmethod
    def embed_image(self, images: ImageFeatures | Tensor) -> Fragments:
        """Fragments of images, (I, N, D); N is 1 if an image is one vector."""

    @abstractmethod
    def embed_text(
        self, tokens: Tensor, mask: Tensor, states: Tensor | None = None, *, dropout: bool = True
    ) -> Fragments:
        """Fragments of sentences (C, T), as (C, T, D), or (C, 1, D) if a sentence is one vector.

        Args:
            tokens: (C, T) token ids, padded at the end.
            mask: (C, T) True where there is a token.
            states: (C, T, S) of a pretrained encoder, for models that read them, see `SentenceEncoder`.
            dropout: apply dropout in training mode; False never does.
        """

    def forward(
        self, images: ImageFeatures | Tensor, tokens: Tensor, mask: Tensor, states: Tensor | None = None
    ) -> Tensor:
        """Scores (I, C) of every image with every sentence."""
        scores: Tensor = self.scorer(self.embed_image(images), self.embed_text(tokens, mask, states))
        return scores


class _Scores(torch.autograd.Function):
    """Scores in blocks; backward computes the pairs that have a gradient again, with autograd."""

    @staticmethod
    def forward(ctx, scorer, grid, images, mask, texts, words):  # type: ignore[no-untyped-def]
        ctx.scorer, ctx.grid = scorer, grid
        ctx.save_for_backward(images, mask, texts, words)
        locations = Fragments(images, mask, grid)
        scores = images.new_zeros(len(images), len(texts))
        columns = _columns(scorer.budget, locations, LIVE)
        groups = _by_length(Fragments(texts, words), columns)
        largest = max((len(index) * length for index, length in groups), default=1)
        # Sliced once, so that the Gram matrix of a block is computed once for all groups.
        parts = [(rows, locations[rows]) for rows in _row_blocks(len(images), columns // largest)]
        for index, length in groups:
            group = Fragments(texts[index, :length])
            for rows, part in parts:
                scores[rows, index] = scorer.score(part, group, paired=False)
        return scores

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        images, mask, texts, words = ctx.saved_tensors
        if torch.is_grad_enabled():
            of_images, of_texts = _differentiable_gradient(ctx, images, mask, texts, words, gradient)
            return None, None, of_images, None, of_texts, None
        many = int(gradient.count_nonzero()) > DENSE * gradient.numel()
        backward = _backward_blocks if many else _backward_pairs
        fragments = Fragments(images, mask, ctx.grid), Fragments(texts, words)
        of_images, of_texts = backward(ctx.scorer, *fragments, gradient)
        return None, None, of_images, None, of_texts, None


_scores: Callable[..., Tensor] = _Scores.apply


def _score_at_once(scorer: Scorer, images: Fragments, texts: Fragments) -> Tensor:
    """Scores (I, C) without blocks, in one graph of which any derivative can be taken."""
    scores = images.values.new_zeros(len(images), len(texts))
    for index, length in _by_length(texts):
        group = Fragments(texts.values[index, :length])
        scores = scores.index_copy(1, index, scorer.score(images, group, paired=False))
    return scores


def _differentiable_gradient(
    ctx: Any, images: Tensor, mask: Tensor | None, texts: Tensor, words: Tensor | None, gradient: Tensor
) -> list[Tensor | None]:
    """Gradients that will be differentiated again: in blocks they would be constants."""
    # Fragments that were made from one another must not count twice.
    inputs = [x.view_as(x) for x in (images, texts)]
    scores = _score_at_once(ctx.scorer, Fragments(inputs[0], mask, ctx.grid), Fragments(inputs[1], words))
    wanted = [x for x in inputs if x.requires_grad]
    found = iter(torch.autograd.grad(scores, wanted, gradient, create_graph=True, allow_unused=True))
    return [next(found) if x.requires_grad else None for x in inputs]


def _backward_blocks(scorer: Scorer, images: Fragments, texts: Fragments, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of all pairs, in blocks of images with all sentences."""
    of_images, of_texts = torch.zeros_like(images.values), torch.zeros_like(texts.values)
    groups = _by_length(texts)
    total = sum(len(index) * length for index, length in groups)
    for rows in _row_blocks(len(images), _columns(scorer.budget, images, LIVE_WITH_GRADIENT) // max(1, total)):
        part = _leaf(images[rows])
        # New leaves per block: their cached Gram matrices belong to a graph that autograd.grad frees.
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
    """Gradients of the pairs whose score has a gradient."""
    of_images, of_texts = torch.zeros_like(images.values), torch.zeros_like(texts.values)
    N, D = images.values.shape[1:]
    for index, T in _by_length(texts):
        # Numbers per pair: fragments with their gradients, both Gram matrices, and tensors of the size of the cosines.
        size = 2 * (N + T) * D + N * N + T * T + LIVE_WITH_GRADIENT * N * T
        at_once = max(1, scorer.budget // (size * gradient.element_size()))
        found = gradient[:, index].nonzero()
        for pairs in found.split(at_once) if len(found) else ():
            rows, columns = pairs.unbind(-1)
            part, leaf = _leaf(images[rows]), _leaf(Fragments(texts.values[index[columns], :T]))
            with torch.enable_grad():
                scores = scorer.score(part, leaf, paired=True)
            upstream = gradient[rows, index[columns], None]
            own, other = torch.autograd.grad(scores, (part.values, leaf.values), upstream)
            # An image or a sentence can be in several pairs; an assignment by index would keep only one of them.
            of_images.index_add_(0, rows, own)
            of_texts[:, :T].index_add_(0, index[columns], other)
    return of_images, of_texts


def _leaf(part: Fragments) -> Fragments:
    """The fragments detached from their graph, as a leaf that requires a gradient."""
    return Fragments(part.values.detach().requires_grad_(), part.mask, part.grid)


def check_fragments(where: str, images: Fragments, texts: Fragments, *, paired: bool = False) -> None:
    """Raises ShapeError or TypeError if fragments do not fit each other (in pairs if `paired`), their mask or grid."""
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
            "pass the grid of the features"
        )


def _lengths(texts: Fragments) -> Tensor:
    return texts.full_mask().sum(-1).cpu()


def _by_length(texts: Fragments, columns: int | None = None) -> list[tuple[Tensor, int]]:
    """Positions of sentences of equal length, and the length; at most `columns` words per group, no empty sentences."""
    lengths, groups = _lengths(texts), []
    for length in lengths.unique().tolist():
        same = (lengths == length).nonzero().squeeze(1).to(texts.values.device)
        size = len(same) if columns is None else max(1, columns // max(1, length))
        groups += [(index, length) for index in same.split(size)] if length else []
    return groups


def _columns(budget: int, images: Fragments, live: int) -> int:
    """Number of words that fit the budget for one image if `live` tensors exist at the same time."""
    return max(1, budget // (live * images.values.element_size() * max(1, images.values.shape[1])))


def _row_blocks(count: int, size: int) -> Iterator[slice]:
    for start in range(0, count, max(1, size)):
        yield slice(start, min(count, start + max(1, size)))
