"""The graphs that total variation is taken over: grids (a chain is a grid of one row) and any list of edges.

A graph offers what the solver needs, for a whole batch at once: differences along edges and their adjoint, the solution
of a Laplacian system in the graph's own spectral basis, and the connected parts left when some edges are cut.
Node tensors have shape (*nodes, B), edge tensors (*edges, B): with the batch last, every step works on long rows.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor


class Graph(ABC):
    """Nodes, edges, and the linear algebra between them."""

    nodes: tuple[int, ...]
    edges: tuple[int, ...]

    @abstractmethod
    def difference(self, x: Tensor) -> Tensor:
        """D x: the value at the far end of each edge less the one at its near end; 0 on slots that hold no edge."""

    @abstractmethod
    def divergence(self, flow: Tensor) -> Tensor:
        """Dᵀ u: what flows into each node along its edges less what flows out."""

    @abstractmethod
    def joins(self, keep: Tensor) -> Tensor:
        """True on the slots of real edges whose two ends are both kept; keep is (*nodes, B) boolean."""

    @abstractmethod
    def damping(self, strength: Tensor) -> Tensor:
        """1 / (1 + strength · eigenvalue) of DᵀD for strengths (B,), in the layout that `smooth` uses."""

    @abstractmethod
    def smooth(self, x: Tensor, damping: Tensor) -> Tensor:
        """Solve (1 + strength · DᵀD) result = x, given the damping of that strength."""

    @abstractmethod
    def parts(self, joined: Tensor) -> Tensor:
        """Label (N, B) of each node: the smallest node number in its part when only the `joined` edges are kept."""

    def carry(self, surplus: Tensor) -> Tensor | None:
        """The flow u with Dᵀu = surplus where the graph leaves no choice (a chain), else None."""
        return None


class GridGraph(Graph):
    """The 4-neighbour grid of H rows and W columns; edge slots are (2, H, W): downwards, then rightwards."""

    def __init__(self, H: int, W: int, dtype: torch.dtype, device: torch.device) -> None:
        self.nodes, self.edges = (H, W), (2, H, W)
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
        spectrum = torch.matmul(self._across, (self._down @ x.reshape(H, W * B)).reshape(H, W, B)).mul_(damping)
        columns = torch.matmul(self._across.T, spectrum)
        return (self._down.T @ columns.reshape(H, W * B)).reshape(H, W, B)

    def parts(self, joined: Tensor) -> Tensor:
        H, W, B = joined.shape[1:]
        index = torch.arange(H * W, device=joined.device).reshape(H, W, 1)
        starts = torch.ones_like(joined[1])
        starts[:, 1:] = ~joined[1, :, :-1]
        runs = torch.where(starts, index, 0).cummax(1).values.reshape(H * W, B)
        down, right = joined[0, :-1], joined[1, :, :-1]

        def spread(labels: Tensor) -> Tensor:
            label = labels.reshape(H, W, B).clone()
            for near, far, edge in ((label[:-1], label[1:], down), (label[:, :-1], label[:, 1:], right)):
                least = torch.where(edge, torch.minimum(near, far), H * W)
                torch.minimum(near, least, out=near)
                torch.minimum(far, least, out=far)
            return label.reshape(H * W, B)

        return _settle(runs, spread)

    def carry(self, surplus: Tensor) -> Tensor | None:
        H, W = self.nodes
        if min(H, W) > 1:
            return None
        flow = surplus.new_zeros(*self.edges, surplus.shape[-1])
        flow[1 if H == 1 else 0] = -surplus.flatten(0, 1).cumsum(0).reshape_as(surplus)
        return flow


class EdgeGraph(Graph):
    """Any graph of N nodes, given by its (E, 2) edges."""

    def __init__(self, N: int, edges: Tensor, dtype: torch.dtype) -> None:
        self.nodes, self.edges = (N,), (edges.shape[0],)
        self._near, self._far = edges.T.contiguous()
        basis, values = _laplacian_basis(N, tuple(edges.flatten().tolist()))
        self._basis = basis.to(device=edges.device, dtype=dtype)
        self._eigenvalues = values.to(device=edges.device, dtype=dtype)[:, None]

    def difference(self, x: Tensor) -> Tensor:
        return x[self._far] - x[self._near]

    def divergence(self, flow: Tensor) -> Tensor:
        out = flow.new_zeros(*self.nodes, flow.shape[-1])
        return out.index_add_(0, self._far, flow).index_add_(0, self._near, flow, alpha=-1)

    def joins(self, keep: Tensor) -> Tensor:
        return keep[self._far] & keep[self._near]

    def damping(self, strength: Tensor) -> Tensor:
        return 1 / (1 + strength * self._eigenvalues)

    def smooth(self, x: Tensor, damping: Tensor) -> Tensor:
        return self._basis @ (self._basis.T @ x).mul_(damping)

    def parts(self, joined: Tensor) -> Tensor:
        N, B = self.nodes[0], joined.shape[-1]
        near, far = self._near[:, None].expand(-1, B), self._far[:, None].expand(-1, B)

        def spread(labels: Tensor) -> Tensor:
            least = torch.where(joined, torch.minimum(labels[self._near], labels[self._far]), N)
            return labels.scatter_reduce(0, near, least, "amin").scatter_reduce(0, far, least, "amin")

        return _settle(torch.arange(N, device=joined.device)[:, None].expand(N, B), spread)


def _settle(labels: Tensor, spread: Callable[[Tensor], Tensor]) -> Tensor:
    """Spread the smallest label and jump to the label's own label until nothing changes."""
    while True:
        new = spread(labels)
        new = new.gather(0, new)
        new = new.gather(0, new)
        if torch.equal(new, labels):
            return labels
        labels = new


@lru_cache(maxsize=64)
def _cosines(n: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """The orthonormal cosine basis (n, n) of a chain, one function a row, and its eigenvalues 2 − 2 cos(πk/n)."""
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
    incidence.index_put_((rows, pairs[:, 1]), torch.ones(len(pairs), dtype=torch.float64), accumulate=True)
    incidence.index_put_((rows, pairs[:, 0]), -torch.ones(len(pairs), dtype=torch.float64), accumulate=True)
    values, basis = torch.linalg.eigh(incidence.T @ incidence)
    return basis, values.clamp(min=0)
