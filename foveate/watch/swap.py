"""Change the attention of any torch model by seeing its calls, as `fv.watch` does: any transform for the softmax."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from foveate.attention.arguments import beside_scores, joint_mask
from foveate.attention.discrete import DiscreteAttention, transform_options
from foveate.attention.dot_product import scaled_dot_product_attention
from foveate.errors import UnknownName
from foveate.ops import TRANSFORMS, fusedmax
from foveate.registry import lookup
from foveate.watch.calls import project, softmax_scores, weigh
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


class _Swap(TorchFunctionMode):
    """Replaces the softmax of every attention call."""

    def __init__(self, change: Change) -> None:
        super().__init__()
        self.change = change

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the call with the other transform, and every other call as it is."""
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            return attend(self.change, *args, **kwargs)
        scores = softmax_scores(func, args, kwargs)
        if scores is None:
            return func(*args, **kwargs)
        return self.change.weights(scores, masked_scores(scores)).to(kwargs.get("dtype") or scores.dtype)


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
        module = model.get_submodule(name)
        around = (
            _around_multihead(module, now(name)) if isinstance(module, nn.MultiheadAttention) else _around(now(name))
        )
        changed.undo.append(add_around(module, around, INNER))
    return changed


def _around(now: Callable[[], Change]) -> Around:
    def run(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with _Swap(now()):
            return forward(*args, **kwargs)

    return run


def _around_multihead(module: nn.MultiheadAttention, now: Callable[[], Change]) -> Around:
    """`torch.nn.MultiheadAttention` with another transform; its fused path has no call to replace."""
    names = inspect.signature(module.forward)

    def run(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Tensor, None]:
        call = names.bind(*args, **kwargs).arguments
        query, key, value = project(module, call["query"], call["key"], call["value"])
        mask = joint_mask(call.get("attn_mask"), call.get("key_padding_mask"), module.num_heads)
        context = attend(now(), query, key, value, mask, module.dropout if module.training else 0.0)
        context = module.out_proj(context.transpose(1, 2).flatten(2))
        return (context if module.batch_first else context.transpose(0, 1)), None

    return run


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
