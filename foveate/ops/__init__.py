"""The mathematics: pure functions of tensors."""

from foveate.ops.basis import Basis, GaussianBasis, TruncatedParaboloidBasis
from foveate.ops.boxes import Box
from foveate.ops.compact import BetaGaussian, TruncatedParaboloid
from foveate.ops.density import Density, Ellipses
from foveate.ops.divergence import entropy, js_divergence, kl_divergence
from foveate.ops.fenchel_young import (
    Transform,
    chain_variation,
    fenchel_young_loss,
    graph_variation,
    grid_variation,
    half_square,
    negative_entropy,
    tsallis,
)
from foveate.ops.fused import fusedmax, gfusedmax, tvmax
from foveate.ops.gaussian import Gaussian
from foveate.ops.grid import cell_centres, cell_variance
from foveate.ops.mixture import Mixture
from foveate.ops.mixture_fit import fit_mixture, select_mixture
from foveate.ops.resample import resample_map
from foveate.ops.ridge import ridge_coefficients
from foveate.ops.simplex import entmax, softmax, sparsemax
from foveate.ops.total_variation import (
    TVSolution,
    prox_tv1d,
    prox_tv2d,
    prox_tv_graph,
    solve_tv1d,
    solve_tv2d,
    solve_tv_graph,
)

_FUSED = "Martins et al. 2020, eq. 6"
TRANSFORMS: dict[str, Transform] = {
    "softmax": Transform(softmax, negative_entropy, "dense: every location counts", "the standard choice"),
    "sparsemax": Transform(
        sparsemax, half_square, "sparse: projection on the simplex", "Martins et al. 2020, eq. 2", sparse=True
    ),
    "entmax": Transform(entmax, tsallis, "between softmax and sparsemax, by alpha", "Farinhas 2021, §2.2", sparse=True),
    "fusedmax": Transform(fusedmax, chain_variation, "sparse, in runs along a chain", _FUSED, sparse=True),
    "tvmax": Transform(
        tvmax,
        grid_variation,
        "sparse, in patches of a grid",
        "Martins et al. 2020, eq. 5",
        axes=2,
        sparse=True,
        prox=prox_tv2d,
    ),
    "gfusedmax": Transform(
        gfusedmax, graph_variation, "sparse, in parts of any graph", _FUSED, needs_edges=True, sparse=True
    ),
}

DENSITIES: dict[str, type[Density]] = {
    "gaussian": Gaussian,
    "truncated-paraboloid": TruncatedParaboloid,
    "beta-gaussian": BetaGaussian,
    "mixture": Mixture,
}

__all__ = [
    "DENSITIES",
    "TRANSFORMS",
    "Basis",
    "BetaGaussian",
    "Box",
    "Density",
    "Ellipses",
    "Gaussian",
    "GaussianBasis",
    "Mixture",
    "TVSolution",
    "Transform",
    "TruncatedParaboloid",
    "TruncatedParaboloidBasis",
    "cell_centres",
    "cell_variance",
    "entmax",
    "entropy",
    "fenchel_young_loss",
    "fit_mixture",
    "fusedmax",
    "gfusedmax",
    "js_divergence",
    "kl_divergence",
    "prox_tv1d",
    "prox_tv2d",
    "prox_tv_graph",
    "resample_map",
    "ridge_coefficients",
    "select_mixture",
    "softmax",
    "solve_tv1d",
    "solve_tv2d",
    "solve_tv_graph",
    "sparsemax",
    "tvmax",
]
