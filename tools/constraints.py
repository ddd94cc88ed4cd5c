"""Renew constraints.txt: install everything that `make` installs into an empty environment and pin what came.

    python tools/constraints.py

torch stays at the version that constraints.txt names; all other packages are taken at their newest version that fits.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "constraints.txt"
EXTRAS = "dev,studio,bench,docs,tensorboard,search,hf,scale,mlflow"
TOOLS = ("playwright",)
# These two hold for every Python; the other pins are for the versions of Python that have wheels of all of them.
ALWAYS = ("torch", "ruff", "mypy")
MARKER = 'python_version >= "3.11"'
HEADER = """\
# Every package that `make` installs, at the version it was tested with; `make constraints` renews this file.
# torch: a plain package index serves the CUDA build of this version on Linux (several gigabytes). The CPU build of the
# same version comes from PyTorch's own "cpu" index, see "Start locally" on the PyTorch site.
"""


def torch_pin() -> str:
    """The line that pins torch."""
    return next(line for line in FILE.read_text(encoding="utf-8").splitlines() if line.startswith("torch=="))


def frozen(directory: Path) -> list[str]:
    """What pip installs into an empty environment, as `name==version`."""
    venv.create(directory, with_pip=True)
    pip = [str(directory / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
    pin = directory / "torch.txt"
    pin.write_text(torch_pin() + "\n", encoding="utf-8")
    subprocess.run([*pip, "install", "--quiet", "-c", str(pin), f"{ROOT}[{EXTRAS}]", *TOOLS], check=True)
    subprocess.run([*pip, "check"], check=True)
    listed = subprocess.run([*pip, "freeze", "--exclude", "foveate"], check=True, capture_output=True, text=True)
    return [line for line in listed.stdout.splitlines() if "==" in line]


def constraint(line: str) -> str:
    """A line of constraints.txt.

    >>> constraint("numpy==2.4.0")
    'numpy==2.4.0 ; python_version >= "3.11"'
    """
    # The CPU build names itself 2.13.0+cpu; the pin holds for every build.
    name, _, version = line.partition("==")
    public = version.partition("+")[0]
    return f"{name}=={public}" if name.lower() in ALWAYS else f"{name}=={public} ; {MARKER}"


def main() -> None:
    with TemporaryDirectory() as directory:
        lines = frozen(Path(directory))
    FILE.write_text(
        HEADER + "".join(constraint(line) + "\n" for line in sorted(lines, key=str.lower)), encoding="utf-8"
    )
    print(f"{len(lines)} packages pinned in {FILE.name}", file=sys.stderr)


if __name__ == "__main__":
    main()
