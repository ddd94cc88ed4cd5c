"""Models: built from encoders and attentions, each returns its outputs and every attention by name."""

from foveate.models.answering import Answered
from foveate.models.dan import ReasoningDAN
from foveate.models.mcan import MCAN

MODELS: dict[str, type] = {
    "mcan": MCAN,
    "r-dan": ReasoningDAN,
}

__all__ = ["MCAN", "MODELS", "Answered", "ReasoningDAN"]
