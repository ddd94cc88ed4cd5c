"""Tasks: how a batch becomes a loss, a prediction, a metric; and the table of them."""

from foveate.tasks.captioning import Captioning
from foveate.tasks.matching import Matching
from foveate.tasks.task import Examples, Loss, Metrics, Predictor, Task
from foveate.tasks.vqa import VQA

TASKS: dict[str, type[Task]] = {"vqa": VQA, "captioning": Captioning, "matching": Matching}

__all__ = ["TASKS", "VQA", "Captioning", "Examples", "Loss", "Matching", "Metrics", "Predictor", "Task"]
