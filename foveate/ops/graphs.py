"""The graphs of total variation: grids (a chain is a grid of one row) and arbitrary lists of edges.

A graph implements what the solver needs for a whole batch at once: differences along edges and their adjoint, the
solution of a Laplacian system (in the graph's spectral basis unless it is large), and the components that remain when
edges are cut.
Node tensors have shape (*nodes, B), edge tensors (*edges, B): with the batch last, every step works on long rows.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from functools import lru_cache

import torch
from torch import Tensor

from foveate.ops.grid import grid_edges
from foveate.ops.support import connected_components

_LONG = 512  # nodes of a chain from which a fast cosine transform beats a matrix product
_LARGEST_BASIS = 1024  # nodes of a graph up to which eigenvectors are computed


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
        self._down, self._across = _Cosines(H, dtype, device), _Cosines(W, dtype, device)
        self._eigenvalues = (self._down.eigenvalues[:, None] + self._across.eigenvalues)[..., None]

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
        spectrum = self._across.analyse(self._down.analyse(x, 0), 1).mul_(damping)
        return self._down.synthesise(self._across.synthesise(spectrum, 1), 0)

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
        self._solver = (_Spectral if N <= _LARGEST_BASIS else _Chebyshev)(N, edges, dtype)

    def difference(self, x: Tensor) -> Tensor:
        return x[self.far] - x[self.near]

    def divergence(self, flow: Tensor) -> Tensor:
        out = flow.new_zeros(*self.nodes, flow.shape[-1])
        return out.index_add_(0, self.far, flow).index_add_(0, self.near, flow, alpha=-1)

    def joins(self, keep: Tensor) -> Tensor:
        return keep[self.far] & keep[self.near]

    def damping(self, strength: Tensor) -> Tensor:
        return self._solver.damping(strength)

    def smooth(self, x: Tensor, damping: Tensor) -> Tensor:
        return self._solver.smooth(x, damping)


def grid_of_edges(N: int, edges: Tensor) -> tuple[int, int] | None:
    """Rows and columns of the grid whose cells, in row order, have exactly these edges; None for any other graph.

    >>> from foveate.ops.grid import grid_edges
    >>> grid_of_edges(6, grid_edges(2, 3).flip(0)), grid_of_edges(6, torch.tensor([[0, 5]]))
    ((2, 3), None)
    """
    low, high = edges.amin(-1), edges.amax(-1)
    found = (low * N + high).sort().values
    for W in range(1, N + 1):
        H = N // W
        if H * W != N or len(edges) != H * (W - 1) + W * (H - 1):
            continue
        near, far = grid_edges(H, W, device=edges.device).unbind(-1)
        if torch.equal((near * N + far).sort().values, found):
            return H, W
    return None


class _Spectral:
    """Solves Laplacian systems in the basis of eigenvectors, which takes N³ operations once and N² each time."""

    def __init__(self, N: int, edges: Tensor, dtype: torch.dtype) -> None:
        basis, values = _laplacian_basis(N, tuple(edges.flatten().tolist()))
        self._basis = basis.to(device=edges.device, dtype=dtype)
        self._eigenvalues = values.to(device=edges.device, dtype=dtype)[:, None]

    def damping(self, strength: Tensor) -> Tensor:
        return 1 / (1 + strength * self._eigenvalues)

    def smooth(self, x: Tensor, damping: Tensor) -> Tensor:
        return self._basis @ (self._basis.T @ x).mul_(damping)


class _Chebyshev:
    """Solves Laplacian systems by Chebyshev's iteration with a sparse matrix: a number of products that depends on the
    largest degree and on the strength, not on N.
    """

    def __init__(self, N: int, edges: Tensor, dtype: torch.dtype) -> None:
        near, far = edges.T
        one = torch.ones(len(edges), dtype=dtype, device=edges.device)
        rows, columns = torch.cat([near, far, near, far]), torch.cat([near, far, far, near])
        # the entries of a loop (i, i) cancel
        entries = torch.sparse_coo_tensor(
            torch.stack([rows, columns]), torch.cat([one, one, -one, -one]), (N, N), check_invariants=False
        )
        with warnings.catch_warnings():  # torch calls compressed rows a beta feature; products are ten times as fast
            warnings.filterwarnings("ignore", message="Sparse CSR")
            self._laplacian = entries.coalesce().to_sparse_csr()
        degree = torch.bincount(torch.cat([near, far]), minlength=N)
        self._largest = 2.0 * float(degree.max())  # no eigenvalue is larger

    def damping(self, strength: Tensor) -> Tensor:
        return strength

    def smooth(self, x: Tensor, damping: Tensor) -> Tensor:
        if self._largest == 0:
            return x
        half = 0.5 * self._largest * damping  # of the interval of the eigenvalues, 1 .. 1 + 2 half
        condition = 1 + 2 * float(half.max())
        steps = math.ceil(0.5 * math.sqrt(condition) * math.log(2 / torch.finfo(x.dtype).eps)) + 1
        ratio = (1 + half) / half
        rho, step, residual = 1 / ratio, x / (1 + half), x
        result = step.clone()
        for _ in range(steps):
            residual = torch.addcmul(residual - step, damping, self._laplacian @ step, value=-1)
            after = 1 / (2 * ratio - rho)
            step = torch.addcmul((after * rho) * step, 2 * after / half, residual)
            result += step
            rho = after
        return result


class _Cosines:
    """The orthonormal cosine basis of a chain of n nodes, with its eigenvalues 2 − 2 cos(πk/n).

    A matrix product beats a fast cosine transform at the sizes of attention grids, but not on long chains.
    """

    def __init__(self, n: int, dtype: torch.dtype, device: torch.device) -> None:
        self.n, self.eigenvalues = n, _chain_eigenvalues(n, dtype, device)
        self._long = n >= _LONG
        self._table = (_half_turns if self._long else _cosine_matrix)(n, dtype, device)

    def analyse(self, x: Tensor, dim: int) -> Tensor:
        """Coefficients of x (H, W, B) along axis 0 or 1."""
        if not self._long:
            return self._along(self._table, x, dim)
        # the cosine transform of n numbers is the Fourier transform of the even ones followed by the odd ones backwards
        x = x.movedim(dim, -1)
        spectrum = torch.fft.fft(torch.cat([x[..., ::2], x[..., 1::2].flip(-1)], -1))
        turned: Tensor = (spectrum * self._table).real
        return turned.movedim(-1, dim)

    def synthesise(self, x: Tensor, dim: int) -> Tensor:
        """The inverse of `analyse`, which is its adjoint."""
        if not self._long:
            return self._along(self._table.T, x, dim)
        x = x.movedim(dim, -1)
        mixed = torch.fft.fft(x * self._table).real
        result = torch.empty_like(mixed)
        evens = (self.n + 1) // 2
        result[..., ::2], result[..., 1::2] = mixed[..., :evens], mixed[..., evens:].flip(-1)
        return result.movedim(-1, dim)

    def _along(self, matrix: Tensor, x: Tensor, dim: int) -> Tensor:
        H, W, B = x.shape
        return torch.matmul(matrix, x) if dim else (matrix @ x.reshape(H, W * B)).reshape(H, W, B)


@lru_cache(maxsize=64)
def _cosine_matrix(n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The basis (n, n), one function per row."""
    # In float64 first: float32 loses digits in the cosine of a large argument.
    k = torch.arange(n, dtype=torch.float64)[:, None]
    basis = torch.cos(math.pi / n * k * (k.T + 0.5)) * math.sqrt(2 / n)
    basis[0] /= math.sqrt(2)
    return basis.to(device=device, dtype=dtype)


@lru_cache(maxsize=64)
def _half_turns(n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """`√(2/n) exp(−iπk/(2n))`, and √(1/n) for k = 0."""
    k = torch.arange(n, dtype=torch.float64)
    size = torch.full_like(k, math.sqrt(2 / n))
    size[0] = math.sqrt(1 / n)
    turn = torch.polar(size, -math.pi / (2 * n) * k)
    return turn.to(device=device, dtype=torch.complex128 if dtype == torch.float64 else torch.complex64)


def _chain_eigenvalues(n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    values = 2 - 2 * torch.cos(math.pi / n * torch.arange(n, dtype=torch.float64))
    return values.to(device=device, dtype=dtype)


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
