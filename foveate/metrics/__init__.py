"""Metrics: pure functions of a batch, and classes that accumulate them over a split."""

from foveate.metrics.accuracy import (
    AnswerAccuracy,
    choose_answers,
    lenient_accuracy,
    official_accuracy,
    question_subsets,
)
from foveate.metrics.attention_quality import AttentionMetrics
from foveate.metrics.caption_quality import CaptionQuality, CaptionScores, caption_scores
from foveate.metrics.grounding import (
    GroundingMetrics,
    attended_locations,
    attention_scores,
    relevant_cells,
    relevant_locations,
    relevant_regions,
)
from foveate.metrics.maps import (
    box_maps,
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
    WordAttentionMetrics,
    count_mentions,
    distinct_fraction,
    repetition_score,
    successive_divergence,
    zero_area,
)
from foveate.metrics.retrieval import Ranks, RetrievalMetrics, rank_matrix, retrieval_metrics
from foveate.metrics.statistics import (
    Interval,
    bootstrap_interval,
    holm,
    krippendorff_alpha,
    paired_permutation_test,
)

METRICS: dict[str, type] = {
    "answers": AnswerAccuracy,
    "attention": AttentionMetrics,
    "captions": CaptionQuality,
    "grounding": GroundingMetrics,
    "retrieval": RetrievalMetrics,
    "word attention": WordAttentionMetrics,
}

__all__ = [
    "METRICS",
    "AnswerAccuracy",
    "AttentionMetrics",
    "CaptionQuality",
    "CaptionScores",
    "GroundingMetrics",
    "Interval",
    "Means",
    "Ranks",
    "RetrievalMetrics",
    "WordAttentionMetrics",
    "attended_locations",
    "attention_scores",
    "bootstrap_interval",
    "box_maps",
    "caption_scores",
    "centre_maps",
    "choose_answers",
    "components",
    "connected_regions",
    "count_mentions",
    "distinct_fraction",
    "holm",
    "krippendorff_alpha",
    "lenient_accuracy",
    "mass_inside",
    "official_accuracy",
    "paired_permutation_test",
    "pointing",
    "question_subsets",
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
