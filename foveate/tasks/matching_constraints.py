"""The constraints on attention of matching: which pairs, groups and swaps the losses are given."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from foveate.data.vocabulary import SPECIAL
from foveate.losses import choose_swaps, content_resourcing, content_swapping
from foveate.losses.constraints import Aggregate
from foveate.models import CrossLook


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


def swapping(looks: Sequence[CrossLook], tokens: Tensor, owner: Tensor, margin: float) -> Tensor:
    """CCS of pairs that belong together, one drawn query a pair and direction; see `content_swapping`.

    Where words look, one of them is drawn by how much it tells, log(P / captions that have it): "there" and "is" have
    nothing of their own to look at, and asking them for it spoils where the others look. It is swapped for the most
    different word that was drawn for another picture and that no caption of its own picture has: a red disc is relevant
    to "red", whichever of its words was drawn. Where locations look, the word that the drawn location attends to most
    is swapped, inside of what it reads, in the same way: a text can be swapped, a picture cannot.

    Args:
        looks: of P pairs.
        tokens: (P, T) the words of their captions; marks are not drawn.
        owner: (P,) their pictures.
        margin: γ₃.

    Reference: Chen et al. 2021, eq. 8 and §4.1.
    """
    words = tokens >= len(SPECIAL)
    losses = [(_swap_queries if look.by_words else _swap_keys)(look, words, tokens, owner, margin) for look in looks]
    return torch.stack(losses).sum()


def told(tokens: Tensor) -> Tensor:
    """(P, T) how much each word tells of its caption among P: log(P / captions that have it).

    >>> told(torch.tensor([[4, 7, 7], [4, 8, 9]])).exp().tolist()
    [[1.0, 2.0, 2.0], [1.0, 2.0, 2.0]]
    """
    size = int(tokens.max()) + 1
    rows = torch.arange(len(tokens), device=tokens.device)[:, None]
    captions = torch.bincount((rows * size + tokens).unique() % size, minlength=size)
    return (len(tokens) / captions[tokens]).log()


def _swap_queries(look: CrossLook, words: Tensor, tokens: Tensor, owner: Tensor, margin: float) -> Tensor:
    rows, drawn, some = draw(told(tokens).where(words, 0))
    queries = look.queries.values[rows, drawn]
    contexts = (look.weights[rows, drawn][:, None] @ look.keys.values)[:, 0]
    swaps = choose_swaps(queries[some], tokens[rows, drawn][some], owner[some], tokens[some])
    own = functional.cosine_similarity(queries, contexts, dim=-1)[some]
    swapped = functional.cosine_similarity(queries[some][swaps.index], contexts[some], dim=-1)
    return content_swapping(own, swapped, swaps.found, margin=margin)


def _swap_keys(look: CrossLook, words: Tensor, tokens: Tensor, owner: Tensor, margin: float) -> Tensor:
    everything = torch.ones(look.weights.shape[:2], device=tokens.device)
    rows, drawn, some = draw(everything if look.queries.mask is None else look.queries.mask.float())
    some = some & words.any(-1)
    queries, weights = look.queries.values[rows, drawn], look.weights[rows, drawn]
    place = weights.detach().where(words, -1.0).argmax(-1)
    key, weight = look.keys.values[rows, place][some], weights[rows, place][some]
    swaps = choose_swaps(key, tokens[rows, place][some], owner[some], tokens[some])
    contexts = (weights[:, None] @ look.keys.values)[:, 0][some]
    changed = contexts + weight[:, None] * (key[swaps.index] - key)
    own = functional.cosine_similarity(queries[some], contexts, dim=-1)
    swapped = functional.cosine_similarity(queries[some], changed, dim=-1)
    return content_swapping(own, swapped, swaps.found, margin=margin)


def draw(shares: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One place of each row by its share (P, Q): the rows, the places, and (P,) True where any share is above zero."""
    rows = torch.arange(len(shares), device=shares.device)
    waits = torch.empty_like(shares).exponential_() / shares  # the first of several exponential waits
    return rows, waits.argmin(-1), (shares > 0).any(-1)
