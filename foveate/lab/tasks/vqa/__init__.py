"""Visual question answering."""

from foveate.lab.tasks.vqa.predictor import Answer, VQAPredictor
from foveate.lab.tasks.vqa.settings import VQASettings
from foveate.lab.tasks.vqa.task import VQA

__all__ = ["VQA", "Answer", "VQAPredictor", "VQASettings"]
