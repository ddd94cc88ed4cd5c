"""foveate: visual attention for vision-language models."""

from foveate import ops
from foveate.attention import MECHANISMS, Attended, MultiheadAttention, mechanism
from foveate.errors import DataError, FoveateError, MissingExtra, ShapeError, UnknownName
from foveate.ops import (
    TRANSFORMS,
    entmax,
    fenchel_young_loss,
    fusedmax,
    gfusedmax,
    softmax,
    sparsemax,
    tvmax,
)

__version__ = "0.1.0"

__all__ = [
    "MECHANISMS",
    "TRANSFORMS",
    "Attended",
    "DataError",
    "FoveateError",
    "MissingExtra",
    "MultiheadAttention",
    "ShapeError",
    "UnknownName",
    "entmax",
    "fenchel_young_loss",
    "fusedmax",
    "gfusedmax",
    "mechanism",
    "ops",
    "softmax",
    "sparsemax",
    "tvmax",
]
