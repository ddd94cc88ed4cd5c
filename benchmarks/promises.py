"""Run the long checks of docs/promises.md one after the other and report which ones hold.

    python benchmarks/promises.py [NAME ...]

Every check is a command of its own, so that one that fails does not end the others. About 45 minutes on two busy cores.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from time import perf_counter

HERE = Path(__file__).parent
SLOW = ["-m", "pytest", "-q", "-m", "slow or not slow"]
CHECKS: dict[str, list[str]] = {
    "40 kills": [str(HERE / "faults.py"), "--kills", "40"],
    "500 graphs": [str(HERE / "graph_programs.py")],
    "haze": [str(HERE / "planted.py")],
    "eight symmetries": [*SLOW, "tests/ops/test_mixture_choice.py"],
    "double backward": [*SLOW, "tests/contract", "-k", "(gradgrad or second or double) and not compile"],
    "compile": [*SLOW, "tests/contract/test_compile.py", "tests/contract/test_compile_mechanisms.py"],
    "files": ["-m", "pytest", "-q", "tests", "-k", "fuzz or flipped or damaged"],
    "hostile clients": [str(HERE / "studio_load.py"), "--clients", "12", "--hostile", "4", "--seconds", "120"],
}


def run(name: str) -> bool:
    """Run one check and print its last lines."""
    start = perf_counter()
    environment = os.environ | {"FOVEATE_FUZZ": "20", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *CHECKS[name]], cwd=HERE.parent, env=environment, capture_output=True, text=True, check=False
    )
    print(f"== {name}: {'holds' if done.returncode == 0 else 'FAILS'} ({perf_counter() - start:.0f} s)")
    print("\n".join((done.stdout + done.stderr).splitlines()[-8:]), flush=True)
    return done.returncode == 0


def main() -> None:
    names = sys.argv[1:] or list(CHECKS)
    held = [run(name) for name in names]
    print(f"\n{sum(held)} of {len(held)} promises hold")
    raise SystemExit(0 if all(held) else 1)


if __name__ == "__main__":
    main()
