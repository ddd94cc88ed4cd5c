"""Every transform compiles with the default backend, inductor: without graph breaks, cold, and to the same numbers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from foveate.ops import TRANSFORMS
from tests.cases import NAMES, N, call, draw

ROOT = Path(__file__).resolve().parents[2]
# Importing inductor, torch uses what it has itself deprecated.
inductor = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


def check_compiled(names: list[str]) -> None:
    """Weights and gradients of transforms compiled together agree with those computed eagerly afterwards."""
    mask, direction = torch.arange(N) % 5 > 0, draw(3, N, seed=11)

    def weigh(scores: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
        return [call(TRANSFORMS[name], scores, mask) for name in names]

    torch._dynamo.reset()
    scores = draw(3, N, seed=10).requires_grad_()
    compiled = torch.compile(weigh, fullgraph=True)(scores, mask)
    gradients = [torch.autograd.grad(w, scores, direction, retain_graph=True)[0] for w in compiled]
    for name, weights, gradient in zip(names, compiled, gradients, strict=True):
        expected = call(TRANSFORMS[name], scores, mask)
        torch.testing.assert_close(weights, expected, msg=name)
        torch.testing.assert_close(gradient, torch.autograd.grad(expected, scores, direction)[0], msg=name)


@inductor
def test_all_transforms_compile_in_one_graph():
    with torch._inductor.config.patch(compile_threads=1):
        check_compiled(NAMES)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_compiles_in_a_fresh_process(name):
    script = f"from tests.contract.test_compile import check_compiled; check_compiled([{name!r}])"
    settings = {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    run = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=os.environ | settings, stderr=subprocess.PIPE)
    assert run.returncode == 0, run.stderr.decode()
