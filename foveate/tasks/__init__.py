"""Tasks: how a batch becomes a loss, a prediction, a metric; and the table of them."""

from foveate.tasks.task import Examples, Loss, Metrics, Predictor, Task

TASKS: dict[str, type[Task]] = {}

__all__ = ["TASKS", "Examples", "Loss", "Metrics", "Predictor", "Task"]
