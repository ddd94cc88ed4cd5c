"""The result of every attention: what was read, and where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from foveate.attention.arguments import Grid, grid_size, mask_beside, positions, to_canvas, without_padding
from foveate.attention.mechanism import MECHANISMS
from foveate.checks import Rows, index_examples
from foveate.errors import ShapeError, UnknownName
from foveate.ops.density import Density, Ellipses
from foveate.ops.mixture import Mixture
from foveate.ops.resample import resample_map
from foveate.ops.values import as_tree
from foveate.registry import lookup, provided


@as_tree
@dataclass(frozen=True)
class Attended:
    """The result of attending: what was read, and where.

    Indexing picks examples, and the batch axis stays: `attended[3]` is `attended[3:4]`, a batch of one. An index is an
    int, a slice, a sequence or tensor of ints, or a boolean tensor (B,).

    Attributes:
        context: (B, ..., D) the attended values.
        weights: (B, ..., N) the discrete weights; for a density, the ones it was fitted to.
        density: the continuous density, of batch shape (B, ...), or None for a discrete mechanism.
        grid: (H, W) rows and columns of the locations, (N,) in one dimension, or a (B, 2) tensor with one pair per
            example (each in the row order of its own grid, padded at the end), or None when there is no grid.
        mask: (B, N) True where a location counts, or None when all do.

    >>> seen = Attended(torch.zeros(1, 8), torch.full((1, 4), 0.25), grid=(2, 2))
    >>> seen.map().shape, seen.map(4, 4).sum().item()
    (torch.Size([1, 2, 2]), 1.0)
    >>> Attended(torch.zeros(5, 8), torch.full((5, 4), 0.25))[[0, 2]].context.shape
    torch.Size([2, 8])
    """

    context: Tensor
    weights: Tensor
    density: Density | None = None
    grid: Grid | None = None
    mask: Tensor | None = None

    def __getitem__(self, rows: Rows) -> Attended:
        """The attention of some examples, as a batch of them."""
        B = self.weights.shape[0]
        chosen = index_examples("Attended", rows, B)
        return replace(
            self,
            context=self.context[chosen],
            weights=self.weights[chosen],
            density=None if self.density is None else self.density[chosen],
            grid=self.grid[chosen] if isinstance(self.grid, Tensor) else self.grid,
            # a mask may be shared by the batch, (N,) or (1, N)
            mask=None if self.mask is None else self.mask.expand(B, self.mask.shape[-1])[chosen],
        )

    def to(self, *arguments: Any, **options: Any) -> Attended:
        """On another device or in another floating-point dtype, as `Tensor.to`."""
        device, dtype, non_blocking, _ = torch._C._nn._parse_to(*arguments, **options)

        def move(x: Tensor) -> Tensor:
            return x.to(device, dtype if x.is_floating_point() else None, non_blocking)

        return self._changed(move)

    def cpu(self) -> Attended:
        """On the CPU."""
        return self.to("cpu")

    def detach(self) -> Attended:
        """Without a gradient."""
        return self._changed(Tensor.detach)

    def plot(self, image: Any = None, **options: Any) -> Any:
        """Draw it over its image, as `fv.plot.show(image, attended, ...)`; returns the figure."""
        return provided("plot of attention")(image, self, **options)

    def _changed(self, change: Callable[[Tensor], Tensor]) -> Attended:
        """The same with `change` applied to every tensor."""
        density = None if self.density is None else self.density.map_tensors(change)
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        changed: dict[str, Any] = {name: change(part) for name, part in parts.items() if isinstance(part, Tensor)}
        return replace(self, **changed, density=density)

    def _numbers(self) -> str:
        """How many locations have weight, for print."""
        if self.weights.numel() == 0:
            return ""
        return f"{float((self.weights > 0).sum(-1).double().mean()):.4g} of {self.weights.shape[-1]} weights above zero"

    def mean_over_queries(self) -> Attended:
        """The attention of all queries together: the mean over those that attend to something.

        Returns:
            context (B, D) and weights (B, N), zero where no query attends to anything. The density is the mixture of
            the densities of all queries, of batch shape (B,). Without query axes, the same object. A context in which
            heads are joined is averaged over the queries.

        >>> both = Attended(torch.zeros(1, 3, 8), torch.tensor([[[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]]))
        >>> both.mean_over_queries().weights.tolist()
        [[0.5, 0.5]]
        """
        queries = tuple(range(1, self.weights.ndim - 1))
        if not queries:
            return self
        attends = (self.weights.sum(-1) > 0).to(self.weights.dtype)
        weights = attends / attends.sum(queries, keepdim=True).clamp(min=1)
        density = self.density
        # Multi-head attention joins its heads, the first of the query axes, in the context.
        joined = [1] * (self.weights.ndim - self.context.ndim)
        context = self.context.reshape(self.context.shape[0], *joined, *self.context.shape[1:])
        return replace(
            self,
            context=(weights.unsqueeze(-1).to(context.dtype) * context).sum(queries),
            weights=(weights.unsqueeze(-1) * self.weights).sum(queries),
            density=None if density is None else Mixture.average(density, weights.to(density.mean.dtype)),
        )

    def map(self, H: int | None = None, W: int | None = None) -> Tensor:
        """The attention as an image that sums to one over the image, whatever the mechanism.

        Args:
            H, W: rows and columns of the result; those of the grid (the largest one, where they differ) when absent.
                In one dimension H is the number of cells.

        Returns:
            (B, ..., H, W) mass per cell, (B, ..., H) in one dimension, (B, ..., T, H, W) for a video; zeros
            where there was nothing to attend to.
        """
        if self.grid is None:
            raise ShapeError("Attended.map: expected attention over a grid, got grid=None; pass grid=(H, W) to attend")
        size = grid_size(self.grid)
        H = size[-2 if len(size) == 3 else 0] if H is None else H
        if len(size) == 1:
            return self._line(H)
        if len(size) == 3:
            frames = self.weights.unflatten(-1, size)
            return frames if W is None else resample_map(frames, H, W)
        W = size[1] if W is None else W
        if self.density is None:
            return resample_map(self._cells(size), H, W, self._used())
        return _share(self.density.to_map(H, W), self.weights, 2)

    def fit(self, name: str, **options: Any) -> Attended:
        """The same attention as a density: its weights, summarised by a few ellipses.

        Args:
            name: a continuous mechanism, such as "multimodal".
            options: of its fit, such as `max_components=3`.

        Returns:
            This attention with a density, which `foveate.watch.describe` puts into numbers and `fv.plot.show` draws.

        >>> weights = torch.zeros(1, 16).index_fill(1, torch.tensor([5]), 1.0)
        >>> Attended(torch.zeros(1, 8), weights, grid=(4, 4)).fit("continuous-softmax").density.mean.tolist()
        [[0.375, 0.375]]
        """
        if self.grid is None:
            raise ShapeError("Attended.fit: expected attention over a grid, got grid=None; pass grid=(H, W) to attend")
        if not isinstance(self.grid, Tensor) and len(self.grid) == 3:
            raise ShapeError(
                f"Attended.fit: expected a grid of one or two axes, got {tuple(self.grid)}; fit one frame at a time"
            )
        row = lookup("mechanism", name, MECHANISMS)
        if row.fit is None:
            raise UnknownName("continuous mechanism", name, [key for key, row in MECHANISMS.items() if row.continuous])
        weights = self.weights.to(torch.promote_types(self.weights.dtype, torch.float32))
        total = weights.sum(-1, keepdim=True)
        weights = torch.where(total > 0, weights / torch.where(total > 0, total, 1), 0)
        mask = mask_beside(weights, without_padding(self.grid, self.mask, weights.shape[-1]))
        density = row.fit(**options)(weights, positions(weights, self.grid), mask, training=False)
        return replace(self, weights=weights, density=density)

    def to_fiftyone(self, label: str = "attention", level: float = 0.9) -> list[dict[str, Any]]:
        """Heatmaps and detections as dictionaries of the form that FiftyOne documents, one per example.

        Args:
            label: of the detections.
            level: fraction of the mass of a component inside its ellipse, whose bounding box is a detection.

        Returns:
            One dictionary per example,
            {"heatmap": {"_cls": "Heatmap", "map": (H, W) array, "range": [0, largest]}, "detections": {"_cls":
            "Detections", ...}}; without a density there are no detections. Several queries are averaged.

        >>> seen = Attended(torch.zeros(1, 8), torch.full((1, 4), 0.25), grid=(2, 2))
        >>> seen.to_fiftyone()[0]["heatmap"]["map"].shape
        (2, 2)
        """
        one = self.mean_over_queries()
        ellipses = None if one.density is None else one.density.ellipses(level)
        result = []
        for i, image in enumerate(one.map().detach().cpu()):
            boxes = [] if ellipses is None else _boxes(ellipses, i, label)
            span = [0.0, float(image.max()) if image.numel() else 0.0]
            heatmap = {"_cls": "Heatmap", "map": image.numpy(), "range": span}
            result.append({"heatmap": heatmap, "detections": {"_cls": "Detections", "detections": boxes}})
        return result

    def _repr_png_(self) -> bytes | None:
        """The maps, which a notebook shows in place of the numbers."""
        png: bytes | None = provided("image of attention")(self)
        return png

    def _line(self, N: int) -> Tensor:
        if self.density is None:
            return resample_map(self.weights[..., None, :], 1, N)[..., 0, :]
        return _share(self.density.to_map(N), self.weights, 1)

    def _cells(self, size: tuple[int, ...]) -> Tensor:
        if not isinstance(self.grid, Tensor):
            return self.weights.reshape(*self.weights.shape[:-1], *size)
        return to_canvas(self.weights, self.grid, size)

    def _used(self) -> Tensor | None:
        """The grid of each example, shaped to go beside the query axes."""
        if not isinstance(self.grid, Tensor):
            return None
        return self.grid.reshape(self.grid.shape[0], *[1] * (self.weights.ndim - 2), 2)


def _share(mass: Tensor, weights: Tensor, axes: int) -> Tensor:
    """Mass per cell scaled to sum to one; zero where there is no weight."""
    dims = tuple(range(-axes, 0))
    total = mass.sum(dims, keepdim=True)
    there = (weights.sum(-1) > 0).reshape(*weights.shape[:-1], *[1] * axes)
    return torch.where(there & (total > 0), mass / torch.where(total > 0, total, 1), 0)


def _boxes(ellipses: Ellipses, i: int, label: str) -> list[dict[str, Any]]:
    """Bounding boxes [left, top, width, height] of the ellipses of one example that have weight."""
    parts = (ellipses.centre[i], ellipses.radii[i], ellipses.angle[i], ellipses.weight[i])
    centre, radii, angle, weight = (part.detach().cpu().double() for part in parts)
    turn = torch.stack([angle.cos(), angle.sin()], -1)  # of the longer half axis
    across = torch.stack([-angle.sin(), angle.cos()], -1)
    half = ((radii[:, :1] * turn).square() + (radii[:, 1:] * across).square()).sqrt()
    found = []
    for c, h, w in zip(centre.tolist(), half.tolist(), weight.tolist(), strict=True):
        if w > 0:
            box = [c[0] - h[0], c[1] - h[1], 2 * h[0], 2 * h[1]]
            found.append({"_cls": "Detection", "label": label, "bounding_box": box, "confidence": w})
    return found
