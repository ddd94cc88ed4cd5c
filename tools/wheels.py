"""Build the source distribution and both wheels, and try each wheel in an empty environment outside the clone.

python tools/wheels.py dist
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

LIBRARY = """
import torch, foveate as fv
from foveate.ops import kernels
weights = fv.tvmax(torch.randn(2, 7, 7, requires_grad=True))
weights.square().sum().backward()
seen = fv.mechanism("multimodal").eval()(torch.randn(2, 49), torch.randn(2, 49, 8), grid=(7, 7))
print("foveate", fv.__version__, "kernels:", kernels.unit())
"""
LAB = """
import torch, foveate as fv
answer = fv.load("scenes-vqa").answer(torch.zeros(112, 112, 3, dtype=torch.uint8).numpy(), "Is there a circle?")
print("answer:", answer.text)
"""


def run(*command: str | Path, cwd: Path = ROOT, **environment: str) -> None:
    """Run a command and fail with it."""
    subprocess.run([str(part) for part in command], cwd=cwd, check=True, env={**os.environ, **environment})


def build(out: Path) -> list[Path]:
    """The source distribution, and from it a wheel with native kernels and one without."""
    run(sys.executable, "-m", "build", "--sdist", "--outdir", out, ROOT)
    (source,) = out.glob("foveate-*.tar.gz")
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", out, source)
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", out, source, FOVEATE_PURE="1")
    run(sys.executable, "-m", "twine", "check", "--strict", *out.glob("foveate-*"))
    return sorted(out.glob("foveate-*.whl"))


def try_out(wheel: Path) -> None:
    """Install a wheel in an empty environment and use it from an empty directory."""
    with tempfile.TemporaryDirectory() as name:
        empty = Path(name)
        run(sys.executable, "-m", "venv", empty / "env")
        python = empty / "env" / ("Scripts" if os.name == "nt" else "bin") / "python"
        install = (python, "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt")
        run(*install, wheel, cwd=empty)
        run(python, "-c", LIBRARY, cwd=empty)
        alone = subprocess.run(
            [python, "-m", "foveate", "demo"], cwd=empty, capture_output=True, text=True, check=False
        )
        assert alone.returncode == 1, alone
        assert alone.stderr.count("\n") == 1, alone
        assert 'pip install "foveate[lab]"' in alone.stderr, alone
        run(*install, f"{wheel}[lab]", cwd=empty)
        run(python, "-c", LAB, cwd=empty)
        run(python, "-m", "foveate", "doctor", cwd=empty)
        run(python, "-m", "foveate", "list", "mechanisms", cwd=empty)


def main() -> None:
    """Build and try."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="directory for the distributions")
    out = parser.parse_args().out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    for wheel in build(out):
        print(f"trying {wheel.name}", flush=True)
        try_out(wheel)


if __name__ == "__main__":
    main()
