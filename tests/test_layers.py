"""Imports point down: the syntax trees show every arrow, and only the allowed ones pass."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent / "foveate"
COMMON = {"errors", "registry", "checks"}
DATA = {"ops", "data"}
LOW = {"ops", "data", "attention", "losses", "encoders", "metrics", "plot", "models"}
ALLOWED = {
    "ops": set(),
    "data": {"ops"},
    "attention": {"ops"},
    "losses": {"ops"},
    "encoders": DATA,
    "metrics": DATA,
    "plot": {"ops", "attention"},
    "models": {"ops", "attention", "encoders"},
    "tasks": LOW,
    "search": LOW,
    "train": LOW | {"tasks"},
    "recipes": LOW | {"tasks", "train"},
    "report": LOW | {"tasks", "train", "recipes", "hub"},
    "hub": LOW | {"tasks", "train", "recipes", "search"},
}
TOP = {"cli", "studio", "hf"}


def imported(path: Path) -> set[str]:
    """Names of our packages that the file imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("foveate.")}
    return found


def layers() -> dict[str, set[str]]:
    """What each package or single file at the top of foveate imports of the others."""
    arrows: dict[str, set[str]] = {}
    for path in sorted(ROOT.rglob("*.py")):
        layer = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if layer not in ("__init__", "__main__"):
            arrows.setdefault(layer, set()).update(imported(path))
    return arrows


@pytest.mark.parametrize(("layer", "targets"), layers().items())
def test_imports_point_down(layer, targets):
    if layer in TOP:
        return
    allowed = COMMON if layer in COMMON else ALLOWED[layer] | COMMON
    assert targets - {layer} <= allowed, f"{layer} may not import {sorted(targets - {layer} - allowed)}"


def test_nobody_imports_the_top():
    for layer, targets in layers().items():
        assert layer in TOP or not targets & TOP, layer


def test_the_reader_sees_arrows(tmp_path):
    file = tmp_path / "x.py"
    file.write_text("def f():\n    from foveate.models import mcan\nimport foveate.data.vqa\n")
    assert imported(file) == {"models", "data"}


def test_relative_imports_are_not_used():
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            assert not (isinstance(node, ast.ImportFrom) and node.level), path
