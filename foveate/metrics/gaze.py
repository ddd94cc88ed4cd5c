"""Gaze: does a map say where people look? Maps (B, H, W) against fixations (B, P, 2) or against maps of people.

Fixations are points (x, y) in fractions of the image; rows of NaN are padding. A point belongs to the cell in which it
lies. Maps are real numbers of any scale; a constant map, also one of zeros, says nothing and gets the score of chance.
An image without fixations has no score: NaN, which `bootstrap_interval` skips.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from foveate.checks import check_floating, check_number, check_shape
from foveate.ops.density import Density
from foveate.ops.grid import cell_centres


def nss(maps: Tensor, points: Tensor) -> Tensor:
    """Normalised scanpath saliency, (B,): the mean over fixations of the map in units of its own deviation.

    mean over fixations of (map − mean) / deviation; chance is 0, also of a constant map.

    Args:
        maps: (B, H, W).
        points: (B, P, 2) fixations, NaN at padding.

    Reference: Peters et al. 2005.

    >>> nss(torch.tensor([[[0.0, 1.0]]]), torch.tensor([[[0.75, 0.5]]])).item()
    1.0
    """
    values, valid = _at("nss", maps, points)
    flat = maps.double().flatten(1)
    mean, deviation = flat.mean(1), flat.std(1, correction=0)
    total = ((values - mean[:, None]) * valid).sum(1) / deviation.where(_varies(flat), 1)
    return _mean(total * _varies(flat), valid, maps)


def auc_judd(maps: Tensor, points: Tensor) -> Tensor:
    """Area under the ROC curve by Judd, (B,): fixated cells against all others, with thresholds at the fixations only.

    The curve is straight between the thresholds. Ties are ties: no noise is added to the map.

    Args:
        maps: (B, H, W).
        points: (B, P, 2) fixations, NaN at padding.

    Reference: Judd et al. 2009; Bylinskii et al. 2019.

    >>> auc_judd(torch.tensor([[[0.1, 0.2, 0.9]]]), torch.tensor([[[0.9, 0.5]]])).item()
    1.0
    """
    values, valid = _at("auc_judd", maps, points)
    flat = maps.double().flatten(1)
    index, _ = _cells(points, *maps.shape[-2:])
    fixated = torch.zeros_like(flat, dtype=torch.bool).scatter_(1, index, valid)
    # scatter_ writes False where padding points: cell 0 is fixated only if a real point says so.
    fixated[:, 0] = (valid & (index == 0)).any(1)
    others = flat.masked_fill(fixated, -torch.inf).sort(1).values
    number = (~fixated).sum(1, keepdim=True)
    threshold = values.masked_fill(~valid, -torch.inf).sort(1, descending=True).values
    count = valid.sum(1, keepdim=True)
    ordered = threshold.flip(1)
    hits = threshold.shape[1] - torch.searchsorted(ordered, threshold.contiguous())
    false = flat.shape[1] - torch.searchsorted(others, threshold.contiguous())
    # Padding has the threshold -inf, where everything is a hit.
    hits = torch.where(threshold == -torch.inf, count, hits) / count.clamp(min=1)
    false = torch.where(threshold == -torch.inf, number, false) / number.clamp(min=1)
    zero, one = torch.zeros_like(values[:, :1]), torch.ones_like(values[:, :1])
    area = torch.trapezoid(torch.cat([zero, hits, one], 1), torch.cat([zero, false, one], 1))
    area = torch.where(number[:, 0] > 0, area, 0.5)
    return _known(area, valid, maps)


def auc_borji(maps: Tensor, points: Tensor) -> Tensor:
    """Area under the ROC curve by Borji, (B,): fixations against cells drawn uniformly from the whole image.

    Computed from all cells and all thresholds: the value to which the average over draws converges.

    Args:
        maps: (B, H, W).
        points: (B, P, 2) fixations, NaN at padding.

    Reference: Borji et al. 2013.

    >>> auc_borji(torch.tensor([[[0.1, 0.9]]]), torch.tensor([[[0.9, 0.5]]])).item()
    0.75
    """
    values, valid = _at("auc_borji", maps, points)
    flat = maps.double().flatten(1)
    return _auc(values, valid, flat, torch.ones_like(flat, dtype=torch.bool), maps)


def shuffled_auc(maps: Tensor, points: Tensor, others: Tensor | None = None) -> Tensor:
    """Shuffled area under the ROC curve, (B,): fixations against those of other images, so that the centre is no help.

    Args:
        maps: (B, H, W).
        points: (B, P, 2) fixations, NaN at padding.
        others: (P', 2) shared, or (B, P', 2), fixations of other images; None takes those of the other images of the
            batch.

    Reference: Zhang et al. 2008; Tatler et al. 2005.

    >>> shuffled_auc(torch.tensor([[[0.1, 0.9]]]), torch.tensor([[[0.9, 0.5]]]), torch.tensor([[0.1, 0.5]])).item()
    1.0
    """
    values, valid = _at("shuffled_auc", maps, points)
    B = len(maps)
    if others is None:
        everywhere = points[None].expand(B, *points.shape)
        own = torch.eye(B, dtype=torch.bool, device=points.device)[:, :, None, None]
        others = everywhere.masked_fill(own, math.nan).flatten(1, 2)
    elif others.ndim == 2:
        others = others[None].expand(B, *others.shape)
    negatives, counted = _at("shuffled_auc", maps, others)
    return _auc(values, valid, negatives, counted, maps)


def cc(maps: Tensor, truth: Tensor) -> Tensor:
    """Linear correlation of two maps, (B,) in [-1, 1]; 0 if one of them is constant.

    >>> round(cc(torch.tensor([[[0.1, 0.2, 0.7]]]), torch.tensor([[[0.2, 0.4, 1.4]]])).item(), 6)
    1.0
    """
    a, b = _pair("cc", maps, truth)
    varies = _varies(a) & _varies(b)
    a, b = a - a.mean(1, keepdim=True), b - b.mean(1, keepdim=True)
    product = a.norm(dim=1) * b.norm(dim=1)
    return torch.where(varies, (a * b).sum(1) / product.where(product > 0, 1), 0).to(maps.dtype)


def sim(maps: Tensor, truth: Tensor) -> Tensor:
    """Similarity of two maps as distributions, (B,) in [0, 1]: the mass that they share, `Σ min(p, q)`.

    A map with negative values is shifted to a least value of 0; a map of zeros counts as uniform.

    >>> round(sim(torch.tensor([[[1.0, 3.0]]]), torch.tensor([[[3.0, 1.0]]])).item(), 6)
    0.5
    """
    a, b = (_distribution(x) for x in _pair("sim", maps, truth))
    return torch.minimum(a, b).sum(1).to(maps.dtype)


def kl(maps: Tensor, truth: Tensor, *, floor: float = 1e-20) -> Tensor:
    """Kullback-Leibler divergence of the truth from a map, (B,), in nats: `Σ q log(q / p)`; 0 is perfect.

    Args:
        maps: (B, H, W), p after normalising.
        truth: (B, H, W), q after normalising.
        floor: added to every cell of both before they are normalised, so that a zero costs much, not everything.

    >>> kl(torch.tensor([[[1.0, 1.0]]]), torch.tensor([[[3.0, 3.0]]])).item()
    0.0
    """
    check_number("kl", "floor", floor, least=0, advice="1e-20 is usual")
    a, b = (_distribution(x, floor) for x in _pair("kl", maps, truth))
    return torch.where(b > 0, b * (b / a.where(b > 0, 1)).log(), 0).sum(1).to(maps.dtype)


def information_gain(
    maps: Tensor | Density, points: Tensor, baseline: Tensor | Density | None = None, *, floor: float = 1e-20
) -> Tensor:
    """Bits per fixation that a map knows more than a baseline, (B,).

    mean over fixations of log₂ p(fixation) − log₂ p₀(fixation)

    Args:
        maps: (B, H, W), normalised to sum to one; or a density, whose value at the points themselves is taken.
        points: (B, P, 2) fixations, NaN at padding.
        baseline: the same of the baseline, with any grid, such as the mean map of a dataset; uniform when None.
        floor: least density, as a multiple of the uniform one; a fixation where the map is zero costs log₂ of it.

    Reference: Kümmerer et al. 2015.

    >>> information_gain(torch.tensor([[[0.0, 1.0]]]), torch.tensor([[[0.75, 0.5]]])).item()
    1.0
    """
    check_number("information_gain", "floor", floor, above=0, advice="1e-20 is usual")
    valid = ~points.isnan().any(-1)
    gained = _density_at(maps, points).clamp(min=floor).log2()
    if baseline is not None:
        gained = gained - _density_at(baseline, points).clamp(min=floor).log2()
    return _mean((gained * valid).sum(1), valid, points)


def fixation_maps(points: Tensor, H: int, W: int, deviation: float = 0.05) -> Tensor:
    """Where people looked as maps (B, H, W) that sum to one: a round Gaussian at every fixation.

    Args:
        points: (B, P, 2) fixations, NaN at padding.
        H, W: rows and columns of the maps.
        deviation: standard deviation of the Gaussians as a fraction of the image, about one degree of sight.

    An image without fixations gets zeros.

    >>> fixation_maps(torch.tensor([[[0.5, 0.5]]]), 3, 3)[0].argmax().item()
    4
    """
    check_number("fixation_maps", "deviation", deviation, above=0, advice="0.05 is a twentieth of the image")
    valid = ~points.isnan().any(-1)
    centres = cell_centres(H, W).to(points).reshape(H, W, 2)
    sides = []
    for axis, places in ((1, centres[:, 0, 1]), (0, centres[0, :, 0])):
        squared = (places - points.nan_to_num()[..., axis, None]).square() / (2 * deviation**2)
        sides.append(torch.softmax(-squared, -1))
    total = torch.einsum("bph,bpw->bhw", sides[0] * valid[..., None], sides[1])
    return total / valid.sum(1).clamp(min=1)[:, None, None]


def _cells(points: Tensor, H: int, W: int) -> tuple[Tensor, Tensor]:
    """(B, P) number of the cell of every point, 0 at padding, and which are points."""
    valid = ~points.isnan().any(-1)
    x, y = points.nan_to_num().double().unbind(-1)
    # A point on the right or lower edge belongs to the last cell.
    column, row = (x * W).floor().clamp(0, W - 1).long(), (y * H).floor().clamp(0, H - 1).long()
    return (row * W + column) * valid, valid


def _at(where: str, maps: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """(B, P) values of the maps at points, and which are points."""
    check_floating(where, "maps", maps)
    check_floating(where, "points", points)
    check_shape(where, "maps", maps, (None, None, None), "(B, H, W)")
    check_shape(where, "points", points, (len(maps), None, 2), "(B, P, 2)")
    index, valid = _cells(points, *maps.shape[-2:])
    return maps.double().flatten(1).gather(1, index), valid


def _varies(flat: Tensor) -> Tensor:
    return flat.amax(1) > flat.amin(1)


def _mean(total: Tensor, valid: Tensor, like: Tensor) -> Tensor:
    return _known(total / valid.sum(1).clamp(min=1), valid, like)


def _known(values: Tensor, valid: Tensor, like: Tensor) -> Tensor:
    """NaN where an image has no fixation."""
    return torch.where(valid.any(1), values, math.nan).to(like.dtype)


def _auc(positives: Tensor, valid: Tensor, negatives: Tensor, counted: Tensor, like: Tensor) -> Tensor:
    """Probability that a fixation has more weight than a negative; ties count one half; 0.5 without negatives."""
    low = negatives.masked_fill(~counted, -torch.inf).sort(1).values
    padding = (~counted).sum(1, keepdim=True)
    below = torch.searchsorted(low, positives.contiguous()) - padding
    upto = torch.searchsorted(low, positives.contiguous(), right=True) - padding
    number = counted.sum(1, keepdim=True)
    wins = torch.where(number > 0, (below + upto) / (2 * number.clamp(min=1)), 0.5)
    return _mean((wins * valid).sum(1), valid, like)


def _pair(where: str, maps: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    check_floating(where, "maps", maps)
    check_floating(where, "truth", truth)
    check_shape(where, "maps", maps, (None, None, None), "(B, H, W)")
    check_shape(where, "truth", truth, tuple(maps.shape), "(B, H, W)")
    return maps.double().flatten(1), truth.double().flatten(1)


def _distribution(flat: Tensor, floor: float = 0.0) -> Tensor:
    flat = flat - flat.amin(1, keepdim=True).clamp(max=0) + floor
    total = flat.sum(1, keepdim=True)
    return torch.where(total > 0, flat / total.where(total > 0, 1), 1 / flat.shape[1])


def _density_at(maps: Tensor | Density, points: Tensor) -> Tensor:
    """(B, P) density at points; 1 is uniform."""
    if isinstance(maps, Density):
        return maps.pdf(points.nan_to_num()).double()
    _at("information_gain", maps, points)
    index, _ = _cells(points, *maps.shape[-2:])
    return _distribution(maps.double().flatten(1)).gather(1, index) * maps[0].numel()
