"""Memoisation of pure functions: tables that depend only on sizes and options are computed once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, wraps
from typing import ParamSpec, TypeVar, cast

import torch

P = ParamSpec("P")
T = TypeVar("T")


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
