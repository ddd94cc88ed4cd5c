"""Two processes against one with the double batch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from foveate.errors import DataError, FoveateError
from foveate.lab.train import SGD, Recipe, evaluate, train_recipe
from foveate.lab.train.processes import make_accelerator
from foveate.lab.train.weights import WEIGHTS, load_tensors
from tests.lab.train.forks import in_processes
from tests.lab.train.toy import changed


@pytest.mark.parametrize("optimiser", [None, SGD(0.3, momentum=0.9)], ids=["adam", "sgd"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_two_processes_equal_one_with_the_double_batch(
    recipe: Recipe, optimiser: SGD | None, accumulate: int, tmp_path: Path
) -> None:
    """In float64, with an uneven last batch, clipping and accumulation; dropout would differ by process."""
    still = changed(recipe, settings={"dropout": 0.0, "noise": 0.0, "count": 101}, epochs=2, clip=0.5)
    if optimiser is not None:
        still = changed(still, optimiser=optimiser)
    double = changed(still, batch_size=2 * still.training.batch_size, accumulate=accumulate)
    halves = changed(still, accumulate=accumulate)
    train_recipe(double, tmp_path / "one", progress=False)
    codes = in_processes(2, lambda: _ignore(train_recipe(halves, tmp_path / "two", progress=False)))
    assert codes == [0, 0]
    for name, tensor in load_tensors(tmp_path / "one" / WEIGHTS)[0].items():
        torch.testing.assert_close(load_tensors(tmp_path / "two" / WEIGHTS)[0][name], tensor, rtol=0, atol=1e-12)
    one, two = (json.loads((tmp_path / name / "metrics.json").read_text()) for name in ("one", "two"))
    assert one == two
    assert one["best"]["metrics"]["count"] == 51


def test_processes_draw_different_random_numbers(recipe: Recipe, tmp_path: Path) -> None:
    """With noise the two differ from one with the double batch, where one draw serves all."""
    noisy = changed(recipe, settings={"dropout": 0.0, "noise": 1.0}, steps=1, optimiser=SGD(1.0))
    train_recipe(changed(noisy, batch_size=16), tmp_path / "one", progress=False)
    assert in_processes(2, lambda: _ignore(train_recipe(noisy, tmp_path / "two", progress=False))) == [0, 0]
    one, two = (load_tensors(tmp_path / name / WEIGHTS)[0]["last.bias"] for name in ("one", "two"))
    assert not torch.allclose(one, two)


def test_another_number_of_processes_cannot_go_on(recipe: Recipe, tmp_path: Path) -> None:
    codes = in_processes(2, lambda: _ignore(train_recipe(changed(recipe, epochs=1), tmp_path, progress=False)))
    assert codes == [0, 0]
    with pytest.raises(DataError, match=r"expected 2 process\(es\) with 7 steps .* got 1 with 13; use as many"):
        train_recipe(recipe, tmp_path, resume=True, progress=False)


def test_running_means_are_the_same_on_all_processes(recipe: Recipe, tmp_path: Path) -> None:
    """Each process has seen other examples; the evaluation must use one set of means, the one that is saved."""
    recipe = changed(recipe, settings={"norm": True}, epochs=2)
    assert in_processes(2, lambda: _ignore(train_recipe(recipe, tmp_path, progress=False))) == [0, 0]
    from foveate.lab.hub import load

    run = load(tmp_path)
    measured = evaluate(run.task, run.model, run.task.examples("val", None))
    assert measured == json.loads((tmp_path / "metrics.json").read_text())["best"]["metrics"]


def test_one_accelerator_among_several_processes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    make_accelerator()
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(FoveateError, match="train: expected 2 processes working together, got 1; start with torchrun"):
        make_accelerator()


def _ignore(value: object) -> None:
    return None
