"""CCS over all swaps: equation 7 of Chen et al. 2021, against a loop."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from foveate.attention import mechanism
from foveate.lab.data.vocabulary import SPECIAL
from foveate.lab.models import SCAN, Fragments
from foveate.lab.tasks.matching.constraints import swapping_all


def pairs(direction: str) -> tuple[tuple, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    tokens, owner = torch.tensor([[2, 5, 6, 3], [2, 5, 7, 3], [2, 8, 3, 0]]), torch.tensor([0, 0, 1])
    mask = tokens > 0
    images = Fragments(torch.randn(3, 4, 8)).unit()
    texts = Fragments(torch.randn(3, 4, 8), mask).unit()
    return SCAN(mechanism("softmax"), direction=direction).cross_attend(images, texts), tokens, owner


def test_equals_the_sum_over_words_and_swaps() -> None:
    attention, tokens, owner = pairs("t2i")
    [cross] = attention
    expected = torch.zeros(())
    spots = [(b, t) for b in range(3) for t in range(4) if tokens[b, t] >= len(SPECIAL)]
    for b, t in spots:
        read = cross.weights[b, t] @ cross.keys.values[b]
        own = functional.cosine_similarity(cross.queries.values[b, t], read, dim=0)
        said = {int(tokens[c, u]) for c, u in spots if owner[c] == owner[b]}
        for c, u in spots:
            if int(tokens[c, u]) not in said:
                other = functional.cosine_similarity(cross.queries.values[c, u], read, dim=0)
                expected = expected + (other - own + 0.2).clamp_min(0)
    torch.testing.assert_close(swapping_all(attention, tokens, owner, 0.2), expected)


def test_locations_that_attend_are_rejected() -> None:
    attention, tokens, owner = pairs("i2t")
    with pytest.raises(ValueError, match="swaps=sampled"):
        swapping_all(attention, tokens, owner, 0.2)
