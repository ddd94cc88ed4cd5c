"""A reader who follows a call meets few files, and never has to climb back up the packages."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from foveate.ops import kernels

DOCS = Path(__file__).resolve().parent.parent / "docs"
MOST = {"answer": 28, "train": 52, "search": 33, "tvmax": 12}
SLOW = ("train", "search")


@pytest.fixture(scope="module")
def walks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("walks", DOCS / "walks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in MOST])
def test_a_walk_visits_few_files_and_never_goes_up(walks: ModuleType, name: str) -> None:
    walk = walks.run(name)
    assert len(walk.files) <= MOST[name], walk.files
    assert not walk.upward
    if name == "tvmax" and kernels.unit() is not None:
        return  # the page shows the walk through torch
    page = (DOCS / "architecture.md").read_text(encoding="utf-8")
    assert walks.as_markdown(name, walk) in page, "run python docs/walks.py --write"


def test_every_walk_has_a_bound(walks: ModuleType) -> None:
    assert set(walks.WALKS) == set(MOST)


def test_the_tracer_sees_calls_and_what_goes_up(walks: ModuleType) -> None:
    import torch

    from foveate.ops import sparsemax

    with walks.traced() as walk:
        sparsemax(torch.zeros(3))
    assert walk.files[0] == "ops/simplex.py"
    assert walk.upward == []
    assert walks._rank("ops/simplex.py") < walks._rank("lab/tasks/vqa/task.py") < walks._rank("apps/cli/main.py")
