"""The options of mechanisms: one source for repr, listing and page."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from foveate import MECHANISMS, mechanism
from foveate.apps.cli import main
from foveate.attention import mechanism_options, options_markdown

PAGE = Path(__file__).resolve().parents[2] / "docs" / "plug-in.md"


@pytest.mark.parametrize("name", list(MECHANISMS))
def test_every_option_is_listed_taken_and_explained(name):
    options = {option.name: option for option in mechanism_options(name)}
    assert "temperature" in options
    for option in options.values():
        assert len(option.meaning) > 5, option
        assert "as in `" not in option.meaning, option
        assert option.kind
        if option.name != "edges":
            mechanism(name, **{option.name: option.default})
    shown = repr(mechanism(name))
    for option in options.values():
        if option.name not in ("edges", "learnable", "heads", "transform"):
            assert f"{option.name}={option.default!r}" in shown, option


def test_edges_are_an_option():
    mechanism("gfusedmax", edges=torch.tensor([[0, 1]]))


def test_the_command_lists_them(capsys):
    assert main(["list", "mechanisms"]) == 0
    out = capsys.readouterr().out
    assert "smoothness" in out
    assert "training_iterations" in out or "training" in out


def test_the_page_holds_the_table():
    assert options_markdown() in PAGE.read_text(encoding="utf-8"), "paste foveate.attention.options_markdown()"


@pytest.mark.parametrize("name", MECHANISMS)
def test_the_row_knows_every_option(name):
    assert {option.name for option in mechanism_options(name)} <= MECHANISMS[name].options
