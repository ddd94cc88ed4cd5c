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
    "foveate.lab.models": "networks and the settings that build them",
    "foveate.lab.encoders": "images and text to vectors",
    "foveate.lab.losses": "training objectives",
    "foveate.metrics": "metrics of attention maps, and statistics",
    "foveate.lab.metrics": "metrics of answers, captions and retrieval",
    "foveate.lab.data": "samples, readers of published formats, the feature store",
    "foveate.lab.tasks": "question answering, captioning, matching",
    "foveate.lab.train": "recipes, the training loop, the directory of a run",
    "foveate.lab.recipes": "the settings of the papers and smaller ones",
    "foveate.lab.papers.tables": "the tables of the papers and the runs behind them",
    "foveate.lab.papers.authors": "checkpoints that the authors of papers published",
    "foveate.lab.search": "an index of vectors, nearest neighbours, re-ranking",
    "foveate.lab.papers.rating": "blinded studies in which people rate captions and attention maps",
    "foveate.apps.report": "an HTML report of runs",
    "foveate.lab.hub": "loading and sharing runs",
    "foveate.export": "runs and models for other runtimes",
    "foveate.io": "atomic writes, locks, JSON",
    "foveate.lab.features": "the features of a batch of images",
    "foveate.errors": "what is raised",
}

# Classes that stand in signatures and results but are imported from their own file.
MENTIONED: dict[str, tuple[str, ...]] = {
    "foveate.lab.papers.authors": ("foveate.lab.papers.authors.conversion.Origin",),
    "foveate.lab.models": ("foveate.lab.models.answering.Reading",),
    "foveate.metrics": ("foveate.metrics.statistics.PairedDifference",),
    "foveate.lab.papers.rating": (
        "foveate.lab.papers.rating.study.Item",
        "foveate.lab.papers.rating.study.Entry",
        "foveate.lab.papers.rating.study.RatedWord",
    ),
    "foveate.lab.tasks": (
        "foveate.lab.tasks.vqa.VQASettings",
        "foveate.lab.tasks.captioning.CaptioningSettings",
        "foveate.lab.tasks.matching.MatchingSettings",
        "foveate.lab.tasks.matching.settings.Ranking",
        "foveate.lab.tasks.presentation.Presentation",
        "foveate.lab.tasks.presentation.Measure",
        "foveate.lab.tasks.presentation.DrawnExample",
        "foveate.lab.tasks.presentation.Rated",
    ),
    "foveate.watch": ("foveate.watch.places.Setting",),
}

# The pages and notebooks that show a package at work.
GUIDES: dict[str, tuple[str, ...]] = {
    "foveate": ("tutorials/plug-in.ipynb", "plug-in.md"),
    "foveate.ops": ("tutorials/mathematics.ipynb", "transforms.md", "continuous.md"),
    "foveate.attention": ("tutorials/plug-in.ipynb", "plug-in.md"),
    "foveate.plot": ("plots.md",),
    "foveate.watch": ("tutorials/watch.ipynb", "watch.md", "models.md"),
    "foveate.hf": ("tutorials/watch.ipynb", "watch.md"),
    "foveate.lab.models": ("training.md", "matching.md", "captioning.md"),
    "foveate.lab.encoders": ("features.md",),
    "foveate.lab.losses": ("training.md", "matching.md"),
    "foveate.metrics": ("results-vqa.md", "watch.md"),
    "foveate.lab.data": ("tutorials/own-data.ipynb", "own-data.md", "scenes.md"),
    "foveate.lab.tasks": ("training.md",),
    "foveate.lab.train": ("tutorials/train.ipynb", "training.md"),
    "foveate.lab.recipes": ("tutorials/train.ipynb", "training.md", "reproduce.md"),
    "foveate.lab.papers.tables": ("reproduce.md",),
    "foveate.lab.papers.authors": ("import-run.md",),
    "foveate.lab.search": ("searching.md",),
    "foveate.lab.papers.rating": ("rate.md",),
    "foveate.apps.report": ("demo.md",),
    "foveate.lab.hub": ("tutorials/own-data.ipynb", "training.md"),
    "foveate.export": ("plug-in.md",),
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
    module, top = import_module(package), import_module("foveate")
    # the module is a target; the names below are written with their whole path
    target = ["```{eval-rst}", f".. py:module:: {package}", ".. py:currentmodule:: None", "```"]
    lines = [f"# {package}", "", *target, "", f"{PACKAGES[package][0].upper()}{PACKAGES[package][1:]}.", ""]
    if inspect.getdoc(module) and package != "foveate":
        lines += [inspect.getdoc(module) or "", ""]
    if package in GUIDES:
        lines += ["Guides: " + ", ".join(f"[](../{guide})" for guide in GUIDES[package]) + ".", ""]
    for name in public_names(package):
        thing = getattr(module, name)
        if package != "foveate" and name in top.__all__ and getattr(top, name) is thing:
            lines += [f"`{package}.{name}` is {{py:obj}}`foveate.{name}`.", ""]
        else:
            lines += ["```{eval-rst}", *_directive(f"{package}.{name}", thing), "```", ""]
    if package in MENTIONED:
        lines += ["## Classes in signatures and results", ""]
        lines += [f"```{{eval-rst}}\n.. autoclass:: {path}\n   :members:\n```\n" for path in MENTIONED[package]]
    return "\n".join(lines)


def _directive(path: str, thing: Any) -> list[str]:
    if isinstance(thing, ModuleType):
        return [f"`{path}` is a module of its own: :py:mod:`{path}`."]
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
