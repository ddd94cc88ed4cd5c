"""Matching images with sentences."""

from foveate.lab.tasks.inputs import WordAttention
from foveate.lab.tasks.matching.predictor import MatchingPredictor
from foveate.lab.tasks.matching.settings import MatchingSettings, Ranking
from foveate.lab.tasks.matching.task import Matching

__all__ = ["Matching", "MatchingPredictor", "MatchingSettings", "Ranking", "WordAttention"]
