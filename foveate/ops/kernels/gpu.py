"""Triton kernels for CUDA and HIP: rows of weights, and streaming attention in both directions.

They are compiled, simulated, not run on a GPU: compiled ahead of time for several cards, run on CPU tensors by Triton's
interpreter and compared with float64. They serve CUDA tensors (HIP ones have that name, too) where triton is installed;
the torch form serves all others. Iterations are bounded, and no kernel asks the host.
"""

from __future__ import annotations

# mypy: disable-error-code="no-untyped-def"
import math
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from foveate.checks import is_tracing

if TYPE_CHECKING:
    from foveate.ops.kernels.stream import Attending

tl: Any = None  # triton.language, once `kernels` has been called
STEPS = 28  # of Newton's iteration: each divides the residual or the slope by at least two, their product by four
NEAR = 1e-6  # a step no larger than this is the last one
LONGEST = 16384  # keys of a row that one program holds
WIDEST = {4: 64, 2: 128}  # features of a query or a value that one program holds, by bytes of a number
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_KINDS = {1.0: 0, 2.0: 1, 1.5: 2}  # softmax, sparsemax, 1.5-entmax; 3: any alpha
_functions: list[Callable[..., Any]] = []


@cache
def is_installed() -> bool:
    """True where triton can be imported, which this does not do."""
    return find_spec("triton") is not None


def _kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of Triton's language, compiled by `kernels`, since triton may be absent."""
    _functions.append(function)
    return function


@cache
def kernels() -> dict[str, Any]:
    """The kernels by name, ready to launch or to compile."""
    import triton
    import triton.language

    made = {function.__name__: triton.jit(function) for function in _functions}
    globals().update(made, tl=triton.language)
    return made


@_kernel
def power_of(z, c, gain, KIND: tl.constexpr):
    """`[1 + g (z − c)]_+^{1/g}` and that divided by its base; g = alpha − 1, and the threshold is `c − 1/g`."""
    y = tl.maximum(gain * (z - c), -1.0)
    inside = y > -1.0
    y = tl.where(inside, y, 0.0)
    base = 1.0 + y
    if KIND == 1:
        slope = base * 0.0 + 1.0
        p = base
    elif KIND == 2:
        slope = base
        p = base * base
    else:
        # log(1 + y) without losing the digits of a small y
        p = tl.exp((tl.log(base) + (y - (base - 1.0)) / base) / gain)
        slope = p / base
    return tl.where(inside, p, 0.0), tl.where(inside, slope, 0.0)


@_kernel
def newton_step(total, slope, gain):
    """The step that raises c: Newton on `(Σ p)^g − 1`, the norm of the base, which is convex in c."""
    more = total > 1.0
    total = tl.where(more, total, 1.0)
    power = gain * tl.log(total)
    grown = tl.exp(power)
    # exp(x) - 1 without losing the digits of a small x
    exact = (grown == 1.0) | (power > 1.0)
    rise = tl.where(
        exact, tl.where(power > 1.0, grown - 1.0, power), (grown - 1.0) * power / tl.log(tl.where(exact, 2.0, grown))
    )
    step = rise / gain * tl.exp((1.0 - gain) * tl.log(total)) / tl.where(more, slope, 1.0)
    return tl.where(more, step, 0.0)


@_kernel
def rows_forward(
    scores,
    weights,
    alphas,
    alpha_step,
    n,
    KIND: tl.constexpr,
    STEPS: tl.constexpr,
    NEAR: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row of n scores per program."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    z = tl.load(scores + row * n + at, mask=at < n, other=-float("inf")).to(tl.float32)
    top = tl.max(z, 0)
    nothing = top == -float("inf")
    infinite = top == float("inf")
    # scores of +inf share the weight
    relative = tl.where(infinite, tl.where(z == top, 0.0, -float("inf")), z - tl.where(nothing | infinite, 0.0, top))
    if KIND == 0:
        p = tl.exp(relative)
    else:
        gain = tl.load(alphas + row * alpha_step) - 1.0
        c = gain * 0.0  # the largest score alone has weight one here: at or below the solution
        left = tl.full((), STEPS, tl.int32)
        while left > 0:
            p, slope = power_of(relative, c, gain, KIND)
            step = newton_step(tl.sum(p, 0), tl.sum(slope, 0), gain)
            c = c + step
            left = tl.where(step > NEAR, left - 1, 0)
        p, slope = power_of(relative, c, gain, KIND)
    total = tl.sum(p, 0)
    p = p / tl.where(total > 0.0, total, 1.0)
    tl.store(weights + row * n + at, p.to(weights.dtype.element_ty), mask=at < n)


@_kernel
def rows_backward(weights, gradient, result, alphas, alpha_step, n, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """The gradient to one row of scores per program: `q (g − Σ q g / Σ q)` with `q = p^{2−α}` on the support."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    p = tl.load(weights + row * n + at, mask=at < n, other=0.0).to(tl.float32)
    g = tl.load(gradient + row * n + at, mask=at < n, other=0.0).to(tl.float32)
    q = metric_of(p, tl.load(alphas + row * alpha_step) - 1.0, KIND)
    total = tl.sum(q, 0)
    mean = tl.sum(q * g, 0) / tl.where(total > 0.0, total, 1.0)
    tl.store(result + row * n + at, (q * (g - mean)).to(result.dtype.element_ty), mask=at < n)


@_kernel
def metric_of(p, gain, KIND: tl.constexpr):
    """`p^{2−α}` on the support."""
    if KIND == 0:
        q = p
    elif KIND == 1:
        q = tl.where(p > 0.0, 1.0, 0.0)
    elif KIND == 2:
        q = tl.sqrt(p)
    else:
        q = tl.where(p > 0.0, tl.exp((1.0 - gain) * tl.log(tl.where(p > 0.0, p, 1.0))), 0.0)
    return q


@_kernel
def mixed(h):
    """The finalizer of MurmurHash3."""
    h = (h ^ (h >> 16)) * 0x85EBCA6B
    h = (h ^ (h >> 13)) * 0xC2B2AE35
    return h ^ (h >> 16)


@_kernel
def kept_of(number, columns, seed, dropout):
    """What the weights of rows (BM) and keys (BN) are multiplied with: 0 for those that are dropped."""
    row = mixed(number.to(tl.uint32) ^ seed.to(tl.uint32))
    h = mixed(row[:, None] + (columns.to(tl.uint32) * 0x9E3779B1)[None, :])
    # compared as 24 bits, which float32 holds
    return tl.where((h >> 8).to(tl.float32) >= dropout * 16777216.0, 1.0 / (1.0 - dropout), 0.0)


@_kernel
def load_rows(start, step, rows, count, features, width):
    """Rows of a matrix (BM, BE), zeros beyond its end."""
    inside = (rows < count)[:, None] & (features < width)[None, :]
    return tl.load(start + rows.to(tl.int64)[:, None] * step + features[None, :], mask=inside, other=0.0)


@_kernel
def scores_of(
    q,
    k,
    rows,
    columns,
    Q,
    N,
    scale,
    cooling,
    mask,
    mask_row,
    mask_key,
    lowest,
    MASK: tl.constexpr,
    CAUSAL: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Scores (BM, BN) in float32, -inf for keys that do not count. MASK: 0 none, 1 boolean, 2 numbers."""
    z = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
    seen = (rows < Q)[:, None] & (columns < N)[None, :]
    if CAUSAL:
        seen = seen & (columns[None, :] <= rows[:, None])
    if MASK != 0:
        at = mask + rows.to(tl.int64)[:, None] * mask_row + columns.to(tl.int64)[None, :] * mask_key
        given = tl.load(at, mask=seen, other=0)
        if MASK == 1:
            seen = seen & (given != 0)
        else:
            given = given.to(tl.float32)
            seen = seen & (given > lowest)
            z = z + tl.where(seen, given, 0.0)
    return tl.where(seen, z * cooling[:, None], -float("inf"))


@_kernel
def attend_forward(
    query, key, value, alphas, coolings, mask, context, state,
    query_b, query_m, query_row, key_b, key_m, key_row, value_b, value_m, value_row,
    alpha_b, alpha_m, alpha_row, cool_b, cool_m, cool_row, mask_b, mask_m, mask_row, mask_key,
    M, G, Q, N, E, D, scale, lowest, dropout, seed,
    KIND: tl.constexpr, MASK: tl.constexpr, CAUSAL: tl.constexpr, DROPOUT: tl.constexpr, STEPS: tl.constexpr,
    NEAR: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BE: tl.constexpr, BD: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A block of BM queries of one head per program; state: c and one over the sum of the weights."""
    b = (tl.program_id(1) // M).to(tl.int64)
    m = (tl.program_id(1) % M).to(tl.int64)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    e = tl.arange(0, BE)
    d = tl.arange(0, BD)
    q = load_rows(query + b * query_b + m * query_m, query_row, rows, Q, e, E)
    keys = key + b * key_b + m // G * key_m
    values = value + b * value_b + m // G * value_m
    gain = tl.load(alphas + b * alpha_b + m * alpha_m + rows * alpha_row, mask=rows < Q, other=2.0) - 1.0
    cooling = tl.load(coolings + b * cool_b + m * cool_m + rows * cool_row, mask=rows < Q, other=1.0)
    mask += b * mask_b + m * mask_m
    end = N
    if CAUSAL:
        end = tl.minimum(N, (tl.program_id(0) + 1) * BM)
    # The threshold of any part of a row is at or below that of the row: one pass raises c by the blocks alone.
    c = tl.full((BM,), -float("inf"), tl.float32)
    for start in range(0, end, BN):
        columns = start + tl.arange(0, BN)
        k = load_rows(keys, key_row, columns, N, e, E)
        z = scores_of(
            q, k, rows, columns, Q, N, scale, cooling, mask, mask_row, mask_key, lowest, MASK, CAUSAL, PRECISION
        )
        c = tl.maximum(c, tl.max(z, 1))
        safe = tl.where(c == -float("inf"), 0.0, c)
        for _ in range(2):
            p, slope = power_of(z, safe[:, None], gain[:, None], KIND)
            safe = safe + newton_step(tl.sum(p, 1), tl.sum(slope, 1), gain)
        c = tl.where(c == -float("inf"), c, safe)
    c = tl.where(c == -float("inf"), 0.0, c)
    left = tl.full((), STEPS, tl.int32)
    while left > 0:
        total = tl.zeros((BM,), tl.float32)
        slopes = tl.zeros((BM,), tl.float32)
        for start in range(0, end, BN):
            columns = start + tl.arange(0, BN)
            k = load_rows(keys, key_row, columns, N, e, E)
            z = scores_of(
                q, k, rows, columns, Q, N, scale, cooling, mask, mask_row, mask_key, lowest, MASK, CAUSAL, PRECISION
            )
            p, slope = power_of(z, c[:, None], gain[:, None], KIND)
            total += tl.sum(p, 1)
            slopes += tl.sum(slope, 1)
        step = newton_step(total, slopes, gain)
        c = c + step
        left = tl.where(tl.max(step - NEAR * (1.0 + tl.abs(c)), 0) > 0.0, left - 1, 0)
    total = tl.zeros((BM,), tl.float32)
    sums = tl.zeros((BM, BD), tl.float32)
    number = (tl.program_id(1) * Q + rows).to(tl.uint32)
    for start in range(0, end, BN):
        columns = start + tl.arange(0, BN)
        k = load_rows(keys, key_row, columns, N, e, E)
        z = scores_of(
            q, k, rows, columns, Q, N, scale, cooling, mask, mask_row, mask_key, lowest, MASK, CAUSAL, PRECISION
        )
        p, _ = power_of(z, c[:, None], gain[:, None], KIND)
        total += tl.sum(p, 1)
        if DROPOUT:
            p = p * kept_of(number, columns, seed, dropout)
        v = load_rows(values, value_row, columns, N, d, D)
        sums += tl.dot(p.to(v.dtype), v, input_precision=PRECISION)
    factor = tl.where(total > 0.0, 1.0 / tl.where(total > 0.0, total, 1.0), 0.0)
    line = tl.program_id(1).to(tl.int64) * Q + rows
    inside = (rows < Q)[:, None] & (d < D)[None, :]
    tl.store(
        context + line[:, None] * D + d[None, :], (sums * factor[:, None]).to(context.dtype.element_ty), mask=inside
    )
    tl.store(state + line * 3, c, mask=rows < Q)
    tl.store(state + line * 3 + 1, factor, mask=rows < Q)


@_kernel
def alpha_slope(p, gain):
    """`(x / (1 + x) − log(1 + x)) / g²` with `1 + x = p^g`; a series where its terms cancel."""
    log_p = tl.log(tl.where(p > 0.0, p, 1.0))
    y = gain * log_p
    x = tl.exp(y) - 1.0
    # for a small y: x / (1 + x) − log(1 + x) = 1 − exp(−y) − y
    series = -y * y * (0.5 - y * (1.0 / 6.0 - y * (1.0 / 24.0 - y * (1.0 / 120.0 - y / 720.0))))
    return tl.where(tl.abs(y) < 0.3, series, x / (1.0 + x) - y) / (gain * gain)


@_kernel
def heights_of(p, gain):
    """`(p^g − 1) / g`: a score less one number of its row."""
    return (tl.exp(gain * tl.log(tl.where(p > 0.0, p, 1.0))) - 1.0) / gain


@_kernel
def attend_backward_query(
    query, key, value, alphas, coolings, mask, gradient, state, to_query, to_alpha, to_cooling,
    query_b, query_m, query_row, key_b, key_m, key_row, value_b, value_m, value_row,
    alpha_b, alpha_m, alpha_row, cool_b, cool_m, cool_row, mask_b, mask_m, mask_row, mask_key,
    M, G, Q, N, E, D, scale, lowest, dropout, seed,
    KIND: tl.constexpr, MASK: tl.constexpr, CAUSAL: tl.constexpr, DROPOUT: tl.constexpr, OPTIONS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BE: tl.constexpr, BD: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients to a block of queries, its alphas and coolings; adds to the state the mean of the pulled weights."""
    b = (tl.program_id(1) // M).to(tl.int64)
    m = (tl.program_id(1) % M).to(tl.int64)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    line = tl.program_id(1).to(tl.int64) * Q + rows
    e = tl.arange(0, BE)
    d = tl.arange(0, BD)
    q = load_rows(query + b * query_b + m * query_m, query_row, rows, Q, e, E)
    g = load_rows(gradient + tl.program_id(1).to(tl.int64) * Q * D, D, rows, Q, d, D)
    keys = key + b * key_b + m // G * key_m
    values = value + b * value_b + m // G * value_m
    gain = tl.load(alphas + b * alpha_b + m * alpha_m + rows * alpha_row, mask=rows < Q, other=2.0) - 1.0
    cooling = tl.load(coolings + b * cool_b + m * cool_m + rows * cool_row, mask=rows < Q, other=1.0)
    mask += b * mask_b + m * mask_m
    c = tl.load(state + line * 3, mask=rows < Q, other=0.0)
    factor = tl.load(state + line * 3 + 1, mask=rows < Q, other=0.0)
    number = (tl.program_id(1) * Q + rows).to(tl.uint32)
    end = N
    if CAUSAL:
        end = tl.minimum(N, (tl.program_id(0) + 1) * BM)
    total = tl.zeros((BM,), tl.float32)
    weighted = tl.zeros((BM,), tl.float32)
    alpha_0 = tl.zeros((BM,), tl.float32)
    alpha_1 = tl.zeros((BM,), tl.float32)
    cool_0 = tl.zeros((BM,), tl.float32)
    cool_1 = tl.zeros((BM,), tl.float32)
    for start in range(0, end, BN):
        columns = start + tl.arange(0, BN)
        k = load_rows(keys, key_row, columns, N, e, E)
        z = scores_of(
            q, k, rows, columns, Q, N, scale, cooling, mask, mask_row, mask_key, lowest, MASK, CAUSAL, PRECISION
        )
        p, _ = power_of(z, c[:, None], gain[:, None], KIND)
        p = p * factor[:, None]
        metric = metric_of(p, gain[:, None], KIND)
        v = load_rows(values, value_row, columns, N, d, D)
        pulled = tl.dot(g, tl.trans(v), input_precision=PRECISION)
        if DROPOUT:
            pulled = pulled * kept_of(number, columns, seed, dropout)
        total += tl.sum(metric, 1)
        weighted += tl.sum(metric * pulled, 1)
        if OPTIONS:
            grown = p * alpha_slope(p, gain[:, None])
            height = metric * heights_of(p, gain[:, None])
            alpha_0 += tl.sum(grown, 1)
            alpha_1 += tl.sum(grown * pulled, 1)
            cool_0 += tl.sum(height, 1)
            cool_1 += tl.sum(height * pulled, 1)
    mean = weighted / tl.where(total > 0.0, total, 1.0)
    tl.store(state + line * 3 + 2, mean, mask=rows < Q)
    if OPTIONS:
        tl.store(to_alpha + line, alpha_1 - mean * alpha_0, mask=rows < Q)
        tl.store(to_cooling + line, (cool_1 - mean * cool_0) / cooling, mask=rows < Q)
    sums = tl.zeros((BM, BE), tl.float32)
    for start in range(0, end, BN):
        columns = start + tl.arange(0, BN)
        k = load_rows(keys, key_row, columns, N, e, E)
        z = scores_of(
            q, k, rows, columns, Q, N, scale, cooling, mask, mask_row, mask_key, lowest, MASK, CAUSAL, PRECISION
        )
        p, _ = power_of(z, c[:, None], gain[:, None], KIND)
        v = load_rows(values, value_row, columns, N, d, D)
        pulled = tl.dot(g, tl.trans(v), input_precision=PRECISION)
        if DROPOUT:
            pulled = pulled * kept_of(number, columns, seed, dropout)
        to_scores = metric_of(p * factor[:, None], gain[:, None], KIND) * (pulled - mean[:, None])
        sums += tl.dot(to_scores.to(k.dtype), k, input_precision=PRECISION)
    sums *= scale * cooling[:, None]
    inside = (rows < Q)[:, None] & (e < E)[None, :]
    tl.store(to_query + line[:, None] * E + e[None, :], sums.to(to_query.dtype.element_ty), mask=inside)


@_kernel
def attend_backward_key(
    query, key, value, alphas, coolings, mask, gradient, state, to_key, to_value,
    query_b, query_m, query_row, key_b, key_m, key_row, value_b, value_m, value_row,
    alpha_b, alpha_m, alpha_row, cool_b, cool_m, cool_row, mask_b, mask_m, mask_row, mask_key,
    M, G, Q, N, E, D, scale, lowest, dropout, seed,
    KIND: tl.constexpr, MASK: tl.constexpr, CAUSAL: tl.constexpr, DROPOUT: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BE: tl.constexpr, BD: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients to a block of BN keys and values, from all queries of all heads that share them."""
    heads = M // G
    b = (tl.program_id(1) // heads).to(tl.int64)
    head = (tl.program_id(1) % heads).to(tl.int64)
    columns = tl.program_id(0) * BN + tl.arange(0, BN)
    e = tl.arange(0, BE)
    d = tl.arange(0, BD)
    k = load_rows(key + b * key_b + head * key_m, key_row, columns, N, e, E)
    v = load_rows(value + b * value_b + head * value_m, value_row, columns, N, d, D)
    key_sums = tl.zeros((BN, BE), tl.float32)
    value_sums = tl.zeros((BN, BD), tl.float32)
    begin = 0
    if CAUSAL:
        begin = tl.program_id(0) * BN // BM * BM
    for group in range(0, G):
        m = head * G + group
        first = (b * M + m) * Q
        for start in range(begin, Q, BM):
            rows = start + tl.arange(0, BM)
            q = load_rows(query + b * query_b + m * query_m, query_row, rows, Q, e, E)
            g = load_rows(gradient + first * D, D, rows, Q, d, D)
            gain = tl.load(alphas + b * alpha_b + m * alpha_m + rows * alpha_row, mask=rows < Q, other=2.0) - 1.0
            cooling = tl.load(coolings + b * cool_b + m * cool_m + rows * cool_row, mask=rows < Q, other=1.0)
            c = tl.load(state + (first + rows) * 3, mask=rows < Q, other=0.0)
            factor = tl.load(state + (first + rows) * 3 + 1, mask=rows < Q, other=0.0)
            mean = tl.load(state + (first + rows) * 3 + 2, mask=rows < Q, other=0.0)
            z = scores_of(
                q, k, rows, columns, Q, N, scale, cooling, mask + b * mask_b + m * mask_m, mask_row, mask_key, lowest,
                MASK, CAUSAL, PRECISION,
            )  # fmt: skip
            p, _ = power_of(z, c[:, None], gain[:, None], KIND)
            p = p * factor[:, None]
            pulled = tl.dot(g, tl.trans(v), input_precision=PRECISION)
            used = p
            if DROPOUT:
                kept = kept_of((first + rows).to(tl.uint32), columns, seed, dropout)
                used = p * kept
                pulled = pulled * kept
            to_scores = metric_of(p, gain[:, None], KIND) * (pulled - mean[:, None]) * (scale * cooling)[:, None]
            value_sums += tl.dot(tl.trans(used.to(g.dtype)), g, input_precision=PRECISION)
            key_sums += tl.dot(tl.trans(to_scores.to(q.dtype)), q, input_precision=PRECISION)
    line = tl.program_id(1).to(tl.int64) * N + columns
    inside = (columns < N)[:, None]
    tl.store(
        to_key + line[:, None] * E + e[None, :], key_sums.to(to_key.dtype.element_ty), mask=inside & (e < E)[None, :]
    )
    tl.store(
        to_value + line[:, None] * D + d[None, :],
        value_sums.to(to_value.dtype.element_ty),
        mask=inside & (d < D)[None, :],
    )


def where_installed(operator: Any) -> Callable[[Callable[..., Any]], Any]:
    """Registers the decorated function as the kernel of an operator of `torch.library` on CUDA and HIP."""
    if not is_installed():
        return lambda function: function
    register: Callable[[Callable[..., Any]], Any] = operator.register_kernel("cuda")
    return register


def is_interpreted() -> bool:
    """True where the kernels run on CPU tensors: TRITON_INTERPRET=1 before triton was imported."""
    import triton

    return bool(triton.knobs.runtime.interpret)


def applies(x: Attending) -> bool:
    """True where the kernels attend: decided without asking the device."""
    parts = [x.query, x.key, x.value, *(part for part in (x.alpha, x.cooling, x.mask) if isinstance(part, Tensor))]
    widths = max(x.query.shape[-1], x.value.shape[-1])
    return (
        x.query.is_cuda
        and is_installed()
        and all(part.device == x.query.device for part in parts)
        and x.query.dtype in _DTYPES
        and x.query.dtype == x.key.dtype == x.value.dtype
        and widths <= WIDEST[x.query.element_size()]
        and not isinstance(x.seed, Tensor)
    )


def weighs(x: Tensor, alpha: float) -> bool:
    """True where the kernels for rows apply."""
    return (
        x.is_cuda
        and type(x) in (Tensor, torch.nn.Parameter)
        and is_installed()
        and x.dtype in _DTYPES
        and 1 <= alpha <= 2
        and 0 < x.shape[-1] <= LONGEST
        and x.numel() > 0
        and not is_tracing()
        and torch._C._functorch.peek_interpreter_stack() is None
    )


def block_sizes(E: int, D: int, half: bool, hip: bool) -> dict[str, Any]:
    """Queries, keys and features that a program holds at once, and how it runs: what fits the registers of a target.

    Products of float32 take three products of tensor cores on CUDA, which loses nothing that float32 shows.
    """
    features = {"BE": max(16, 1 << (E - 1).bit_length()), "BD": max(16, 1 << (D - 1).bit_length())}
    precision = "ieee" if half or hip else "tf32x3"
    return {
        "BM": 16,
        "BN": 32,
        **features,
        "PRECISION": precision,
        "num_warps": 4,
        "num_stages": 1,
    }


def _arguments(x: Attending) -> tuple[list[Any], list[Any], dict[str, Any]]:
    """Inputs, strides and sizes, and the constants of the kernels for attention."""
    query, key, value = (part if part.stride(-1) == 1 else part.contiguous() for part in (x.query, x.key, x.value))
    if query.dtype == torch.bfloat16 and is_interpreted():  # its products of bfloat16 are wrong
        query, key, value = query.float(), key.float(), value.float()
    (B, M, Q, E), N, D = query.shape, key.shape[-2], value.shape[-1]
    rows = [
        (part.float() if isinstance(part, Tensor) else query.new_full((1, 1, 1), part, dtype=torch.float32)).expand(
            B, M, Q
        )
        for part in (x.alpha, x.cooling)
    ]
    mask = query if x.mask is None else x.mask.view(torch.uint8) if x.mask.dtype == torch.bool else x.mask
    strides = [0] * 4 if x.mask is None else mask.expand(B, M, Q, N).stride()
    parts = (query, key, value, *rows)
    numbers = [s for part in parts for s in part.stride()[:3]] + [*strides, M, M // key.shape[1], Q, N, E, D]
    seed = int(x.seed)
    numbers += [x.scale, max(x.lowest, -torch.finfo(torch.float32).max), x.dropout, seed]
    kind = 3 if isinstance(x.alpha, Tensor) else _KINDS.get(float(x.alpha), 3)
    masked = 0 if x.mask is None else 1 if x.mask.dtype == torch.bool else 2
    sizes = block_sizes(E, D, query.dtype != torch.float32, torch.version.hip is not None)
    constants = {"KIND": kind, "MASK": masked, "CAUSAL": x.is_causal, "DROPOUT": x.dropout > 0, **sizes}
    return [*parts, mask], numbers, constants


def attend(x: Attending) -> tuple[Tensor, Tensor]:
    """Context (B, M, Q, D) and the state (B, M, Q, 3) from which `attend_gradient` finds the weights."""
    inputs, numbers, constants = _arguments(x)
    (B, M, Q, _), D = x.query.shape, x.value.shape[-1]
    context = x.query.new_empty(B, M, Q, D)
    state = x.query.new_empty(B, M, Q, 3, dtype=torch.float32)
    grid = (math.ceil(Q / constants["BM"]), B * M)
    kernels()["attend_forward"][grid](*inputs, context, state, *numbers, **constants, STEPS=STEPS, NEAR=NEAR)
    return context, state


def attend_gradient(
    x: Attending, gradient: Tensor, state: Tensor, options: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Gradients to query, key, value, and with `options` to alpha (B, M, Q) and cooling (B, M, Q)."""
    inputs, numbers, constants = _arguments(x)
    (B, M, Q, E), (heads, N, D) = x.query.shape, x.value.shape[1:]
    gradient, state = gradient.to(inputs[0].dtype).contiguous(), state.clone()
    made = x.query.new_empty
    to_query, to_key, to_value = made(B, M, Q, E), made(B, heads, N, E), made(B, heads, N, D)
    to_alpha, to_cooling = (made(B, M, Q, dtype=torch.float32) if options else state for _ in range(2))
    kernels()["attend_backward_query"][math.ceil(Q / constants["BM"]), B * M](
        *inputs, gradient, state, to_query, to_alpha, to_cooling, *numbers, **constants, OPTIONS=options
    )
    kernels()["attend_backward_key"][math.ceil(N / constants["BN"]), B * heads](
        *inputs, gradient, state, to_key, to_value, *numbers, **constants
    )
    return to_query, to_key, to_value, to_alpha if options else None, to_cooling if options else None


def row_sizes(n: int) -> dict[str, int]:
    """The length of a row with its padding, and the warps that share it."""
    block = max(16, 1 << (n - 1).bit_length())
    return {"BLOCK": block, "num_warps": min(16, max(1, block // 512))}


def _row_arguments(x: Tensor, alpha: float | Tensor) -> tuple[Tensor, int, dict[str, int]]:
    """One alpha per row or for all, the step between two, and the constants of the kernels for rows."""
    n, kind = x.shape[-1], 3
    if isinstance(alpha, Tensor):
        alphas, step = alpha.float().expand(*x.shape[:-1], 1).contiguous(), 1
    else:
        alphas, step, kind = x.new_full((1,), alpha, dtype=torch.float32), 0, _KINDS.get(float(alpha), 3)
    return alphas, step, {"KIND": kind, **row_sizes(n)}


def entmax(scores: Tensor, alpha: float | Tensor) -> Tensor:
    """Weights of the rows of scores (..., N); alpha from 1, softmax, to 2, or one of each row (..., 1)."""
    scores = scores.contiguous()
    weights = torch.empty_like(scores)
    alphas, step, constants = _row_arguments(scores, alpha)
    grid = (scores.numel() // scores.shape[-1],)
    kernels()["rows_forward"][grid](
        scores, weights, alphas, step, scores.shape[-1], STEPS=STEPS, NEAR=NEAR, **constants
    )
    return weights


def entmax_gradient(weights: Tensor, gradient: Tensor, alpha: float | Tensor) -> Tensor:
    """The gradient to the scores of `entmax`."""
    weights, gradient = weights.contiguous(), gradient.contiguous()
    result = torch.empty_like(weights)
    alphas, step, constants = _row_arguments(weights, alpha)
    grid = (weights.numel() // weights.shape[-1],)
    kernels()["rows_backward"][grid](weights, gradient, result, alphas, step, weights.shape[-1], **constants)
    return result
