"""Contrastive constraints on attention: attended content must be more relevant to its query than other content.

They need the scores, keys and queries of a model, and a measure of how relevant a context is to the query that
attended to it: words over images, a question over an image, the last word of a caption over an image.
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
    """Relevance of contexts (..., D) to queries (..., D): the cosine between them.

    >>> cosine(torch.tensor([1.0, 0.0]), torch.tensor([3.0, 0.0])).item()
    1.0
    """
    return functional.cosine_similarity(queries, contexts, dim=-1)


def masked_mean(relevance: Tensor, mask: Tensor) -> Tensor:
    """Mean of (..., Q) over the queries where the mask is True; zero if there is none.

    >>> masked_mean(torch.tensor([1.0, 5.0]), torch.tensor([True, False])).item()
    1.0
    """
    return relevance.where(mask, 0).sum(-1) / mask.sum(-1).clamp_min(1)


@dataclass(frozen=True)
class Sources:
    """Contexts that queries read from the keys they attend to, and from the keys they ignore.

    Attributes:
        attended, ignored: (B, Q, D), contexts; zero where a query has no such key.
        both: (B, Q), True where a query has keys of both kinds.
    """

    attended: Tensor
    ignored: Tensor
    both: Tensor


def split_sources(scores: Tensor, keys: Tensor, attended: Tensor, mask: Tensor | None = None) -> Sources:
    """Attention renormalised over the attended keys, and over the ignored ones.

    l_q = Σ_{k in G_att} softmax_{G_att}(e_q)_k k,  and s_q over G_ign = K minus G_att

    Args:
        scores: (B, Q, K), e, before the transform.
        keys: (B, K, D).
        attended: (B, Q, K), True for the keys in G_att.
        mask: (B, K), True where a key counts; the others are in neither group.

    Reference: Chen et al. 2021, eq. 5.

    >>> sources = split_sources(torch.zeros(1, 1, 2), torch.eye(2)[None], torch.tensor([[[True, False]]]))
    >>> sources.attended.tolist(), sources.ignored.tolist(), sources.both.tolist()
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
    query_mask: Tensor | None = None,
    relevance: Relevance = cosine,
    aggregate: Aggregate = masked_mean,
) -> Tensor:
    """CCR: attended keys must be more relevant to their query than ignored ones.

    L = Σ_b [AGG_q Sim(q, s_q) − AGG_q Sim(q, l_q) + γ₂]_+ with l and s of `split_sources`

    Args:
        queries: (B, Q, D).
        keys, scores, attended, mask: (B, K, D), (B, Q, K), (B, Q, K) and (B, K), see `split_sources`.
        margin: γ₂.
        query_mask: (B, Q), True where a query counts; all of them if None.
        relevance: Sim, of contexts (B, Q, D) to queries.
        aggregate: AGG, from (B, Q) and a mask to (B,); in the paper that of the model.

    Returns:
        A scalar, summed over the batch. A query that attends to all keys or to none is skipped; an example in which
        all queries are skipped contributes nothing.

    Reference: Chen et al. 2021, eq. 6; in eq. 5 the sums are over the group, and groups are subsets of the keys.

    >>> keys, query = torch.eye(2)[None], torch.tensor([[[1.0, 0.0]]])
    >>> right, wrong = torch.tensor([[[True, False]]]), torch.tensor([[[False, True]]])
    >>> [content_resourcing(query, keys, torch.zeros(1, 1, 2), group, margin=0.5).item() for group in (right, wrong)]
    [0.0, 1.5]
    """
    check_number("content_resourcing", "margin", margin, least=0, advice="0.2 is a good start")
    _check_queries("content_resourcing", queries, scores, query_mask)
    sources = split_sources(scores, keys, attended, mask)
    counts = sources.both if query_mask is None else sources.both & query_mask
    ignored_relevance = aggregate(relevance(queries, sources.ignored), counts)
    attended_relevance = aggregate(relevance(queries, sources.attended), counts)
    # The hinge of an example without any query would be the margin itself, hence the last mask.
    return (ignored_relevance - attended_relevance + margin).clamp_min(0).where(counts.any(-1), 0).sum()


def content_swapping(own: Tensor, swapped: Tensor, found: Tensor | None = None, *, margin: float = 0.2) -> Tensor:
    """CCS: what a query reads must be more relevant to it than to another query.

    L = Σ_q [Sim(q̄, a_q) − Sim(q, a_q) + γ₃]_+

    Args:
        own: (...), Sim(q, a_q), the relevance of the attended context to its own query.
        swapped: (...), Sim(q̄, a_q), its relevance to the query swapped in, for instance by `choose_swaps`.
        found: (...), True where there is a query to swap in; everywhere if None.
        margin: γ₃.

    Returns:
        A scalar, summed over all elements.

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
    """The query to swap in for each of R queries.

    Attributes:
        index: (R,), the position of that query among the R.
        found: (R,), True where there is one.
    """

    index: Tensor
    found: Tensor


def choose_swaps(states: Tensor, words: Tensor, images: Tensor, sentences: Tensor | None = None) -> Swaps:
    """For each of R sampled words, the least similar one among the words that are not true of its image.

    p(q) = argmin_p cos(q, q_p) over the p with another word and another image, whose word no sentence of q's image has

    Args:
        states: (R, D), of the sampled words.
        words: (R,), their token ids.
        images: (R,), the image that each belongs to.
        sentences: (R, T), token ids of the sentence that each was sampled from: a word of such a sentence is true of
            its image and would be no contrast. None skips this condition.

    Reference: Chen et al. 2021, §3.3; the measure of difference and the sampling are ours, the paper leaves them open.

    >>> states = torch.tensor([[1.0, 0.0], [0.9, 0.1], [-1.0, 0.2]])
    >>> choose_swaps(states, torch.tensor([5, 6, 7]), torch.tensor([0, 1, 2])).index.tolist()
    [2, 2, 0]
    """
    check_floating("choose_swaps", "states", states)
    check_shape("choose_swaps", "states", states, (len(words), None), "(R, D)")
    check_shape("choose_swaps", "images", images, (len(words),), "(R,)")
    if len(words) == 0:
        return Swaps(words, words.bool())
    same_image = images[:, None] == images
    allowed = (words[:, None] != words) & ~same_image
    if sentences is not None:
        check_shape("choose_swaps", "sentences", sentences, (len(words), None), "(R, T)")
        # (r, p): word p is in the sentence of r; the product joins the sentences of all samples of the same image.
        in_sentence = (sentences[:, None] == words[:, None]).any(-1)
        allowed = allowed & ~((same_image.to(states.dtype) @ in_sentence.to(states.dtype)) > 0)
    unit = functional.normalize(states.detach(), dim=-1)  # the choice itself is not differentiated
    return Swaps((unit @ unit.mT).where(allowed, torch.inf).argmin(1), allowed.any(1))


def _check_scores(where: str, scores: Tensor, keys: Tensor) -> None:
    """Raises ShapeError unless scores are (B, Q, K) and keys (B, K, D)."""
    check_floating(where, "scores", scores)
    check_shape(where, "scores", scores, (None, None, None), "(B, Q, K)")
    check_shape(where, "keys", keys, (len(scores), scores.shape[-1], None), "(B, K, D)")


def _check_queries(where: str, queries: Tensor, scores: Tensor, query_mask: Tensor | None) -> None:
    """Raises ShapeError unless queries are (B, Q, D) and their mask, if any, is (B, Q)."""
    check_shape(where, "queries", queries, (*scores.shape[:2], None), "(B, Q, D)")
    if query_mask is not None:
        check_mask(where, query_mask, scores.shape[:2])
