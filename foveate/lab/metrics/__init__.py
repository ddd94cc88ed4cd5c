"""Metrics of answers, captions and retrieval. `METRICS` lists them with those of attention in the library."""

from foveate import metrics
from foveate.lab.metrics.accuracy import (
    AnswerAccuracy,
    choose_answers,
    lenient_accuracy,
    official_accuracy,
    question_subsets,
)
from foveate.lab.metrics.caption_quality import CaptionQuality, CaptionScores, caption_scores
from foveate.lab.metrics.repetition import (
    WordAttentionMetrics,
    count_mentions,
    distinct_fraction,
    repetition_score,
    successive_divergence,
    zero_area,
)
from foveate.lab.metrics.retrieval import Ranks, RetrievalMetrics, rank_matrix, retrieval_metrics

METRICS: dict[str, type] = {
    **metrics.METRICS,
    "answers": AnswerAccuracy,
    "captions": CaptionQuality,
    "retrieval": RetrievalMetrics,
    "word attention": WordAttentionMetrics,
}

__all__ = [
    "METRICS",
    "AnswerAccuracy",
    "CaptionQuality",
    "CaptionScores",
    "Ranks",
    "RetrievalMetrics",
    "WordAttentionMetrics",
    "caption_scores",
    "choose_answers",
    "count_mentions",
    "distinct_fraction",
    "lenient_accuracy",
    "official_accuracy",
    "question_subsets",
    "rank_matrix",
    "repetition_score",
    "retrieval_metrics",
    "successive_divergence",
    "zero_area",
]
