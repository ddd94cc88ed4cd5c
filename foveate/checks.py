"""Checks of arguments: each raises an error of the form `<function>: expected <what>, got <value>; <what to do>`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from foveate.errors import ShapeError


def is_tracing() -> bool:
    """True inside torch.compile or a functorch transform, where the values of a tensor cannot be looked at."""
    return torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None


def check_floating(where: str, name: str, x: Tensor) -> None:
    """Refuse anything but a floating-point tensor."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{where}: expected {name} as a tensor, got {type(x).__name__}; wrap it in torch.as_tensor")
    if not x.is_floating_point():
        raise TypeError(f"{where}: expected floating-point {name}, got {x.dtype}; call .float() first")


def check_ndim(where: str, name: str, x: Tensor, least: int, shape: str) -> None:
    """Refuse a tensor with fewer than `least` axes; `shape` says what the axes are."""
    if x.ndim < least:
        raise ShapeError(f"{where}: expected {name} {shape}, got {tuple(x.shape)}; add the missing axes")


def check_shape(where: str, name: str, x: Tensor, expected: Sequence[int | None], shape: str) -> None:
    """Refuse a tensor whose sizes differ from `expected` (None matches any size)."""
    if len(x.shape) != len(expected) or any(e is not None and s != e for s, e in zip(x.shape, expected, strict=True)):
        wanted = ", ".join("any" if e is None else str(e) for e in expected)
        raise ShapeError(
            f"{where}: expected {name} {shape} of sizes ({wanted}), got {tuple(x.shape)}; reshape or pad it"
        )


def check_dim(where: str, x: Tensor, dim: int) -> int:
    """The axis as a non-negative number, or ShapeError when `x` has no such axis."""
    if not -x.ndim <= dim < x.ndim:
        raise ShapeError(
            f"{where}: expected dim in [{-x.ndim}, {x.ndim - 1}] for scores {tuple(x.shape)}, got {dim}; "
            "name an axis the scores have"
        )
    return dim % x.ndim


def check_mask(where: str, mask: Tensor, shape: Sequence[int]) -> None:
    """Refuse a mask that is not boolean or that does not broadcast to `shape` without changing it."""
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        got = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(f"{where}: expected a boolean mask, got {got}; use mask.bool(), True where a location counts")
    fits = mask.ndim <= len(shape) and all(
        m in (1, s) for m, s in zip(reversed(mask.shape), reversed(tuple(shape)), strict=False)
    )
    if not fits:
        raise ShapeError(
            f"{where}: expected a mask that broadcasts to {tuple(shape)}, got {tuple(mask.shape)}; "
            "give it the shape of the scores"
        )


def check_padding(where: str, name: str, mask: Tensor, shape: Sequence[int], letters: str, what: str) -> None:
    """Refuse a mask that is not boolean, not of `shape`, or in which anything follows padding; `what` is masked."""
    check_mask(where, mask, shape)
    check_shape(where, name, mask, tuple(shape), letters)
    if not is_tracing() and bool((mask[:, 1:] & ~mask[:, :-1]).any()):
        raise ShapeError(
            f"{where}: expected padding at the end only, got a {what} after a masked one; move the padding to the end"
        )


def raise_nan(where: str, name: str, x: Tensor) -> None:
    """Raise the error for a tensor that holds NaN."""
    at = torch.isnan(x).nonzero()
    raise ValueError(
        f"{where}: expected {name} without NaN, got {len(at)} of {x.numel()}, the first at {tuple(at[0].tolist())}; "
        "look for a division by zero or an overflow before this call"
    )


def check_number(
    where: str, name: str, value: float, *, least: float | None = None, above: float | None = None, advice: str
) -> None:
    """Refuse a number that is not finite, is below `least`, or is not greater than `above`."""
    bound = f">= {least:g}" if least is not None else f"> {above:g}" if above is not None else ""
    ok = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if ok and least is not None:
        ok = value >= least
    if ok and above is not None:
        ok = value > above
    if not ok:
        raise ValueError(f"{where}: expected {name} {bound}, got {value!r}; {advice}")
