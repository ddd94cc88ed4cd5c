"""Self-attention to functions of the plane instead of tokens. Experimental."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from foveate.attention.arguments import AnyGrid, as_grid
from foveate.attention.attended import Attended
from foveate.checks import check_heads
from foveate.errors import ShapeError
from foveate.ops import softmax
from foveate.ops.basis import GaussianBasis
from foveate.ops.memo import memo
from foveate.ops.ridge import ridge_matrix


class ContinuousSelfAttention(nn.Module):
    """Self-attention in which every token attends to J functions instead of N tokens: O(N·J). Experimental.

    `K = R K_tokens`, `V = R V_tokens`, `c_n = softmax(q_n Kᵀ / √(D/M)) V`

    R, (J, N), is the ridge regression of values at the cell centres on J Gaussian functions, read at their centres:
    keys and values become functions of the plane, and a token scores J of them. What is finer than the spacing of
    the functions is lost; `benchmarks/self_attention.py` shows what is gained.

    Args:
        dim: D, features per token.
        heads: M, a divisor of D.
        functions: J, a square number.
        ridge: penalty of the regression.

    Reference: Farinhas 2021 (thesis), §7.2, which names it as future work.

    >>> attend = ContinuousSelfAttention(8, heads=2, functions=16)
    >>> seen = attend(torch.randn(1, 196, 8), grid=(14, 14))
    >>> seen.context.shape, seen.weights.shape
    (torch.Size([1, 196, 8]), torch.Size([1, 2, 196, 16]))
    """

    def __init__(self, dim: int, heads: int, functions: int = 49, *, ridge: float = 0.01) -> None:
        super().__init__()
        check_heads("ContinuousSelfAttention", dim, heads)
        side = math.isqrt(functions)
        if side * side != functions:
            raise ValueError(
                f"ContinuousSelfAttention: expected a square number of functions, got {functions}; use {side * side}"
            )
        self.heads, self.functions, self.ridge = heads, functions, ridge
        self.in_proj = nn.Linear(dim, 3 * dim)
        self.out_proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor, grid: AnyGrid) -> Attended:
        """Attend from every token of x (B, N, D) on a grid of N cells.

        Returns:
            Attended with context (B, N, D) and weights (B, M, N, J) over the functions; no map.
        """
        cells = as_grid("ContinuousSelfAttention", grid)
        if not isinstance(cells, tuple) or len(cells) != 2 or x.ndim != 3 or math.prod(cells) != x.shape[1]:
            raise ShapeError(
                f"ContinuousSelfAttention: expected x (B, N, D) and a grid (H, W) of N cells, got {tuple(x.shape)} and "
                f"{cells}; images of one size at a time"
            )
        q, k, v = self.in_proj(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        R = _to_functions(self.functions, cells, self.ridge, x.dtype, x.device)
        keys, values = R @ k, R @ v
        weights = softmax(q @ keys.transpose(-1, -2) / math.sqrt(q.shape[-1]))
        context = (weights @ values).transpose(1, 2).flatten(2)
        return Attended(self.out_proj(context), weights)

    def extra_repr(self) -> str:
        """The sizes, for print."""
        return f"heads={self.heads}, functions={self.functions}, ridge={self.ridge}"


@memo(maxsize=64)
def _to_functions(
    functions: int, cells: tuple[int, ...], ridge: float, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """(J, N) from values at the cells to those of their regression at the J centres of the functions."""
    side = math.isqrt(functions)
    # neighbours overlap at one deviation of their spacing
    basis = GaussianBasis.grid(functions, variance=1 / max(side - 1, 1) ** 2)
    at_centres = basis(basis.centres.double()).double()
    return (at_centres @ ridge_matrix(basis, cells, ridge, False, torch.float64, torch.device("cpu"))).to(device, dtype)
