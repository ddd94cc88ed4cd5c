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


def test_the_first_block_asks_what_is_there_and_prints_the_right_answer(tmp_path, monkeypatch, capsys):
    """The objects of the question are in the image, their sizes give its answer, and the run answers it."""
    monkeypatch.chdir(tmp_path)
    block = re.search(r"```python\n(.*?)```", README, flags=re.DOTALL)[1]
    shown = {}
    exec(block, shown)
    question, objects = shown["question"], shown["data"].objects_of(shown["question"].image_id)
    red = {"colour": "red", "texture": "dotted"}
    squares = [one for one in objects if one.name == "square" and red.items() <= one.attributes.items()]
    stars = [one for one in objects if one.name == "star"]
    assert (len(squares), len(stars)) == (1, 1)
    assert question.text == "Which is larger, the spotted red square or the star?"
    assert question.text in block
    sizes = [(one.box.x1 - one.box.x0) * (one.box.y1 - one.box.y0) for one in (*squares, *stars)]
    assert (question.answer == "square") == (sizes[0] > sizes[1])
    printed = re.search(r"print\(answer.*?# (.*)", block)[1]
    assert capsys.readouterr().out.strip() == printed == f"{question.answer} {shown['answer'].confidence:.2f}"
    # the maps are worth showing: each mechanism but one Gaussian looks at both objects
    region = question.region()
    on_objects = {
        name: float(one.map(112, 112)[0].numpy()[region].sum()) / region.mean() for name, one in shown["maps"].items()
    }
    assert min(on_objects["tvmax"], on_objects["multimodal"]) > 5 > 1
    assert Path("attention.png").stat().st_size > 10_000


def test_the_readme_shows_an_image_then_two_commands_then_python_then_tables():
    places = [README.index(mark) for mark in ("![", "make demo", "```python", "<!-- mechanisms -->")]
    assert places == sorted(places)
    commands = re.search(r"```\n(.*?)```", README, flags=re.DOTALL)[1]
    assert commands.count("\n") == 2
