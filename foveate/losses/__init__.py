"""Losses: scalars, summed over the batch."""

from foveate.losses.answers import answer_bce, answer_cross_entropy
from foveate.losses.captions import word_cross_entropy
from foveate.losses.constraints import (
    Sources,
    Swaps,
    choose_swaps,
    content_resourcing,
    content_swapping,
    split_sources,
)
from foveate.losses.guidance import js_guidance, kl_guidance
from foveate.losses.loss import Loss
from foveate.losses.ranking import ranking_hinge

LOSSES: dict[str, Loss] = {
    "bce": Loss(answer_bce, reads="answers"),
    "cross-entropy": Loss(answer_cross_entropy, reads="answers"),
    "kl": Loss(kl_guidance, reads="maps"),
    "js": Loss(js_guidance, reads="maps"),
}

__all__ = [
    "LOSSES",
    "Loss",
    "Sources",
    "Swaps",
    "answer_bce",
    "answer_cross_entropy",
    "choose_swaps",
    "content_resourcing",
    "content_swapping",
    "js_guidance",
    "kl_guidance",
    "ranking_hinge",
    "split_sources",
    "word_cross_entropy",
]
