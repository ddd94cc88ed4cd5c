"""Attention as settings say it: a name, and options that can be written in JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from foveate.attention import mechanism
from foveate.ops.basis import GaussianBasis


def build_attention(name: str, options: Mapping[str, Any]) -> nn.Module:
    """The mechanism of a name.

    Args:
        name: a row of `MECHANISMS`.
        options: of it; a basis is written as the arguments of `GaussianBasis.grid`.

    >>> build_attention("continuous-softmax", {"basis": {"count": 49, "variance": 0.001}}).basis.centres.shape
    torch.Size([49, 2])
    """
    basis = options.get("basis")
    made = {"basis": GaussianBasis.grid(**basis)} if isinstance(basis, Mapping) else {}
    return mechanism(name, **{**options, **made})
