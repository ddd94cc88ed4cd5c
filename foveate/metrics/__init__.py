"""Metrics of attention maps: pure functions of a batch, classes that accumulate them over a split, and statistics."""

from foveate.metrics.attention_quality import AttentionMetrics
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
from foveate.metrics.statistics import Interval, bootstrap_interval, holm, krippendorff_alpha, paired_permutation_test

METRICS: dict[str, type] = {
    "attention": AttentionMetrics,
    "grounding": GroundingMetrics,
}

__all__ = [
    "METRICS",
    "AttentionMetrics",
    "GroundingMetrics",
    "Interval",
    "Means",
    "attended_locations",
    "attention_scores",
    "bootstrap_interval",
    "box_maps",
    "centre_maps",
    "components",
    "connected_regions",
    "holm",
    "krippendorff_alpha",
    "mass_inside",
    "paired_permutation_test",
    "pointing",
    "random_maps",
    "relevant_cells",
    "relevant_locations",
    "relevant_regions",
    "spearman",
    "support_area",
    "uniform_maps",
]
