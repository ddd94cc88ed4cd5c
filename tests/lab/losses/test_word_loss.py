from __future__ import annotations

import math

import pytest
import torch

from foveate.errors import ShapeError
from foveate.lab.losses import word_cross_entropy


def test_is_the_sum_over_words_written_out() -> None:
    torch.manual_seed(0)
    scores, targets = torch.randn(5, 7, dtype=torch.float64), torch.randint(7, (5,))
    slow = 0.0
    for row, target in zip(scores.tolist(), targets.tolist(), strict=True):
        slow -= row[target] - math.log(sum(math.exp(x) for x in row))
    assert word_cross_entropy(scores, targets).item() == pytest.approx(slow)
    assert word_cross_entropy(scores[:0], targets[:0]).item() == 0
    assert torch.autograd.gradcheck(lambda x: word_cross_entropy(x, targets), (scores.requires_grad_(),))


def test_wrong_shapes_raise_an_error() -> None:
    with pytest.raises(ShapeError, match=r"word_cross_entropy: expected targets \(W,\) of sizes \(2\), got \(3,\)"):
        word_cross_entropy(torch.zeros(2, 4), torch.zeros(3, dtype=torch.long))
    with pytest.raises(ShapeError, match=r"word_cross_entropy: expected scores \(W, V\)"):
        word_cross_entropy(torch.zeros(2, 3, 4), torch.zeros(2, dtype=torch.long))
    with pytest.raises(TypeError, match="word_cross_entropy: expected floating-point scores"):
        word_cross_entropy(torch.zeros(2, 4, dtype=torch.long), torch.zeros(2, dtype=torch.long))


def test_smoothing_mixes_in_all_words() -> None:
    torch.manual_seed(0)
    scores, targets = torch.randn(5, 7), torch.randint(7, (5,))
    even = -scores.log_softmax(-1).mean(-1).sum()
    expected = 0.8 * word_cross_entropy(scores, targets) + 0.2 * even
    torch.testing.assert_close(word_cross_entropy(scores, targets, smoothing=0.2), expected)
