"""Attention with discrete weights, by any transform of the table."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from inspect import signature
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from foveate.attention.arguments import (
    AnyGrid,
    Grid,
    as_grid,
    check_attention_mask,
    check_grid,
    check_inputs,
    from_canvas,
    grid_size,
    mask_beside,
    shared_mask,
    to_canvas,
    without_padding,
)
from foveate.attention.attended import Attended
from foveate.attention.mechanism import (
    Learnable,
    Mechanism,
    Temperature,
    learned_options,
    read_options,
    register_option,
)
from foveate.checks import as_number, at_least_float32, beside_rows, check_number, is_tracing
from foveate.errors import ShapeError, UnknownName, WrongValue
from foveate.ops import TRANSFORMS, Transform, fenchel_young_loss, gfusedmax, sparsemax, tvmax
from foveate.ops.grid import lattice_edges
from foveate.ops.reading import weighted_sum
from foveate.registry import lookup

NOT_OPTIONS = {"scores", "dim", "mask", "edges", "grid"}


class DiscreteAttention(nn.Module):
    """Weights by a transform of the scores, context by the weighted sum of the values.

    c = Σ_n p_n v_n,  p = transform(z)

    Args:
        transform: a name in TRANSFORMS.
        options: of the transform: numbers, tensors, parameters, or modules that make them.

    The other options are annotated with their meanings.

    A grid of one dimension, `grid=(N,)`, is a chain for every transform; one of three, `grid=(T, H, W)`, a video, in
    which a cell also has neighbours in the frames before and after.

    Reference: Martins et al. 2020, §2.

    >>> attend = DiscreteAttention("sparsemax")
    >>> attend(torch.tensor([[2.0, 0.0]]), torch.tensor([[[1.0], [5.0]]])).context.tolist()
    [[1.0]]
    """

    edges: Tensor | None

    def __init__(
        self,
        transform: str,
        *,
        temperature: Temperature = 1.0,
        learnable: Annotated[
            bool | Sequence[str], "makes the options that are numbers parameters: True for all, or their names"
        ] = False,
        heads: Annotated[
            int | None, "one learnable number per head instead of one, for scores (B, M, Q, N); needs `learnable`"
        ] = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.row = lookup("transform", transform, TRANSFORMS)
        self.name = transform
        self.register_buffer("edges", options.pop("edges", None), persistent=False)
        known = transform_options(self.row) | {"temperature": temperature}
        for option in options:
            if option not in known:
                raise UnknownName(f"option of {transform}", option, known)
        options["temperature"] = temperature
        if learnable or heads is not None:
            options |= learned_options(transform, learnable, heads, known | options)
        self.options = {name: options.get(name, default) for name, default in known.items()}
        self._learned = [name for name, value in options.items() if isinstance(value, Tensor | nn.Module)]
        for name in self._learned:
            register_option(self, name, options[name])

    def forward(
        self, scores: Tensor, values: Tensor, grid: AnyGrid | None = None, mask: Tensor | None = None
    ) -> Attended:
        """Attend with scores (B, ..., N) to values; see `fv.mechanism` for the shapes."""
        cells = as_grid(self.name, grid)
        check_inputs(self.name, scores, values, cells, mask, needs_grid=self.row.axes == 2)
        weights = self.weigh(scores, cells, mask)
        mask = shared_mask(without_padding(cells, mask, scores.shape[-1]))
        return Attended(weighted_sum(weights, values, self.row.sparse), weights, None, cells, mask)

    def weigh(
        self, scores: Tensor, grid: AnyGrid | None = None, mask: Tensor | None = None, *, prefix: int | None = None
    ) -> Tensor:
        """The weights alone, (B, ..., N).

        Args:
            scores, grid, mask: as in `forward`.
            prefix: number of tokens before the cells of the grid; more may follow them. They have no neighbours and
                join the same sparsemax. None: every location is a cell.
        """
        cells = as_grid(self.name, grid)
        check_attention_mask(self.name, mask, scores)
        dtype, scores = scores.dtype, self._cooled(scores)
        return self._weigh(scores, cells, mask, prefix).to(dtype)

    def _weigh(self, scores: Tensor, cells: Grid | None, mask: Tensor | None, prefix: int | None) -> Tensor:
        """The weights of scores that are divided by the temperature."""
        B, N = scores.shape[0], scores.shape[-1]
        if prefix is not None and cells is not None:
            return self._among_tokens(scores, cells, mask_beside(scores, mask), prefix)
        check_grid(self.name, cells, B, N, needs_grid=self.row.axes == 2)
        keep = mask_beside(scores, without_padding(cells, mask, N))
        if not isinstance(cells, Tensor):
            return self._transform(scores, _rows_and_columns(cells, N), keep)
        if not self._has_neighbours:
            return self._transform(scores, (1, N), keep)
        return self._on_canvas(scores, cells, keep, self._transform)

    def loss(self, scores: Tensor, target: Tensor, grid: AnyGrid | None = None, mask: Tensor | None = None) -> Tensor:
        """How far the weights are from what they should be: the Fenchel-Young loss of the transform.

        `∂L/∂z = p − q` at every location, so that locations without weight move too; see `fv.fenchel_young_loss`.

        Args:
            scores, grid, mask: as in `forward`.
            target: (B, ..., N), q, which sums to one over the locations that count.

        Returns:
            (B, ...) losses, zero where the weights are the target.

        >>> attend = DiscreteAttention("sparsemax")
        >>> attend.loss(torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0, 0.0]])).tolist()
        [0.0]
        """
        cells, N = as_grid(self.name, grid), scores.shape[-1]
        check_attention_mask(self.name, mask, scores)
        check_grid(self.name, cells, scores.shape[0], N, needs_grid=self.row.axes == 2)
        keep = mask_beside(scores, without_padding(cells, mask, N))
        keep = None if keep is None else keep.expand(scores.shape)
        z, size = self._cooled(scores), _rows_and_columns(cells, N)
        if isinstance(cells, Tensor) and self._has_neighbours:
            counts = torch.ones_like(z) if keep is None else keep.to(z.dtype)
            z, target, counts = (to_canvas(x, cells, size).flatten(-2) for x in (z, target, counts))
            keep = counts > 0
        loss = self._fenchel_young(z, target, size, keep)
        # Times the temperature T the gradient in the scores is p − q instead of (p − q) / T.
        temperature = self._value("temperature")
        return loss * (temperature.squeeze(-1) if isinstance(temperature, Tensor) and temperature.ndim else temperature)

    @property
    def is_plain_softmax(self) -> bool:
        """True where torch's own attention computes the same."""
        return self.name == "softmax" and self.options["temperature"] == 1.0 and not self._learned

    @property
    def _has_neighbours(self) -> bool:
        """True where the grid says which locations are neighbours."""
        return self.row.axes == 2 or (self.row.needs_edges and self.edges is None)

    def _on_canvas(self, scores: Tensor, grid: Tensor, keep: Tensor | None, function: Callable[..., Tensor]) -> Tensor:
        """A function of (..., H·W) cells: on one canvas, neighbours in each example's own grid are neighbours."""
        N, size = scores.shape[-1], _rows_and_columns(grid, scores.shape[-1])
        counts = torch.ones_like(scores) if keep is None else keep.expand(scores.shape).to(scores.dtype)
        cells, kept = (to_canvas(x, grid, size).flatten(-2) for x in (scores, counts))
        result = function(cells, size, kept > 0)
        return from_canvas(result.reshape(*scores.shape[:-1], *size), grid, N)

    def _among_tokens(self, scores: Tensor, grid: Grid, keep: Tensor | None, prefix: int) -> Tensor:
        """Weights of tokens of which those from `prefix` on are the cells of a grid."""
        N, size = scores.shape[-1], _rows_and_columns(grid, 0)
        if len(size) == 3:
            raise ShapeError(
                f"{self.name}: expected grid=(H, W) beside a prefix, got {size}; use prefix=None for a video"
            )
        # Grids of different sizes are padded at the end, so that every token after the prefix is a location.
        count = max(N - prefix, 0) if isinstance(grid, Tensor) else math.prod(size)
        if prefix + count > N:
            raise ShapeError(
                f"{self.name}: expected at least {prefix + count} keys for a prefix of {prefix} and a grid of "
                f"{size[0]} x {size[1]}, got {N}; pass the grid and prefix of these keys"
            )
        if isinstance(grid, Tensor):
            check_grid(self.name, grid, len(scores), count)
        if not self._has_neighbours:
            return self._transform(scores, (1, N), keep)
        if self.row.needs_edges:
            if isinstance(grid, Tensor):
                raise ShapeError(f"{self.name}: expected one grid for all examples, got a tensor; pass grid=(H, W)")
            edges = lattice_edges(*size, device=scores.device) + prefix
            return self.row.function(scores, edges, mask=keep, **self.values())
        if self.row.prox is None:
            raise WrongValue(
                f"{self.name}: expected a transform that is the sparsemax of a prox, got one whose row names none; "
                "use prefix=None"
            )
        return self._join(scores, grid, keep, (prefix, prefix + count))

    def _join(self, scores: Tensor, grid: Grid, keep: Tensor | None, span: tuple[int, int]) -> Tensor:
        """One sparsemax of the proximal point of the tokens in `span` and of the scores of the others."""
        start, stop = span
        patches, every = scores[..., start:stop], keep is None
        kept = torch.ones_like(scores, dtype=torch.bool) if keep is None else keep.expand(scores.shape)
        part = kept[..., start:stop]
        if isinstance(grid, Tensor):
            real = without_padding(grid, None, stop - start)
            assert real is not None
            part, every = part & real.reshape(len(real), *[1] * (scores.ndim - 2), stop - start), False
            fused = self._on_canvas(patches, grid, part, self._prox)
        else:
            fused = self._prox(patches, _rows_and_columns(grid, 0), None if every else part)
        joined = torch.cat([scores[..., :start], fused, scores[..., stop:]], -1)
        kept = torch.cat([kept[..., :start], part, kept[..., stop:]], -1)
        return sparsemax(joined, mask=None if every else kept)

    def _prox(self, scores: Tensor, size: tuple[int, ...], keep: Tensor | None) -> Tensor:
        """The proximal point of (..., H·W) cells, of which the transform is the sparsemax."""
        assert self.row.prox is not None
        cells = scores.reshape(*scores.shape[:-1], *size)
        keep = None if keep is None else keep.reshape(*keep.shape[:-1], *size)
        return self.row.prox(cells, mask=keep, **self._for_cells()).flatten(-2)

    def _transform(self, scores: Tensor, size: tuple[int, ...], keep: Tensor | None) -> Tensor:
        """Weights of (..., H·W) scores in the row order of one grid."""
        if self.row.axes == 2 and len(size) == 3:
            return tvmax(scores, mask=keep, grid=size, **self.values())
        if self.row.axes == 2:
            cells = scores.reshape(*scores.shape[:-1], *size)
            keep = None if keep is None else keep.reshape(*keep.shape[:-1], *size)
            return self.row.function(cells, mask=keep, **self._for_cells()).flatten(-2)
        if self.row.needs_edges:
            edges = lattice_edges(*size, device=scores.device) if self.edges is None else self.edges
            return self.row.function(scores, edges, mask=keep, **self.values())
        return self.row.function(scores, mask=keep, **self.values())

    def _fenchel_young(self, scores: Tensor, target: Tensor, size: tuple[int, ...], keep: Tensor | None) -> Tensor:
        """Losses (...) of (..., H·W) scores in the row order of one grid."""
        options, edges = self.values(), self.edges
        if self.row.axes == 2 and len(size) == 3:
            options["edges"] = lattice_edges(*size, device=scores.device)
            return fenchel_young_loss(scores, target, partial(gfusedmax, **options), keep)
        if self.row.axes == 2:
            keep = None if keep is None else keep.unflatten(-1, size)
            scores, target, options = scores.unflatten(-1, size), target.unflatten(-1, size), self._for_cells()
        elif self.row.needs_edges:
            options["edges"] = lattice_edges(*size, device=scores.device) if edges is None else edges
        return fenchel_young_loss(scores, target, partial(self.row.function, **options), keep)

    def values(self) -> dict[str, Any]:
        """The options of the transform: numbers, and tensors that broadcast to the scores with 1 for the locations."""
        return {name: self._value(name) for name in self.options if name != "temperature"}

    def temperature_of(self, scores: Tensor) -> float | Tensor:
        """What divides the scores: a number, or a tensor with as many axes as they have."""
        temperature = as_number(self._value("temperature"))
        if isinstance(temperature, Tensor):
            known = type(temperature) in (Tensor, nn.Parameter) and not temperature.is_meta and not is_tracing()
            if known and not bool((temperature > 0).all()):
                least = float(temperature.detach().min())
                raise WrongValue(
                    f"{self.name}: expected temperature > 0, got {least:g}; 1 leaves the scores as they are"
                )
            return beside_rows(self.name, "temperature", temperature, scores, (-1,))
        check_number(self.name, "temperature", temperature, above=0.0, advice="1 leaves the scores as they are")
        return temperature

    def is_learned(self, name: str) -> bool:
        """True for an option that a module of ours keeps within its bounds."""
        return isinstance(getattr(self, name, None), Learnable)

    def _value(self, name: str) -> Any:
        part = getattr(self, name) if name in self._learned else self.options[name]
        return part() if isinstance(part, nn.Module) else part

    def _cooled(self, scores: Tensor) -> Tensor:
        """Scores over the temperature."""
        temperature = self.temperature_of(scores)
        if not isinstance(temperature, Tensor):
            return scores if temperature == 1 else at_least_float32(scores) / temperature
        wide = at_least_float32(scores)
        return wide / temperature.to(wide.dtype)

    def _for_cells(self) -> dict[str, Any]:
        """The same beside (..., H, W): one more axis."""
        options = self.values()
        return {k: v.unsqueeze(-1) if isinstance(v, Tensor) and v.ndim else v for k, v in options.items()}

    def extra_repr(self) -> str:
        """The transform and its options, for print."""
        shown = (f"{name}={_short(value)}" for name, value in self.options.items())
        return ", ".join([self.name, *shown])


def transform_options(row: Transform) -> dict[str, Any]:
    """The options of a transform by name, with their defaults.

    >>> transform_options(TRANSFORMS["entmax"])
    {'alpha': 1.5}
    """
    parameters = signature(row.function).parameters
    return {name: part.default for name, part in parameters.items() if name not in NOT_OPTIONS}


def _short(value: Any) -> str:
    if isinstance(value, Tensor):
        kind = "parameter" if isinstance(value, nn.Parameter) else "tensor"
        return f"{kind}{list(value.shape)}" if value.ndim else f"{kind} {value.item():.4g}"
    return type(value).__name__ if isinstance(value, nn.Module) else repr(value)


def _rows_and_columns(grid: Grid | None, N: int) -> tuple[int, ...]:
    """The grid's rows and columns, frames first if there are any; one row for a grid of one dimension and for none."""
    size = (N,) if grid is None else grid_size(grid)
    return (1, size[0]) if len(size) == 1 else size


def discrete(name: str) -> Mechanism:
    """The row of the mechanism that attends with a transform."""
    row = TRANSFORMS[name]
    own = read_options(row.function, skip=NOT_OPTIONS - {"edges"})
    outer = read_options(DiscreteAttention.__init__, skip={"self", "transform", "options"})
    return Mechanism(
        partial(DiscreteAttention, name),
        row.summary,
        row.reference,
        needs_grid=row.axes == 2,
        options=(*own, *outer),
    )
