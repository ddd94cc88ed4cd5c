"""The graphs of total variation: grids (a chain is a grid of one row) and arbitrary lists of edges.

A graph implements what the solver needs for a whole batch at once: differences along edges and their adjoint, the
solution of a Laplacian system in the graph's spectral basis, and the components that remain when edges are cut.
Node tensors have shape (*nodes, B), edge tensors (*edges, B): with the batch last, every step works on long rows.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from functools import lru_cache

import torch
from torch import Tensor

from foveate.ops.support import connected_components


class Graph(ABC):
    """Nodes, edges, and the linear algebra between them."""

    nodes: tuple[int, ...]
    edges: tuple[int, ...]
    near: Tensor  # node numbers of the two ends of each edge slot; meaningless on slots that hold no edge
    far: Tensor

    @abstractmethod
    def difference(self, x: Tensor) -> Tensor:
        """D x: the value at the far end of each edge minus that at its near end; 0 on slots that hold no edge."""

    @abstractmethod
    def divergence(self, flow: Tensor) -> Tensor:
        """Dᵀ u: the flow into each node along its edges minus the flow out of it."""

    @abstractmethod
    def joins(self, keep: Tensor) -> Tensor:
        """True on the slots of real edges whose two ends are both kept; keep is (*nodes, B) boolean."""

    @abstractmethod
    def damping(self, strength: Tensor) -> Tensor:
        """1 / (1 + strength · eigenvalue) of DᵀD for strengths (B,), in the layout that `smooth` uses."""

    @abstractmethod
    def smooth(self, x: Tensor, damping: Tensor) -> Tensor:
        """Solve (1 + strength · DᵀD) result = x, given the damping of that strength."""

    def components(self, joined: Tensor) -> Tensor:
        """Label (N, B) of each node: the smallest node number of its component when only `joined` edges are kept."""
        N, B = math.prod(self.nodes), joined.shape[-1]
        return connected_components(N, self.near, self.far, joined.reshape(-1, B))

    def route(self, surplus: Tensor) -> Tensor | None:
        """The flow u with Dᵀu = surplus if it is unique and known in closed form (a chain), else None."""
        return None


class GridGraph(Graph):
    """The 4-neighbour grid of H rows and W columns; edge slots are (2, H, W): downwards, then rightwards."""

    def __init__(self, H: int, W: int, dtype: torch.dtype, device: torch.device) -> None:
        self.nodes, self.edges = (H, W), (2, H, W)
        # The slots of the last row and of the last column point outside the grid: `joins` is False there.
        self.near = torch.arange(H * W, device=device).repeat(2)
        self.far = self.near + torch.tensor([W, 1], device=device).repeat_interleave(H * W)
        self._down, down = _cosines(H, dtype, device)
        self._across, across = _cosines(W, dtype, device)
        self._eigenvalues = (down[:, None] + across)[..., None]

    def difference(self, x: Tensor) -> Tensor:
        out = x.new_zeros(*self.edges, x.shape[-1])
        down, right = out.unbind()
        torch.sub(x[1:], x[:-1], out=down[:-1])
        torch.sub(x[:, 1:], x[:, :-1], out=right[:, :-1])
        return out

    def divergence(self, flow: Tensor) -> Tensor:
        down, right = flow.unbind()
        # Flow leaves a cell through its own slots and enters through those of the cells above and to the left.
        out = (down + right).neg_()
        out[1:] += down[:-1]
        out[:, 1:] += right[:, :-1]
        return out

    def joins(self, keep: Tensor) -> Tensor:
        out = keep.new_zeros(*self.edges, keep.shape[-1])
        out[0, :-1] = keep[1:] & keep[:-1]
        out[1, :, :-1] = keep[:, 1:] & keep[:, :-1]
        return out

    def damping(self, strength: Tensor) -> Tensor:
        return 1 / (1 + strength * self._eigenvalues)

    def smooth(self, x: Tensor, damping: Tensor) -> Tensor:
        H, W, B = x.shape
        # Two matrix products beat a fast cosine transform at the sizes of attention grids.
        spectrum = torch.matmul(self._across, (self._down @ x.reshape(H, W * B)).reshape(H, W, B)).mul_(damping)
        columns = torch.matmul(self._across.T, spectrum)
        return (self._down.T @ columns.reshape(H, W * B)).reshape(H, W, B)

    def route(self, surplus: Tensor) -> Tensor | None:
        H, W = self.nodes
        if min(H, W) > 1:
            return None
        flow = surplus.new_zeros(*self.edges, surplus.shape[-1])
        # Along a chain, each edge carries what the nodes before it have in excess.
        flow[1 if H == 1 else 0] = -surplus.flatten(0, 1).cumsum(0).reshape_as(surplus)
        return flow


class EdgeGraph(Graph):
    """An arbitrary graph of N nodes with (E, 2) edges."""

    def __init__(self, N: int, edges: Tensor, dtype: torch.dtype) -> None:
        self.nodes, self.edges = (N,), (edges.shape[0],)
        self.near, self.far = edges.T.contiguous()
        basis, values = _laplacian_basis(N, tuple(edges.flatten().tolist()))
        self._basis = basis.to(device=edges.device, dtype=dtype)
        self._eigenvalues = values.to(device=edges.device, dtype=dtype)[:, None]

    def difference(self, x: Tensor) -> Tensor:
        return x[self.far] - x[self.near]

    def divergence(self, flow: Tensor) -> Tensor:
        out = flow.new_zeros(*self.nodes, flow.shape[-1])
        return out.index_add_(0, self.far, flow).index_add_(0, self.near, flow, alpha=-1)

    def joins(self, keep: Tensor) -> Tensor:
        return keep[self.far] & keep[self.near]

    def damping(self, strength: Tensor) -> Tensor:
        return 1 / (1 + strength * self._eigenvalues)

    def smooth(self, x: Tensor, damping: Tensor) -> Tensor:
        return self._basis @ (self._basis.T @ x).mul_(damping)


@lru_cache(maxsize=64)
def _cosines(n: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """The orthonormal cosine basis (n, n) of a chain, one function per row, and its eigenvalues 2 − 2 cos(πk/n)."""
    # In float64 first: float32 loses digits in the cosine of a large argument.
    k = torch.arange(n, dtype=torch.float64)[:, None]
    basis = torch.cos(math.pi / n * k * (k.T + 0.5)) * math.sqrt(2 / n)
    basis[0] /= math.sqrt(2)
    values = 2 - 2 * torch.cos(math.pi / n * k[:, 0])
    return basis.to(device=device, dtype=dtype), values.to(device=device, dtype=dtype)


@lru_cache(maxsize=16)
def _laplacian_basis(N: int, edges: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Eigenvectors (columns) and eigenvalues of the Laplacian DᵀD, in float64."""
    incidence = torch.zeros(len(edges) // 2, N, dtype=torch.float64)
    pairs = torch.tensor(edges, dtype=torch.long).reshape(-1, 2)
    rows = torch.arange(len(pairs))
    # Accumulated, so that the two ends of a loop (i, i) cancel.
    incidence.index_put_((rows, pairs[:, 1]), torch.ones(len(pairs), dtype=torch.float64), accumulate=True)
    incidence.index_put_((rows, pairs[:, 0]), -torch.ones(len(pairs), dtype=torch.float64), accumulate=True)
    values, basis = torch.linalg.eigh(incidence.T @ incidence)
    return basis, values.clamp(min=0)
