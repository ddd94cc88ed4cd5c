"""The constraints on attention, against their sentences written out one pair at a time."""

from __future__ import annotations

import math

import pytest
import torch

from foveate.attention import mechanism
from foveate.lab.data.vocabulary import UNKNOWN
from foveate.lab.losses import choose_swaps, content_resourcing
from foveate.lab.models import (
    BFAN,
    SCAN,
    Fragments,
    LogSumExp,
    Mean,
)
from foveate.lab.tasks.matching.constraints import idf, resourcing, sample_places, swapping


def looks_of(scorer: SCAN | BFAN) -> tuple:
    torch.manual_seed(3)
    images = Fragments(torch.randn(3, 4, 6).requires_grad_(), torch.arange(4) < torch.tensor([4, 3, 2])[:, None]).unit()
    texts = Fragments(torch.randn(3, 5, 6).requires_grad_(), torch.arange(5) < torch.tensor([5, 3, 4])[:, None]).unit()
    return scorer.cross_attend(images, texts)


def soft() -> torch.nn.Module:
    return mechanism("softmax")


def test_resourcing_reads_both_directions_of_a_model() -> None:
    looks = looks_of(BFAN(soft(), soft(), temperature=5.0))
    total = sum(
        content_resourcing(
            look.queries.values,
            look.keys.values,
            look.scores,
            look.attended,
            margin=1.0,
            mask=look.keys.mask,
            query_mask=look.queries.mask,
            aggregate=Mean(),
        )
        for look in looks
    )
    assert total > 0
    torch.testing.assert_close(resourcing(looks, Mean(), 1.0), total)
    assert resourcing(looks, LogSumExp(5.0), 1.0) != total


TOKENS = torch.tensor([[2, 7, 8, 10, 3], [2, 10, 3, 0, 0], [2, 11, 12, 3, 0]])


OWNER = torch.tensor([0, 1, 2])


ONE, TWO = math.log(3), math.log(3 / 2)  # idf of words of one and of two captions


IDF = torch.tensor([[0, ONE, ONE, TWO, 0], [0, TWO, 0, 0, 0], [0, ONE, ONE, 0, 0]])


def test_words_are_sampled_by_their_idf() -> None:
    torch.testing.assert_close(idf(TOKENS).where(TOKENS > 3, 0), IDF)
    torch.manual_seed(0)
    rows, drawn, some = sample_places(IDF.repeat(4000, 1))
    shares = torch.nn.functional.one_hot(drawn, 5).view(4000, 3, 5).float().mean(0)
    torch.testing.assert_close(shares, IDF / IDF.sum(-1, keepdim=True), atol=0.03, rtol=0)
    assert some.all()
    assert rows[-1] == 11999
    assert not sample_places(torch.zeros(2, 3))[2].any()


def reread(tokens: torch.Tensor) -> torch.Tensor:
    """States that depend on the words before, so that a swapped word differs from the same one in another sentence."""
    vectors = torch.randn(13, 6, generator=torch.Generator().manual_seed(1))
    return vectors[tokens] + 0.5 * vectors[tokens].cumsum(1)


def drawn_and_swapped(states: torch.Tensor) -> tuple[torch.Tensor, list[bool], torch.Tensor, bool]:
    """The drawn words, whether each has one to be swapped for, the states of those in their own sentence, and whether
    the swaps are the same when words of the image's own captions are allowed."""
    drawn = (torch.empty(3, 5).exponential_() / IDF).argmin(-1)
    words = TOKENS[torch.arange(3), drawn]
    swaps = choose_swaps(states[torch.arange(3), drawn], words, OWNER, TOKENS)
    others = []
    for p, other in enumerate(swaps.index):
        sentence = TOKENS[p].clone()
        sentence[drawn[p]] = words[other]
        others.append(reread(sentence[None])[0, drawn[p]])
    free = choose_swaps(states[torch.arange(3), drawn], words, OWNER)
    return drawn, swaps.found.tolist(), torch.stack(others), torch.equal(swaps.index, free.index)


def test_swapping_replaces_the_sampled_word_in_its_own_sentence() -> None:
    (look,) = looks_of(SCAN(soft()))
    same_without = []
    for seed in range(8):
        torch.manual_seed(seed)
        ours = swapping((look,), reread, TOKENS, OWNER, 1.0)
        torch.manual_seed(seed)
        drawn, found, others, same = drawn_and_swapped(look.queries.values)
        same_without.append(same)
        slow = torch.zeros(())
        for p, t in enumerate(drawn):
            if found[p]:
                read = look.weights[p, t] @ look.keys.values[p]
                own = torch.cosine_similarity(reread(TOKENS)[p, t], read, dim=0)
                slow = slow + (torch.cosine_similarity(others[p], read, dim=0) - own + 1).clamp(0)
        torch.testing.assert_close(ours, slow)
    assert not all(same_without)  # word 10 is never swapped for one of the first caption, which has it


def test_a_dropped_word_still_belongs_to_its_image() -> None:
    (look,) = looks_of(SCAN(soft()))
    tokens = torch.tensor([[2, 7, UNKNOWN, 3, 0], [2, 10, 3, 0, 0], [2, UNKNOWN, UNKNOWN, 3, 0]])
    free = swapping((look,), reread, tokens, OWNER, 2.0)
    kept = swapping((look,), reread, tokens, OWNER, 2.0, original=TOKENS)  # the first caption has word 10
    second = swapping((look,), reread, tokens, OWNER, 2.0, original=tokens.index_fill(0, torch.tensor(0), 10))
    assert 0 < kept < free
    torch.testing.assert_close(kept, second)


def test_swapping_changes_a_word_of_what_a_location_reads() -> None:
    (look,) = looks_of(SCAN(soft(), direction="i2t", temperature=4.0))
    torch.manual_seed(0)
    ours = swapping((look,), reread, TOKENS, OWNER, 1.0)
    torch.manual_seed(0)
    drawn, found, others, _ = drawn_and_swapped(look.keys.values)
    slow = torch.zeros(())
    for p, t in enumerate(drawn):
        if found[p]:
            locations = [n for n in range(4) if look.queries.mask[p, n]]
            n = max(locations, key=lambda n, p=p, t=t: look.weights[p, n, t].item())
            q, words = look.queries.values[p, n], look.keys.values[p].clone()
            own = torch.cosine_similarity(q, look.weights[p, n] @ words, dim=0)
            words[t] += others[p] - reread(TOKENS)[p, t]
            slow = slow + (torch.cosine_similarity(q, look.weights[p, n] @ words, dim=0) - own + 1).clamp(0)
    assert slow > 0
    torch.testing.assert_close(ours, slow)


@pytest.mark.parametrize("scorer", [SCAN(soft()), BFAN(soft(), soft())])
def test_swapping_of_one_image_or_of_special_tokens_is_zero(scorer: SCAN | BFAN) -> None:
    looks = looks_of(scorer)
    assert swapping(looks, reread, TOKENS, torch.zeros(3, dtype=torch.long), 1.0).item() == 0
    assert swapping(looks, reread, torch.full_like(TOKENS, 2), OWNER, 1.0).item() == 0
