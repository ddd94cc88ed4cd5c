"""Imports point down: the syntax trees show every arrow, and only the allowed ones pass.

An arrow leads to the layer that defines a name, and a name must be imported from that layer: a layer that merely
imports a name does not pass it on.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent / "foveate"
COMMON = {"errors", "registry", "checks", "io", "features"}
LOW = {"ops", "data", "attention", "losses", "encoders", "metrics", "plot", "models"}
BELOW_HUB = LOW | {"tasks", "search", "train"}
BELOW_CLI = BELOW_HUB | {"recipes", "authors", "tables", "hub", "watch", "report", "rating"}
# What each layer may import besides `errors`, `registry`, `checks`, `io` and `features`: the table of STYLE.md.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "registry": set(),
    "checks": set(),
    "io": set(),
    "features": set(),
    "ops": set(),
    "data": {"ops"},
    "attention": {"ops"},
    "losses": {"ops"},
    "encoders": {"ops", "data"},
    "metrics": {"ops", "data"},
    "plot": {"ops", "attention"},
    "models": {"ops", "attention", "encoders"},
    "watch": {"ops", "data", "attention", "metrics", "plot"},
    "tasks": LOW,
    "search": LOW,
    "train": LOW | {"tasks"},
    "recipes": LOW | {"tasks", "train"},
    "authors": LOW | {"tasks", "train"},
    "hub": BELOW_HUB,
    "export": BELOW_HUB | {"hub"},
    "tables": BELOW_HUB | {"recipes", "hub"},
    "report": BELOW_CLI - {"report", "rating"},
    "rating": BELOW_CLI - {"rating"},
}
# Common modules are for all, but among themselves only these arrows exist.
AMONG_COMMON = {"errors": set(), "registry": {"errors"}, "checks": {"errors"}}
TOP = {"cli", "studio", "hf"}


@dataclass
class Module:
    """What one file defines and imports.

    Attributes:
        defined: names bound by def, class or assignment, wherever in the file.
        imports: (bound name, module, name in that module or None for the module itself, line).
        attributes: (variable, attribute, line) of every `variable.attribute`.
    """

    defined: set[str] = field(default_factory=set)
    imports: list[tuple[str, str, str | None, int]] = field(default_factory=list)
    attributes: list[tuple[str, str, int]] = field(default_factory=list)

    @classmethod
    def parse(cls, text: str) -> Module:
        module = cls()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                module.defined.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                module.defined.add(node.id)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    module.imports.append((alias.asname or alias.name, alias.name, None, node.lineno))
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                for alias in node.names:
                    module.imports.append((alias.asname or alias.name, node.module, alias.name, node.lineno))
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                module.attributes.append((node.value.id, node.attr, node.lineno))
        module.imports = [one for one in module.imports if one[1].split(".")[0] == "foveate"]
        return module


@cache
def modules() -> dict[str, Module]:
    """Every module of foveate by its dotted name."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = ("foveate", *path.relative_to(ROOT).with_suffix("").parts)
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = Module.parse(path.read_text(encoding="utf-8"))
    return found


def layer_of(module: str) -> str:
    """The package or file at the top of foveate that a module belongs to, "" for foveate itself."""
    return [*module.split("."), ""][1]


def definition(module: str, name: str | None) -> str:
    """The module that defines a name, followed through every module that imports it from another one."""
    if name is None:
        return module
    if f"{module}.{name}" in modules():
        return f"{module}.{name}"
    if name in modules()[module].defined:
        return module
    for bound, origin, original, _ in modules()[module].imports:
        if bound == name:
            return definition(origin, original)
    return module


def uses(module: str, content: Module) -> Iterator[tuple[str, str, int]]:
    """Per use of another module: the module named, the module that defines what is used, and the line."""
    bound: dict[str, str] = {}
    for name, origin, original, line in content.imports:
        home = definition(origin, original)
        if original is not None and f"{origin}.{original}" == home:  # a module imported from its package
            bound[name] = home
            yield home, home, line
        else:
            if original is None:
                bound[name] = origin
            yield origin, home, line
    for variable, attribute, line in content.attributes:
        if variable in bound and variable not in content.defined:
            yield bound[variable], definition(bound[variable], attribute), line


def violations(module: str, content: Module) -> Iterator[str]:
    """Arrows of one module that the table does not allow."""
    layer = layer_of(module)
    for named, home, line in uses(module, content):
        via, target = layer_of(named), layer_of(home)
        where = f"{module}, line {line}"
        if target not in {layer, ""} and not allowed(layer, target):
            yield f"{where}: {layer} may not import {target} ({home})"
        elif via not in {target, layer} and via:
            yield f"{where}: import from {home}, which defines it, not through {named}"


def allowed(layer: str, target: str) -> bool:
    """True when the table lets a layer import from another one."""
    if layer in TOP:
        return True
    if layer in AMONG_COMMON:
        return target in AMONG_COMMON[layer]
    if layer in COMMON:
        return target in {"errors", "checks"}
    return target in ALLOWED[layer] | COMMON


@pytest.mark.parametrize("layer", sorted({layer_of(name) for name in modules()} - {"", "__main__"}))
def test_imports_point_down(layer: str) -> None:
    found = [
        text for name, content in modules().items() if layer_of(name) == layer for text in violations(name, content)
    ]
    assert not found, "\n".join(found)


def test_nobody_imports_the_top() -> None:
    for name, content in modules().items():
        targets = {layer_of(home) for _, home, _ in uses(name, content)}
        assert layer_of(name) in TOP | {"", "__main__"} or not targets & TOP, name


def test_a_package_only_passes_on_its_own_names() -> None:
    """`__init__` re-exports what its package defines; it neither defines functions nor passes on other layers."""
    for name, content in modules().items():
        if not (ROOT / Path(*name.split(".")[1:]) / "__init__.py").is_file() or name == "foveate":
            continue
        for bound, origin, original, line in content.imports:
            home = layer_of(definition(origin, original))
            exported = bound in exported_names(name)
            assert not (exported and home != layer_of(name)), f"{name}, line {line} passes on {bound} of {home}"


def exported_names(package: str) -> set[str]:
    """The names in a package's `__all__`."""
    tree = ast.parse((ROOT / Path(*package.split(".")[1:]) / "__init__.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            return set(ast.literal_eval(node.value))
    return set()


SAMPLES = [
    ("foveate.data.x", "def f():\n    from foveate.models.mcan import MCAN", "data may not import models"),
    ("foveate.data.x", "import foveate.models.mcan", "data may not import models"),
    ("foveate.models.x", "from foveate.encoders.image_encoder import ImageFeatures", "not through foveate.encoders"),
    ("foveate.models.x", "from foveate.encoders import image_encoder as e\ne.ImageFeatures", "not through foveate.enc"),
    ("foveate.tasks.x", "from foveate.encoders.stored import ShapeError", "which defines it, not through"),
    ("foveate.io", "from foveate.data.samples import Box", "io may not import data"),
    ("foveate.errors", "from foveate.checks import check_mask", "errors may not import checks"),
]


@pytest.mark.parametrize(("module", "text", "message"), SAMPLES)
def test_the_reader_sees_arrows(module: str, text: str, message: str) -> None:
    (found,) = violations(module, Module.parse(text))
    assert message in found


def test_the_reader_accepts_what_is_allowed() -> None:
    text = "from foveate.encoders import ConvEncoder\nfrom foveate.features import ImageFeatures\nimport foveate.ops"
    assert not list(violations("foveate.models.x", Module.parse(text)))


def test_relative_imports_are_not_used() -> None:
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            assert not (isinstance(node, ast.ImportFrom) and node.level), path
