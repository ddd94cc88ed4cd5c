"""The pages on plots and densities: their snippets run, and their figures are there and small."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = ("plots", "continuous")


@pytest.mark.parametrize("page", PAGES)
def test_snippets_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # what a snippet writes
    snippets = re.findall(r"```python\n(.*?)```", (DOCS / f"{page}.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(snippets) >= 6
    names: dict[str, object] = {}
    for snippet in snippets:
        exec(snippet, names)


@pytest.mark.parametrize("page", PAGES)
def test_figures_are_there_and_small(page: str) -> None:
    figures = re.findall(r"!\[[^]]+\]\((.+?)\)", (DOCS / f"{page}.md").read_text(encoding="utf-8"))
    assert figures
    for figure in figures:
        assert 0 < (DOCS / figure).stat().st_size < 150_000


def test_every_figure_has_a_page_and_every_page_its_figures() -> None:
    """What `docs/figures.py` draws, what is kept and what the pages show are the same."""
    drawn = set(re.findall(r'^    "([a-z-]+)": ', (DOCS / "figures.py").read_text(encoding="utf-8"), re.MULTILINE))
    kinds = [*(f"{kind}-*" for kind in ("plot", "density")), "look", "showcase", "length"]
    kept = {path.stem for kind in kinds for path in (DOCS / "images").glob(f"{kind}.png")}
    pages = "".join((DOCS / f"{page}.md").read_text(encoding="utf-8") for page in PAGES)
    others = "".join((DOCS / page).read_text(encoding="utf-8") for page in ("performance.md", "../README.md"))
    shown = set(re.findall(r"images/([a-z-]+)\.png", pages))
    assert drawn == kept == shown | {name for name in kinds[2:] if f"images/{name}.png" in others}
