"""Every reader answers every mutated file by DataError or reads it without harm. `FUZZ=20000` for a longer run."""

from __future__ import annotations

import os

import pytest

from tests.data.fuzz import CASES, fuzz

COUNT = int(os.environ.get("FUZZ", "200"))


@pytest.mark.parametrize("name", CASES)
def test_mutated_files_raise_data_errors(name: str) -> None:
    outcomes = fuzz(name, COUNT)
    assert outcomes["DataError"] > COUNT // 20  # the mutations reach what is checked
