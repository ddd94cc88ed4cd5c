"""Captioning."""

from foveate.lab.tasks.captioning.predictor import CaptionPredictor, GeneratedCaption
from foveate.lab.tasks.captioning.settings import CaptioningSettings
from foveate.lab.tasks.captioning.task import Captioning

__all__ = ["CaptionPredictor", "Captioning", "CaptioningSettings", "GeneratedCaption"]
