"""The constraints on attention for matching: which pairs, groups and swaps the losses receive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from foveate.errors import WrongValue
from foveate.lab.data.vocabulary import SPECIAL
from foveate.lab.losses import choose_swaps, content_resourcing, content_swapping
from foveate.lab.losses.contrastive import Aggregate, cosine
from foveate.lab.models import CrossAttended

Encode: TypeAlias = Callable[[Tensor], Tensor]


def resourcing(attention: Sequence[CrossAttended], aggregate: Aggregate, margin: float) -> Tensor:
    """CCR of matching pairs, summed over pairs and directions; see `content_resourcing`."""
    losses = [
        content_resourcing(
            cross.queries.values,
            cross.keys.values,
            cross.scores,
            cross.attended,
            margin=margin,
            mask=cross.keys.mask,
            query_mask=cross.queries.mask,
            aggregate=aggregate,
        )
        for cross in attention
    ]
    return torch.stack(losses).sum()


def swapping(
    attention: Sequence[CrossAttended],
    encode: Encode,
    tokens: Tensor,
    owner: Tensor,
    margin: float,
    *,
    original: Tensor | None = None,
) -> Tensor:
    """CCS of matching pairs, one sampled word per pair; see `content_swapping`.

    A word of each caption is sampled in proportion to its idf: "there" and "is" have nothing in the image to attend to.
    It is replaced by the most different word that was sampled for another image and that no caption of its own image
    in the batch contains. The caption is encoded as it is and with the replacement, both without dropout: the rest of
    the sentence is the same, so that only the word itself can make a difference.

    If words attend, the context of the sampled word must be more relevant to it than to the replacement. If locations
    attend, the location with the largest weight on the sampled word must find its context more relevant than the same
    context with the replacement: a sentence can be changed, an image cannot.

    Args:
        attention: cross attention of P pairs.
        encode: maps (P, T) token ids to their states (P, T, D), deterministically.
        tokens: (P, T) token ids as they were encoded; special tokens are not sampled.
        owner: (P,) the image of each caption.
        margin: γ₃.
        original: (P, T) token ids before word dropout; None if there was none.

    Reference: Chen et al. 2021, eq. 8 and §4.1.
    """
    rows, drawn, some = sample_places(idf(tokens).where(tokens >= len(SPECIAL), 0))
    texts = attention[0].queries if attention[0].queries_are_words else attention[0].keys
    words, states = tokens[rows, drawn], texts.values[rows, drawn]
    swaps = choose_swaps(states[some], words[some], owner[some], (tokens if original is None else original)[some])
    changed = tokens.clone()
    changed[rows[some], drawn[some]] = words[some][swaps.index]
    pair = Pair(encode(tokens)[rows, drawn], encode(changed)[rows, drawn])
    found = some.clone()
    found[some] = swaps.found
    losses = [
        (_by_words if cross.queries_are_words else _by_locations)(cross, drawn, pair, found, margin)
        for cross in attention
    ]
    return torch.stack(losses).sum()


def swapping_all(attention: Sequence[CrossAttended], tokens: Tensor, owner: Tensor, margin: float) -> Tensor:
    """CCS over all swaps: the context of every word must be more relevant to it than to any word of other images.

    Σ_i Σ_p [Sim(q_p, a_i) − Sim(q_i, a_i) + γ₃]_+ over words i and words p of other images that no caption of the
    image of i in the batch contains. It takes W² numbers for W words in the batch.

    Args:
        attention: cross attention of P pairs; the directions in which words attend count.
        tokens: (P, T) token ids; special tokens are left out.
        owner: (P,) the image of each caption.
        margin: γ₃.

    Reference: Chen et al. 2021, eq. 7.
    """
    by_words = [cross for cross in attention if cross.queries_are_words]
    if not by_words:
        raise WrongValue("ccs: expected words that attend for swaps=all, got locations; use swaps=sampled")
    rows, places = (tokens >= len(SPECIAL)).nonzero(as_tuple=True)
    words, images = tokens[rows, places], owner[rows]
    said = torch.zeros(int(owner.max()) + 1, int(tokens.max()) + 1, dtype=torch.bool, device=tokens.device)
    said[images, words] = True
    allowed = ~said[images][:, words]
    losses = []
    for cross in by_words:
        queries = cross.queries.values[rows, places]
        read = (cross.weights @ cross.keys.values)[rows, places]
        own = cosine(queries, read)
        similar = functional.normalize(read, dim=-1) @ functional.normalize(queries, dim=-1).mT
        losses.append((similar - own[:, None] + margin).clamp_min(0).where(allowed, 0).sum())
    return torch.stack(losses).sum()


class Pair(NamedTuple):
    """The states (P, D) of the sampled words, and of their replacements."""

    own: Tensor
    other: Tensor


def idf(tokens: Tensor) -> Tensor:
    """(P, T) inverse document frequency of each token among P captions: log(P / captions that contain it).

    >>> idf(torch.tensor([[4, 7, 7], [4, 8, 9]])).exp().tolist()
    [[1.0, 2.0, 2.0], [1.0, 2.0, 2.0]]
    """
    size = int(tokens.max()) + 1
    rows = torch.arange(len(tokens), device=tokens.device)[:, None]
    captions = torch.bincount((rows * size + tokens).unique() % size, minlength=size)
    return (len(tokens) / captions[tokens]).log()


def _by_words(cross: CrossAttended, drawn: Tensor, pair: Pair, found: Tensor, margin: float) -> Tensor:
    rows = torch.arange(len(drawn), device=drawn.device)
    read = (cross.weights[rows, drawn][:, None] @ cross.keys.values)[:, 0]
    return content_swapping(cosine(pair.own, read), cosine(pair.other, read), found, margin=margin)


def _by_locations(cross: CrossAttended, drawn: Tensor, pair: Pair, found: Tensor, margin: float) -> Tensor:
    rows = torch.arange(len(drawn), device=drawn.device)
    place = cross.weights.detach()[rows, :, drawn].where(cross.queries.full_mask(), -1.0).argmax(-1)
    location, weights = cross.queries.values[rows, place], cross.weights[rows, place]
    read = (weights[:, None] @ cross.keys.values)[:, 0]
    weight = weights[rows, drawn]
    changed = read + weight[:, None] * (pair.other - pair.own)
    own, swapped = cosine(location, read), cosine(location, changed)
    return content_swapping(own, swapped, found & (weight > 0), margin=margin)


def sample_places(weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sample one position per row of weights (P, Q): rows, positions, and (P,) True where any weight is above zero."""
    rows = torch.arange(len(weights), device=weights.device)
    # The smallest of exponential variables with these rates is at each position with probability in proportion to it.
    waits = torch.empty_like(weights).exponential_() / weights
    return rows, waits.argmin(-1), (weights > 0).any(-1)
