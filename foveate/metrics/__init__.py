"""Metrics: pure functions, and what adds them up over a split."""

from foveate.metrics.captions import CaptionQuality, CaptionScores, caption_scores
from foveate.metrics.grounding import (
    GroundingMetrics,
    attended_locations,
    attention_scores,
    relevant_cells,
    relevant_locations,
    relevant_regions,
)
from foveate.metrics.looks import LookMetrics
from foveate.metrics.maps import (
    centre_maps,
    components,
    connected_regions,
    mass_inside,
    pointing,
    random_maps,
    spearman,
    support_area,
    uniform_maps,
)
from foveate.metrics.means import Means
from foveate.metrics.repetition import (
    WordLooks,
    distinct_share,
    mentioned,
    repetition_score,
    successive_divergence,
    zero_area,
)
from foveate.metrics.retrieval import Ranks, RetrievalMetrics, rank_matrix, retrieval_metrics
from foveate.metrics.vqa import AnswerAccuracy, choose_answers, groups_of, lenient_accuracy, official_accuracy

METRICS: dict[str, type] = {
    "answers": AnswerAccuracy,
    "captions": CaptionQuality,
    "grounding": GroundingMetrics,
    "looks": LookMetrics,
    "retrieval": RetrievalMetrics,
    "word looks": WordLooks,
}

__all__ = [
    "METRICS",
    "AnswerAccuracy",
    "CaptionQuality",
    "CaptionScores",
    "GroundingMetrics",
    "LookMetrics",
    "Means",
    "Ranks",
    "RetrievalMetrics",
    "WordLooks",
    "attended_locations",
    "attention_scores",
    "caption_scores",
    "centre_maps",
    "choose_answers",
    "components",
    "connected_regions",
    "distinct_share",
    "groups_of",
    "lenient_accuracy",
    "mass_inside",
    "mentioned",
    "official_accuracy",
    "pointing",
    "random_maps",
    "rank_matrix",
    "relevant_cells",
    "relevant_locations",
    "relevant_regions",
    "repetition_score",
    "retrieval_metrics",
    "spearman",
    "successive_divergence",
    "support_area",
    "uniform_maps",
    "zero_area",
]
