"""Errors, checks and tables: what they say."""

from __future__ import annotations

import pytest
import torch

from foveate.checks import check_floating, check_number, check_shape
from foveate.errors import MissingExtra, ShapeError, UnknownName
from foveate.registry import lookup, optional


def test_lookup_names_the_nearest():
    assert lookup("fruit", "pear", {"pear": 1}) == 1
    with pytest.raises(UnknownName, match="fruit: expected a known name, got 'paer'; did you mean 'pear'"):
        lookup("fruit", "paer", {"pear": 1, "fig": 2})
    with pytest.raises(UnknownName, match="use one of fig, pear"):
        lookup("fruit", "zzzzzz", {"pear": 1, "fig": 2})


def test_missing_extras_say_how_to_install():
    with pytest.raises(MissingExtra, match=r'pip install "foveate\[studio\]"'):
        optional("studio", "no_such_module_at_all", extra="studio")


def test_an_error_inside_an_extra_is_not_hidden(tmp_path, monkeypatch):
    (tmp_path / "broken_extra.py").write_text("import no_such_dependency")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency"):
        optional("x", "broken_extra", extra="x")


def test_check_number():
    check_number("f", "n", 1, least=0, advice="a")
    for bad in (-1, float("nan"), "1", True, None):
        with pytest.raises(ValueError, match=r"f: expected n >= 0, got .*; a"):
            check_number("f", "n", bad, least=0, advice="a")


def test_check_shape_and_floating():
    with pytest.raises(
        ShapeError, match=r"f: expected x \(B, D\) of sizes \(any, 3\), got \(2, 4\); reshape or pad it"
    ):
        check_shape("f", "x", torch.zeros(2, 4), (None, 3), "(B, D)")
    with pytest.raises(TypeError, match=r"f: expected x as a tensor, got list; wrap it in torch\.as_tensor"):
        check_floating("f", "x", [1.0])
