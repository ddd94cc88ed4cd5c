"""The examples run."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def load_example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow  # inductor compiles for a minute
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_foveate_in_a_model_of_ones_own():
    report = load_example("own_model").main()
    assert report["loss"] < 1.6 < math.inf
    assert 1 < report["alpha"] <= 2
    assert report["alpha"] != pytest.approx(1.5, abs=1e-4)
    assert report["maps"] == pytest.approx(8, abs=1e-4)
    for check in ("compiled", "state dict", "export"):
        assert report[check] < 1e-4, check
