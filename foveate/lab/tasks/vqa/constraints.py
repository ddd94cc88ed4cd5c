"""The contrastive constraints for models that answer questions: attention must be on what the answer needs."""

from __future__ import annotations

from torch import Tensor

from foveate.lab.losses import choose_swaps, content_resourcing, content_swapping
from foveate.lab.models.answering import Reading
from foveate.ops.support import above_uniform


def answer_resourcing(reading: Reading, weights: Tensor, targets: Tensor, *, margin: float = 0.2) -> Tensor:
    """CCR for answers: the right answer must follow from the attended locations more than from the others.

    A location is attended to if its weight is above 1 / n. The relevance of a context is the probability of the right
    answers given that context, so that 0 <= margin < 1.

    Args:
        reading: of the last attention over the image.
        weights: (B, N) discrete weights of that attention.
        targets: (B, A) accuracy of each answer.
        margin: γ₂ of `content_resourcing`.

    Returns:
        a scalar, summed over the batch.

    Reference: Chen et al. 2021, §4.5, outlines it for captions; the version for answers is ours.
    """
    attended = above_uniform(weights, reading.mask)
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
    reading: Reading, context: Tensor, targets: Tensor, texts: Tensor, images: Tensor, *, margin: float = 0.2
) -> Tensor:
    """CCS for answers: the context must answer its own question better than another question in its place.

    The other question is the most different one of the batch with other words and another image.

    Args:
        reading: of the last attention over the image.
        context: (B, V) context of that attention.
        targets: (B, A) accuracy of each answer.
        texts, images: (B,) ids, equal for equal questions and for equal images.
        margin: γ₃ of `content_swapping`.

    Returns:
        a scalar, summed over the batch.

    Reference: Chen et al. 2021, eq. 7-8 and §4.5.
    """
    swaps = choose_swaps(reading.question, texts, images)
    own = relevance(reading, reading.question, context, targets)
    other = relevance(reading, reading.question[swaps.index], context, targets)
    return content_swapping(own, other, swaps.found, margin=margin)


def relevance(reading: Reading, questions: Tensor, contexts: Tensor, targets: Tensor) -> Tensor:
    """(B,) probability of the right answers, from questions (B, D) and contexts (B, V)."""
    probability = reading.answer(questions, contexts).softmax(-1)
    return (probability * targets).sum(-1) / targets.sum(-1).clamp_min(1)
