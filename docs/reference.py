"""Writes the pages of the reference: one per package, with every public name. `conf.py` runs it before a build."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

DIRECTORY = Path(__file__).parent / "reference"

PACKAGES: dict[str, str] = {
    "foveate": "the names that most programs need, as `import foveate as fv` provides them",
    "foveate.ops": "transforms, densities, value functions, mixtures: pure functions",
    "foveate.attention": "mechanisms over scores and values",
    "foveate.plot": "figures of where a model looks",
    "foveate.watch": "where any torch model looks",
    "foveate.hf": "other attention in Hugging Face models",
    "foveate.models": "networks and the settings that build them",
    "foveate.encoders": "images and text to vectors",
    "foveate.losses": "training objectives",
    "foveate.metrics": "evaluation metrics and statistics",
    "foveate.data": "samples, readers of published formats, the feature store",
    "foveate.tasks": "question answering, captioning, matching",
    "foveate.train": "recipes, the training loop, the directory of a run",
    "foveate.recipes": "the settings of the papers and smaller ones",
    "foveate.tables": "the tables of the papers and the runs behind them",
    "foveate.authors": "checkpoints that the authors of papers published",
    "foveate.search": "an index of vectors, nearest neighbours, re-ranking",
    "foveate.rating": "blinded studies in which people rate captions and attention maps",
    "foveate.report": "an HTML report of runs",
    "foveate.hub": "loading and sharing runs",
    "foveate.export": "runs and models for other runtimes",
    "foveate.io": "atomic writes, locks, JSON",
    "foveate.features": "the features of a batch of images",
    "foveate.errors": "what is raised",
}


def public_names(package: str) -> list[str]:
    """The public names of a package: `__all__`, or what a module defines without an underscore."""
    module = import_module(package)
    if hasattr(module, "__all__"):
        return sorted(module.__all__, key=str.lower)
    own = [name for name, thing in vars(module).items() if getattr(thing, "__module__", None) == package]
    return sorted((name for name in own if not name.startswith("_")), key=str.lower)


def page(package: str) -> str:
    """The page of a package. A name that `foveate` itself has is described there, and only linked elsewhere."""
    module = import_module(package)
    lines = [f"# {package}", "", f"{PACKAGES[package][0].upper()}{PACKAGES[package][1:]}.", ""]
    if inspect.getdoc(module) and package != "foveate":
        lines += [inspect.getdoc(module) or "", ""]
    for name in public_names(package):
        thing = getattr(module, name)
        if package != "foveate" and getattr(import_module("foveate"), name, None) is thing:
            lines += [f"`{package}.{name}` is {{py:obj}}`foveate.{name}`.", ""]
        else:
            lines += ["```{eval-rst}", *_directive(f"{package}.{name}", thing), "```", ""]
    return "\n".join(lines)


def _directive(path: str, thing: Any) -> list[str]:
    if isinstance(thing, ModuleType):
        return [f".. py:module:: {path}", "   :no-index:"]
    if inspect.isclass(thing):
        return [f".. autoclass:: {path}", "   :members:"]
    if inspect.isroutine(thing):
        return [f".. autofunction:: {path}"]
    if isinstance(thing, Mapping):
        return [f".. py:data:: {path}", "", f"   A table with the rows {', '.join(f'`{key}`' for key in thing)}."]
    return [f".. py:data:: {path}", "", f"   `{thing!r}`" if len(repr(thing)) < 80 else "   A constant."]


def index() -> str:
    """The first page: the packages, each with what it holds."""
    rows = [f"| [{package}]({package}.md) | {about} |" for package, about in PACKAGES.items()]
    toc = ["```{toctree}", ":hidden:", "", *PACKAGES, "```"]
    return "\n".join(["# Reference", "", "| package | contents |", "|---|---|", *rows, "", *toc, ""])


def write() -> None:
    """Write all pages."""
    DIRECTORY.mkdir(exist_ok=True)
    for path in DIRECTORY.glob("*.md"):
        path.unlink()
    (DIRECTORY / "index.md").write_text(index(), encoding="utf-8")
    for package in PACKAGES:
        (DIRECTORY / f"{package}.md").write_text(page(package), encoding="utf-8")


if __name__ == "__main__":
    write()
