"""Which modules of a model attend, by the names of their classes, and what runs around their forward."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import nn

ATTENTION = ("attention", "attn", "attend")
# Parts of attention modules that are named after them and do not attend.
NOT_ATTENTION = ("output", "norm", "bias", "dropout", "embeddings")
# Their softmax weighs sampling points, not tokens.
NOT_OVER_TOKENS = ("deformable",)
FUSED = (nn.MultiheadAttention, nn.TransformerEncoderLayer)

Around = Callable[..., Any]  # around(forward, *args, **kwargs), which may call the forward
INNER, OUTER = 0, 1  # what changes attention lies inside what watches it, whichever came first
_lock = threading.RLock()


def attends(module: nn.Module) -> bool:
    """True when a module's class says that it attends.

    >>> attends(nn.MultiheadAttention(4, 1)), attends(nn.Linear(4, 4))
    (True, False)
    """
    return _named_after_attention(type(module).__name__.lower())


@functools.cache
def _named_after_attention(kind: str) -> bool:
    return any(part in kind for part in ATTENTION) and not kind.endswith(NOT_ATTENTION)


def attention_modules(model: nn.Module) -> Iterable[tuple[str, nn.Module]]:
    """The innermost modules whose class says that they attend."""
    for name, module in model.named_modules():
        if attends(module) and not any(attends(part) for part in module.modules() if part is not module):
            yield name, module


def is_over_tokens(module: nn.Module) -> bool:
    """False for attention over sampling points, which has no softmax over tokens to change."""
    kind = type(module).__name__.lower()
    return not any(part in kind for part in NOT_OVER_TOKENS)


def compiled_modules(model: nn.Module) -> list[str]:
    """Names of the compiled modules."""
    return [
        name
        for name, module in model.named_modules()
        if hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
    ]


def attending_inside(model: nn.Module, roots: Sequence[str]) -> list[str]:
    """Names of the attention modules inside the modules `roots`."""
    inside = tuple(f"{root}." if root else "" for root in roots)
    return [name for name, module in model.named_modules() if name.startswith(inside) and attends(module)]


def is_changed(module: nn.Module) -> bool:
    """True when the attention of a module was changed."""
    run = _own_forward(module)
    return run is not None and any(rank == INNER for rank, _ in run.layers)


def add_around(module: nn.Module, around: Around, rank: int) -> Callable[[], None]:
    """Run `around(forward, *args, **kwargs)` instead of a module's forward; returns what undoes it, in any order.

    Wrappers, not hooks: torch's fused encoder layers take another path, with other last digits, when they find hooks.
    """
    layer = (rank, around)
    with _lock:
        run = _own_forward(module)
        if run is None:
            run = module.__dict__["forward"] = _layered(module)
        _set_layers(run, (*run.layers, layer))

    def undo(run: Any = run) -> None:
        with _lock:
            _set_layers(run, tuple(one for one in run.layers if one is not layer))
            if not run.layers and _own_forward(module) is run:
                del module.__dict__["forward"]
                module.__dict__.update(run.previous)

    return undo


def _own_forward(module: nn.Module) -> Any:
    """The forward that `_layered` made, None where there is none or another wrapper lies over it."""
    run = module.__dict__.get("forward")
    return run if getattr(run, "itself", None) is run else None


def _layered(module: nn.Module) -> Any:
    """A forward with layers around it. A call that runs while they change keeps those it began with."""
    forward = module.forward

    @functools.wraps(forward)
    def run(*args: Any, **kwargs: Any) -> Any:
        return run.call(*args, **kwargs)  # type: ignore[attr-defined]

    parts: Any = run
    parts.itself = run  # a wrapper of others copies the attributes
    parts.forward, parts.previous = forward, {k: v for k, v in module.__dict__.items() if k == "forward"}
    _set_layers(parts, ())
    return parts


def _set_layers(run: Any, layers: tuple[tuple[int, Around], ...]) -> None:
    call = run.forward
    for _, around in sorted(layers, key=lambda layer: layer[0]):
        call = functools.partial(around, call)
    run.layers, run.call = layers, call
