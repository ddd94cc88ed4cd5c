"""The library in an environment that holds nothing but its own dependencies."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
DOCTESTS = """
import doctest, importlib, pkgutil, sys, warnings
warnings.simplefilter("error")
import foveate
flags = doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL
names = [one.name for one in pkgutil.walk_packages(foveate.__path__, "foveate.")
         if not one.name.startswith(("foveate.lab", "foveate.apps", "foveate.__main__")) and "_native" not in one.name]
tried = failed = 0
for name in names:
    found = doctest.testmod(importlib.import_module(name), optionflags=flags)
    tried, failed = tried + found.attempted, failed + found.failed
print(len(names), tried)
sys.exit(failed > 0)
"""


def requirements() -> list[str]:
    """The dependencies of the library as pyproject.toml lists them."""
    block = re.search(r"\ndependencies = \[(.*?)\n\]", PROJECT, re.DOTALL)
    assert block is not None
    return re.findall(r'"([^"]+)"', block[1])


def closure(names: list[str]) -> set[str]:
    """The installed distributions that these need, with those that they need."""
    found: set[str] = set()
    waiting = [Requirement(name) for name in names]
    while waiting:
        needed = waiting.pop()
        name = re.sub(r"[-_.]+", "-", needed.name).lower()
        if name in found or (needed.marker and not needed.marker.evaluate({"extra": ""})):
            continue
        try:
            more = metadata.distribution(name).requires or []
        except metadata.PackageNotFoundError:
            continue  # CUDA packages, where torch is the build for CPUs
        found.add(name)
        waiting += map(Requirement, more)
    return found


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with links to the packages of the library's dependencies, and to foveate itself."""
    place = tmp_path_factory.mktemp("alone")
    for name in closure(requirements()):
        distribution = metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")}:
            source = Path(str(distribution.locate_file(top)))
            if source.exists() and not (place / top).exists():
                (place / top).symlink_to(source)
    (place / "foveate").symlink_to(ROOT / "foveate")
    return place


def run(alone: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python with the standard library and that directory."""
    environment = {**os.environ, "PYTHONPATH": str(alone), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-S", *arguments]  # without site-packages
    return subprocess.run(command, cwd=alone, env=environment, capture_output=True, text=True, check=False)


def test_the_library_needs_four_packages() -> None:
    assert [Requirement(name).name for name in requirements()] == ["torch", "numpy", "pillow", "matplotlib"]
    assert not closure(requirements()) & {
        "h5py",
        "accelerate",
        "safetensors",
        "tyro",
        "tqdm",
        "rich",
        "huggingface-hub",
    }


def test_every_doctest_of_the_library_passes_alone(alone: Path) -> None:
    done = run(alone, "-c", DOCTESTS)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    modules, examples = map(int, done.stdout.split()[-2:])
    assert modules > 80
    assert examples > 200


def test_the_command_line_names_the_extra(alone: Path) -> None:
    done = run(alone, "-m", "foveate", "demo")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert 'pip install "foveate[lab]"' in done.stderr


def test_load_names_the_extra(alone: Path) -> None:
    done = run(alone, "-c", "import foveate as fv; fv.load('scenes-vqa')")
    assert done.stderr.strip().splitlines()[-1].startswith("foveate.errors.MissingExtra: ")
    assert 'pip install "foveate[lab]"' in done.stderr
