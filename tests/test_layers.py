"""Imports point down: the syntax trees show every arrow, and only those to lower floors and rows pass.

An arrow leads to the layer that defines a name, and a name must be imported from that layer: a layer that merely
imports a name does not pass it on. A string that names a module of foveate is an arrow too.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent / "foveate"
# The floors of docs/architecture.md, and in each the packages, lower ones first. A package may import the floors below
# its own, and on its own floor the rows before its own.
FLOORS: dict[str, tuple[tuple[str, ...], ...]] = {
    "small": (("errors", "signals"), ("registry", "checks"), ("io",)),
    "library": (("ops",), ("attention", "metrics"), ("plot",), ("watch",), ("hf", "export")),
    "lab": (
        ("lab",),
        ("lab.features", "lab.losses"),
        ("lab.data",),
        ("lab.metrics",),
        ("lab.encoders",),
        ("lab.models",),
        ("lab.tasks", "lab.search"),
        ("lab.train",),
        ("lab.papers.paper_recipes",),
        ("lab.recipes", "lab.hub"),
        ("lab.papers", "lab.papers.tables", "lab.papers.authors", "lab.papers.rating"),
    ),
    "apps": (("apps", "apps.report"), ("apps.studio", "apps.cli")),
}
_ROWS = [(floor, row, names) for floor, rows in enumerate(FLOORS.values()) for row, names in enumerate(rows)]
ORDER = {layer: (floor, row) for floor, row, names in _ROWS for layer in names}
LIBRARY = {layer for name in ("small", "library") for row in FLOORS[name] for layer in row}
# What these may import on their own row besides.
BESIDE = {"apps.cli": {"apps.studio"}, "apps.studio": set[str](), "lab.papers.rating": {"lab.papers.tables"}}
THIRD_PARTY = {"torch", "numpy", "PIL", "matplotlib"}


MODULE = re.compile(r"foveate(\.\w+)+(:\w+)?")


def _imported_at_once(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Imports outside functions and outside `if TYPE_CHECKING`."""
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from ((alias.name.split(".")[0], node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").split(".")[0], node.lineno
        elif isinstance(node, ast.If | ast.Try | ast.With) and "TYPE_CHECKING" not in ast.dump(
            getattr(node, "test", node)
        ):
            waiting += [*node.body, *getattr(node, "orelse", ())]


@dataclass
class Module:
    """What one file defines and imports.

    Attributes:
        defined: names bound by def, class or assignment, wherever in the file.
        imports: (bound name, module, name in that module or None for the module itself, line).
        attributes: (variable, attribute, line) of every `variable.attribute`.
        strings: (module, line) of every string "foveate.module" or "foveate.module:name" that is not a docstring.
        others: first parts of the packages of others that are imported when the file is, and the line.
    """

    defined: set[str] = field(default_factory=set)
    imports: list[tuple[str, str, str | None, int]] = field(default_factory=list)
    attributes: list[tuple[str, str, int]] = field(default_factory=list)
    strings: list[tuple[str, int]] = field(default_factory=list)
    others: list[tuple[str, int]] = field(default_factory=list)

    @classmethod
    def parse(cls, text: str) -> Module:
        module, tree = cls(), ast.parse(text)
        module.others = list(_imported_at_once(tree))
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and MODULE.fullmatch(node.value):
                module.strings.append((node.value.split(":")[0], node.lineno))
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
    """The longest row of `FLOORS` that a module belongs to, "" for foveate itself."""
    parts = module.split(".")[1:]
    while parts and ".".join(parts) not in ORDER:
        parts.pop()
    return ".".join(parts)


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
    for named, line in content.strings:
        yield named, named, line


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
    """True when a layer may import another one."""
    if layer in BESIDE and target in BESIDE[layer]:
        return True
    return ORDER[target] < ORDER[layer]


LAYERS = sorted({layer_of(name) for name in modules()} - {""})


def test_every_module_has_a_floor() -> None:
    homeless = [name for name in modules() if not layer_of(name) and name not in ("foveate", "foveate.__main__")]
    assert not homeless
    assert set(LAYERS) <= set(ORDER)


@pytest.mark.parametrize("layer", LAYERS)
def test_imports_point_down(layer: str) -> None:
    found = [
        text for name, content in modules().items() if layer_of(name) == layer for text in violations(name, content)
    ]
    assert not found, "\n".join(found)


def test_the_library_imports_its_own_dependencies_alone() -> None:
    known = THIRD_PARTY | {"foveate"} | set(sys.stdlib_module_names)
    for name, content in modules().items():
        if layer_of(name) in LIBRARY:
            assert not [one for one in content.others if one[0] not in known], name


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
    (
        "foveate.lab.data.x",
        "def f():\n    from foveate.lab.models.mcan import MCAN",
        "lab.data may not import lab.models",
    ),
    ("foveate.lab.data.x", "import foveate.lab.models.mcan", "lab.data may not import lab.models"),
    ("foveate.ops.x", "import foveate.attention.fits", "ops may not import attention"),
    ("foveate.watch.x", "from foveate.lab.data.samples import Dataset", "watch may not import lab.data"),
    ("foveate.attention.x", 'f("foveate.plot.sheets:to_png")', "attention may not import plot"),
    ("foveate.lab.tasks.x", 'f("foveate.apps.studio.ask_page")', "lab.tasks may not import apps.studio"),
    (
        "foveate.lab.models.x",
        "from foveate.lab.encoders.image_encoder import ImageFeatures",
        "not through foveate.lab.enc",
    ),
    (
        "foveate.lab.models.x",
        "from foveate.lab.encoders import image_encoder as e\ne.ImageFeatures",
        "not through foveate",
    ),
    (
        "foveate.lab.tasks.x",
        "from foveate.lab.encoders.image_encoder import ShapeError",
        "which defines it, not through",
    ),
    ("foveate.io", "from foveate.lab.data.samples import Caption", "io may not import lab.data"),
    ("foveate.errors", "from foveate.checks import check_mask", "errors may not import checks"),
]


@pytest.mark.parametrize(("module", "text", "message"), SAMPLES)
def test_the_reader_sees_arrows(module: str, text: str, message: str) -> None:
    (found,) = violations(module, Module.parse(text))
    assert message in found


def test_the_reader_accepts_what_is_allowed() -> None:
    lines = ("from foveate.lab.encoders import ConvEncoder", "from foveate.lab.features import ImageFeatures")
    assert not list(violations("foveate.lab.models.x", Module.parse("\n".join((*lines, "import foveate.ops")))))


def test_relative_imports_are_not_used() -> None:
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            assert not (isinstance(node, ast.ImportFrom) and node.level), path
