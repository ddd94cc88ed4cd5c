"""Change the attention of any torch model by seeing its calls, as `fv.watch` does: any transform for the softmax."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from foveate.attention import mechanism
from foveate.attention.arguments import beside_scores
from foveate.attention.discrete import DiscreteAttention, transform_options
from foveate.attention.dot_product import scaled_dot_product_attention
from foveate.attention.streaming import ALPHAS, stream
from foveate.errors import ShapeError, UnknownName, WrongValue
from foveate.ops import TRANSFORMS, fusedmax
from foveate.registry import lookup
from foveate.watch.calls import project, weigh
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


# Pooling heads

POOLED = "foveate_mechanism"
_CLIP_RESNET = ("positional_embedding", "q_proj", "k_proj", "v_proj", "c_proj", "num_heads")


@dataclass
class Pool:
    """A mechanism that reads keys and values of several heads with one query.

    c = w₀ v₀ + (1 − w₀) · attend(scores of the patches), w₀ the softmax weight of the tokens before the patches

    With softmax this is the attention over all tokens; a mechanism over the plane cannot place the tokens before.

    Attributes:
        attend: the mechanism.
        grid: rows and columns of the patches; a square when None.
    """

    attend: nn.Module
    grid: tuple[int, int] | None = None
    fixed: bool = field(default=False)

    def context(self, query: Tensor, key: Tensor, value: Tensor, prefix: int = 0) -> Tensor:
        """(B, M, 1, D) from a query (B, M, 1, D), keys and values (B, M, N, D)."""
        scores = (query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5)[..., 0, :]
        B, M, N = scores.shape
        seen = self.attend(
            scores[..., prefix:].reshape(B * M, -1), value[:, :, prefix:].flatten(0, 1), grid=self._size(N - prefix)
        )
        context: Tensor = seen.context.unflatten(0, (B, M))
        if prefix:
            before = torch.softmax(scores, -1)[..., :prefix]
            rest = 1 - before.sum(-1, keepdim=True)
            context = (before[..., None] * value[:, :, :prefix]).sum(-2) + rest * context
        return context[:, :, None]

    def _size(self, count: int) -> tuple[int, int]:
        side = math.isqrt(count)
        H, W = self.grid or (side, side)
        if count != H * W:
            raise ShapeError(f"pool: expected {count} patches on a grid, got {H} x {W}; pass grid=(rows, columns)")
        return H, W


def pool_heads(model: nn.Module, name: str, grid: tuple[int, int] | None, options: Mapping[str, Any]) -> Changed:
    """Put a mechanism into every pooling head of a model; see `foveate.hf.pool`."""
    made: list[Pool] = []
    changed = Changed([], made)
    for path, module in list(model.named_modules()):
        build = _builder(model, path, module)
        if build is None:
            continue
        pool = Pool(mechanism(name, **options).train(module.training), grid, grid is not None)
        made.append(pool)
        changed.names.append(path)
        changed.undo += [add_around(module, build(pool), INNER), _add_part(module, pool.attend)]
        changed.undo.append(_follow(model, path, pool))
    if not made:
        raise WrongValue(
            f"pool: expected a model with an attention pooling head, got {type(model).__name__}; heads of SigLIP, "
            "AIMv2 and CLIP's ResNets are known, use foveate.hf.use for the attention inside the tower"
        )
    return changed


def _builder(model: nn.Module, path: str, module: nn.Module) -> Callable[[Pool], Callable[..., Any]] | None:
    """How to make the forward of a pooling head, None for other modules."""
    parent = model.get_submodule(path.rpartition(".")[0]) if path else model
    if isinstance(module, nn.MultiheadAttention) and "pool" in type(parent).__name__.lower():
        return lambda pool: _map_head(module, pool)
    if all(hasattr(module, part) for part in _CLIP_RESNET):
        return lambda pool: _resnet_head(module, pool)
    if "attentionpool" in type(module).__name__.lower() and hasattr(module, "cls_token"):
        return lambda pool: _token_head(module, pool)
    return None


def _map_head(module: nn.MultiheadAttention, pool: Pool) -> Callable[..., Any]:
    """SigLIP: a learned query and `torch.nn.MultiheadAttention`."""
    names = inspect.signature(module.forward)

    def run(forward: Any, *args: Any, **kwargs: Any) -> tuple[Tensor, None]:
        call = names.bind(*args, **kwargs).arguments
        if call.get("attn_mask") is not None or call.get("key_padding_mask") is not None:
            raise WrongValue("pool: expected images without padding, got a mask; pass one image size at a time")
        query, key, value = project(module, call["query"], call["key"], call["value"])
        context = module.out_proj(pool.context(query, key, value).transpose(1, 2).flatten(2))
        return (context if module.batch_first else context.transpose(0, 1)), None

    return run


def _token_head(module: Any, pool: Pool) -> Callable[..., Any]:
    """AIMv2: a learned token as the query, without a projection."""

    def run(forward: Any, states: Tensor) -> Tensor:
        query = module.cls_token.expand(len(states), -1, -1)
        parts = (query, module.k_proj(states), module.v_proj(states))
        q, k, v = (x.unflatten(-1, (module.num_heads, -1)).transpose(1, 2) for x in parts)
        result: Tensor = module.output_proj(pool.context(q, k, v).transpose(1, 2).flatten(2).mean(1))
        return result

    return run


def _resnet_head(module: Any, pool: Pool) -> Callable[..., Any]:
    """CLIP's ResNets: the mean of the map is the query and the first key."""

    def run(forward: Any, features: Tensor) -> Tensor:
        H, W = features.shape[-2:]
        states = features.flatten(2).transpose(1, 2)
        states = torch.cat([states.mean(1, keepdim=True), states], 1) + module.positional_embedding
        parts = (module.q_proj(states[:, :1]), module.k_proj(states), module.v_proj(states))
        q, k, v = (x.unflatten(-1, (module.num_heads, -1)).transpose(1, 2) for x in parts)
        pool.grid = pool.grid if pool.fixed else (H, W)
        result: Tensor = module.c_proj(pool.context(q, k, v, prefix=1).transpose(1, 2).flatten(2))[:, 0]
        return result

    return run


def _add_part(module: nn.Module, part: nn.Module) -> Callable[[], None]:
    """Register the mechanism, so that `train`, `to` and `fv.watch` reach it."""
    module.add_module(POOLED, part)

    def undo() -> None:
        module._modules.pop(POOLED, None)

    return undo


def _follow(model: nn.Module, path: str, pool: Pool) -> Callable[[], None]:
    """Read the grid from the pixels of every call of the tower that the head belongs to."""
    from foveate.watch.places import pair

    owner = _tower(model, path)
    if owner is None or pool.fixed:
        return lambda: None
    names = inspect.signature(owner.forward)

    def before(module: nn.Module, args: Any, kwargs: Any) -> None:
        pixels = names.bind_partial(*args, **kwargs).arguments.get("pixel_values")
        if isinstance(pixels, Tensor) and pixels.ndim == 4:
            rows, columns = pair(getattr(module.config, "patch_size", None))
            pool.grid = pixels.shape[-2] // rows, pixels.shape[-1] // columns

    return owner.register_forward_pre_hook(before, with_kwargs=True).remove


def _tower(model: nn.Module, path: str) -> nn.Module | None:
    """The innermost module around `path` that takes pixels and knows its patch size."""
    while path:
        path = path.rpartition(".")[0]
        owner = model.get_submodule(path) if path else model
        takes = "pixel_values" in inspect.signature(owner.forward).parameters
        if takes and hasattr(getattr(owner, "config", None), "patch_size"):
            return owner
    return None
