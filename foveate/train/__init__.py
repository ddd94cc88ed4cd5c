"""Training: one loop that knows only tasks."""

from foveate.train.config import SGD, Adam, AdamW, Cosine, Decay, Steps, Training

__all__ = ["SGD", "Adam", "AdamW", "Cosine", "Decay", "Steps", "Training"]
