"""Matching images with sentences."""

from foveate.tasks.matching.predictor import MatchingPredictor, WordAttention
from foveate.tasks.matching.settings import MatchingSettings, Ranking
from foveate.tasks.matching.task import Matching

__all__ = ["Matching", "MatchingPredictor", "MatchingSettings", "Ranking", "WordAttention"]
