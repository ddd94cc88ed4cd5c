"""Losses: scalars, summed over the batch."""

from foveate.losses.answers import answer_bce, answer_cross_entropy
from foveate.losses.captions import word_cross_entropy
from foveate.losses.guidance import js_guidance, kl_guidance
from foveate.losses.loss import Loss

LOSSES: dict[str, Loss] = {
    "bce": Loss(answer_bce, reads="answers"),
    "cross-entropy": Loss(answer_cross_entropy, reads="answers"),
    "kl": Loss(kl_guidance, reads="maps"),
    "js": Loss(js_guidance, reads="maps"),
}

__all__ = ["LOSSES", "Loss", "answer_bce", "answer_cross_entropy", "js_guidance", "kl_guidance", "word_cross_entropy"]
