"""The plan of a comparison, and the folds of a cross-validation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from foveate.lab.recipes import RECIPES
from foveate.lab.train import Recipe, comparison, override
from foveate.lab.train.comparison import CURVE_POINTS, plan_comparison
from foveate.lab.train.records import Evaluation, History


def test_every_training_of_a_comparison_has_a_curve() -> None:
    base = RECIPES["vqa-mcan-scenes"]()
    planned = list(plan_comparison(base, Path("runs"), ["softmax", "tvmax"], finetune=1, scratch=["tvmax"]))
    assert [one.label for one in planned] == ["softmax", "tvmax", "tvmax from scratch"]
    assert {one.recipe.training.curve_points for one in planned} == {CURVE_POINTS}


def test_a_cross_validation_holds_every_image_out_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def train(recipe: Recipe, out: Path, **options: object) -> History:
        asked.append((recipe.settings.fold, recipe.settings.folds, out.name))
        number = float(recipe.settings.fold)
        return History("accuracy", (Evaluation(1, 1.0, {"accuracy": number, "r@1": 100.0 * number}),))

    monkeypatch.setattr(comparison, "train_recipe", train)
    base = override(RECIPES["captioning-folder"](), ["folds=3"])
    found = comparison.cross_validate(base, tmp_path)
    assert asked == [(0, 3, "fold-0"), (1, 3, "fold-1"), (2, 3, "fold-2")]
    assert found.mean == {"accuracy": 1.0, "r@1": 100.0}
    assert found.spread["accuracy"] == pytest.approx(1.0)
    assert json.loads((tmp_path / "folds.json").read_text())["mean"] == found.mean
