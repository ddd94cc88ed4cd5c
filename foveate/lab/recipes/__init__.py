"""Recipes: the settings of the papers and smaller ones, each a function that returns a complete `Recipe`."""

from collections.abc import Callable

from foveate.recipes.captioning_recipes import CAPTIONING_RECIPES
from foveate.recipes.folder_recipes import FOLDER_RECIPES
from foveate.recipes.matching_recipes import MATCHING_RECIPES
from foveate.recipes.paper_recipes import PAPER_RECIPES
from foveate.recipes.vqa_recipes import VQA_RECIPES
from foveate.train.recipe import Recipe

RECIPES: dict[str, Callable[[], Recipe]] = {
    **VQA_RECIPES,
    **CAPTIONING_RECIPES,
    **MATCHING_RECIPES,
    **PAPER_RECIPES,
    **FOLDER_RECIPES,
}

__all__ = ["RECIPES"]
