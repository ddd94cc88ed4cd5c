"""Tasks: examples and batches, losses, predictions and metrics; `TASKS` lists them."""

from foveate.lab.tasks.captioning import Captioning
from foveate.lab.tasks.matching import Matching
from foveate.lab.tasks.task import AnyTask, Examples, Loss, Metrics, Predictor, Task
from foveate.lab.tasks.vqa import VQA

TASKS: dict[str, type[AnyTask]] = {"vqa": VQA, "captioning": Captioning, "matching": Matching}

__all__ = ["TASKS", "VQA", "AnyTask", "Captioning", "Examples", "Loss", "Matching", "Metrics", "Predictor", "Task"]
