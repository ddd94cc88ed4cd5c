"""Losses of captions: scores of the next token against the token of the reference."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from foveate.checks import check_floating, check_shape


def word_cross_entropy(scores: Tensor, targets: Tensor, *, smoothing: float = 0.0) -> Tensor:
    """Cross-entropy of the reference tokens, summed over them.

    L = −Σ_w Σ_v q_wv log softmax(s_w)_v with q_wv = (1 − ε) [v = y_w] + ε / V

    Args:
        scores: (W, V), one row per token, as in `Captioned.scores`; the tokens of all captions on one axis, without
            padding.
        targets: (W,), token ids of the reference.
        smoothing: ε, label smoothing; none in the paper.

    Returns:
        A scalar. Without smoothing, divided by W it is the mean over tokens, whose
        exponential is the perplexity.

    Reference: Martins et al. 2020, eq. 10.

    >>> import torch
    >>> word_cross_entropy(torch.zeros(2, 4), torch.tensor([0, 3])).exp().item()
    16.0
    """
    check_floating("word_cross_entropy", "scores", scores)
    check_shape("word_cross_entropy", "scores", scores, (None, None), "(W, V)")
    check_shape("word_cross_entropy", "targets", targets, (len(scores),), "(W,)")
    return functional.cross_entropy(scores, targets, reduction="sum", label_smoothing=smoothing)
