"""The README's tables are those of the registry and of the kept benchmarks, and its links lead somewhere."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def tables():
    spec = importlib.util.spec_from_file_location("tables", ROOT / "docs" / "tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", tables().PAGES, ids=lambda page: page.name)
def test_tables_are_up_to_date(page):
    text = page.read_text(encoding="utf-8")
    assert tables().fill(text) == text, "run python docs/tables.py"


def test_a_new_mechanism_would_be_noticed(monkeypatch):
    import foveate as fv

    monkeypatch.setitem(fv.MECHANISMS, "another", fv.MECHANISMS["softmax"])
    assert tables().fill(README) != README


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("http") or (ROOT / target).exists(), target


def test_readme_is_short():
    assert README.count("\n") <= 120


def test_the_description_of_the_package_has_no_dead_links():
    settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    rules = re.findall(r"^pattern = '(.*)'\nreplacement = [\"'](.*)[\"']$", settings, flags=re.MULTILINE)
    assert len(rules) == 2
    text = README
    for pattern, replacement in rules:
        text = re.sub(pattern, replacement, text)
    assert not re.search(r"\]\((?!https?:)", text)
    assert "Installation (`docs/install.md`)" in text
