"""The one row of weights that says where a vision tower looks."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from foveate.watch.layouts import Layout
from foveate.watch.record import Record
from foveate.watch.reductions import Choice, gradient_weighted, over_heads, positive_part, rollout


def cls_or_mean(weights: Tensor, has_prefix: bool) -> Tensor:
    """(M, 1, N): the row of the first token, or the mean over all rows."""
    return weights[:, :1] if has_prefix else weights.mean(1, keepdim=True)


def relevance_row(pairs: Sequence[tuple[Tensor, Tensor]], heads: Choice) -> Tensor:
    """The relevance (N,) of every token, by the pooling head or else the first token, from weights and gradients."""
    square = [(weights, gradient) for weights, gradient in pairs if weights.shape[-1] == weights.shape[-2]]
    total = gradient_weighted([weights for weights, _ in square], [gradient for _, gradient in square], heads)[0]
    pooled = [over_heads(positive_part(*pair), heads)[0] for pair in pairs if pair[0].shape[-2] == 1]
    return (pooled[-1] @ total if pooled else total[:1])[0]


def window_row(last: Record) -> Tensor:
    """(1, M, 1, W·n): what is attended to on average in each window of the last layer."""
    weights = last.weights  # (W, M, n, n)
    return weights.mean(2).transpose(0, 1).flatten(1)[None, :, None] / len(weights)


def rolled_row(layers: Sequence[Tensor], layout: Layout, heads: Choice) -> Tensor:
    """(1, 1, 1, N): how much each image token reaches the first token, or all of them, through all layers."""
    square = [over_heads(weights[0], heads) for weights in layers if weights.shape[-1] == weights.shape[-2]]
    joint = rollout(square)[:, layout.tokens]
    has_prefix = int(layout.tokens.min()) > 0
    return cls_or_mean(joint[None], has_prefix)[None]
