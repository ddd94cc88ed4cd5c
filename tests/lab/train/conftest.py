from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from foveate.lab.recipes import RECIPES
from foveate.lab.tasks import TASKS
from foveate.lab.train import Recipe
from tests.lab.train.toy import Toy, toy_net_points


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def toy_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "toy", Toy)
    monkeypatch.setitem(RECIPES, "toy-net-points", toy_net_points)


@pytest.fixture
def recipe() -> Recipe:
    return toy_net_points()
