"""Recipes: paper settings and small ones, each a function that returns a complete `Recipe`; and the table of them."""

from collections.abc import Callable

from foveate.recipes.captioning import CAPTIONING_RECIPES
from foveate.recipes.matching import MATCHING_RECIPES
from foveate.recipes.recipe import Field, Recipe, from_config, override, recipe_fields, to_config
from foveate.recipes.run import read_run, train_recipe
from foveate.recipes.vqa import VQA_RECIPES

RECIPES: dict[str, Callable[[], Recipe]] = {**VQA_RECIPES, **CAPTIONING_RECIPES, **MATCHING_RECIPES}

__all__ = [
    "RECIPES",
    "Field",
    "Recipe",
    "from_config",
    "override",
    "read_run",
    "recipe_fields",
    "to_config",
    "train_recipe",
]
