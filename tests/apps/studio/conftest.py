"""Runs that have learnt nothing, for pages that need one."""

from __future__ import annotations

import pytest

from tests.untrained import make_untrained


@pytest.fixture
def untrained(tmp_path):
    """`untrained(recipe, name)` puts a run into the directory of the runs."""
    return lambda recipe, name: make_untrained(tmp_path / name, recipe)
