"""Native CPU kernels, where they were built: the one door between the operators and C++.

Every function returns None where the kernels do not apply (not built, turned off by FOVEATE_NATIVE=0, another device or
dtype, numbers that the operator has to explain), and the caller then does the same in torch. The torch code is the
reference. How far the kernels may be from it says `AGREEMENT`; the tests hold them to it.
"""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.forward_ad import unpack_dual

from foveate.checks import is_tracing

# The largest difference from torch of each family, in float32 and float64; that of a gradient is ten times as large.
# Expectations are relative to the largest of a row, those of Gaussians to their own size.
AGREEMENT = {
    "rows": (2e-6, 1e-9),
    "total variation": (2e-6, 1e-9),
    "reading": (2e-6, 1e-9),
    "moments": (2e-6, 1e-9),
    "expectation": (2e-6, 1e-7),
    "em": (5e-4, 1e-9),  # up to ten steps, of which each multiplies what rounding leaves
    "choice": (1e-4, 1e-8),
}
INTERFACE = 8  # of module.cpp: a build with another number is stale and stays unused until `pip install` is run again


def _load() -> ModuleType | None:
    """The module that was built, unless it is stale; FOVEATE_NATIVE=0 for none, or the path of another build of it."""
    module = _find()
    return module if getattr(module, "interface", None) == INTERFACE else None


def _find() -> ModuleType | None:
    setting = os.environ.get("FOVEATE_NATIVE", "1")
    if setting == "0":
        return None
    if setting not in ("", "1"):
        spec = spec_from_file_location(f"{__name__}._native", setting)
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    try:
        return import_module("foveate.ops.kernels._native")
    except ImportError:
        return None


_module = _load()
_SIZES = {torch.float32: False, torch.float64: True}  # whether a dtype is the wide one
_PLAIN = (Tensor, torch.nn.Parameter)


def native() -> ModuleType:
    """The module; only where a check such as `is_direct` has found that there is one."""
    assert _module is not None
    return _module


def is_wide(x: Tensor) -> bool:
    """True for float64, False for float32: the first argument of most kernels."""
    return _SIZES[x.dtype]


def unit() -> str | None:
    """The vector unit that the kernels use, None when torch does the work.

    >>> unit() in (None, "baseline", "avx2", "avx512")
    True
    """
    return None if _module is None else _module.unit()


def is_direct(x: Tensor) -> bool:
    """True where a kernel may be called without torch's dispatcher: eager, backward mode, a plain CPU tensor."""
    return (
        _module is not None
        and type(x) in _PLAIN
        and x.dtype in _SIZES
        and x.is_cpu
        and not is_tracing()
        and forward_ad._current_level < 0
        and torch._C._len_torch_dispatch_stack() == 0
        and torch._C._get_tracing_state() is None
        and not x.is_neg()  # a view whose memory holds the negated numbers
    )


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


def _applies(x: Tensor) -> bool:
    return _module is not None and x.is_cpu and x.dtype in _SIZES and x.numel() > 0 and not x.is_neg()


def entmax(scores: Tensor, alpha: float) -> Tensor | None:
    """Weights of the rows of scores (..., N), 1 < alpha <= 2; None also where there is NaN."""
    if not _applies(scores) or not 1 < alpha <= 2:
        return None
    scores = scores.contiguous()
    weights = torch.empty_like(scores)
    n = scores.shape[-1]
    sound = _module.entmax_forward(  # type: ignore[union-attr]
        _SIZES[scores.dtype],
        scores.data_ptr(),
        weights.data_ptr(),
        scores.numel() // n,
        n,
        alpha,
        torch.get_num_threads(),
    )
    return weights if sound else None


def entmax_gradient(weights: Tensor, gradient: Tensor, alpha: float) -> Tensor | None:
    """Gradient to the scores; None also where the result needs a gradient itself."""
    if (
        not _applies(weights)
        or not 1 < alpha <= 2
        or _is_followed(weights, gradient)
        or gradient.dtype != weights.dtype
    ):
        return None
    weights, gradient = weights.contiguous(), gradient.contiguous()
    result = torch.empty_like(weights)
    n = weights.shape[-1]
    _module.entmax_backward(  # type: ignore[union-attr]
        _SIZES[weights.dtype],
        weights.data_ptr(),
        gradient.data_ptr(),
        result.data_ptr(),
        weights.numel() // n,
        n,
        alpha,
        torch.get_num_threads(),
    )
    return result


def prox_tv(
    x: Tensor, keep: Tensor, edges: Tensor | None, axes: int, smoothness: float
) -> tuple[Tensor, Tensor, Tensor] | None:
    """The prox over the last axes, the label of each node's group, and the relative gap of each example.

    None also where a score is not finite or a solution has no certificate.
    """
    if not _applies(x):
        return None
    x, keep, edges = x.contiguous(), keep.contiguous(), _pairs(edges)
    value, labels = torch.empty_like(x), torch.empty_like(x, dtype=torch.long)
    gap = torch.empty(x.shape[: x.ndim - axes], dtype=torch.float64)
    sound = _module.tv_prox(  # type: ignore[union-attr]
        _SIZES[x.dtype],
        0 if edges is None else edges.data_ptr(),
        -1 if edges is None else len(edges),
        x.shape[-2] if axes == 2 else 1,
        x.shape[-1],
        x.data_ptr(),
        keep.data_ptr(),
        value.data_ptr(),
        labels.data_ptr(),
        gap.data_ptr(),
        gap.numel(),
        smoothness,
        torch.get_num_threads(),
    )
    return (value, labels, gap) if sound else None


def fused(
    scores: Tensor, mask: Tensor | None, edges: Tensor | None, axes: int, smoothness: float
) -> tuple[Tensor, Tensor] | None:
    """Sparsemax of the total-variation prox over the last axes, and the label of each node's group, -1 where masked.

    None also where there is NaN or a solution has no certificate.
    """
    if not _applies(scores) or (mask is not None and not is_direct_mask(mask)):
        return None
    scores, edges = scores.contiguous(), _pairs(edges)
    mask = None if mask is None else mask.expand(scores.shape).contiguous()
    weights, labels = torch.empty_like(scores), torch.empty_like(scores, dtype=torch.int32)
    H, W = scores.shape[-2] if axes == 2 else 1, scores.shape[-1]
    sound = _module.fused_forward(  # type: ignore[union-attr]
        _SIZES[scores.dtype],
        0 if edges is None else edges.data_ptr(),
        -1 if edges is None else len(edges),
        H,
        W,
        scores.data_ptr(),
        0 if mask is None else mask.data_ptr(),
        weights.data_ptr(),
        labels.data_ptr(),
        scores.numel() // (H * W),
        smoothness,
        torch.get_num_threads(),
    )
    return (weights, labels) if sound else None


def fused_gradient(weights: Tensor, labels: Tensor, gradient: Tensor, axes: int) -> Tensor | None:
    """Gradient to the scores of `fused`; None also where the result needs a gradient itself."""
    if not _applies(weights) or _is_followed(weights, gradient) or gradient.dtype != weights.dtype:
        return None
    weights, labels, gradient = weights.contiguous(), labels.int().contiguous(), gradient.contiguous()
    result = torch.empty_like(weights)
    N = weights.shape[-1] * (weights.shape[-2] if axes == 2 else 1)
    _module.fused_backward(  # type: ignore[union-attr]
        _SIZES[weights.dtype],
        weights.data_ptr(),
        labels.data_ptr(),
        gradient.data_ptr(),
        result.data_ptr(),
        weights.numel() // N,
        N,
        torch.get_num_threads(),
    )
    return result


def attend(weights: Tensor, values: Tensor, most: float) -> Tensor | None:
    """Weighted sums (B, Q, D) of values (B, N, D) with weights (B, Q, N); only values of non-zero weight are read.

    None also where more than the share `most` of the weights are not zero.
    """
    if not _applies(weights) or not _applies(values) or weights.dtype != values.dtype:
        return None
    weights, values = weights.contiguous(), values.contiguous()
    (B, Q, N), D = weights.shape, values.shape[-1]
    context = torch.empty(B, Q, D, dtype=values.dtype)
    done = _module.attend_forward(  # type: ignore[union-attr]
        _SIZES[values.dtype],
        weights.data_ptr(),
        values.data_ptr(),
        context.data_ptr(),
        B,
        Q,
        N,
        D,
        most,
        torch.get_num_threads(),
    )
    return context if done else None


def attend_gradient(
    weights: Tensor, values: Tensor, gradient: Tensor, wanted: tuple[bool, ...]
) -> tuple[Tensor | None, Tensor | None] | None:
    """Gradients of `attend` to the weights, zero off their support, and to the values, where wanted.

    None where the result needs a gradient itself.
    """
    if not _applies(values) or _is_followed(weights, values, gradient) or gradient.dtype != values.dtype:
        return None
    weights, values, gradient = weights.contiguous(), values.contiguous(), gradient.contiguous()
    to_weights = torch.empty_like(weights) if wanted[0] else None
    to_values = torch.empty_like(values) if wanted[1] else None
    _module.attend_backward(  # type: ignore[union-attr]
        _SIZES[values.dtype],
        weights.data_ptr(),
        values.data_ptr(),
        gradient.data_ptr(),
        0 if to_weights is None else to_weights.data_ptr(),
        0 if to_values is None else to_values.data_ptr(),
        *weights.shape,
        values.shape[-1],
        torch.get_num_threads(),
    )
    return to_weights, to_values


def chord_moments(semi: Tensor, centre: Tensor, nodes: Tensor, weights: Tensor) -> Tensor | None:
    """Integrals (R, J, 6) of bumps at centres (R, J, 2) over ellipses of half axes (R, 2), all float64."""
    if not is_direct(semi) or not is_direct(centre) or centre.numel() == 0 or semi.dtype != torch.float64:
        return None
    semi, centre = semi.contiguous(), centre.contiguous()
    moments = torch.empty(*centre.shape[:2], 6, dtype=torch.float64)
    _module.chord_moments(  # type: ignore[union-attr]
        semi.data_ptr(),
        centre.data_ptr(),
        nodes.data_ptr(),
        weights.data_ptr(),
        len(nodes),
        moments.data_ptr(),
        *centre.shape[:2],
        torch.get_num_threads(),
    )
    return moments


def is_direct_mask(mask: Tensor) -> bool:
    """True for a mask whose memory a kernel may read."""
    return type(mask) is Tensor and mask.is_cpu and mask.dtype == torch.bool


def _pairs(edges: Tensor | None) -> Tensor | None:
    return None if edges is None else edges.to("cpu", torch.long).resolve_neg().contiguous()


def _is_followed(*tensors: Tensor) -> bool:
    """True where a gradient of what is computed may be asked for, or where the tensors hold no numbers."""
    return torch.is_grad_enabled() or not all(is_direct(x) for x in tensors)
