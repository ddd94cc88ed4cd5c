"""Change the attention of any torch model by seeing its calls, as `fv.watch` does: any transform for the softmax."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from foveate.attention.arguments import beside_scores
from foveate.attention.discrete import DiscreteAttention, transform_options
from foveate.attention.dot_product import scaled_dot_product_attention
from foveate.attention.streaming import ALPHAS, stream
from foveate.errors import UnknownName
from foveate.ops import TRANSFORMS, fusedmax
from foveate.registry import lookup
from foveate.watch.calls import weigh
from foveate.watch.inside import SDPA_ARGUMENTS, around_attention
from foveate.watch.modules import INNER, Around, add_around, attention_modules


@dataclass(frozen=True)
class Change:
    """A transform, its options, and the image's grid among the keys.

    Attributes:
        name: a transform without edges: softmax, sparsemax, entmax, fusedmax or tvmax.
        options: of the transform, such as `alpha` or `smoothness`.
        grid: rows and columns of the patches, None when not known; only tvmax needs it.
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

    def stream(self, where: str, *call: Any) -> Tensor | None:
        """The context of a call, as of `foveate.attention.streaming.stream`, None where its weights have to be made."""
        if self.name not in ALPHAS:
            return None
        return stream(where, DiscreteAttention(self.name, **self.options), *call)

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


def attend(change: Weighs, *args: Any, **options: Any) -> Tensor:
    """`torch.nn.functional.scaled_dot_product_attention` with another transform."""
    if isinstance(change, Change):
        call = {**dict(zip(SDPA_ARGUMENTS, args, strict=False)), **options}
        parts = [call.get(name) for name in SDPA_ARGUMENTS[:4]]
        streamed = change.stream(
            "use", *parts, call.get("dropout_p", 0.0), call.get("is_causal", False), call.get("scale")
        )
        if streamed is not None:
            return streamed
    context: Tensor = scaled_dot_product_attention(*args, transform=change.weights, **options)
    return context


@dataclass
class Changed:
    """Modules whose attention was changed; `restore()` undoes it, and so does leaving a `with` block.

    Attributes:
        names: of the modules.
        change: the transform in use.
    """

    names: list[str]
    change: Any
    undo: list[Callable[[], None]] = field(default_factory=list)

    def restore(self) -> None:
        """Let every module attend as before."""
        while self.undo:
            self.undo.pop()()

    def __enter__(self) -> Changed:
        return self

    def __exit__(self, *error: object) -> None:
        self.restore()


def swap(model: nn.Module, change: Change, chosen: Callable[[str], bool]) -> Changed:
    """Change the attention of the chosen attention modules of a model."""
    changed = Changed([name for name, _ in attention_modules(model) if chosen(name)], change)
    now, stop = _on_images(model, change)
    changed.undo.append(stop)
    for name in changed.names:
        changed.undo.append(replace_weights(model.get_submodule(name), now(name)))
    return changed


class Weighs(Protocol):
    """A `Change`, or anything else that takes scores and a mask to weights."""

    def weights(self, scores: Tensor, mask: Tensor | None = None) -> Tensor: ...


def replace_weights(module: nn.Module, now: Callable[[], Weighs]) -> Callable[[], None]:
    """Let an attention module use the weights of `now()`, asked in each call; returns what undoes it."""
    return add_around(module, _around(module, now), INNER)


def _around(module: nn.Module, now: Callable[[], Weighs]) -> Around:
    def weights(scores: Tensor, softmax: Callable[[Tensor], Tensor]) -> Tensor:
        return now().weights(scores, masked_scores(scores))

    return around_attention(module, lambda call: attend(now(), **call), weights, softmax_only=True)


def _on_images(model: nn.Module, change: Change) -> tuple[Callable[[str], Callable[[], Change]], Callable[[], None]]:
    """Per module the change as it is in a call, with the grid of that call's images; and what stops following them."""
    from foveate.watch.model_families import DUAL, VISION, family_of
    from foveate.watch.places import Setting, patch_shape

    family = family_of(model)
    if change.grid is not None or family is None or family.kind not in (VISION, DUAL) or family.windowed:
        return (lambda name: lambda: change), (lambda: None)
    names, current = inspect.signature(model.forward), ContextVar("current", default=change)

    def around(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        pixels = names.bind_partial(*args, **kwargs).arguments.get("pixel_values")
        if not isinstance(pixels, Tensor) or pixels.ndim != 4:
            return forward(*args, **kwargs)
        setting = Setting(model.config, {"pixel_values": pixels})
        seen = replace(change, grid=patch_shape(setting), prefix=int(family.tokens(setting)[0]))
        token = current.set(seen)
        try:
            return forward(*args, **kwargs)
        finally:
            current.reset(token)

    def now(name: str) -> Callable[[], Change]:
        return current.get if family.attends(name) else lambda: change

    return now, add_around(model, around, INNER)
