"""Contrastive constraints on attention: what is attended to must matter more than what is not, and than what it is not.

They read scores, keys and queries of any model in which the relevance of something read to the one who asked can be
told: words over pictures, a question over a picture, the last word of a caption over a picture.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from foveate.checks import check_floating, check_mask, check_number, check_shape
from foveate.ops import softmax

Relevance: TypeAlias = Callable[[Tensor, Tensor], Tensor]
Aggregate: TypeAlias = Callable[[Tensor, Tensor], Tensor]


def cosine(queries: Tensor, contexts: Tensor) -> Tensor:
    """The relevance of contexts (..., D) to queries (..., D): the cosine between them.

    >>> cosine(torch.tensor([1.0, 0.0]), torch.tensor([3.0, 0.0])).item()
    1.0
    """
    return functional.cosine_similarity(queries, contexts, dim=-1)


def mean_of_some(relevance: Tensor, mask: Tensor) -> Tensor:
    """The mean of (..., Q) over the queries that count, zero when none does.

    >>> mean_of_some(torch.tensor([1.0, 5.0]), torch.tensor([True, False])).item()
    1.0
    """
    return relevance.where(mask, 0).sum(-1) / mask.sum(-1).clamp_min(1)


@dataclass(frozen=True)
class Sources:
    """What queries read from the keys they attend to, and from those they ignore.

    Attributes:
        attended, ignored: (B, Q, D) contexts; zero where there is no such key.
        both: (B, Q) True where a query has keys of both kinds.
    """

    attended: Tensor
    ignored: Tensor
    both: Tensor


def split_sources(scores: Tensor, keys: Tensor, attended: Tensor, mask: Tensor | None = None) -> Sources:
    """Attention renormalised over the attended keys, and over the others.

    l_q = Σ_{k in G_att} softmax_{G_att}(e_q)_k k,  and s_q over G_ign = K minus G_att

    Args:
        scores: (B, Q, K) e, before the transform.
        keys: (B, K, D).
        attended: (B, Q, K) True for the keys in G_att.
        mask: (B, K) True where a key counts; others are in neither group.

    Reference: Chen et al. 2021, eq. 5.

    >>> found = split_sources(torch.zeros(1, 1, 2), torch.eye(2)[None], torch.tensor([[[True, False]]]))
    >>> found.attended.tolist(), found.ignored.tolist(), found.both.tolist()
    ([[[1.0, 0.0]]], [[[0.0, 1.0]]], [[True]])
    """
    _check_scores("split_sources", scores, keys)
    check_mask("split_sources", attended, scores.shape)
    if mask is not None:
        check_mask("split_sources", mask, keys.shape[:2])
    counts = torch.ones_like(attended) if mask is None else mask[..., None, :].expand_as(attended)
    groups = attended & counts, ~attended & counts
    contexts = [softmax(scores, mask=group) @ keys for group in groups]
    return Sources(contexts[0], contexts[1], groups[0].any(-1) & groups[1].any(-1))


def content_resourcing(
    queries: Tensor,
    keys: Tensor,
    scores: Tensor,
    attended: Tensor,
    *,
    margin: float = 0.2,
    mask: Tensor | None = None,
    asked: Tensor | None = None,
    relevance: Relevance = cosine,
    aggregate: Aggregate = mean_of_some,
) -> Tensor:
    """CCR: attended keys must be more relevant to their query than ignored ones.

    L = Σ_b [AGG_q Sim(q, s_q) − AGG_q Sim(q, l_q) + γ₂]_+ with l and s of `split_sources`

    Args:
        queries: (B, Q, D), keys: (B, K, D), scores: (B, Q, K), attended: (B, Q, K), mask: (B, K): see `split_sources`.
        margin: γ₂.
        asked: (B, Q) True where a query counts; None when all do.
        relevance: Sim, of (B, Q, D) contexts to queries.
        aggregate: AGG, from (B, Q) and a mask to (B,); the model's own in the paper.

    Returns:
        a scalar, summed over the batch. A query that attends to all keys or to none is left out; an example all of
        whose queries are left out counts nothing.

    Reference: Chen et al. 2021, eq. 6; in eq. 5 the sums are over the group, and groups are subsets of the keys.

    >>> keys, query = torch.eye(2)[None], torch.tensor([[[1.0, 0.0]]])
    >>> right, wrong = torch.tensor([[[True, False]]]), torch.tensor([[[False, True]]])
    >>> [content_resourcing(query, keys, torch.zeros(1, 1, 2), kept, margin=0.5).item() for kept in (right, wrong)]
    [0.0, 1.5]
    """
    check_number("content_resourcing", "margin", margin, least=0, advice="0.2 is a good start")
    _check_queries("content_resourcing", queries, scores, asked)
    sources = split_sources(scores, keys, attended, mask)
    counts = sources.both if asked is None else sources.both & asked
    ignored = aggregate(relevance(queries, sources.ignored), counts)
    kept = aggregate(relevance(queries, sources.attended), counts)
    return (ignored - kept + margin).clamp_min(0).where(counts.any(-1), 0).sum()


def content_swapping(own: Tensor, swapped: Tensor, found: Tensor | None = None, *, margin: float = 0.2) -> Tensor:
    """CCS: what a query reads must be more relevant to it than to another query.

    L = Σ_q [Sim(q̄, a_q) − Sim(q, a_q) + γ₃]_+

    Args:
        own: (...) Sim(q, a_q), the relevance of what was read to who asked.
        swapped: (...) Sim(q̄, a_q), that to a query in its place, of `choose_swaps` for instance.
        found: (...) True where there is such a query; None when there always is.
        margin: γ₃.

    Returns:
        a scalar, summed over all.

    Reference: Chen et al. 2021, eq. 7-8.

    >>> content_swapping(torch.tensor([0.5, 0.5]), torch.tensor([0.25, 0.5]), margin=0.5).item()
    0.75
    """
    check_number("content_swapping", "margin", margin, least=0, advice="0.2 is a good start")
    check_shape("content_swapping", "swapped", swapped, tuple(own.shape), "as own")
    excess = (swapped - own + margin).clamp_min(0)
    return (excess if found is None else excess.where(found, 0)).sum()


@dataclass(frozen=True)
class Swaps:
    """For each of R queries another one of them: its number (R,), and (R,) True where there is one."""

    index: Tensor
    found: Tensor


def choose_swaps(states: Tensor, words: Tensor, pictures: Tensor, said: Tensor | None = None) -> Swaps:
    """For each of R sampled words the most different of the others, never the same word nor one of the same picture.

    p(q) = argmin_p cos(q, q_p) over the p with another word and another picture, whose word is not said of q's picture

    Args:
        states: (R, D) of the sampled words.
        words: (R,) their numbers in the vocabulary.
        pictures: (R,) the picture that each is said of.
        said: (R, T) the words of the sentence that each is from: what a sentence says is true of its picture, and no
            other content. None leaves that open.

    Reference: Chen et al. 2021, §3.3; which difference and which sample they leave open, and are ours.

    >>> states = torch.tensor([[1.0, 0.0], [0.9, 0.1], [-1.0, 0.2]])
    >>> choose_swaps(states, torch.tensor([5, 6, 7]), torch.tensor([0, 1, 2])).index.tolist()
    [2, 2, 0]
    """
    check_floating("choose_swaps", "states", states)
    check_shape("choose_swaps", "states", states, (len(words), None), "(R, D)")
    check_shape("choose_swaps", "pictures", pictures, (len(words),), "(R,)")
    if len(words) == 0:
        return Swaps(words, words.bool())
    same_picture = pictures[:, None] == pictures
    allowed = (words[:, None] != words) & ~same_picture
    if said is not None:
        check_shape("choose_swaps", "said", said, (len(words), None), "(R, T)")
        true = (said[:, None] == words[:, None]).any(-1)
        allowed = allowed & ~((same_picture.to(states.dtype) @ true.to(states.dtype)) > 0)
    unit = functional.normalize(states.detach(), dim=-1)
    return Swaps((unit @ unit.mT).where(allowed, torch.inf).argmin(1), allowed.any(1))


def _check_scores(where: str, scores: Tensor, keys: Tensor) -> None:
    check_floating(where, "scores", scores)
    check_shape(where, "scores", scores, (None, None, None), "(B, Q, K)")
    check_shape(where, "keys", keys, (len(scores), scores.shape[-1], None), "(B, K, D)")


def _check_queries(where: str, queries: Tensor, scores: Tensor, asked: Tensor | None) -> None:
    check_shape(where, "queries", queries, (*scores.shape[:2], None), "(B, Q, D)")
    if asked is not None:
        check_mask(where, asked, scores.shape[:2])
