"""Every reader raises DataError for a mutated file or reads it without harm. `FOVEATE_FUZZ=20` for a longer run."""

from __future__ import annotations

import pytest

from tests.lab.data.fuzz import CASES, fuzz
from tests.mutations import rounds

COUNT = rounds(200)


@pytest.mark.parametrize("name", CASES)
def test_mutated_files_raise_data_errors(name: str) -> None:
    outcomes = fuzz(name, COUNT)
    assert outcomes["DataError"] > COUNT // 20  # the mutations reach what is checked
