"""The options of mechanisms: one source for repr, listing and page."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from foveate import MECHANISMS, mechanism
from foveate.apps.cli import main
from foveate.attention import options_table

PAGE = Path(__file__).resolve().parents[2] / "docs" / "plug-in.md"


@pytest.mark.parametrize("name", list(MECHANISMS))
def test_every_option_is_listed_taken_and_explained(name):
    options = {option.name: option for option in MECHANISMS[name].options}
    assert "temperature" in options
    for option in options.values():
        assert len(option.meaning) > 5, option
        assert option.kind
        if option.name != "edges":
            mechanism(name, **{option.name: option.default})
    shown = repr(mechanism(name))
    for option in options.values():
        if option.name not in ("edges", "learnable", "heads", "transform"):
            assert f"{option.name}={option.default!r}" in shown, option
    for row in options_table():
        if row[0] in options and row[3] in ("all", name):
            assert row[1:3] == (options[row[0]].kind, repr(options[row[0]].default)) or row[2] == "required"


def test_edges_are_an_option():
    mechanism("gfusedmax", edges=torch.tensor([[0, 1]]))


def test_the_command_lists_them(capsys):
    assert main(["list", "mechanisms"]) == 0
    out = capsys.readouterr().out
    assert "smoothness" in out
    assert "max_components" in out


def test_the_page_holds_the_table():
    """It is pasted into the page; the assertion prints what to paste."""
    head = "| option | type | default | mechanisms | meaning |\n|---|---|---|---|---|"
    cells = [[cell.replace("|", r"\|") for cell in row] for row in options_table()]
    table = "\n".join([head, *(f"| `{o}` | {k} | `{d}` | {m} | {text} |" for o, k, d, m, text in cells)])
    assert table in PAGE.read_text(encoding="utf-8"), table
