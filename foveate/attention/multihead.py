"""Multi-head attention with any mechanism, and pooling with learned queries, which is made of it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from foveate.attention.arguments import (
    AnyGrid,
    as_grid,
    beside_scores,
    check_grid,
    joint_mask,
    shared_mask,
    split_mask,
    without_padding,
)
from foveate.attention.attended import Attended
from foveate.attention.discrete import DiscreteAttention
from foveate.attention.mechanism import MECHANISMS
from foveate.attention.streaming import stream
from foveate.checks import at_least_float32, check_heads, check_mask, check_shape
from foveate.errors import ShapeError, WrongValue
from foveate.registry import lookup

WHERE = "MultiheadAttention"
Pair = tuple[Tensor, Tensor | None]


class MultiheadAttention(nn.Module):
    """Scaled dot-product attention with M heads, in which any mechanism of the table can replace the softmax.

    context = W_o [head_1; …; head_M],  head_m = transform(Q_m K_mᵀ / √(D/M)) V_m

    The parameters have the names and shapes of `torch.nn.MultiheadAttention`, so its state_dict loads here, and the
    outputs with softmax are the same. It also takes the place of one inside `torch.nn.TransformerEncoderLayer`. A
    continuous mechanism fits one density per head and query.

    Args:
        dim: D, features of the queries and of the result.
        heads: M, a divisor of D.
        transform: a name in MECHANISMS; `options` are its options. Those that are learnable have one number per head.
        dropout: fraction of the weights that are dropped in training; discrete mechanisms only.
        bias: whether the projections have biases.
        kdim, vdim: features of the keys and of the values; D when None.
        batch_first: inputs are (B, N, D), torch's default being (N, B, D).

    >>> attend = MultiheadAttention(8, heads=2, transform="sparsemax")
    >>> attend(torch.randn(1, 3, 8), torch.randn(1, 5, 8)).weights.shape
    torch.Size([1, 2, 3, 5])
    >>> x = torch.randn(1, 5, 8)
    >>> output, weights = attend(x, x, x, need_weights=True)
    >>> output.shape, weights.shape
    (torch.Size([1, 5, 8]), torch.Size([1, 5, 5]))
    """

    q_proj_weight: nn.Parameter | None
    in_proj_weight: nn.Parameter | None
    in_proj_bias: nn.Parameter | None

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        transform: str = "softmax",
        dropout: float = 0.0,
        bias: bool = True,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        check_heads(WHERE, dim, heads)
        self.heads, self.batch_first = heads, batch_first
        if options.get("learnable"):
            options["heads"] = heads
        self.transform = lookup("mechanism", transform, MECHANISMS).build(**options)
        if dropout and not isinstance(self.transform, DiscreteAttention):
            raise WrongValue(
                f"{WHERE}: expected dropout=0 beside transform={transform!r}, got {dropout}; a density has no weights "
                "to drop"
            )
        self.dropout = nn.Dropout(dropout)
        self.kdim, self.vdim = kdim or dim, vdim or dim
        self._make_projections(dim, bias)

    def _make_projections(self, dim: int, bias: bool) -> None:
        """One matrix as torch has it where the sizes are equal, three where they differ."""
        apart = (self.kdim, self.vdim) != (dim, dim)
        sizes = {"in": None if apart else 3 * dim, **dict.fromkeys("qkv", dim if apart else None)}
        inner = {"in": dim, "q": dim, "k": self.kdim, "v": self.vdim}
        for name, rows in sizes.items():
            made = None if rows is None else nn.Parameter(torch.empty(rows, inner[name]))
            self.register_parameter(f"{name}_proj_weight", made)
            if made is not None:
                nn.init.xavier_uniform_(made)
        self.register_parameter("in_proj_bias", nn.Parameter(torch.zeros(3 * dim)) if bias else None)
        self.out_proj = nn.Linear(dim, dim, bias=bias)
        if bias:
            nn.init.zeros_(self.out_proj.bias)

    @property
    def embed_dim(self) -> int:
        """D, by torch's name."""
        return self.out_proj.in_features

    @property
    def num_heads(self) -> int:
        """M, by torch's name."""
        return self.heads

    @property
    def _qkv_same_embed_dim(self) -> bool:
        """False: torch's encoder layers then do not replace this module by their fused softmax attention."""
        return False

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        need_weights: bool | None = None,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        *,
        grid: AnyGrid | None = None,
        mask: Tensor | None = None,
    ) -> Attended | Pair:
        """Attend.

        Args:
            query: (B, Q, D), or (Q, D) for one example; (Q, B, D) without `batch_first`.
            key: (B, N, kdim).
            value: (B, N, vdim); the keys when absent.
            key_padding_mask: (B, N) as in torch: True where a key is ignored, or numbers that are added.
            need_weights: None returns `Attended`; True and False return torch's pair (output, weights or None).
            attn_mask: (Q, N) or (B·M, Q, N) as in torch: True where a key is ignored, or numbers that are added.
            average_attn_weights: the weights of the pair are the mean over the heads, (B, Q, N).
            is_causal: query i sees the keys up to i, whether `attn_mask` says so or not.
            grid: of the N locations, for mechanisms over a grid.
            mask: (B, N) True where a key counts, or (B, Q, N) per query, the polarity of foveate.

        Returns:
            Attended with context (B, Q, D) and weights (B, M, Q, N), or the pair; a query with nothing to attend to
            has zero weights, and its context is the output bias.
        """
        value = key if value is None else value
        single = query.ndim == 2
        query, key, value = (x if x.ndim == 3 and self.batch_first else self._first(x) for x in (query, key, value))
        self._check(query, key, value)
        q, k, v = (self._split(x, i) for i, x in enumerate((query, key, value)))
        padding = key_padding_mask[None] if single and key_padding_mask is not None else key_padding_mask
        bias = self._combine(q, k, padding, attn_mask, mask, is_causal)
        if need_weights is False:
            heads = self._read(q, k, v, bias, grid)
            if heads is not None:
                return self._output(self.out_proj(heads.transpose(1, 2).flatten(2)), single), None
        seen = self._attend(q, k, v, bias, grid)
        if need_weights is None:
            known = mask if mask is None or mask.ndim == 2 else None
            return Attended(seen.context, seen.weights, seen.density, seen.grid, self._counted(seen, known, padding))
        weights = seen.weights.mean(1) if average_attn_weights else seen.weights
        pair = self._output(seen.context, single), (weights[0] if single else weights) if need_weights else None
        return pair

    def _read(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, grid: AnyGrid | None) -> Tensor | None:
        """The context of every head without its weights, None where they have to be made."""
        dropout = self.dropout.p if self.training else 0.0
        if self._is_plain():
            return F.scaled_dot_product_attention(q, k, v, bias, dropout)
        cells = as_grid(WHERE, grid)
        if isinstance(cells, Tensor):
            return None
        check_grid(WHERE, cells, q.shape[0], k.shape[-2])
        return stream(WHERE, self.transform, q, k, v, bias, dropout)

    def _first(self, x: Tensor) -> Tensor:
        return x[None] if x.ndim == 2 else x.transpose(0, 1) if x.ndim == 3 else x

    def _output(self, x: Tensor, single: bool) -> Tensor:
        return x[0] if single else x if self.batch_first else x.transpose(0, 1)

    def _is_plain(self) -> bool:
        return isinstance(self.transform, DiscreteAttention) and self.transform.is_plain_softmax

    def _check(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        check_shape(WHERE, "queries", query, (None, None, self.embed_dim), "(B, Q, D)")
        check_shape(WHERE, "keys", key, (query.shape[0], None, self.kdim), "(B, N, D)")
        check_shape(WHERE, "values", value, (*key.shape[:2], self.vdim), "(B, N, D)")

    def _split(self, x: Tensor, part: int) -> Tensor:
        """Project by the q, k or v part and split into heads: (B, M, N, D/M)."""
        dim = self.embed_dim
        rows = slice(part * dim, (part + 1) * dim)
        packed, bias = self.in_proj_weight, self.in_proj_bias
        matrix = getattr(self, f"{'qkv'[part]}_proj_weight") if packed is None else packed[rows]
        y = F.linear(x, matrix, None if bias is None else bias[rows])
        return y.reshape(*y.shape[:-1], self.heads, dim // self.heads).transpose(1, 2)

    def _combine(
        self,
        q: Tensor,
        k: Tensor,
        padding: Tensor | None,
        attn_mask: Tensor | None,
        mask: Tensor | None,
        is_causal: bool,
    ) -> Tensor | None:
        """One mask for the scores (B, M, Q, N): True where a key counts, or numbers to be added."""
        (B, _, Q, _), N = q.shape, k.shape[-2]
        joint = joint_mask(attn_mask, padding, self.heads)
        keep = None
        if mask is not None:
            check_mask(WHERE, mask, (B, N) if mask.ndim == 2 else (B, Q, N))
            keep = mask[:, None, None] if mask.ndim == 2 else mask[:, None]
        if is_causal:
            causal = torch.ones(Q, N, dtype=torch.bool, device=q.device).tril()
            keep = causal if keep is None else keep & causal
        if keep is None or joint is None:
            return keep if joint is None else joint
        return joint & keep if joint.dtype == torch.bool else joint.masked_fill(~keep, -math.inf)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, grid: AnyGrid | None) -> Attended:
        """Attention of all heads, with the context (B, Q, D) projected."""
        cells = as_grid(WHERE, grid)
        # float32 at least, as in torch's own kernels: half precision loses the scores beside a mask's lowest number
        scores = at_least_float32(at_least_float32(q) @ at_least_float32(k).transpose(-1, -2)) / math.sqrt(q.shape[-1])
        if bias is not None and bias.is_floating_point() and self._is_plain():
            scores, keep = scores + bias, None  # as torch: a row of lowest numbers still attends, one of -inf is zero
        else:
            scores, keep = split_mask(scores, bias)
        keep = beside_scores(scores, keep)
        if isinstance(self.transform, DiscreteAttention):
            weights = self.transform.weigh(scores, cells, keep).to(q.dtype)
            seen = Attended(self.dropout(weights).to(v.dtype) @ v, weights, None, cells)
        else:
            seen = self.transform(scores, v, cells, keep)
        context = self.out_proj(seen.context.transpose(1, 2).flatten(2))
        return Attended(context, seen.weights.to(q.dtype), seen.density, seen.grid)

    def _counted(self, seen: Attended, mask: Tensor | None, padding: Tensor | None) -> Tensor | None:
        """The (B, N) mask of the locations that count for every query alike."""
        if padding is not None and padding.dtype == torch.bool:
            mask = ~padding if mask is None else mask & ~padding
        return shared_mask(without_padding(seen.grid, mask, seen.weights.shape[-1]))


class AttentionPool(nn.Module):
    """Pool the features of an image with learned queries and any mechanism.

    `c = W_o [head_1; …; head_M]`, `head_m = attend(q_m K_mᵀ / √(D/M)) V_m` with learned queries q

    Takes the place of `features.mean((2, 3))` or of a multi-head attention pooling (MAP) head, and reports where it
    looked. One density per head and query for continuous mechanisms.

    Args:
        dim: D, features per location and of the result.
        mechanism: a name in MECHANISMS; `options` are its options.
        heads: M, a divisor of D.
        queries: number of learned queries.

    >>> pool = AttentionPool(8, mechanism="continuous-softmax")
    >>> seen = pool(torch.randn(2, 8, 7, 7))
    >>> seen.context.shape, seen.map().shape, seen.density.mean.shape
    (torch.Size([2, 8]), torch.Size([2, 7, 7]), torch.Size([2, 2]))
    """

    def __init__(
        self, dim: int, mechanism: str = "multimodal", heads: int = 1, queries: int = 1, **options: Any
    ) -> None:
        super().__init__()
        if queries < 1:
            raise WrongValue(f"AttentionPool: expected queries >= 1, got {queries}; use 1")
        self.query = nn.Parameter(torch.randn(queries, dim) * dim**-0.5)
        self.attend = MultiheadAttention(dim, heads, transform=mechanism, **options)

    def forward(self, features: Tensor, grid: AnyGrid | None = None, mask: Tensor | None = None) -> Attended:
        """Pool.

        Args:
            features: (B, D, H, W), or (B, N, D) with the locations in the row order of the grid.
            grid: of the locations of (B, N, D); mechanisms over a grid need it.
            mask: (B, N) or (B, H, W), True where a location counts.

        Returns:
            Attended with context (B, D) for one query, else (B, Q, D). Weights, density and maps have batch shape
            (B, M, Q), without the axes of size one: (B, N) weights for one head and one query.
        """
        dim = self.attend.embed_dim
        if features.ndim == 4:
            if grid is not None:
                raise ShapeError(
                    f"AttentionPool: expected no grid beside features (B, D, H, W), got {grid!r}; leave it out"
                )
            grid = (features.shape[-2], features.shape[-1])
            features = features.flatten(2).transpose(1, 2)
        if features.ndim != 3 or features.shape[-1] != dim:
            raise ShapeError(
                f"AttentionPool: expected features (B, {dim}, H, W) or (B, N, {dim}), got {tuple(features.shape)}; "
                "move the feature axis"
            )
        mask = mask.flatten(1) if mask is not None and mask.ndim == 3 else mask
        queries = self.query.to(features.dtype).expand(features.shape[0], *self.query.shape)
        seen = self.attend(queries, features, grid=grid, mask=mask)
        return _without_single_axes(seen)

    def extra_repr(self) -> str:
        """The sizes, for print."""
        return f"dim={self.attend.embed_dim}, heads={self.attend.heads}, queries={len(self.query)}"


def _without_single_axes(seen: Attended) -> Attended:
    """The attention of (B, M, Q) without a head axis of one and a query axis of one."""
    B, M, Q = seen.weights.shape[:3]
    shape = (B, *(n for n in (M, Q) if n != 1))
    density = seen.density
    return replace(
        seen,
        context=seen.context[:, 0] if Q == 1 else seen.context,
        weights=seen.weights.reshape(*shape, seen.weights.shape[-1]),
        density=None if density is None else density.map_tensors(lambda part: part.reshape(*shape, *part.shape[3:])),
    )
