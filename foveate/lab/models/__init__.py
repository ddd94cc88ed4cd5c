"""Models: built from encoders and attention; their outputs contain every attention by name."""

from foveate.lab.models.answering import Answered, AnsweringModel
from foveate.lab.models.bfan import BFAN, BFANSettings
from foveate.lab.models.captioner import Captioned, Captioner, LSTMCaptionerSettings
from foveate.lab.models.cross_attention import CrossAttention, LogSumExp, Mean
from foveate.lab.models.dan import MatchingDAN, MatchingDANSettings, ReasoningDAN, ReasoningDANSettings
from foveate.lab.models.decoding import Decoded, beam_search, sample_words
from foveate.lab.models.dual import Dual, DualSettings
from foveate.lab.models.families import (
    AnsweringSettings,
    CaptioningModelSettings,
    MatchingModelSettings,
    ModelSettings,
)
from foveate.lab.models.fragments import CrossAttended, Fragments, InnerProduct, MatchingModel, Scorer
from foveate.lab.models.mcan import MCAN, MCANSettings
from foveate.lab.models.scan import SCAN, FragmentMatcher, SCANSettings

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
