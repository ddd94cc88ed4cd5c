"""Losses: each returns a scalar, summed over the batch."""

from foveate.lab.losses.contrastive import (
    Sources,
    Swaps,
    choose_swaps,
    content_resourcing,
    content_swapping,
    split_sources,
)
from foveate.lab.losses.ranking import info_nce, ranking_hinge
from foveate.lab.losses.supervised import (
    LossFunction,
    answer_bce,
    answer_cross_entropy,
    js_guidance,
    kl_guidance,
    word_cross_entropy,
)

LOSSES: dict[str, LossFunction] = {
    "bce": LossFunction(answer_bce, reads="answers"),
    "cross-entropy": LossFunction(answer_cross_entropy, reads="answers"),
    "kl": LossFunction(kl_guidance, reads="maps"),
    "js": LossFunction(js_guidance, reads="maps"),
}

__all__ = [
    "LOSSES",
    "LossFunction",
    "Sources",
    "Swaps",
    "answer_bce",
    "answer_cross_entropy",
    "choose_swaps",
    "content_resourcing",
    "content_swapping",
    "info_nce",
    "js_guidance",
    "kl_guidance",
    "ranking_hinge",
    "split_sources",
    "word_cross_entropy",
]
