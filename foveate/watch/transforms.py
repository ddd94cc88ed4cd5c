"""Any transform in the place of a model's softmax: masks, grids and prefixes as models have them."""

from __future__ import annotations

from dataclasses import dataclass, field
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from foveate.errors import ShapeError, UnknownName
from foveate.ops import TRANSFORMS, fusedmax, prox_tv2d, sparsemax
from foveate.registry import lookup
from foveate.watch.calls import weigh

NOT_OPTIONS = {"scores", "dim", "mask", "edges"}


@dataclass
class Change:
    """A transform, its options, and the image's grid among the keys.

    Attributes:
        name: a transform without edges: softmax, sparsemax, entmax, fusedmax or tvmax.
        options: of the transform, such as `alpha` or `smoothness`.
        grid: rows and columns of the patches, None when not known; only tvmax needs it. It follows the images.
        prefix: keys before the first patch.

    >>> Change("entmax", {"alpha": 1.3}).weights(torch.zeros(1, 2)).tolist()
    [[0.5, 0.5]]
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    grid: tuple[int, int] | None = None
    prefix: int = 0

    def __post_init__(self) -> None:
        row = lookup("transform", self.name, TRANSFORMS)
        if row.needs_edges:
            known = {name for name, other in TRANSFORMS.items() if not other.needs_edges}
            raise UnknownName("transform without edges", self.name, known)
        known = set(signature(row.function).parameters) - NOT_OPTIONS
        for option in self.options:
            if option not in known:
                raise UnknownName(f"option of {self.name}", option, known or {"none"})

    def weights(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        """Weights (..., Q, N) for scores (..., Q, N); `mask` broadcasts to them, True where a key counts."""
        if TRANSFORMS[self.name].axes == 2:
            return weigh(scores, self._over_grid, mask=mask)
        return weigh(scores, TRANSFORMS[self.name].function, mask=mask, **self.options)

    def _over_grid(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        """TVmax over the patches; keys before and after them have no neighbours.

        TVmax is the projection on the simplex of the proximal point, and that point is computed part by part.
        """
        smoothness = self.options.get("smoothness", 0.01)
        if self.grid is None:
            return fusedmax(scores, smoothness, mask=mask)  # a sequence without an image: neighbours along a chain
        H, W = self.grid
        stop = self.prefix + H * W
        if scores.shape[-1] < stop:
            raise ShapeError(
                f"tvmax: expected at least {stop} keys for a prefix of {self.prefix} and a grid of {H} x {W}, got "
                f"{scores.shape[-1]}; pass grid= and prefix= of this model"
            )
        patches = scores[..., self.prefix : stop].unflatten(-1, (H, W))
        keep = None if mask is None else mask.expand(scores.shape)[..., self.prefix : stop].unflatten(-1, (H, W))
        fused = prox_tv2d(patches, smoothness, keep).flatten(-2)
        return sparsemax(torch.cat([scores[..., : self.prefix], fused, scores[..., stop:]], -1), mask=mask)


def split_mask(scores: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Scores with an additive mask's finite part added, and a boolean mask, True where a key counts.

    Models write the lowest number of their precision where a key does not count, sometimes twice, sometimes -inf.
    """
    if mask is None:
        return scores, None
    mask = mask[..., : scores.shape[-1]]
    if mask.dtype == torch.bool:
        return scores, mask
    keep = mask > torch.finfo(mask.dtype).min / 2
    return scores + torch.where(keep, mask, 0), keep


def masked_scores(scores: Tensor) -> Tensor | None:
    """Which scores count, for scores to which a mask was already added; None when all do."""
    keep = scores > torch.finfo(scores.dtype).min / 2
    return None if bool(keep.all()) else keep


def attend(
    change: Change,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`torch.nn.functional.scaled_dot_product_attention` with another transform."""
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = (x.repeat_interleave(groups, -3) for x in (key, value))
    scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
    scores, keep = split_mask(scores, attn_mask)
    if is_causal:
        keep = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    weights = change.weights(scores, keep)
    return F.dropout(weights, dropout_p).to(value.dtype) @ value
