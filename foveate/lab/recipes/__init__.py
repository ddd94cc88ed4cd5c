"""Recipes: the settings of the papers and smaller ones, each a function that returns a complete `Recipe`."""

from collections.abc import Callable

from foveate.lab.papers.paper_recipes import PAPER_RECIPES
from foveate.lab.recipes.captioning_recipes import CAPTIONING_RECIPES
from foveate.lab.recipes.folder_recipes import FOLDER_RECIPES
from foveate.lab.recipes.matching_recipes import MATCHING_RECIPES
from foveate.lab.recipes.vqa_recipes import VQA_RECIPES
from foveate.lab.train.recipe import Recipe

RECIPES: dict[str, Callable[[], Recipe]] = {
    **VQA_RECIPES,
    **CAPTIONING_RECIPES,
    **MATCHING_RECIPES,
    **PAPER_RECIPES,
    **FOLDER_RECIPES,
}

__all__ = ["RECIPES"]
