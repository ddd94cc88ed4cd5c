"""foveate: visual attention for vision-language models."""

from foveate import ops
from foveate.attention import MECHANISMS, Attended, MultiheadAttention, mechanism
from foveate.errors import DataError, FoveateError, MissingExtra, ShapeError, UnknownName
from foveate.ops import (
    DENSITIES,
    TRANSFORMS,
    BetaGaussian,
    Gaussian,
    GaussianBasis,
    Mixture,
    TruncatedParaboloid,
    TruncatedParaboloidBasis,
    entmax,
    fenchel_young_loss,
    fit_mixture,
    fusedmax,
    gfusedmax,
    select_mixture,
    softmax,
    sparsemax,
    tvmax,
)

__version__ = "0.1.0"

__all__ = [
    "DENSITIES",
    "MECHANISMS",
    "TRANSFORMS",
    "Attended",
    "BetaGaussian",
    "DataError",
    "FoveateError",
    "Gaussian",
    "GaussianBasis",
    "MissingExtra",
    "Mixture",
    "MultiheadAttention",
    "ShapeError",
    "TruncatedParaboloid",
    "TruncatedParaboloidBasis",
    "UnknownName",
    "entmax",
    "fenchel_young_loss",
    "fit_mixture",
    "fusedmax",
    "gfusedmax",
    "mechanism",
    "ops",
    "select_mixture",
    "softmax",
    "sparsemax",
    "tvmax",
]
