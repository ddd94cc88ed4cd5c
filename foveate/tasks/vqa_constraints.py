"""The contrastive constraints for models that answer questions: what was looked at must be what the answer needs."""

from __future__ import annotations

import torch
from torch import Tensor

from foveate.losses import choose_swaps, content_resourcing, content_swapping
from foveate.models.answering import Reading


def answer_resourcing(reading: Reading, weights: Tensor, targets: Tensor, *, margin: float = 0.2) -> Tensor:
    """CCR for answers: the right answer must follow from the attended locations better than from the others.

    Attended are the locations with more than an even share, weight > 1 / n. The relevance of what was read is the
    probability that it gives to the right answers, so that 0 <= margin < 1.

    Args:
        reading: of the last look at the picture.
        weights: (B, N) discrete weights of that look.
        targets: (B, A) accuracy of each answer.
        margin: γ₂ of `content_resourcing`.

    Returns:
        a scalar, summed over the batch.

    Reference: Chen et al. 2021, §4.5, sketches it for captions; for answers it is ours.
    """
    counts = torch.ones_like(weights) if reading.mask is None else reading.mask
    attended = weights * counts.sum(1, keepdim=True) > 1
    return content_resourcing(
        reading.question[:, None],
        reading.values,
        reading.scores[:, None],
        attended[:, None],
        margin=margin,
        mask=reading.mask,
        relevance=lambda questions, contexts: relevance(reading, questions[:, 0], contexts[:, 0], targets)[:, None],
    )


def answer_swapping(
    reading: Reading, context: Tensor, targets: Tensor, texts: Tensor, pictures: Tensor, *, margin: float = 0.2
) -> Tensor:
    """CCS for answers: what was looked at must answer its own question better than another one in its place.

    The other question is the most different of the batch that has other words and another picture.

    Args:
        reading: of the last look at the picture.
        context: (B, V) what that look gave.
        targets: (B, A) accuracy of each answer.
        texts, pictures: (B,) numbers, equal for the same question and for the same picture.
        margin: γ₃ of `content_swapping`.

    Returns:
        a scalar, summed over the batch.

    Reference: Chen et al. 2021, eq. 7-8 and §4.5.
    """
    swaps = choose_swaps(reading.question, texts, pictures)
    own = relevance(reading, reading.question, context, targets)
    other = relevance(reading, reading.question[swaps.index], context, targets)
    return content_swapping(own, other, swaps.found, margin=margin)


def relevance(reading: Reading, questions: Tensor, contexts: Tensor, targets: Tensor) -> Tensor:
    """(B,) the probability of the right answers, from questions (B, D) and contexts (B, V)."""
    probability = reading.answer(questions, contexts).softmax(-1)
    return (probability * targets).sum(-1) / targets.sum(-1).clamp_min(1)
