"""Training: recipes, the loop that trains them, and the runs it writes."""

from foveate.lab.train.config import SGD, Adam, AdamW, Cosine, Decay, Steps, Training
from foveate.lab.train.evaluation import evaluate
from foveate.lab.train.loop import Diverged, fit
from foveate.lab.train.override import Field, override, recipe_fields
from foveate.lab.train.recipe import Recipe, from_config, read_run, to_config, train_recipe

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "Cosine",
    "Decay",
    "Diverged",
    "Field",
    "Recipe",
    "Steps",
    "Training",
    "evaluate",
    "fit",
    "from_config",
    "override",
    "read_run",
    "recipe_fields",
    "to_config",
    "train_recipe",
]
