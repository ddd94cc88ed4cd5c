"""Models: built from encoders and attention; their outputs contain every attention by name."""

from foveate.models.answering import Answered, AnsweringModel
from foveate.models.bfan import BFAN, BFANSettings
from foveate.models.captioner import Captioned, Captioner, LSTMCaptionerSettings
from foveate.models.cross_attention import CrossAttention, LogSumExp, Mean
from foveate.models.dan import MatchingDAN, MatchingDANSettings, ReasoningDAN, ReasoningDANSettings
from foveate.models.decoding import Decoded, beam_search, sample_words
from foveate.models.dual import Dual, DualSettings
from foveate.models.families import (
    AnsweringSettings,
    CaptioningModelSettings,
    MatchingModelSettings,
    ModelSettings,
)
from foveate.models.fragments import CrossAttended, Fragments, InnerProduct, MatchingModel, Scorer
from foveate.models.mcan import MCAN, MCANSettings
from foveate.models.scan import SCAN, FragmentMatcher, SCANSettings

MODELS: dict[str, type[ModelSettings]] = {
    "mcan": MCANSettings,
    "rdan": ReasoningDANSettings,
    "lstm": LSTMCaptionerSettings,
    "scan": SCANSettings,
    "bfan": BFANSettings,
    "mdan": MatchingDANSettings,
    "dual": DualSettings,
}

__all__ = [
    "BFAN",
    "MCAN",
    "MODELS",
    "SCAN",
    "Answered",
    "AnsweringModel",
    "AnsweringSettings",
    "BFANSettings",
    "Captioned",
    "Captioner",
    "CaptioningModelSettings",
    "CrossAttended",
    "CrossAttention",
    "Decoded",
    "Dual",
    "DualSettings",
    "FragmentMatcher",
    "Fragments",
    "InnerProduct",
    "LSTMCaptionerSettings",
    "LogSumExp",
    "MCANSettings",
    "MatchingDAN",
    "MatchingDANSettings",
    "MatchingModel",
    "MatchingModelSettings",
    "Mean",
    "ModelSettings",
    "ReasoningDAN",
    "ReasoningDANSettings",
    "SCANSettings",
    "Scorer",
    "beam_search",
    "sample_words",
]
