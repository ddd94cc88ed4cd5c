"""Dataclasses of tensors as pytrees, so that transforms such as `torch.func.vmap` may return them."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

from torch.utils._pytree import Context, GetAttrKey, KeyEntry, register_pytree_node

T = TypeVar("T")


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
    return kind


def _to_json(context: Context) -> Any:
    """The context for files of torch.export: tuples are marked, since JSON would return lists."""
    names, constants = context
    return [names, {k: {"tuple": list(v)} if isinstance(v, tuple) else v for k, v in constants.items()}]


def _from_json(context: Any) -> Context:
    names, constants = context
    return names, {k: tuple(v["tuple"]) if isinstance(v, dict) else v for k, v in constants.items()}
