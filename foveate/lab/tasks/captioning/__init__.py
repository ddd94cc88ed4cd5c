"""Captioning."""

from foveate.tasks.captioning.predictor import CaptionPredictor, GeneratedCaption
from foveate.tasks.captioning.settings import CaptioningSettings
from foveate.tasks.captioning.task import Captioning

__all__ = ["CaptionPredictor", "Captioning", "CaptioningSettings", "GeneratedCaption"]
