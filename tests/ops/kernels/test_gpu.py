"""GPUs, without one: the torch form asks the device nothing; Triton kernels are interpreted and compiled."""

from __future__ import annotations

import math
import os
import random
import re
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import foveate as fv
from foveate.ops import entmax_alpha, kernels, simplex, sparse_attention
from foveate.ops.kernels import gpu
from foveate.ops.kernels.stream import Attending
from foveate.ops.sparse_attention import attend_dense


class NoQuestions(TorchDispatchMode):
    """Fails where a number is read, which would wait for a device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func.overloadpacket.__name__ not in ("_local_scalar_dense", "equal", "nonzero", "is_nonzero"), func
        return func(*args, **(kwargs or {}))


def scores_for_devices() -> torch.Tensor:
    """Rows that need many steps: geometric, even, far apart, masked, and infinite ones."""
    n = 600
    scores = torch.randn(12, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scores[1] = -(1.5 ** -torch.arange(n, dtype=torch.float64))
    scores[2] = -(torch.arange(n, dtype=torch.float64) ** 0.5)
    scores[3], scores[4] = 0, 1e-3 * scores[4]
    scores[5] *= 100
    scores[6, 10:], scores[7] = -math.inf, -math.inf
    scores[8, [3, 7]] = math.inf
    scores[9] = -(2.0 ** -torch.arange(n).clamp(max=60))
    scores[10] = torch.arange(n).double().log()
    return scores


@pytest.mark.parametrize("alpha", [1.0, 1.05, 1.5, 1.8, 2.0, 3.0, "per row"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_device_is_asked_nothing(alpha, dtype, monkeypatch):
    """The form for devices, on a CPU: the same weights and gradients in a fixed number of steps."""
    options = {} if alpha == 1.0 else {"alpha": 1.05 + torch.arange(12.0)[:, None] / 6 if alpha == "per row" else alpha}
    weigh = fv.softmax if alpha == 1.0 else fv.entmax
    scores = scores_for_devices().to(dtype)
    g = torch.randn(scores.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)
    z = scores.clone().requires_grad_()
    expected = weigh(z, **options)
    (gradient,) = torch.autograd.grad(expected, z, g)
    for module in (simplex, entmax_alpha):
        monkeypatch.setattr(module, "_may_ask", lambda x: False)
        monkeypatch.setattr(module, "check_alpha", lambda alpha: None, raising=False)
    monkeypatch.setattr(kernels, "_module", None)
    z = scores.clone().requires_grad_()
    with NoQuestions():
        weights = weigh(z, **options)
        (found,) = torch.autograd.grad(weights, z, g)
    tolerance = 1e-10 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(weights, expected, rtol=0, atol=tolerance)
    if alpha != "per row":  # alphas beyond 2 have gradients of any size
        torch.testing.assert_close(found, gradient, rtol=1e-3, atol=1e3 * tolerance)


def test_a_question_fails():
    with pytest.raises(AssertionError), NoQuestions():
        bool(torch.ones(2).any())


needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed (extra gpu)")
CASES = 208


def example(seed: int) -> tuple[Attending, torch.Tensor]:
    """Random attention, float32 or float16, and the gradient to its context."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    heads, groups = rng.choice([1, 1, 2]), rng.choice([1, 1, 2])
    B, M = rng.choice([1, 1, 2]) if heads == groups == 1 else 1, heads * groups
    Q, N, E, D = (
        rng.choice([1, 5, 17, 33]),
        rng.choice([1, 7, 31, 33, 50]),
        rng.choice([3, 8, 16, 24]),
        rng.choice([1, 5, 16]),
    )
    dtype = rng.choice([torch.float32, torch.float32, torch.float16])
    parts = [normal(B, M, Q, E) * rng.choice([0.3, 1, 3]), normal(B, heads, N, E), normal(B, heads, N, D)]
    alpha = rng.choice([1.1, 1.25, 1.5, 1.5, 1.8, 2.0, 2.0])
    alpha = alpha if rng.random() < 0.6 else 1.1 + 0.9 * torch.rand(1, M, rng.choice([1, Q]), generator=generator)
    cooling = 1.0 if rng.random() < 0.6 else 0.5 + torch.rand(1, rng.choice([1, M]), 1, generator=generator)
    kind = rng.choice(["none", "causal", "boolean", "numbers", "empty rows"])
    shape = rng.choice([(1, 1, Q, N), (B, 1, Q, N), (1, M, 1, N), (B, M, Q, N), (1, 1, Q, 1), (1, 1, 1, N)])
    mask = None
    if kind == "boolean":
        mask = torch.rand(shape, generator=generator) < 0.7
    elif kind == "empty rows":
        mask = (torch.rand(1, 1, Q, 1, generator=generator) < 0.5).expand(1, 1, Q, N)
    elif kind == "numbers":
        mask = normal(*shape).masked_fill(torch.rand(shape, generator=generator) < 0.2, -math.inf)
    dropout = rng.choice([0.0, 0.0, 0.0, 0.3])
    settings = kind == "causal", E**-0.5, -1e30, dropout, rng.randrange(1000)
    x = Attending(*(part.to(dtype) for part in parts), alpha, cooling, mask, *settings)
    return x, normal(B, M, Q, D).to(dtype)


def wide(x: Attending) -> tuple[Attending, dict[str, torch.Tensor]]:
    """The same in float64, and what gradients are taken to."""
    names = [
        name for name in ("query", "key", "value", "alpha", "cooling") if isinstance(getattr(x, name), torch.Tensor)
    ]
    leaves = {name: getattr(x, name).double().requires_grad_() for name in names}
    mask = None if x.mask is None else x.mask if x.mask.dtype == torch.bool else x.mask.double()
    return replace(x, **leaves, mask=mask), leaves


def within(
    found: torch.Tensor, expected: torch.Tensor, case: object, rounding: torch.Tensor | float = 0.0, size: float = 1.0
) -> None:
    """1e-5 in units of `size`, the largest number or 1, beside what rounding to float16 takes."""
    assert found.shape == expected.shape, case
    expected = expected.detach()
    allowed = 1e-5 * max(float(expected.abs().max()), size) + rounding
    excess = float(((found.detach().double() - expected).abs() / allowed).max())
    assert excess <= 1, (case, excess)


HALF = 2.0**-11  # what rounding to float16 loses of a number; 2^-25 below its normal range


def rounded(x: torch.Tensor) -> torch.Tensor:
    return HALF * x.abs() + 2.0**-25


def roundings(x: Attending, gradient: torch.Tensor) -> dict[str, torch.Tensor]:
    """What float16 takes: the results are rounded, and so are the weights and their gradients before a product."""
    weights = attend_dense(x)[1].detach()
    query, key, value = (part.detach() for part in (x.query, x.key, x.value))
    groups = query.shape[1] // key.shape[1]
    key, value = (part.repeat_interleave(groups, 1) for part in (key, value))
    alpha, cooling = (
        part.detach().unsqueeze(-1) if isinstance(part, torch.Tensor) else part for part in (x.alpha, x.cooling)
    )
    kept = sparse_attention._kept(x, 0, query.shape[2]) if x.dropout else torch.ones(())
    pulled = gradient @ value.mT * kept
    metric = torch.where(weights > 0, weights ** (2 - alpha), 0)
    pulled = pulled - (metric * pulled).sum(-1, keepdim=True) / metric.sum(-1, keepdim=True).clamp(min=1e-30)
    used, to_scores = rounded(weights * kept), rounded(metric * pulled)

    def shared(part: torch.Tensor) -> torch.Tensor:
        return part.unflatten(1, (-1, groups)).sum(2)

    return {
        "context": used @ value.abs(),
        "query": to_scores @ key.abs() * x.scale * cooling,
        "key": shared((to_scores * x.scale * cooling).mT @ query.abs()),
        "value": shared(used.mT @ gradient.abs()),
    }


def check_case(seed: int) -> None:
    """Context and gradients within 1e-5 of float64; the gradients within 3e-5 for 1.5 < alpha < 2.

    They weigh a score with `p^(2 − α)`, whose slope `p^(3 − 2α)` is not bounded at the edge of the support there: what
    float32 rounds of a score shows as more in them.
    """
    x, gradient = example(seed)
    reference, leaves = wide(x)
    expected = attend_dense(reference)[0]
    wanted = torch.autograd.grad(expected, list(leaves.values()), gradient.double())
    context, state = gpu.attend(x)
    assert context.dtype == x.query.dtype
    products = roundings(reference, gradient.double()) if x.query.dtype == torch.float16 else {}
    alphas = torch.as_tensor(x.alpha)
    is_steep = bool(((alphas > 1.5) & (alphas < 2)).any())

    def compare(name: str, found: torch.Tensor, goal: torch.Tensor, size: float = 1.0) -> None:
        lost: torch.Tensor | float = 0.0
        if name in products:  # the bound is of the worst case: also small beside the largest number
            most = (2e-3 if name == "context" else 6e-3) * max(1.0, float(goal.detach().abs().max()))
            lost = (products[name] + rounded(goal.detach())).clamp(max=most)
        within(found, goal, (seed, name), lost, size)

    compare("context", context, expected)
    found = gpu.attend_gradient(x, gradient, state, "alpha" in leaves or "cooling" in leaves)
    for name, result in zip(("query", "key", "value", "alpha", "cooling"), found, strict=True):
        if name in leaves:
            goal = wanted[list(leaves).index(name)]
            # in units of the terms where one alpha or temperature has the gradients of many rows
            size = max(1.0, float(result.double().abs().sum_to_size(goal.shape).max()))
            compare(name, result.double().sum_to_size(goal.shape), goal, 3 * size if is_steep else size)


def check_rows(seed: int) -> None:
    """Weights and gradients of rows of every kind."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    rows, n, alpha = rng.choice([1, 4]), rng.choice([1, 5, 33, 130, 1000]), rng.choice([1.0, 1.1, 1.3, 1.5, 1.9, 2.0])
    scores = torch.randn(rows, n, generator=generator) * rng.choice([0.1, 1, 5, 30])
    if rng.random() < 0.5:
        scores = scores.masked_fill(torch.rand(rows, n, generator=generator) < 0.5, -math.inf)
    if rng.random() < 0.2:
        scores[0] = -math.inf
    if rng.random() < 0.1:
        scores[-1, -1] = math.inf
    scores = scores.to(rng.choice([torch.float32, torch.float16]))
    z = scores.double().requires_grad_()
    expected = fv.softmax(z) if alpha == 1 else fv.entmax(z, alpha)
    g = torch.randn(rows, n, generator=generator).to(scores.dtype)
    weights = gpu.entmax(scores, alpha)
    half = scores.dtype == torch.float16
    within(weights, expected, (seed, "weights"), rounded(expected.detach()) if half else 0.0)
    (goal,) = torch.autograd.grad(expected, z, g.double())
    exact = expected.detach().to(scores.dtype)  # a weight at the edge of the support has either gradient
    if half:  # the weights have been rounded; some to zero
        q = torch.where(exact > 0, exact.double() ** (2 - alpha), 0)
        goal = q * (g - (q * g).sum(-1, keepdim=True) / q.sum(-1, keepdim=True).clamp(min=1e-30))
    within(gpu.entmax_gradient(exact, g, alpha), goal, (seed, "gradient"), rounded(goal) if half else 0.0)


def check_operators() -> None:
    """The operators of torch.library with the kernels behind them, as CUDA tensors have them."""
    gpu.applies, gpu.weighs = lambda x: not isinstance(x.seed, torch.Tensor), lambda x, alpha: 1 <= alpha <= 2
    made = gpu.attend
    calls = []
    gpu.attend = lambda x: calls.append(x) or made(x)
    kernels.is_direct = lambda x: False
    # CPU tensors take what CUDA tensors would
    sparse_attention._stream.register_kernel("cpu")(sparse_attention._stream_on_device)
    sparse_attention._stream_gradient.register_kernel("cpu")(sparse_attention._gradient_on_device)
    simplex._entmax_rows.register_kernel("cpu")(simplex._rows_on_device)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float16, 2e-3), (torch.bfloat16, 2e-2)):
        generator = torch.Generator().manual_seed(0)
        parts = [torch.randn(1, m, n, 8, generator=generator).to(dtype) for m, n in ((2, 9), (1, 20), (1, 20))]
        leaves, doubles = ([part.to(t).detach().requires_grad_() for part in parts] for t in (dtype, torch.float64))
        options = {"transform": "entmax", "alpha": 1.3, "enable_gqa": True}
        context = sparse_attention.stream_attention(Attending(*leaves, 1.3, 1.0, None, False, 8**-0.5))
        expected = fv.scaled_dot_product_attention(*doubles, **options, return_weights=True)[0]
        assert len(calls) > 0
        assert context.dtype == dtype
        assert float((context - expected).detach().abs().max()) < tolerance * 3
        for a, b in zip(
            torch.autograd.grad(context.sum(), leaves), torch.autograd.grad(expected.sum(), doubles), strict=True
        ):
            assert a.dtype == dtype
            assert float((a - b).abs().max()) < tolerance * 10
    scores = torch.randn(3, 40, requires_grad=True)
    made_rows, gpu.entmax = gpu.entmax, lambda x, alpha: calls.append(x) or made_rows(x, alpha)
    count, weights = len(calls), fv.entmax(scores, 1.5)
    assert len(calls) == count + 1
    expected = fv.entmax(scores.double(), 1.5, dim=-1)
    torch.testing.assert_close(weights.double(), expected, rtol=0, atol=1e-5)


def interpret(first: int, last: int) -> None:
    """What a process with TRITON_INTERPRET=1 does."""
    for seed in range(first, last):
        check_case(seed)
        check_rows(seed)


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, CASES, 26))
def test_kernels_in_the_interpreter(first):
    """208 cases of attention and as many of rows, in processes that set the variable before triton is imported."""
    code = f"from tests.ops.kernels.test_gpu import interpret; interpret({first}, {first + 26})"
    run_interpreted(code)


@needs_triton
@pytest.mark.slow
def test_operators_with_kernels_behind_them():
    run_interpreted("from tests.ops.kernels.test_gpu import check_operators; check_operators()")


def run_interpreted(code: str) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]


@needs_triton
def test_registered_for_cuda_where_triton_is():
    for name in ("stream", "stream_gradient", "entmax_rows"):
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"foveate::{name}", "CUDA")


# A program's registers per thread and its shared memory on sm_80, sm_90 and gfx942.
TARGETS = {("cuda", 80): (255, 163 * 1024), ("cuda", 90): (255, 227 * 1024), ("hip", "gfx942"): (512, 64 * 1024)}
NAMES = ("rows_forward", "rows_backward", "attend_forward", "attend_backward_query", "attend_backward_key")
TENSORS = (
    "query",
    "key",
    "value",
    "gradient",
    "to_query",
    "to_key",
    "to_value",
    "context",
    "scores",
    "weights",
    "result",
)
SINGLES = ("alphas", "coolings", "state", "to_alpha", "to_cooling", "mask")


def compile_for(name: str, backend: str, arch: int | str, dtype: str, width: int):
    """The kernel with every option, compiled for a card."""
    import triton
    from triton.backends.compiler import GPUTarget

    function = gpu.kernels()[name]
    sizes = gpu.block_sizes(width, width, dtype != "fp32", backend == "hip")
    sizes = gpu.row_sizes(4096) if name.startswith("rows") else sizes
    constants = {"KIND": 3, "MASK": 2, "CAUSAL": True, "DROPOUT": True, "OPTIONS": True, "STEPS": gpu.STEPS, **sizes}
    constants["NEAR"] = gpu.NEAR
    options = {key: constants.pop(key) for key in ("num_warps", "num_stages") if key in constants}
    constants = {key: value for key, value in constants.items() if key in function.arg_names}
    kinds = dict.fromkeys(TENSORS, f"*{dtype}") | dict.fromkeys(SINGLES, "*fp32")
    kinds |= dict.fromkeys(("scale", "lowest", "dropout"), "fp32") | dict.fromkeys(constants, "constexpr")
    signature = {name: kinds.get(name, "i32") for name in function.arg_names}
    source = triton.compiler.ASTSource(fn=function, signature=signature, constexprs=constants)
    target = GPUTarget(backend, arch, 64 if backend == "hip" else 32)
    return triton.compile(source, target=target, options=options)


def resources(compiled, backend: str) -> dict[str, int]:
    """Registers per thread, bytes that spill to memory, and bytes of shared memory."""
    import triton

    if backend == "hip":
        # scalar registers spill to lanes of vector registers, and to memory only with a private segment
        text = compiled.asm["amdgcn"]
        keys = ("vgpr_count", "vgpr_spill_count", "private_segment_fixed_size")
        found = {key: int(re.search(rf"\.{key}:\s+(\d+)", text)[1]) for key in keys}
        registers, *spilled = found.values()
        return {"registers": registers, "spilled": sum(spilled), "shared": compiled.metadata.shared}
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    path = Path(os.environ["FOVEATE_CUBIN"])
    path.write_bytes(compiled.asm["cubin"])
    text = subprocess.run([tool, "-res-usage", path], capture_output=True, text=True, check=True).stdout
    registers, stack, _, local = map(int, re.search(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", text).groups())
    return {"registers": registers, "spilled": stack + local, "shared": compiled.metadata.shared}


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype", "width"),
    [
        (name, dtype, width)
        for dtype, width in (("fp32", 64), ("fp16", 64), ("fp16", 128))
        for name in NAMES
        if width == 64 or not name.startswith("rows")  # which have no features
    ],
)
@pytest.mark.parametrize(("backend", "arch"), TARGETS, ids=str)
def test_machine_code_without_spills(name, backend, arch, dtype, width, tmp_path, monkeypatch):
    monkeypatch.setenv("FOVEATE_CUBIN", str(tmp_path / "kernel.cubin"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
    found = resources(compile_for(name, backend, arch, dtype, width), backend)
    registers, shared = TARGETS[backend, arch]
    assert found["spilled"] == 0, found
    assert found["registers"] <= registers, found
    assert found["shared"] <= shared, found
