"""Attention: scores and values in, what was read and where out."""

from foveate.attention.arguments import AnyGrid, Grid
from foveate.attention.attended import Attended
from foveate.attention.continuous import ContinuousAttention, ContinuousSelfAttention, continuous
from foveate.attention.discrete import DiscreteAttention, discrete
from foveate.attention.dot_product import scaled_dot_product_attention
from foveate.attention.fits import ChooseMixture, Fit, MatchBetaGaussian, MatchMoments, SparseMixture, SplitMixture
from foveate.attention.mechanism import MECHANISMS, Entmax, Learnable, Mechanism, Option, mechanism, options_table
from foveate.attention.multihead import AttentionPool, MultiheadAttention
from foveate.attention.sparse_weights import SparseWeights
from foveate.ops import TRANSFORMS

_THESIS, _PAPER = "Farinhas 2021", "Farinhas et al. 2021"
MECHANISMS |= {
    **{name: discrete(name) for name in TRANSFORMS},
    "continuous-softmax": continuous(MatchMoments, "one Gaussian", f"{_THESIS}, §4.2", family="gaussian"),
    "continuous-sparsemax": continuous(
        MatchMoments, "one ellipse, zero outside", f"{_THESIS}, §4.3", family="truncated-paraboloid"
    ),
    "continuous-entmax": continuous(MatchBetaGaussian, "between the two, by alpha", "the family that contains both"),
    "multimodal": continuous(ChooseMixture, "a mixture, K chosen for each example", f"{_PAPER}, §4-5"),
    "k-mca": continuous(SplitMixture, "a mixture of K components", f"{_THESIS}, §6.3"),
    "multimodal-sparse": continuous(
        SparseMixture, "a mixture that drops superfluous components", "named as future work in the papers"
    ),
}

__all__ = [
    "MECHANISMS",
    "AnyGrid",
    "Attended",
    "AttentionPool",
    "ChooseMixture",
    "ContinuousAttention",
    "ContinuousSelfAttention",
    "DiscreteAttention",
    "Entmax",
    "Fit",
    "Grid",
    "Learnable",
    "MatchBetaGaussian",
    "MatchMoments",
    "Mechanism",
    "MultiheadAttention",
    "Option",
    "SparseMixture",
    "SparseWeights",
    "SplitMixture",
    "mechanism",
    "options_table",
    "scaled_dot_product_attention",
]
