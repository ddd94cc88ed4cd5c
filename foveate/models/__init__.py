"""Models: built from encoders and attentions, each returns its outputs and every attention by name."""

from foveate.models.answering import Answered
from foveate.models.bfan import BFAN
from foveate.models.captioner import Captioned, Captioner
from foveate.models.dan import MatchingDAN, ReasoningDAN
from foveate.models.decoding import Decoded, beam_search, sample_words
from foveate.models.matching import CrossLook, FragmentMatcher, Fragments, InnerProduct, Scorer
from foveate.models.matching_cross import CrossAttention, LogSumExp, Mean
from foveate.models.mcan import MCAN
from foveate.models.scan import SCAN

MODELS: dict[str, type] = {
    "mcan": MCAN,
    "r-dan": ReasoningDAN,
    "captioner": Captioner,
    "m-dan": MatchingDAN,
    "scan": SCAN,
    "bfan": BFAN,
}

__all__ = [
    "BFAN",
    "MCAN",
    "MODELS",
    "SCAN",
    "Answered",
    "Captioned",
    "Captioner",
    "CrossAttention",
    "CrossLook",
    "Decoded",
    "FragmentMatcher",
    "Fragments",
    "InnerProduct",
    "LogSumExp",
    "MatchingDAN",
    "Mean",
    "ReasoningDAN",
    "Scorer",
    "beam_search",
    "sample_words",
]
