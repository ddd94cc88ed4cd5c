"""CCR and CCS against their equations, query by query."""

from __future__ import annotations

import pytest
import torch

from foveate.errors import ShapeError
from foveate.lab.losses import choose_swaps, content_resourcing, content_swapping, split_sources

B, Q, K, D = 3, 4, 5, 6


def inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    queries, keys = torch.randn(B, Q, D, dtype=torch.float64), torch.randn(B, K, D, dtype=torch.float64)
    scores = torch.randn(B, Q, K, dtype=torch.float64)
    attended = torch.rand(B, Q, K) > 0.5
    attended[0, 0], attended[0, 1] = True, False  # a query that ignores nothing, one that attends to nothing
    attended[1, 0] = torch.tensor([True, True, False, False, True])
    attended[2] = True  # an example without a query that has both
    return queries.requires_grad_(), keys.requires_grad_(), scores.requires_grad_(), attended


def slow_source(scores: torch.Tensor, keys: torch.Tensor, group: list[int]) -> torch.Tensor:
    total = sum(scores[k].exp() for k in group)
    return sum(scores[k].exp() / total * keys[k] for k in group)


def slow_ccr(queries, keys, scores, attended, margin, mask=None, query_mask=None, lse=None) -> torch.Tensor:
    loss = torch.zeros((), dtype=queries.dtype)
    for b in range(B):
        kept, ignored = [], []
        for q in range(Q):
            if query_mask is not None and not query_mask[b, q]:
                continue
            there = [k for k in range(K) if mask is None or mask[b, k]]
            groups = [k for k in there if attended[b, q, k]], [k for k in there if not attended[b, q, k]]
            if not all(groups):
                continue
            for relevance, group in zip((kept, ignored), groups, strict=True):
                context = slow_source(scores[b, q], keys[b], group)
                relevance.append(queries[b, q] @ context / (queries[b, q].norm() * context.norm()))
        if kept:
            agg = (lambda r: torch.stack(r).mul(lse).logsumexp(0) / lse) if lse else (lambda r: sum(r) / len(r))
            loss = loss + (agg(ignored) - agg(kept) + margin).clamp(min=0)
    return loss


def lse(relevance: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.where(mask.any(-1), (3 * relevance).where(mask | ~mask.any(-1, True), -torch.inf).logsumexp(-1) / 3, 0)


MASK = torch.tensor([[True] * 5, [True, True, True, False, False], [True] * 5])
QUERY_MASK = torch.tensor([[True] * 4, [True, True, False, False], [True] * 4])


@pytest.mark.parametrize(
    ("options", "theirs"),
    [
        ({"margin": 0.3}, {"margin": 0.3}),
        ({"margin": 1.0}, {"margin": 1.0}),
        ({"margin": 1.0, "mask": MASK}, {"margin": 1.0, "mask": MASK}),
        ({"margin": 1.0, "query_mask": QUERY_MASK}, {"margin": 1.0, "query_mask": QUERY_MASK}),
        (
            {"margin": 1.0, "mask": MASK, "query_mask": QUERY_MASK, "aggregate": lse},
            {"margin": 1.0, "mask": MASK, "query_mask": QUERY_MASK, "lse": 3},
        ),
    ],
)
def test_resourcing_is_equations_5_and_6(options: dict, theirs: dict) -> None:
    queries, keys, scores, attended = inputs()
    ours = content_resourcing(queries, keys, scores, attended, **options)
    slow = slow_ccr(queries, keys, scores, attended, **theirs)
    assert slow.item() > 0
    torch.testing.assert_close(ours, slow)
    leaves = (queries, keys, scores)
    torch.testing.assert_close(torch.autograd.grad(ours, leaves), torch.autograd.grad(slow, leaves))


def test_another_relevance_can_be_passed() -> None:
    queries, keys, scores, attended = inputs()
    sources = split_sources(scores, keys, attended)
    inner = content_resourcing(queries, keys, scores, attended, margin=5.0, relevance=lambda q, a: (q * a).sum(-1))
    gaps = ((sources.ignored - sources.attended) * queries).sum(-1)
    slow = sum((gaps[b][sources.both[b]].mean() + 5).clamp(min=0) for b in range(2))
    torch.testing.assert_close(inner, slow)


def test_examples_whose_groups_are_empty_count_nothing() -> None:
    queries, keys, scores, attended = inputs()
    for all_or_none in (torch.ones_like(attended), torch.zeros_like(attended)):
        loss = content_resourcing(queries, keys, scores, all_or_none, margin=1.0)
        assert loss.item() == 0
        assert all(g.isfinite().all() and not g.any() for g in torch.autograd.grad(loss, (queries, keys, scores)))
    empty = content_resourcing(queries[:0], keys[:0], scores[:0], attended[:0])
    assert empty.item() == 0
    one = content_resourcing(queries[:1, :1], keys[:1, :1], scores[:1, :1, :1], attended[:1, :1, :1])
    assert one.item() == 0


def test_attention_is_renormalised_inside_each_group() -> None:
    _, keys, scores, attended = inputs()
    sources = split_sources(scores, keys, attended, MASK)
    group = [k for k in range(3) if attended[1, 0, k]], [k for k in range(3) if not attended[1, 0, k]]
    assert sources.both[1, 0]
    torch.testing.assert_close(sources.attended[1, 0], slow_source(scores[1, 0], keys[1], group[0]))
    torch.testing.assert_close(sources.ignored[1, 0], slow_source(scores[1, 0], keys[1], group[1]))
    assert not sources.both[0, :2].any()


def test_swapping_is_equation_8() -> None:
    own, swapped = torch.tensor([0.9, 0.2, 0.5], requires_grad=True), torch.tensor([0.1, 0.4, 0.4], requires_grad=True)
    loss = content_swapping(own, swapped, margin=0.3)
    assert loss.item() == pytest.approx(0 + 0.5 + 0.2)
    loss.backward()
    assert own.grad.tolist() == [0, -1, -1]
    found = torch.tensor([True, False, True])
    assert content_swapping(own, swapped, found, margin=0.3).item() == pytest.approx(0.2)
    assert content_swapping(own[:0], swapped[:0]).item() == 0


def test_swaps_are_the_most_different_word_of_another_image() -> None:
    torch.manual_seed(0)
    states, words, images = torch.randn(12, 4), torch.randint(3, (12,)), torch.randint(3, (12,))
    swaps = choose_swaps(states, words, images)
    for r in range(12):
        others = [p for p in range(12) if words[p] != words[r] and images[p] != images[r]]
        assert bool(swaps.found[r]) == bool(others)
        cosines = {p: torch.cosine_similarity(states[r], states[p], dim=0).item() for p in others}
        assert swaps.index[r] == min(cosines, key=cosines.get)


def test_swaps_are_not_in_a_sentence_about_the_same_image() -> None:
    torch.manual_seed(0)
    sentences = torch.randint(6, (12, 3))
    states, words, images = torch.randn(12, 4), sentences[:, 0], torch.randint(4, (12,))
    swaps = choose_swaps(states, words, images, sentences)
    assert not torch.equal(swaps.index, choose_swaps(states, words, images).index)
    for r in range(12):
        true = {int(word) for p in range(12) if images[p] == images[r] for word in sentences[p]}
        others = [p for p in range(12) if int(words[p]) not in true and images[p] != images[r]]
        assert bool(swaps.found[r]) == bool(others)
        cosines = {p: torch.cosine_similarity(states[r], states[p], dim=0).item() for p in others}
        assert not others or swaps.index[r] == min(cosines, key=cosines.get)


@pytest.mark.parametrize("count", [0, 1])
def test_no_swap_is_found_where_there_is_none(count: int) -> None:
    swaps = choose_swaps(torch.randn(count, 3), torch.arange(count), torch.arange(count))
    assert swaps.index.shape == (count,)
    assert not swaps.found.any()
    same = choose_swaps(torch.randn(2, 3), torch.tensor([4, 5]), torch.tensor([0, 0]))
    assert not same.found.any()
    assert not choose_swaps(torch.randn(2, 3), torch.tensor([4, 4]), torch.tensor([0, 1])).found.any()


def test_messages() -> None:
    queries, keys, scores, attended = inputs()
    with pytest.raises(ShapeError, match=r"content_resourcing: expected queries \(B, Q, D\) of sizes \(3, 4, any\)"):
        content_resourcing(queries[:, :2], keys, scores, attended)
    with pytest.raises(ShapeError, match=r"split_sources: expected keys \(B, K, D\) of sizes \(3, 5, any\)"):
        split_sources(scores, keys[:, :2], attended)
    with pytest.raises(TypeError, match="split_sources: expected a boolean mask"):
        split_sources(scores, keys, attended.float())
    with pytest.raises(ValueError, match="content_resourcing: expected margin >= 0"):
        content_resourcing(queries, keys, scores, attended, margin=-0.1)
    with pytest.raises(ValueError, match="content_swapping: expected margin >= 0"):
        content_swapping(torch.zeros(1), torch.zeros(1), margin=-0.1)
    with pytest.raises(ShapeError, match="content_swapping: expected swapped as own of sizes"):
        content_swapping(torch.zeros(2), torch.zeros(1))
    with pytest.raises(ShapeError, match=r"choose_swaps: expected states \(R, D\) of sizes \(2, any\)"):
        choose_swaps(torch.zeros(3, 2), torch.zeros(2).long(), torch.zeros(2).long())
    with pytest.raises(ShapeError, match=r"choose_swaps: expected sentences \(R, T\) of sizes \(2, any\)"):
        choose_swaps(torch.zeros(2, 2), torch.zeros(2).long(), torch.zeros(2).long(), torch.zeros(3, 1).long())
