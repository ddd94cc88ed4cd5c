"""Which derivatives of a custom operator are asked for."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual


def needs_function(x: Tensor) -> bool:
    """True where a custom operator must be called through a `torch.autograd.Function`.

    The gradient that is registered with an operator serves eager backward and torch.compile. Inside functorch it raises
    an error, and forward mode ignores it silently, so that derivatives would be zero. A Function serves both, but
    torch.compile cannot trace one with `jvp`, and calling it takes three times as long.

    >>> needs_function(torch.zeros(2))
    False
    >>> torch.func.vmap(lambda x: x * needs_function(x))(torch.ones(1)).item()
    1.0
    """
    if torch.compiler.is_compiling():
        return False
    return torch._C._functorch.peek_interpreter_stack() is not None or unpack_dual(x).tangent is not None
