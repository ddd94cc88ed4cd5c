"""kill -9 at chosen moments, while writing too: the next start goes on and ends as if nothing had happened."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from foveate import io as writing
from foveate.lab.train import Recipe, train_recipe, weights
from foveate.lab.train.weights import CHECKPOINT
from tests.lab.train.forks import die, in_child, in_processes
from tests.lab.train.test_loop import assert_same
from tests.lab.train.toy import Toy, changed


@pytest.fixture
def recipe(recipe: Recipe) -> Recipe:
    return changed(recipe, settings={"norm": True}, epochs=2, batch_size=16, save_every=0.0)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.lab.train.toy import register, toy_net_points

    directory = tmp_path_factory.mktemp("whole")
    made = changed(toy_net_points(), settings={"norm": True}, epochs=2, batch_size=16, save_every=0.0)

    def train() -> None:
        register()
        train_recipe(made, directory, progress=False)

    assert in_child(train) == 0
    return directory


def half_written(call: int) -> None:
    """Die when half of the bytes of the n-th file of tensors are there."""
    save, count = weights.write_tensors, itertools.count(1)

    def dying(tensors, path, notes) -> None:
        save(tensors, path, notes)
        if next(count) == call:
            os.truncate(path, path.stat().st_size // 2)
            die()

    weights.write_tensors = dying


def around_rename(call: int, *, before: bool) -> None:
    """Die right before or right after the n-th file gets its name."""
    rename, count = os.replace, itertools.count(1)

    def dying(temporary, path) -> None:
        now = next(count) == call
        if not (now and before):
            rename(temporary, path)
        if now:
            die()

    writing.os.replace = dying


def in_loss(call: int) -> None:
    """Die in the middle of the n-th step."""
    loss, count = Toy.loss, itertools.count(1)

    def dying(self, model, batch, step):
        if next(count) == call:
            die()
        return loss(self, model, batch, step)

    Toy.loss = dying


def in_evaluation(call: int) -> None:
    """Die at the n-th batch of an evaluation."""
    predict, count = Toy.predict, itertools.count(1)

    def dying(self, model, batch):
        if next(count) == call:
            die()
        return predict(self, model, batch)

    Toy.predict = dying


MOMENTS: dict[str, Callable[[], None]] = {
    "first step": lambda: in_loss(1),
    "second epoch": lambda: in_loss(10),
    "last step": lambda: in_loss(14),
    "first evaluation": lambda: in_evaluation(2),
    "last evaluation": lambda: in_evaluation(6),
    "first tensors half written": lambda: half_written(1),
    "best weights half written": lambda: half_written(8),
    "later checkpoint half written": lambda: half_written(11),
    **{f"before rename {n}": (lambda n=n: around_rename(n, before=True)) for n in (1, 2, 3, 4, 5, 8, 12, 13, 20)},
    **{f"after rename {n}": (lambda n=n: around_rename(n, before=False)) for n in (1, 3, 6, 11, 12, 13, 22)},
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_kill_changes_nothing(recipe: Recipe, moment: str, whole: Path, tmp_path: Path) -> None:
    def killed() -> None:
        MOMENTS[moment]()
        train_recipe(recipe, tmp_path, resume=True, progress=False)

    assert in_child(killed) == -signal.SIGKILL, "the moment never came"
    train_recipe(recipe, tmp_path, resume=True, progress=False)
    assert_same(whole, tmp_path)
    assert not list(tmp_path.glob(".*.tmp"))


def test_many_kills_in_a_row_change_nothing(recipe: Recipe, whole: Path, tmp_path: Path) -> None:
    def killed() -> None:
        in_loss(3)
        train_recipe(recipe, tmp_path, resume=True, progress=False)

    codes = []
    while not codes or codes[-1] != 0:
        codes.append(in_child(killed))
    assert codes == [-signal.SIGKILL] * 6 + [0]
    assert_same(whole, tmp_path)


def test_two_processes_go_on_after_a_kill_too(recipe: Recipe, tmp_path: Path) -> None:
    def train(directory: Path) -> Callable[[], None]:
        return lambda: _ignore(train_recipe(recipe, directory, resume=True, progress=False))

    def killed() -> None:
        in_loss(4 if os.environ["RANK"] == "1" else 5)
        signal.alarm(20)  # the other process waits for the dead one; torchrun would end it
        train(tmp_path / "cut")()

    assert in_processes(2, train(tmp_path / "whole")) == [0, 0]
    assert in_processes(2, killed)[1] == -signal.SIGKILL
    assert (tmp_path / "cut" / CHECKPOINT).exists()
    assert in_processes(2, train(tmp_path / "cut")) == [0, 0]
    assert_same(tmp_path / "whole", tmp_path / "cut")


def _ignore(value: object) -> None:
    return None
