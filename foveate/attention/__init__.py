"""Attention: scores and values in, what was read and where out."""

from functools import partial

from foveate.attention.attended import Attended, Grid
from foveate.attention.discrete import DiscreteAttention
from foveate.attention.mechanism import Mechanism, mechanism
from foveate.attention.multihead import MultiheadAttention
from foveate.ops import TRANSFORMS

MECHANISMS: dict[str, Mechanism] = {
    name: Mechanism(partial(DiscreteAttention, name), row.summary, row.reference, needs_grid=row.axes == 2)
    for name, row in TRANSFORMS.items()
}

__all__ = ["MECHANISMS", "Attended", "DiscreteAttention", "Grid", "Mechanism", "MultiheadAttention", "mechanism"]
