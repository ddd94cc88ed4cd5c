"""Guided attention of words: towards the boxes of the phrases that contain them, where annotators have drawn any."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from foveate.lab.data.samples import Caption
from foveate.lab.losses import kl_guidance
from foveate.lab.models import CrossAttended
from foveate.metrics.grounding import Locations, relevant_locations


def phrase_targets(
    captions: Sequence[Caption], locations: Sequence[Locations | None], like: Tensor, *, first: int
) -> Tensor:
    """Where each word of each caption should look: uniform over the locations that show its phrase.

    Args:
        captions: C of them, with phrases.
        locations: of the image of each caption: rows and columns of its grid, or boxes of its regions.
        like: (C, T, N), of which the result has the shape, the type and the device.
        first: row of the first word; 1 if the token bos precedes it.

    Returns:
        (C, T, N), rows that sum to one, or zero rows for words outside of phrases and for phrases without a box.
    """
    targets = torch.zeros(like.shape, dtype=torch.bool)
    for row, (caption, seen) in enumerate(zip(captions, locations, strict=True)):
        for phrase in caption.phrases:
            if phrase.boxes and seen is not None:
                relevant = relevant_locations(seen, phrase.boxes)
                targets[row, first + phrase.start : first + phrase.stop, : len(relevant)] |= relevant
    counted = targets.to(like)
    return counted / counted.sum(-1, keepdim=True).clamp_min(1)


def guide(
    attention: Sequence[CrossAttended],
    captions: Sequence[Caption],
    locations: Sequence[Locations | None],
    *,
    first: int,
) -> Tensor:
    """`C · mean_t KL(target_t ‖ weights_t)` over the words with a target: a sum over captions, as all losses are.

    Args:
        attention: of each caption to its image, in one or both directions; only that of the words is guided.
        captions, locations, first: as in `phrase_targets`.

    Returns:
        A scalar, zero if no word has a target.
    """
    weights = next(cross.weights for cross in attention if cross.queries_are_words)
    targets = phrase_targets(captions, locations, weights, first=first)
    guided = targets.any(-1)
    count = guided.sum().clamp_min(1)
    return kl_guidance(weights[guided][:, None], targets[guided][:, None]) * (len(captions) / count)
