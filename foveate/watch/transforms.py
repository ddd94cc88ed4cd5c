"""Any transform in the place of a model's softmax: masks, grids and prefixes as models have them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from foveate.attention.arguments import beside_scores
from foveate.attention.discrete import DiscreteAttention, transform_options
from foveate.attention.dot_product import scaled_dot_product_attention
from foveate.errors import UnknownName
from foveate.ops import TRANSFORMS, fusedmax
from foveate.registry import lookup
from foveate.watch.calls import weigh


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
        known_options = transform_options(row)
        for option in self.options:
            if option not in known_options:
                raise UnknownName(f"option of {self.name}", option, known_options or {"none"})

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
        attend = DiscreteAttention(self.name, **self.options)
        return attend.weigh(scores, self.grid, beside_scores(scores, mask), prefix=self.prefix)


def masked_scores(scores: Tensor) -> Tensor | None:
    """Which scores count, for scores to which a mask was already added; None when all do."""
    keep = scores > torch.finfo(scores.dtype).min / 2
    return None if bool(keep.all()) else keep


def attend(change: Change, *args: Any, **options: Any) -> Tensor:
    """`torch.nn.functional.scaled_dot_product_attention` with another transform."""
    context: Tensor = scaled_dot_product_attention(*args, transform=change.weights, **options)
    return context
