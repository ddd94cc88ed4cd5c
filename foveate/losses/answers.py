"""Losses of answers: scores of a fixed list of answers against people's answers."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from foveate.checks import check_floating, check_shape


def answer_bce(scores: Tensor, targets: Tensor) -> Tensor:
    """Binary cross-entropy of every answer with soft targets, summed over answers and batch.

    L = −Σ_b Σ_a t_ba log σ(s_ba) + (1 − t_ba) log(1 − σ(s_ba))

    Args:
        scores: (B, A).
        targets: (B, A) in [0, 1]: the accuracy that each answer would get.

    Returns:
        a scalar.

    Reference: Farinhas et al. 2021, §6; Yu et al. 2019, §4.

    >>> import torch
    >>> answer_bce(torch.zeros(1, 2), torch.tensor([[1.0, 0.3]])).exp().item()
    4.0
    """
    _check("answer_bce", scores, targets)
    return functional.binary_cross_entropy_with_logits(scores, targets, reduction="sum")


def answer_cross_entropy(scores: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of the softmax over answers, summed over the batch.

    L = −Σ_b Σ_a q_ba log softmax(s_b)_a,  q_b = t_b / Σ_a t_ba

    Args:
        scores: (B, A).
        targets: (B, A) not negative; a single one gives the usual cross-entropy. A row of zeros, a question whose
            answers are all unknown, counts nothing.

    Returns:
        a scalar.

    Reference: Nam et al. 2017, eq. 15.

    >>> import torch
    >>> answer_cross_entropy(torch.zeros(1, 4), torch.tensor([[0.0, 1.0, 0.0, 0.0]])).exp().item()
    4.0
    """
    _check("answer_cross_entropy", scores, targets)
    total = targets.sum(-1, keepdim=True)
    return -(targets / total.where(total > 0, 1) * scores.log_softmax(-1)).sum()


def _check(where: str, scores: Tensor, targets: Tensor) -> None:
    check_floating(where, "scores", scores)
    check_shape(where, "scores", scores, (None, None), "(B, A)")
    check_shape(where, "targets", targets, tuple(scores.shape), "(B, A)")
