"""Losses with a target: of answers, of words, and of attention maps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor
from torch.nn import functional

from foveate.checks import check_floating, check_shape
from foveate.ops.divergence import js_divergence, kl_divergence


@dataclass(frozen=True)
class LossFunction:
    """A row of `LOSSES`.

    Attributes:
        function: `function(prediction, target) -> scalar`, summed over the batch.
        reads: what the function compares: "answers", scores with soft targets (B, A); "maps", attention maps with
            target maps (B, H, W).
    """

    function: Callable[[Tensor, Tensor], Tensor]
    reads: Literal["answers", "maps"]


# Mass below this is replaced by it inside a logarithm, because a sparse map has cells with no mass at all.
FLOOR = 1e-6


def answer_bce(scores: Tensor, targets: Tensor) -> Tensor:
    """Binary cross-entropy of every answer with soft targets, summed over answers and batch.

    L = −Σ_b Σ_a t_ba log σ(s_ba) + (1 − t_ba) log(1 − σ(s_ba))

    Args:
        scores: (B, A).
        targets: (B, A) in [0, 1]: the accuracy that each answer would score.

    Returns:
        A scalar.

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
        targets: (B, A), non-negative; a one-hot row yields the usual cross-entropy. A row of zeros (a question none of
            whose answers is in the list) contributes nothing.

    Returns:
        A scalar.

    Reference: Nam et al. 2017, eq. 15.

    >>> import torch
    >>> answer_cross_entropy(torch.zeros(1, 4), torch.tensor([[0.0, 1.0, 0.0, 0.0]])).exp().item()
    4.0
    """
    _check("answer_cross_entropy", scores, targets)
    total = targets.sum(-1, keepdim=True)
    # Dividing by 1 where the row is all zeros keeps its loss and its gradient at zero instead of 0 / 0.
    return -(targets / total.where(total > 0, 1) * scores.log_softmax(-1)).sum()


def _check(where: str, scores: Tensor, targets: Tensor) -> None:
    """Raises TypeError or ShapeError unless both are (B, A) and the scores are floating-point."""
    check_floating(where, "scores", scores)
    check_shape(where, "scores", scores, (None, None), "(B, A)")
    check_shape(where, "targets", targets, tuple(scores.shape), "(B, A)")


def kl_guidance(maps: Tensor, targets: Tensor) -> Tensor:
    """`Σ_b KL(target_b ‖ map_b)` in nats: missing a part of the target costs most.

    Args:
        maps: (B, H, W), attention maps as returned by `Attended.map`.
        targets: (B, H, W), distributions on the same grid; an example whose target is all zeros has none and
            contributes nothing.

    Returns:
        A scalar. Mass below 1e-6 counts as 1e-6, so that the value is finite for sparse maps; cells below it receive
        no gradient.

    >>> import torch
    >>> kl_guidance(torch.full((1, 1, 2), 0.5), torch.tensor([[[1.0, 0.0]]])).exp().item()
    2.0
    """
    _check_maps("kl_guidance", maps, targets)
    return kl_divergence(targets, maps, floor=FLOOR).sum()


def js_guidance(maps: Tensor, targets: Tensor) -> Tensor:
    """`Σ_b JS(target_b, map_b)` in bits: at most one per example, and attention outside the target costs as well.

    Arguments and result as in `kl_guidance`.

    >>> import torch
    >>> js_guidance(torch.tensor([[[0.0, 1.0]]]), torch.tensor([[[1.0, 0.0]]])).item()
    1.0
    """
    _check_maps("js_guidance", maps, targets)
    # Unlike KL, JS to an all-zero target is not zero by itself.
    has_target = targets.sum((-2, -1)) > 0
    return (js_divergence(targets, maps, floor=FLOOR) * has_target).sum()


def _check_maps(where: str, maps: Tensor, targets: Tensor) -> None:
    """Raises ShapeError unless both are (B, H, W)."""
    check_shape(where, "maps", maps, (None, None, None), "(B, H, W)")
    check_shape(where, "targets", targets, tuple(maps.shape), "(B, H, W)")


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
