"""Tasks: how a batch becomes a loss, a prediction, a metric; and the table of them."""

from foveate.tasks.task import Examples, Loss, Metrics, Predictor, Task
from foveate.tasks.vqa import VQA

TASKS: dict[str, type[Task]] = {"vqa": VQA}

__all__ = ["TASKS", "VQA", "Examples", "Loss", "Metrics", "Predictor", "Task"]
