"""The constraints on attention of matching: which pairs, groups and swaps the losses are given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from foveate.data.vocabulary import SPECIAL
from foveate.losses import choose_swaps, content_resourcing, content_swapping
from foveate.losses.constraints import Aggregate, cosine
from foveate.models import CrossLook

Encode: TypeAlias = Callable[[Tensor], Tensor]


def resourcing(looks: Sequence[CrossLook], aggregate: Aggregate, margin: float) -> Tensor:
    """CCR of pairs that belong together, summed over pairs and directions; see `content_resourcing`."""
    losses = [
        content_resourcing(
            look.queries.values,
            look.keys.values,
            look.scores,
            look.attended,
            margin=margin,
            mask=look.keys.mask,
            asked=look.queries.mask,
            aggregate=aggregate,
        )
        for look in looks
    ]
    return torch.stack(losses).sum()


def swapping(
    looks: Sequence[CrossLook],
    encode: Encode,
    tokens: Tensor,
    owner: Tensor,
    margin: float,
    *,
    said: Tensor | None = None,
) -> Tensor:
    """CCS of pairs that belong together, one drawn word a pair; see `content_swapping`.

    A word of each caption is drawn by how much it tells, log(P / captions that have it): "there" and "is" have nothing
    of their own to look at. In its place comes the most different word that was drawn for another picture and that no
    caption of its own picture in the batch has. The caption is read as it is and with that word, both without dropout:
    the rest of the sentence is the same, so that only the word itself can make the difference.

    Where words look, what the drawn word read must be more relevant to it than to the word in its place. Where
    locations look, the one that attends to the drawn word most must find more relevant what it read than the same with
    the other word: a text can be swapped, a picture cannot.

    Args:
        looks: of P pairs.
        encode: from (P, T) words to their states (P, T, D), the same each time.
        tokens: (P, T) the words of the captions as they were read; marks and unknown words are not drawn.
        owner: (P,) their pictures.
        margin: γ₃.
        said: (P, T) the words of the captions, also those that were read as unknown; None for `tokens`.

    Reference: Chen et al. 2021, eq. 8 and §4.1.
    """
    rows, drawn, some = draw(told(tokens).where(tokens >= len(SPECIAL), 0))
    texts = looks[0].queries if looks[0].by_words else looks[0].keys
    words, states = tokens[rows, drawn], texts.values[rows, drawn]
    swaps = choose_swaps(states[some], words[some], owner[some], (tokens if said is None else said)[some])
    changed = tokens.clone()
    changed[rows[some], drawn[some]] = words[some][swaps.index]
    pair = Pair(encode(tokens)[rows, drawn], encode(changed)[rows, drawn])
    found = some.clone()
    found[some] = swaps.found
    losses = [(_by_words if look.by_words else _by_locations)(look, drawn, pair, found, margin) for look in looks]
    return torch.stack(losses).sum()


class Pair(NamedTuple):
    """The states (P, D) of the drawn words, and of those in their place."""

    own: Tensor
    other: Tensor


def told(tokens: Tensor) -> Tensor:
    """(P, T) how much each word tells of its caption among P: log(P / captions that have it).

    >>> told(torch.tensor([[4, 7, 7], [4, 8, 9]])).exp().tolist()
    [[1.0, 2.0, 2.0], [1.0, 2.0, 2.0]]
    """
    size = int(tokens.max()) + 1
    rows = torch.arange(len(tokens), device=tokens.device)[:, None]
    captions = torch.bincount((rows * size + tokens).unique() % size, minlength=size)
    return (len(tokens) / captions[tokens]).log()


def _by_words(look: CrossLook, drawn: Tensor, pair: Pair, found: Tensor, margin: float) -> Tensor:
    rows = torch.arange(len(drawn), device=drawn.device)
    read = (look.weights[rows, drawn][:, None] @ look.keys.values)[:, 0]
    return content_swapping(cosine(pair.own, read), cosine(pair.other, read), found, margin=margin)


def _by_locations(look: CrossLook, drawn: Tensor, pair: Pair, found: Tensor, margin: float) -> Tensor:
    rows = torch.arange(len(drawn), device=drawn.device)
    place = look.weights.detach()[rows, :, drawn].where(look.queries.counts(), -1.0).argmax(-1)
    location, weights = look.queries.values[rows, place], look.weights[rows, place]
    read = (weights[:, None] @ look.keys.values)[:, 0]
    weight = weights[rows, drawn]
    changed = read + weight[:, None] * (pair.other - pair.own)
    own, swapped = cosine(location, read), cosine(location, changed)
    return content_swapping(own, swapped, found & (weight > 0), margin=margin)


def draw(shares: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One place of each row by its share (P, Q): the rows, the places, and (P,) True where any share is above zero."""
    rows = torch.arange(len(shares), device=shares.device)
    waits = torch.empty_like(shares).exponential_() / shares  # the first of several exponential waits
    return rows, waits.argmin(-1), (shares > 0).any(-1)
