"""The Python of README and of the documentation runs as printed, and the reference holds every public name.

The blocks of a page share one namespace and run in order in an empty directory. `<!-- setup: CODE -->` before a block
runs first and is not shown; `<!-- not run: WHY -->` skips the block that follows.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
PARTS = re.compile(r"<!-- (setup|not run): ?(.*?)-->|^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def blocks(text: str) -> list[tuple[int, str]]:
    """Line and code of every part that runs: what is set up before a block, and the blocks themselves."""
    found, skip = [], False
    for part in PARTS.finditer(text):
        kind, hidden, shown = part.groups()
        if kind == "not run":
            assert hidden.strip(), f"say why the block after line {_line(text, part.start())} is not run"
            skip = True
            continue
        if kind == "setup" or not skip:
            found.append((_line(text, part.start(3 if shown else 2)), hidden if kind else shown))
        skip = skip and kind == "setup"
    return found


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position)


PYTHON_PAGES = [page for page in PAGES if "```python" in page.read_text(encoding="utf-8")]


@pytest.mark.parametrize("page", PYTHON_PAGES, ids=lambda page: page.name)
def test_blocks_run_as_printed(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib.pyplot as plt

    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": page.stem}
    for line, code in blocks(page.read_text(encoding="utf-8")):
        # as many empty lines as come before it: errors name the line of the page
        exec(compile("\n" * line + code, str(page), "exec"), namespace)
    plt.close("all")


def test_marks_before_blocks() -> None:
    block = "```python\n{}\n```\n".format
    text = f"<!-- setup: x = 1 -->\n{block('y = x')}<!-- not run: needs a GPU -->\n{block('boom')}{block('z')}"
    assert [code.strip() for _, code in blocks(text)] == ["x = 1", "y = x", "z"]
    assert blocks(text)[1][0] == 2


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", DOCS / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_holds_every_public_name(reference: ModuleType) -> None:
    folders = [path.parent.relative_to(ROOT / "foveate") for path in ROOT.glob("foveate/**/__init__.py")]
    shown = {".".join(("foveate", *folder.parts)) for folder in folders if len(folder.parts) < 3}
    unlisted = shown - set(reference.PACKAGES)
    assert unlisted == {
        "foveate.lab",
        "foveate.lab.papers",
        "foveate.apps",
        "foveate.apps.cli",
        "foveate.apps.studio",
        "foveate.ops.kernels",
    }
    for package in reference.PACKAGES:
        page = reference.page(package)
        for name in reference.public_names(package):
            assert re.search(rf"(:: |`){re.escape(package)}\.{name}\b", page), f"{package}.{name}"


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)#\s]+)", text):
            if not re.match(r"[a-z]+:", target) and not target.startswith("reference/"):
                assert (page.parent / target).exists(), f"{page.name}: {target}"
