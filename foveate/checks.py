"""Checks of arguments: messages have the form `<function>: expected <what>, got <value>; <what to do>`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import index
from typing import SupportsIndex

import torch
from torch import Tensor
from torch.autograd import forward_ad

from foveate.errors import NotANumber, ShapeError, WrongType, WrongValue

Rows = int | slice | Sequence[int] | Tensor


def is_tracing() -> bool:
    """Return True inside torch.compile or a functorch transform, where tensor values cannot be inspected."""
    return torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None


def check_floating(where: str, name: str, x: Tensor) -> None:
    """Raises TypeError if `x` is not a floating-point tensor."""
    if not isinstance(x, Tensor):
        raise WrongType(f"{where}: expected {name} as a tensor, got {type(x).__name__}; wrap it in torch.as_tensor")
    if not x.is_floating_point():
        raise WrongType(f"{where}: expected floating-point {name}, got {x.dtype}; call .float() first")


def check_ndim(where: str, name: str, x: Tensor, least: int, shape: str) -> None:
    """Raises ShapeError if `x` has fewer than `least` axes; `shape` names the axes in the message."""
    if x.ndim < least:
        raise ShapeError(f"{where}: expected {name} {shape}, got {tuple(x.shape)}; add the missing axes")


def check_shape(where: str, name: str, x: Tensor, expected: Sequence[int | None], shape: str) -> None:
    """Raises ShapeError if the sizes of `x` differ from `expected`, in which None matches any size."""
    if len(x.shape) != len(expected) or any(e is not None and s != e for s, e in zip(x.shape, expected, strict=True)):
        wanted = ", ".join("any" if e is None else str(e) for e in expected)
        raise ShapeError(
            f"{where}: expected {name} {shape} of sizes ({wanted}), got {tuple(x.shape)}; reshape or pad it"
        )


def check_dim(where: str, x: Tensor, dim: int) -> int:
    """Return the axis as a non-negative index; raises ShapeError if `x` has no such axis."""
    if not -x.ndim <= dim < x.ndim:
        raise ShapeError(
            f"{where}: expected dim in [{-x.ndim}, {x.ndim - 1}] for scores {tuple(x.shape)}, got {dim}; "
            "use an axis of the scores"
        )
    return dim % x.ndim


def check_mask(where: str, mask: Tensor, shape: Sequence[int]) -> None:
    """Raises TypeError if the mask is not boolean, ShapeError if it does not broadcast to exactly `shape`."""
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        got = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise WrongType(f"{where}: expected a boolean mask, got {got}; use mask.bool(), True where a location counts")
    fits = mask.ndim <= len(shape) and all(
        m in (1, s) for m, s in zip(reversed(mask.shape), reversed(tuple(shape)), strict=False)
    )
    if not fits:
        raise ShapeError(
            f"{where}: expected a mask that broadcasts to {tuple(shape)}, got {tuple(mask.shape)}; "
            "pass a mask with the shape of the scores"
        )


def check_padding(where: str, name: str, mask: Tensor, shape: Sequence[int], letters: str, what: str) -> None:
    """Raises TypeError or ShapeError if the mask is not boolean, not of `shape`, or has a `what` after padding."""
    check_mask(where, mask, shape)
    check_shape(where, name, mask, tuple(shape), letters)
    if not is_tracing() and bool((mask[:, 1:] & ~mask[:, :-1]).any()):
        raise ShapeError(
            f"{where}: expected padding at the end only, got a {what} after a masked one; move the padding to the end"
        )


def raise_nan(where: str, name: str, x: Tensor) -> None:
    """Raises NotANumber, a ValueError, that names the first NaN of a tensor known to contain one."""
    at = torch.isnan(x).nonzero()
    raise NotANumber(
        f"{where}: expected {name} without NaN, got {len(at)} of {x.numel()}, the first at {tuple(at[0].tolist())}; "
        "check for a division by zero or an overflow before this call"
    )


def check_number(
    where: str, name: str, value: float, *, least: float | None = None, above: float | None = None, advice: str
) -> None:
    """Raises ValueError if the value is not a finite number, is below `least`, or is not greater than `above`."""
    bound = f">= {least:g}" if least is not None else f"> {above:g}" if above is not None else ""
    # comparisons, since torch.compile cannot trace math.isfinite of a number that it made symbolic
    ok = isinstance(value, (int, float)) and not isinstance(value, bool) and -math.inf < value < math.inf
    if ok and least is not None:
        ok = value >= least
    if ok and above is not None:
        ok = value > above
    if not ok:
        raise WrongValue(f"{where}: expected {name} {bound}, got {value!r}; {advice}")


def check_counts(where: str, **counts: int) -> None:
    """Raises ValueError if one of the values is not a whole number from 1 on.

    >>> check_counts("answer", top=0)
    Traceback (most recent call last):
    foveate.errors.WrongValue: answer: expected top as a whole number >= 1, got 0; use 1 or more
    """
    for name, value in counts.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise WrongValue(f"{where}: expected {name} as a whole number >= 1, got {value!r}; use 1 or more")


def beside_rows(where: str, name: str, option: Tensor, x: Tensor, dims: Sequence[int]) -> Tensor:
    """An option per row with as many axes as x; raises ShapeError if it does not broadcast, or varies along `dims`.

    >>> beside_rows("example", "alpha", torch.ones(3, 1, 1), torch.zeros(2, 3, 4, 5), (-1,)).shape
    torch.Size([1, 3, 1, 1])
    """
    shape = [1] * (x.ndim - option.ndim) + list(option.shape)
    fits = option.ndim <= x.ndim and all(n in (1, m) for n, m in zip(shape, x.shape, strict=True))
    if not fits or any(shape[dim] != 1 for dim in dims):
        wanted = [1 if i in {dim % x.ndim for dim in dims} else n for i, n in enumerate(x.shape)]
        raise ShapeError(
            f"{where}: expected {name} as a number or a tensor that broadcasts to {tuple(wanted)}, got "
            f"{tuple(option.shape)}; one per row has size 1 along the normalised axes"
        )
    return option.reshape(shape)


def check_heads(where: str, dim: int, heads: int) -> None:
    """Raises ShapeError, which names the nearest divisors, if the heads do not share the features evenly."""
    if heads < 1 or dim % heads:
        divisors = [n for n in range(1, dim + 1) if dim % n == 0]
        near = sorted(sorted(divisors, key=lambda n: abs(n - heads))[:3])
        raise ShapeError(
            f"{where}: expected heads that divide dim = {dim}, got {heads}; use one of {', '.join(map(str, near))}"
        )


def as_number(option: float | Tensor) -> float | Tensor:
    """A tensor of one known number that needs no gradient as that number; anything else as it is."""
    if not isinstance(option, Tensor) or option.requires_grad or option.numel() != 1 or option.is_meta:
        return option
    if is_tracing() or forward_ad._current_level >= 0 or type(option) not in (Tensor, torch.nn.Parameter):
        return option
    return float(option)


def at_least_float32(x: Tensor) -> Tensor:
    """Convert half precision to float32; other dtypes are returned unchanged.

    >>> at_least_float32(torch.zeros(1, dtype=torch.bfloat16)).dtype, at_least_float32(torch.zeros(1).double()).dtype
    (torch.float32, torch.float64)
    """
    return x.to(torch.promote_types(x.dtype, torch.float32))


def index_examples(where: str, rows: Rows, B: int) -> slice | Tensor:
    """What to index the first axis of size B with, so that the axis stays whatever `rows` is.

    Args:
        where: name of the caller, for errors.
        rows: one example (kept as a batch of one), a slice, a sequence or tensor of numbers, or a boolean tensor (B,).
        B: number of examples.

    Raises:
        IndexError: if an example is out of range.
        ShapeError: if a tensor has more than one axis, or a boolean one is not of shape (B,).

    >>> torch.arange(4)[index_examples("example", -1, 4)], torch.arange(4)[index_examples("example", [3, 0], 4)]
    (tensor([3]), tensor([3, 0]))
    """
    if isinstance(rows, slice):
        start, stop, step = rows.indices(B)
        return rows if step > 0 else torch.arange(start, stop, step)
    chosen = rows if isinstance(rows, Tensor) else torch.tensor(_numbers(where, rows), dtype=torch.long)
    if chosen.dtype == torch.bool:
        if chosen.shape != (B,):
            raise ShapeError(
                f"{where}: expected a boolean tensor of shape ({B},), got {tuple(chosen.shape)}; "
                "use one truth value per example"
            )
        return chosen
    if chosen.ndim > 1 or chosen.is_floating_point():
        raise ShapeError(
            f"{where}: expected a 1-d tensor of example numbers, got {chosen.dtype} of shape {tuple(chosen.shape)}; "
            "index the fields themselves to go beyond the batch axis"
        )
    chosen = chosen.reshape(-1)
    # an index out of range would abort the process on a GPU
    if chosen.numel() and not -B <= int(chosen.min()) <= int(chosen.max()) < B:
        raise IndexError(f"{where}: expected examples in [{-B}, {B - 1}], got {chosen.tolist()}; the batch has {B}")
    return chosen


def _numbers(where: str, rows: int | Sequence[int]) -> list[int]:
    if isinstance(rows, bool) or not isinstance(rows, SupportsIndex | Sequence) or isinstance(rows, str):
        raise WrongType(
            f"{where}: expected an int, a slice, a sequence or a tensor, got {type(rows).__name__}; number the examples"
        )
    return [index(row) for row in rows] if isinstance(rows, Sequence) else [index(rows)]


class CheckedSizes:
    """A dataclass of sizes: raises ValueError for a whole number below 1 and a dropout that is no probability."""

    def __post_init__(self) -> None:
        values = dict(vars(self))
        where = type(self).__name__
        check_counts(where, **{name: value for name, value in values.items() if type(value) is int})
        for name, value in values.items():
            if name.endswith("dropout") and not 0 <= value <= 1:
                raise WrongValue(f"{where}: expected {name} from 0 to 1, got {value!r}; pass a probability")
