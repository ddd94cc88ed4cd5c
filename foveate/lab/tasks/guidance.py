"""Guided attention: towards the region of a question, or the boxes of the phrase that a word stands in, where known."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor, nn

from foveate.attention import Grid
from foveate.errors import DataError
from foveate.lab.data.samples import Caption
from foveate.lab.losses import kl_guidance
from foveate.metrics.grounding import Locations, relevant_cells, relevant_locations
from foveate.ops.boxes import Box


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
                by_boxes = isinstance(seen, Tensor)
                relevant = relevant_locations(seen, phrase.boxes) if by_boxes else _cells(*seen, phrase.boxes)
                targets[row, first + phrase.start : first + phrase.stop, : len(relevant)] |= relevant
    counted = targets.to(like)
    return counted / counted.sum(-1, keepdim=True).clamp_min(1)


@lru_cache(maxsize=1 << 16)  # an image is read many times, and all of its captions mention the same boxes
def _cells(H: int, W: int, boxes: tuple[Box, ...]) -> Tensor:
    return relevant_cells(H, W, torch.tensor(boxes, dtype=torch.float64).reshape(-1, 4))


def guide(weights: Tensor, targets: Tensor) -> Tensor:
    """`C · mean_t KL(target_t ‖ weights_t)` over the words with a target: a sum over captions, as all losses are.

    Args:
        weights: (C, T, N), the attention of the words of C captions.
        targets: the output of `phrase_targets`.

    Returns:
        A scalar, zero if no word has a target.
    """
    guided = targets.any(-1)
    count = guided.sum().clamp_min(1)
    return kl_guidance(weights[guided][:, None], targets[guided][:, None]) * (len(targets) / count)


def score_guidance(
    attend: nn.Module,
    scores: Tensor,
    targets: Tensor,
    *,
    grid: Grid | None,
    mask: Tensor | None,
    of: Literal["scores", "density"] = "scores",
) -> Tensor:
    """The mechanism's own loss, summed over the rows that have a target.

    Args:
        attend: a mechanism with `loss`, whose gradient also reaches locations without weight, or `density_loss`.
        scores: (B, ..., N).
        targets: (B, ..., N), rows that are non-negative and need not sum to one; rows of zeros have no target.
        grid, mask: of the attention, (B, N).
        of: what is compared with the target: the weights of the scores, or the density that is fitted to them.

    Raises DataError for an attention without this loss.
    """
    loss = getattr(attend, "density_loss" if of == "density" else "loss", None)
    if loss is None:
        raise DataError(
            f"guidance: expected an attention with a loss of its {of}, got {type(attend).__name__}; "
            "set guidance=0 or guidance_loss=kl"
        )
    counts = torch.ones_like(targets[..., :1, :] if targets.ndim > 2 else targets)
    if mask is not None:
        counts = counts * (mask[:, None] if targets.ndim > 2 else mask)
    targets = targets * counts
    total = targets.sum(-1, keepdim=True)
    guided = total[..., 0] > 0
    # Rows without a target are given any distribution, since the loss takes no others; they do not count.
    even = (counts / counts.sum(-1, keepdim=True).clamp_min(1)).expand_as(targets)
    own = torch.where(guided[..., None], targets / total.where(total > 0, 1), even)
    losses: Tensor = loss(scores, own, grid=grid, mask=mask)
    return losses.where(guided, 0).sum()
