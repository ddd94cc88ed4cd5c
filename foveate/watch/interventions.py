"""Change what a model attends to while it runs, to see what its attention does: knock out heads or tokens, or steer."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from foveate.checks import check_number
from foveate.errors import ShapeError, UnknownName, WrongValue
from foveate.metrics.maps import box_maps
from foveate.ops.resample import resample_map
from foveate.watch.calls import sdpa_scores, unpack_groups, weigh, with_heads
from foveate.watch.inside import around_attention, unfused
from foveate.watch.layouts import Layout
from foveate.watch.model_families import family_of, find_layout
from foveate.watch.modules import INNER, Around, add_around, attention_modules
from foveate.watch.record import Keep, Layers, layer_number, locator, module_filter
from foveate.watch.reductions import sinks as find_sinks
from foveate.watch.watching import named_arguments

HOW = ("zero", "mean", "uniform")
SINKS = ("redistribute",)
FINE = 32  # cells on a side of the map of boxes
Steer = Tensor | Sequence[Sequence[float]]
# The interventions that a thread is inside of, which the copies of its context inherit.
_active: ContextVar[frozenset[int]] = ContextVar("_active", default=frozenset())


@contextmanager
def intervene(
    model: nn.Module,
    heads: Mapping[int | str, Sequence[int]] | None = None,
    keys: Keep = None,
    how: str = "zero",
    steer: Steer | None = None,
    sinks: str | None = None,
    *,
    strength: float = 1.0,
    layers: Layers = None,
) -> Iterator[list[str]]:
    """Change where a model attends while it runs: a test of whether it uses what its attention shows.

    Fused kernels stay in use where only a mask or a bias changes. It holds for the thread it is in, and for threads
    that run in a copy of its context; the model is restored bit for bit, also after an error. Interventions nest: each
    acts on what the ones around it leave.

    Args:
        model: any torch model whose attention `fv.watch` sees.
        heads: by layer (its number, or a pattern of module names) the numbers of the heads to change; None for all.
        keys: which keys: "image" (the image tokens), a slice, indices (N,), or indices (B, N) with -1 at padding; None
            for all.
        how: what is done to those heads and keys. "zero": keys are masked, and a head without keys= contributes
            nothing. "uniform": the weight on the keys is spread evenly over them. "mean": it is distributed as on
            average over the queries.
        steer: a map (h, w) of the image, or boxes (x0, y0, x1, y1) in fractions of it; `strength · log(p / mean p)` is
            added to the scores of the image tokens, with p at least a hundredth of its mean.
        sinks: "redistribute" gives the weight of image tokens that attract it whatever is asked to the others.
        strength: of `steer`; 1 multiplies the weights by the prior.
        layers: as in `fv.watch`, instead of the layers in `heads`; None for all that have such keys.

    Yields:
        The names of the modules that are changed.

    Warns:
        When a module ran and none of its calls could be seen (compiled code).

    Reference: Michel et al. 2019 (heads); Kang et al. 2025 (sinks); Zhang et al. 2023 (steering).

    >>> attend = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    >>> with torch.no_grad(), intervene(attend, keys=[0, 1]):
    ...     out = attend(torch.ones(1, 1, 8), torch.randn(1, 3, 8), torch.arange(24.0).reshape(1, 3, 8))[0]
    >>> alone = torch.arange(16.0, 24.0)
    >>> with torch.no_grad():
    ...     expected = attend(torch.ones(1, 1, 8), alone[None, None], alone[None, None])[0]
    >>> torch.allclose(out, expected)
    True
    """
    if how not in HOW:
        raise UnknownName("intervene how", how, HOW)
    if sinks is not None and sinks not in SINKS:
        raise UnknownName("intervene sinks", sinks, SINKS)
    check_number("intervene", "strength", strength, least=0, advice="1 multiplies the weights by the prior")
    if heads is None and keys is None and steer is None and sinks is None:
        raise WrongValue("intervene: expected heads, keys, steer or sinks, got none; pass what to change")
    changes = _Changes(model, heads, keys, how, steer, sinks, strength)
    modules = _choose(model, heads, keys, layers, steer is not None or sinks is not None)
    with ExitStack() as undo:
        for part in model.modules():
            if isinstance(part, nn.TransformerEncoderLayer):
                undo.callback(add_around(part, unfused, INNER))
            elif part is model or "pixel_values" in inspect.signature(part.forward).parameters:
                undo.callback(add_around(part, changes.around_inputs(part), INNER))
        for name, module in modules.items():
            undo.callback(add_around(module, changes.around(name, module), INNER))
        _active.set(_active.get() | {id(changes)})
        undo.callback(lambda: _active.set(_active.get() - {id(changes)}))
        yield list(modules)
    unseen = sorted(changes.ran - changes.seen)
    if unseen:
        warnings.warn(
            f"intervene: expected an attention call that Python can see in every module, got none in {unseen[:3]}; use "
            'an uncompiled model with attn_implementation="sdpa" or "eager"',
            stacklevel=3,
        )


def _choose(
    model: nn.Module, heads: Mapping[int | str, Sequence[int]] | None, keys: Keep, layers: Layers, on_image: bool
) -> dict[str, nn.Module]:
    """The attention modules to change."""
    family, chosen = family_of(model), module_filter(layers)
    at_image = keys == "image" if isinstance(keys, str) else on_image and keys is None
    modules = {}
    for name, module in attention_modules(model):
        wanted = chosen(name) and (heads is None or bool(_own_heads(heads, name)))
        # A number may name a layer of each tower: the one that attends to the image is meant.
        if wanted and (family is None or family.attends(name) or not (at_image or heads is not None)):
            modules[name] = module
    if not modules:
        known = sorted({str(layer_number(name)) for name, _ in attention_modules(model)})
        raise ShapeError(
            f"intervene: expected layers of the model, got {list(heads) if heads else layers}; there are the layers "
            f"{', '.join(known) or 'none'}"
        )
    return modules


def _own_heads(heads: Mapping[int | str, Sequence[int]], name: str) -> list[int]:
    """The heads of a module that are to be changed."""
    own: list[int] = []
    for layer, numbers in heads.items():
        if layer == layer_number(name) if isinstance(layer, int) else fnmatchcase(name, layer):
            own += numbers
    return own


@dataclass
class _Changes:
    """What to change, and the inputs of the model's pass that is running."""

    model: nn.Module
    heads: Mapping[int | str, Sequence[int]] | None
    keys: Keep
    how: str
    steer: Steer | None
    sinks: str | None
    strength: float
    ran: set[str] = field(default_factory=set)
    seen: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        on_image = self.steer is not None or self.sinks is not None
        self.locate = locator(self.model, "image" if self.keys is None and on_image else self.keys)
        self.inputs: ContextVar[Mapping[str, Any]] = ContextVar("inputs", default=MappingProxyType({}))
        self.inside = ContextVar("inside", default=False)

    def here(self) -> bool:
        """True in a thread that this intervention is for."""
        return id(self) in _active.get()

    def around_inputs(self, module: nn.Module) -> Around:
        """Note the inputs of the model, by which image tokens are found, or of the vision tower if that runs alone.

        A pass with pixels begins anew; generation runs the tower once, and later steps have a token only.
        """
        names = inspect.signature(module.forward)

        def run(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if not self.here() or self.inside.get():
                return forward(*args, **kwargs)
            found = named_arguments(names, args, kwargs, {})
            before = {} if "pixel_values" in found else self.inputs.get()
            self.inputs.set(named_arguments(names, args, kwargs, before))
            token = self.inside.set(True)
            try:
                return forward(*args, **kwargs)
            finally:
                self.inside.reset(token)

        return run

    def around(self, name: str, module: nn.Module) -> Around:
        """Run an attention module with its calls changed."""
        own = _Call(self, name, module)
        changed = around_attention(module, own.attend, own.weights)

        def run(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if not self.here():
                return forward(*args, **kwargs)
            self.ran.add(name)
            return changed(forward, *args, **kwargs)

        return run

    def columns(self, name: str, N: int, device: torch.device) -> Tensor | None:
        """Which of N keys are meant, (1 or B, 1, 1, N) booleans; None when the call has none of them."""
        if self.locate is None:
            return torch.ones(1, 1, 1, N, dtype=torch.bool, device=device)
        found = self.locate(name, self.inputs.get(), N)
        if found is None:
            return None
        rows = found.to(device).reshape(-1, found.shape[-1])
        # The last column takes the padding, -1.
        marked = torch.zeros(len(rows), N + 1, dtype=torch.bool, device=device).scatter_(1, rows % (N + 1), True)
        return marked[:, None, None, :N]

    def prior(self, name: str, columns: Tensor) -> Tensor:
        """The bias (1, 1, 1, N) of the scores by `steer`."""
        assert self.steer is not None
        bias = torch.zeros(columns.shape[-1], device=columns.device)
        places = columns.flatten(0, -2)[0].nonzero()[:, 0]
        values = _at_tokens(self.steer, self.model, self.inputs.get(), name, len(places))
        values = (values / values.mean().clamp(min=1e-12)).clamp(min=0.01)
        bias[places] = self.strength * values.log().to(bias)
        return bias[None, None, None]


def _at_tokens(steer: Steer, model: nn.Module, inputs: Mapping[str, Any], name: str, count: int) -> Tensor:
    """The mean of a map over what each image token shows, (N,)."""
    if not isinstance(steer, Tensor):
        boxes = torch.tensor([tuple(box) for box in steer], dtype=torch.float64)[None]
        steer = box_maps(torch.ones(boxes.shape[:2], dtype=torch.float64), boxes, FINE, FINE)[0] > 0
    values = steer.double()
    if family_of(model) is None:
        if values.numel() != count:
            raise ShapeError(
                f"intervene: expected a map of the {count} keys, got {tuple(values.shape)}; pass one value per key"
            )
        return values.flatten()
    layout: Layout = find_layout(model, inputs, name)
    if len(layout.tokens) != count:
        raise ShapeError(
            f"intervene: expected steer with all {len(layout.tokens)} image tokens, got {count} keys; leave keys= out"
        )
    return layout.at_tokens(resample_map(values, *layout.grid))


@dataclass
class _Call:
    """The calls of one module."""

    changes: _Changes
    name: str
    module: nn.Module

    def attend(self, call: dict[str, Any]) -> Tensor:
        """Scaled dot-product attention as it is after the change."""
        self.changes.seen.add(self.name)
        given = {name: value for name, value in call.items() if value is not None}
        shape = given["query"].shape[:-1]
        given = unpack_groups(self.module, given)
        query, key, value = given["query"], given["key"], given["value"]
        columns = self.changes.columns(self.name, key.shape[-2], query.device)
        if columns is None:
            return F.scaled_dot_product_attention(**call)
        bias = self._bias(columns, query.shape[-3])
        if bias is not None:
            given["attn_mask"] = _joined(given, bias.to(query.dtype))
            given["is_causal"] = False
        if not self._redistributes:
            context = self._silenced(F.scaled_dot_product_attention(**given))
            # A query that has no key left attends to nothing.
            context = context if bias is None else context.masked_fill(context.isnan().all(-1, keepdim=True), 0)
        else:
            parts = {name: one for name, one in given.items() if name not in ("value", "dropout_p")}
            # Where watches and other interventions see both the scores and the weights.
            weights = weigh(sdpa_scores(**parts), lambda scores: self._moved(scores.softmax(-1).nan_to_num(), columns))
            if given.get("enable_gqa"):
                value = value.repeat_interleave(weights.shape[-3] // value.shape[-3], -3)
            context = weights @ value
        return context.reshape(*shape, -1)

    def weights(self, scores: Tensor, softmax: Callable[[Tensor], Tensor]) -> Tensor:
        """Weights from scores as they are after the change."""
        self.changes.seen.add(self.name)
        columns = self.changes.columns(self.name, scores.shape[-1], scores.device)
        if columns is None:
            return softmax(scores)
        by_head = with_heads(scores, self.module)
        bias = self._bias(columns, by_head.shape[1])
        if bias is not None:
            scores = (by_head + bias.to(scores.dtype)).reshape(scores.shape)

        def changed(scores: Tensor) -> Tensor:
            weights = softmax(scores)
            if bias is not None:
                weights = weights.masked_fill(weights.isnan().all(-1, keepdim=True), 0)
            by_head = self._silenced(with_heads(weights, self.module))
            return (self._moved(by_head, columns) if self._redistributes else by_head).reshape(weights.shape)

        return weigh(scores, changed)  # where watches see the weights as they are used

    @property
    def _knocks_out(self) -> bool:
        return self.changes.heads is not None or self.changes.keys is not None

    @property
    def _redistributes(self) -> bool:
        """True when weights move between keys, for which they must be there."""
        knocked = self._knocks_out and self.changes.steer is None and self.changes.how != "zero"
        return knocked or self.changes.sinks is not None

    def _heads(self, M: int, device: torch.device) -> Tensor:
        """(1, M, 1, 1) which heads are changed."""
        if self.changes.heads is None:
            return torch.ones(1, M, 1, 1, dtype=torch.bool, device=device)
        numbers = _own_heads(self.changes.heads, self.name)
        if any(not 0 <= number < M for number in numbers):
            raise ShapeError(f"intervene: expected heads from 0 to {M - 1} in {self.name}, got {numbers}; number them")
        chosen = torch.zeros(M, dtype=torch.bool, device=device)
        chosen[numbers] = True
        return chosen[None, :, None, None]

    def _bias(self, columns: Tensor, M: int) -> Tensor | None:
        """What is added to the scores, (1 or B, M, 1, N)."""
        changes, heads = self.changes, self._heads(M, columns.device)
        if changes.steer is not None:
            return changes.prior(self.name, columns) * heads
        if changes.how == "zero" and changes.keys is not None and changes.sinks is None:
            return torch.zeros(1, device=columns.device).masked_fill(columns & heads, -math.inf)
        return None

    def _silenced(self, x: Tensor) -> Tensor:
        """Heads (B, M, Q, ...) without those that contribute nothing."""
        changes = self.changes
        if changes.how != "zero" or changes.heads is None or changes.keys is not None:
            return x
        if changes.steer is not None or changes.sinks is not None:
            return x
        return x.masked_fill(self._heads(x.shape[1], x.device), 0)

    def _moved(self, weights: Tensor, columns: Tensor) -> Tensor:
        """Weights (B, M, Q, N) with what is on the columns distributed otherwise among them."""
        part = weights * columns
        if self.changes.sinks is not None:
            typical = part.mean((1, 2), keepdim=True)[..., columns.flatten(0, -2)[0]]
            share = part.clone()
            share[..., columns.flatten(0, -2)[0]] *= ~find_sinks(typical)
        elif self.changes.how == "uniform":
            share = ((weights > 0) & columns).to(weights)
        else:
            share = part.mean(-2, keepdim=True) * (weights > 0)
        total = share.sum(-1, keepdim=True)
        moved = part.sum(-1, keepdim=True) * share / total.where(total > 0, 1)
        return torch.where(columns & self._heads(weights.shape[1], weights.device) & (total > 0), moved, weights)


def _joined(call: Mapping[str, Any], bias: Tensor) -> Tensor:
    """The mask of a call and a bias as one additive mask."""
    Q, N = call["query"].shape[-2], call["key"].shape[-2]
    mask = call.get("attn_mask")
    if call.get("is_causal"):
        mask = torch.ones(Q, N, dtype=torch.bool, device=bias.device).tril()
    if mask is None:
        return bias.expand(*bias.shape[:-2], Q, N)
    return bias.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else bias + mask


__all__ = ["intervene"]
