"""Tasks: examples and batches, losses, predictions and metrics; `TASKS` lists them."""

from foveate.tasks.captioning import Captioning
from foveate.tasks.matching import Matching
from foveate.tasks.task import AnyTask, Examples, Loss, Metrics, Predictor, Task
from foveate.tasks.vqa import VQA

TASKS: dict[str, type[AnyTask]] = {"vqa": VQA, "captioning": Captioning, "matching": Matching}

__all__ = ["TASKS", "VQA", "AnyTask", "Captioning", "Examples", "Loss", "Matching", "Metrics", "Predictor", "Task"]
