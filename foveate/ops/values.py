"""Dataclasses of tensors as values: pytrees, loaded safely, printed briefly; and tables that are computed once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, is_dataclass
from functools import lru_cache, wraps
from typing import Any, ParamSpec, TypeVar, cast

import torch
from torch import Tensor
from torch.serialization import add_safe_globals
from torch.utils._pytree import Context, GetAttrKey, KeyEntry, register_pytree_node

T = TypeVar("T")
WIDTH = 110  # characters of a line that is printed

CONSTANTS = (type(None), float, str, tuple)  # the rest are children: torch puts placeholders of any type there


def as_tree(kind: type[T]) -> type[T]:
    """Register a dataclass of tensors, nested or not, as a pytree; fields that are None or plain values go along.

    >>> import torch
    >>> from dataclasses import dataclass
    >>> @as_tree
    ... @dataclass(frozen=True)
    ... class Pair:
    ...     first: torch.Tensor
    ...     name: str
    >>> torch.func.vmap(lambda x: Pair(2 * x, "twice"))(torch.ones(3)).first.tolist()
    [2.0, 2.0, 2.0]
    """

    def flatten(tree: Any) -> tuple[list[Any], Context]:
        values = {field.name: getattr(tree, field.name) for field in fields(tree)}
        names = [name for name, value in values.items() if not isinstance(value, CONSTANTS)]
        return [values[name] for name in names], (names, {k: v for k, v in values.items() if k not in names})

    def unflatten(parts: Any, context: Context) -> Any:
        names, constants = context
        tree = object.__new__(kind)  # not by its constructor: what a transform puts in may fail the checks of values
        for name, value in {**dict(zip(names, parts, strict=True)), **constants}.items():
            object.__setattr__(tree, name, value)
        return tree

    def flatten_with_keys(tree: Any) -> tuple[list[tuple[KeyEntry, Any]], Context]:
        parts, context = flatten(tree)
        return [(GetAttrKey(name), part) for name, part in zip(context[0], parts, strict=True)], context

    register_pytree_node(
        kind,
        flatten,
        unflatten,
        serialized_type_name=f"{kind.__module__}.{kind.__qualname__}",
        to_dumpable_context=_to_json,
        from_dumpable_context=_from_json,
        flatten_with_keys_fn=flatten_with_keys,
    )
    return as_value(kind)


def as_value(kind: type[T]) -> type[T]:
    """Print a dataclass by the shapes of its tensors, and let `torch.load(..., weights_only=True)` read it.

    A method `_numbers` of the class returns the few numbers that matter as words, or "".

    >>> from dataclasses import dataclass
    >>> @as_value
    ... @dataclass(frozen=True)
    ... class Single:
    ...     part: torch.Tensor
    >>> Single(torch.ones(2, 3))
    Single(part=(2, 3))
    """
    kind.__repr__ = _describe  # type: ignore[method-assign]
    add_safe_globals([kind])
    return kind


def can_read(x: Tensor) -> bool:
    """True where the numbers of a tensor can be looked at: not while tracing, nor on the meta device."""
    return (
        type(x) in (Tensor, torch.nn.Parameter)
        and not x.is_meta
        and not torch._C._functorch.is_functorch_wrapped_tensor(x)
    )


def _describe(value: Any) -> str:
    parts = [(field.name, getattr(value, field.name)) for field in fields(value)]
    shown = [f"{name}={_shape(part)}" for name, part in parts if part is not None]
    numbers = (
        value._numbers()
        if hasattr(value, "_numbers") and all(can_read(x) for _, x in parts if isinstance(x, Tensor))
        else ""
    )
    lines, name = [""], type(value).__name__
    for part in [*shown, *([numbers] if numbers else [])]:
        if len(lines[-1]) + len(part) > WIDTH - len(name):
            lines.append("")
        lines[-1] += f"{', ' if lines[-1] else ''}{part}"
    return f"{name}({(',' + chr(10) + ' ' * (len(name) + 1)).join(lines)})"


def _shape(part: Any) -> str:
    if isinstance(part, Tensor):
        kind = "" if part.dtype in (torch.float32, torch.bool) else f" {str(part.dtype).removeprefix('torch.')}"
        return f"{tuple(part.shape)}{kind}" + ("" if part.device.type == "cpu" else f" on {part.device}")
    if is_dataclass(part) and not isinstance(part, type):
        return type(part).__name__
    return repr(part)


def _to_json(context: Context) -> Any:
    """The context for files of torch.export: tuples are marked, since JSON would return lists."""
    names, constants = context
    return [names, {k: {"tuple": list(v)} if isinstance(v, tuple) else v for k, v in constants.items()}]


def _from_json(context: Any) -> Context:
    names, constants = context
    return names, {k: tuple(v["tuple"]) if isinstance(v, dict) else v for k, v in constants.items()}


P = ParamSpec("P")


def memo(maxsize: int) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Keep the last `maxsize` results of a pure function of hashable arguments; do not write to what it returns.

    The result is a constant for torch.compile, which would otherwise trace into the function, and an ordinary tensor
    even when the first call happens inside `torch.inference_mode`, `torch.func.grad` or `torch.func.vmap`.

    >>> @memo(maxsize=4)
    ... def table(n: int) -> torch.Tensor:
    ...     return torch.arange(n)
    >>> table(3) is table(3)
    True
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        def compute(*args: P.args, **options: P.kwargs) -> T:
            with torch.no_grad():
                return function(*args, **options)

        def compute_aside(*args: P.args, **options: P.kwargs) -> T:
            # modes and transforms are thread-local: a new thread has none whose tensors could end up in the memo
            with ThreadPoolExecutor(max_workers=1) as thread:
                return thread.submit(compute, *args, **options).result()

        kept = cast(Callable[P, T], lru_cache(maxsize=maxsize)(compute_aside))

        def constant(*args: P.args, **options: P.kwargs) -> tuple[T]:
            # a tuple: the compiler names a lone tensor after this function, and two constants of one name clash
            return (kept(*args, **options),)

        # what torch.compiler.assume_constant_result does, without importing the compiler (1 s) along with foveate
        vars(constant)["_dynamo_marked_constant"] = True

        @wraps(function)
        def call(*args: P.args, **options: P.kwargs) -> T:
            return constant(*args, **options)[0]

        return call

    return decorate
