"""Visual question answering."""

from foveate.tasks.vqa.predictor import Answer, VQAPredictor
from foveate.tasks.vqa.settings import VQASettings
from foveate.tasks.vqa.task import VQA

__all__ = ["VQA", "Answer", "VQAPredictor", "VQASettings"]
