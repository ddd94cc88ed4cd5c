"""From many weights to one map: over heads, over layers, against a neutral prompt. Pure functions of tensors.

Weights are (..., M, Q, N): heads, queries, locations, as `Record.weights`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from foveate.checks import check_number
from foveate.errors import ShapeError, UnknownName

Choice = str | int | Sequence[int]


def normalise(weights: Tensor) -> Tensor:
    """Scale the last axis to sum to one; rows of zeros stay zero.

    >>> normalise(torch.tensor([[1.0, 3.0], [0.0, 0.0]])).tolist()
    [[0.25, 0.75], [0.0, 0.0]]
    """
    total = weights.sum(-1, keepdim=True)
    return torch.where(total > 0, weights / torch.where(total > 0, total, 1), 0)


def over_heads(weights: Tensor, choice: Choice = "mean") -> Tensor:
    """Reduce the heads of weights (..., M, Q, N) to (..., Q, N).

    Args:
        weights: (..., M, Q, N).
        choice: "mean", "max" (element-wise, not rescaled), "weighted" (rows of sum 1, averaged in proportion to their
            Kullback-Leibler divergence from uniform weights: a head that looks everywhere says nothing about where),
            the number of one head, or several numbers to average.

    >>> heads = torch.tensor([[[[1.0, 0.0]], [[0.5, 0.5]]]])
    >>> over_heads(heads, "mean").tolist(), over_heads(heads, "weighted").round(decimals=5).tolist()
    ([[[0.75, 0.25]]], [[[1.0, 0.0]]])
    """
    if choice != "weighted":
        return _reduce("over_heads", weights, choice, -3)
    rows = normalise(weights)
    apart = math.log(max(rows.shape[-1], 1)) + torch.special.xlogy(rows, rows).sum(-1, keepdim=True)
    apart = apart.clamp(min=1e-6) * (rows.sum(-1, keepdim=True) > 0)  # heads that are all uniform count alike
    mean: Tensor = (apart / apart.sum(-3, keepdim=True).clamp(min=1e-12) * rows).sum(-3)
    return mean


def over_layers(weights: Sequence[Tensor], choice: Choice = "mean") -> Tensor:
    """Reduce the weights of several layers, all of one shape, to one of that shape.

    Args:
        weights: one tensor per layer.
        choice: "mean", "max", the position of one layer, or several positions to average.

    >>> over_layers([torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])], -1).tolist()
    [0.0, 1.0]
    """
    shapes = {tuple(layer.shape) for layer in weights}
    if len(shapes) != 1:
        raise ShapeError(
            f"over_layers: expected layers of one shape, got {sorted(shapes) or 'none'}; choose layers of one tower"
        )
    return _reduce("over_layers", torch.stack(list(weights)), choice, 0)


def _reduce(where: str, weights: Tensor, choice: Choice, dim: int) -> Tensor:
    if isinstance(choice, str):
        if choice not in ("mean", "max"):
            raise UnknownName(where, choice, ("mean", "max", "weighted") if dim == -3 else ("mean", "max"))
        return weights.mean(dim) if choice == "mean" else weights.amax(dim)
    count = weights.shape[dim]
    chosen = [choice] if isinstance(choice, int) else list(choice)
    if not chosen or any(not -count <= one < count for one in chosen):
        raise ShapeError(f"{where}: expected numbers from 0 to {count - 1}, got {chosen}; choose among those")
    index = torch.tensor([one % count for one in chosen], device=weights.device)
    return weights.index_select(dim, index).mean(dim)


def rollout(layers: Sequence[Tensor], residual: float = 0.5) -> Tensor:
    """Attention rollout: how much each input reaches each output through all layers of self-attention.

    R = Π_l ((1 − r) A_l + r I), the last layer leftmost

    Args:
        layers: (..., N, N) per layer, heads reduced, first layer first.
        residual: r, the fraction that the residual connection carries.

    Returns:
        (..., N, N), rows sum to one.

    Reference: Abnar & Zuidema 2020, with r = 1/2.

    >>> rollout([torch.tensor([[0.0, 1.0], [0.0, 1.0]])]).tolist()
    [[0.5, 0.5], [0.0, 1.0]]
    """
    check_number("rollout", "residual", residual, least=0, advice="0.5 is usual")
    _check_square("rollout", layers)
    joint = None
    for weights in layers:
        eye = torch.eye(weights.shape[-1], dtype=weights.dtype, device=weights.device)
        mixed = (1 - residual) * weights + residual * eye
        joint = mixed if joint is None else mixed @ joint
    assert joint is not None
    return joint


def gradient_weighted(layers: Sequence[Tensor], gradients: Sequence[Tensor], heads: Choice = "mean") -> Tensor:
    """Relevance of each input to a score, from the weights and the gradient of the score by them.

    R ← R + Ā R,  Ā = mean over heads of max(0, ∇A ⊙ A),  R = I at the start

    Args:
        layers: (..., M, N, N) weights of self-attention per layer, first layer first.
        gradients: of a scalar score by each of them.
        heads: how they are combined instead, as in `over_heads`.

    Returns:
        (..., N, N) relevance; row q holds the relevance of every input to output q.

    Reference: Chefer et al. 2021, equations 5 and 6.

    >>> A = torch.full((1, 2, 2), 0.5)
    >>> gradient_weighted([A], [torch.ones_like(A)]).tolist()
    [[1.5, 0.5], [0.5, 1.5]]
    """
    _check_square("gradient_weighted", layers)
    relevance = torch.eye(layers[0].shape[-1], dtype=layers[0].dtype, device=layers[0].device)
    for weights, gradient in zip(layers, gradients, strict=True):
        relevance = relevance + over_heads(positive_part(weights, gradient), heads) @ relevance
    return relevance


def positive_part(weights: Tensor, gradient: Tensor) -> Tensor:
    """The weights times their gradient where that is positive, 0 elsewhere: how much each weight raises a score.

    >>> positive_part(torch.full((1, 1, 2), 0.5), torch.tensor([[[1.0, -1.0]]])).tolist()
    [[[0.5, 0.0]]]
    """
    return (weights * gradient).clamp(min=0)


def relative(weights: Tensor, neutral: Tensor, floor: float = 0.1) -> Tensor:
    """Weights divided by those of a neutral prompt: what this question attends to more than any other.

    p_n ∝ w_n / max(w⁰_n, ε / N)

    Args:
        weights: (..., N) for the question.
        neutral: (..., N) for a neutral prompt about the same image, such as "Describe the image."
        floor: ε, the least neutral weight as a fraction of the uniform weight 1/N; without it, locations that the
            neutral prompt ignores would dominate.

    Reference: Zhang et al. 2025 ("MLLMs know where to look"), relative attention.

    >>> relative(torch.tensor([0.5, 0.5]), torch.tensor([0.75, 0.25])).tolist()
    [0.25, 0.75]
    """
    check_number("relative", "floor", floor, above=0, advice="0.1 is a tenth of the uniform weight")
    least = floor / max(weights.shape[-1], 1)
    return normalise(normalise(weights) / normalise(neutral).clamp(min=least))


def sinks(neutral: Tensor, above: float = 5.0) -> Tensor:
    """Locations that attract attention whatever is asked: (..., N) booleans.

    Args:
        neutral: (..., N) weights for a neutral prompt.
        above: a location is a sink when its weight exceeds this multiple of the median weight and of 1/N.

    Reference: Kang et al. 2025 ("See what you are told: visual attention sink").

    >>> sinks(torch.tensor([0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.91])).nonzero().tolist()
    [[9]]
    """
    check_number("sinks", "above", above, above=1, advice="5 finds cells that stand out clearly")
    weights = normalise(neutral)
    typical = weights.median(-1, keepdim=True).values.clamp(min=1 / max(weights.shape[-1], 1))
    return weights > above * typical


def without_sinks(weights: Tensor, neutral: Tensor, above: float = 5.0) -> Tensor:
    """Weights with the sinks of a neutral prompt removed, scaled to sum to one again; see `sinks`.

    >>> without_sinks(torch.tensor([0.9] + [0.01] * 10), torch.tensor([0.9] + [0.01] * 10))[0].item()
    0.0
    """
    return normalise(weights.masked_fill(sinks(neutral, above), 0))


def _check_square(where: str, layers: Sequence[Tensor]) -> None:
    if not layers or any(layer.shape[-1] != layer.shape[-2] for layer in layers):
        got = [tuple(layer.shape) for layer in layers] or "none"
        raise ShapeError(
            f"{where}: expected self-attention (..., N, N) per layer, got {got}; watch all rows and columns of a tower"
        )


REDUCTIONS: dict[str, Callable[..., Tensor]] = {
    "heads": over_heads,
    "layers": over_layers,
    "rollout": rollout,
    "gradient-weighted": gradient_weighted,
    "relative": relative,
    "without-sinks": without_sinks,
}
