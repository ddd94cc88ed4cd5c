"""Training: one loop that knows only tasks."""

from foveate.train.config import SGD, Adam, AdamW, Cosine, Decay, Steps, Training
from foveate.train.evaluate import evaluate
from foveate.train.loop import Diverged, Interrupted, fit

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "Cosine",
    "Decay",
    "Diverged",
    "Interrupted",
    "Steps",
    "Training",
    "evaluate",
    "fit",
]
