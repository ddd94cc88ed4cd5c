"""Training: recipes, the loop that trains them, and the runs it writes."""

from foveate.train.config import SGD, Adam, AdamW, Cosine, Decay, Steps, Training
from foveate.train.evaluation import evaluate
from foveate.train.loop import Diverged, Interrupted, fit
from foveate.train.override import Field, override, recipe_fields
from foveate.train.recipe import Recipe, from_config, read_run, to_config, train_recipe

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "Cosine",
    "Decay",
    "Diverged",
    "Field",
    "Interrupted",
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
