"""What CONTRIBUTING says about adding a transform, done in a temporary package: one file and one row."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from foveate.apps.cli import main
from foveate.ops import TRANSFORMS, Transform
from tests.contract import test_transforms as transform_laws
from tests.ops import test_fenchel_young as loss_laws

ROOT = Path(__file__).resolve().parent.parent.parent
NAME = "blendmax"
MODULE = '''"""Half softmax, half sparsemax."""

from __future__ import annotations

from torch import Tensor

from foveate.ops.simplex import softmax, sparsemax


def blendmax(scores: Tensor, blend: float = 0.5, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """Weights between dense and sparse: every location counts, the best ones more than with softmax.

    `p = β softmax(z) + (1 − β) sparsemax(z)`

    Args and returns as in `softmax`; `blend` is β in [0, 1].
    """
    return blend * softmax(scores, dim, mask) + (1 - blend) * sparsemax(scores, dim, mask)
'''
# No regulariser is known, and messages come from the function that checks the scores.
ROW = 'Transform(blendmax, summary="half softmax, half sparsemax", reference="this test", name="softmax")'


def laws(module: ModuleType) -> list[Any]:
    """The laws of a contract, with what each of them is run on besides the name of the row."""
    found = []
    for name, law in vars(module).items():
        if not name.startswith("test_") or "name" not in inspect.signature(law).parameters:
            continue
        marks = getattr(law, "pytestmark", [])
        axes = [mark.args for mark in marks if mark.name == "parametrize" and mark.args[0] != "name"]
        others = [mark for mark in marks if mark.name != "parametrize"]
        for values in product(*(choices for _, choices in axes)):
            options = dict(zip((axis for axis, _ in axes), values, strict=True))
            found.append(pytest.param(law, options, marks=others, id="-".join([name, *map(str, values)])))
    return found


@pytest.fixture
def row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Transform:
    """The new row, in the table for one test."""
    (tmp_path / f"{NAME}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    module = importlib.import_module(NAME)
    made: Transform = eval(ROW, {"Transform": Transform, **vars(module)})
    monkeypatch.setitem(TRANSFORMS, NAME, made)
    # the contract lists them when it is imported
    monkeypatch.setattr(transform_laws, "WITH_DIM", [*transform_laws.WITH_DIM, NAME])
    return made


@pytest.mark.usefixtures("row")
@pytest.mark.parametrize(("law", "options"), laws(transform_laws))
def test_the_laws_of_transforms_hold(law: Callable[..., None], options: dict[str, Any]) -> None:
    law(name=NAME, **options)


@pytest.mark.usefixtures("row")
@pytest.mark.parametrize(("law", "options"), [law for law in laws(loss_laws) if "no_examples" not in str(law.id)])
def test_without_a_regulariser_the_laws_of_losses_say_so(law: Callable[..., None], options: dict[str, Any]) -> None:
    with pytest.raises(pytest.skip.Exception, match=f"{NAME} has no regulariser, so it has no Fenchel-Young loss"):
        law(name=NAME, **options)


@pytest.mark.usefixtures("row")
def test_it_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "transforms"]) == 0
    assert f"{NAME}" in (out := capsys.readouterr().out)
    assert "half softmax, half sparsemax (this test)" in out


def test_broken_transforms_are_noticed(row: Transform, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Transform(lambda scores, mask=None: row.function(scores, mask=mask) * 1.001)
    monkeypatch.setitem(TRANSFORMS, NAME, broken)
    with pytest.raises(AssertionError):
        transform_laws.test_rows_lie_on_the_simplex(NAME)


def test_the_row_alone_makes_it_a_mechanism(tmp_path: Path) -> None:
    """In a fresh process, where the table is complete before anything reads it."""
    (tmp_path / f"{NAME}.py").write_text(MODULE)
    script = f"""
import torch
from foveate.ops import TRANSFORMS, Transform
from {NAME} import {NAME}
TRANSFORMS["{NAME}"] = {ROW}
from foveate import MECHANISMS, mechanism
from foveate.lab.recipes import RECIPES
from foveate.lab.train import override
out = mechanism("{NAME}", blend=0.25)(torch.randn(2, 6), torch.randn(2, 6, 3), grid=(2, 3))
assert out.map().shape == (2, 2, 3) and out.context.shape == (2, 3)
assert MECHANISMS["{NAME}"].summary == "half softmax, half sparsemax"
made = override(RECIPES["vqa-mcan-scenes"](), ["mechanism={NAME}", "mechanism_options.blend=0.25"])
assert made.settings.attention().options == {{"blend": 0.25, "temperature": 1.0}}
"""
    environment = {"PYTHONPATH": f"{tmp_path}:{ROOT}", "OMP_NUM_THREADS": "1", "PATH": ""}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
