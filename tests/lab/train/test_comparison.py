"""The plan of a comparison."""

from __future__ import annotations

from pathlib import Path

from foveate.lab.recipes import RECIPES
from foveate.lab.train.comparison import CURVE_POINTS, plan_comparison


def test_every_training_of_a_comparison_has_a_curve() -> None:
    base = RECIPES["vqa-mcan-scenes"]()
    planned = list(plan_comparison(base, Path("runs"), ["softmax", "tvmax"], finetune=1, scratch=["tvmax"]))
    assert [one.label for one in planned] == ["softmax", "tvmax", "tvmax from scratch"]
    assert {one.recipe.training.curve_points for one in planned} == {CURVE_POINTS}
