"""One name per thing: no two modules and no two public classes of one name, except the files of a task's room."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent / "foveate"
ROOM = {"task.py", "settings.py", "data.py", "constraints.py", "predictor.py", "report.py"}


def test_modules_have_different_names() -> None:
    places = defaultdict(list)
    for path in ROOT.rglob("*.py"):
        if path.name != "__init__.py" and not (path.name in ROOM and path.is_relative_to(ROOT / "lab" / "tasks")):
            places[path.name].append(path.relative_to(ROOT))
    assert not {name: found for name, found in places.items() if len(found) > 1}


def test_public_classes_have_different_names() -> None:
    places = defaultdict(list)
    for path in ROOT.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(path.relative_to(ROOT))
    assert not {name: found for name, found in places.items() if len(found) > 1}
    # names that differ in case alone are no better
    assert len({name.lower() for name in places}) == len(places)


def test_the_words_of_the_field() -> None:
    """The field says image; `picture` is a word of the sentences of Scenes."""
    for path in ROOT.rglob("*.py"):
        for line in path.read_text(encoding="utf-8").splitlines():
            known = path.parent.name == "scenes"
            assert known or "picture" not in line.lower(), f"{path}: {line}"
