"""foveate: visual attention for vision-language models.

The names below are imported when they are first used, so that the command line can answer `--help` without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from foveate.registry import provide

if TYPE_CHECKING:
    from foveate import hf, metrics, ops, plot
    from foveate.attention import (
        MECHANISMS,
        Attended,
        AttentionPool,
        ContinuousSelfAttention,
        Entmax,
        MultiheadAttention,
        SparseWeights,
        mechanism,
        scaled_dot_product_attention,
    )
    from foveate.errors import DataError, FoveateError, MissingExtra, ShapeError, UnknownName
    from foveate.lab.hub import from_pretrained, load
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
    from foveate.watch import look, watch

    __version__: str

__all__ = [
    "DENSITIES",
    "MECHANISMS",
    "TRANSFORMS",
    "Attended",
    "AttentionPool",
    "BetaGaussian",
    "ContinuousSelfAttention",
    "DataError",
    "Entmax",
    "FoveateError",
    "Gaussian",
    "GaussianBasis",
    "MissingExtra",
    "Mixture",
    "MultiheadAttention",
    "ShapeError",
    "SparseWeights",
    "TruncatedParaboloid",
    "TruncatedParaboloidBasis",
    "UnknownName",
    "entmax",
    "fenchel_young_loss",
    "fit_mixture",
    "from_pretrained",
    "fusedmax",
    "gfusedmax",
    "hf",
    "load",
    "look",
    "mechanism",
    "metrics",
    "ops",
    "plot",
    "scaled_dot_product_attention",
    "select_mixture",
    "softmax",
    "sparsemax",
    "tvmax",
    "watch",
]

# What lower packages ask higher ones for, by name.
provide("run of foveate", "foveate.lab.hub:find_run")
provide("plot of attention", "foveate.plot.figures:show")
provide("image of attention", "foveate.plot.sheets:to_png")  # what a notebook shows of an `Attended`

_HOMES = {
    "foveate.attention": (
        "MECHANISMS",
        "Attended",
        "AttentionPool",
        "ContinuousSelfAttention",
        "Entmax",
        "MultiheadAttention",
        "SparseWeights",
        "mechanism",
        "scaled_dot_product_attention",
    ),
    "foveate.errors": ("DataError", "FoveateError", "MissingExtra", "ShapeError", "UnknownName"),
    "foveate.lab.hub": ("from_pretrained", "load"),
    "foveate.watch": ("look",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("foveate")
    if name not in __all__:
        raise AttributeError(f"module 'foveate' has no attribute {name!r}")
    if name in ("hf", "metrics", "ops", "plot", "watch"):
        return import_module(f"foveate.{name}")
    value = getattr(import_module(_HOME.get(name, "foveate.ops")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
