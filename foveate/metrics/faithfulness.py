"""Faithfulness: does the model use what a map shows? The score is measured while parts of the image are removed.

Every function works with any model through a function `score(images) -> (B,)`, for instance the log-probability of the
answer, and with maps (B, h, w) of any resolution: cells of the map are removed, the most weighted ones first. Cells of
equal weight, as in a constant map, are removed in one fixed random order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from foveate.checks import check_counts, check_floating, check_number, check_shape
from foveate.errors import ShapeError, UnknownName, WrongValue
from foveate.metrics.maps import spearman
from foveate.metrics.statistics import bootstrap_interval

Score: TypeAlias = Callable[[Any], Tensor]
Explain: TypeAlias = Callable[[Tensor], Tensor]
Fill: TypeAlias = str | Tensor | Callable[[Tensor, Tensor], Any]
Progress: TypeAlias = Callable[[Sequence[Any]], Iterable[Any]]

FILLS = ("blur", "mean", "road")
TENTHS = tuple(number / 10 for number in range(1, 10))
# Most of what an explanation rests on is little; DeYoung et al. 2020 use these fractions.
AOPC = (0.01, 0.05, 0.1, 0.2, 0.5)


@dataclass(frozen=True, eq=False)
class Curve:
    """The score while more and more of the image is removed, or inserted.

    Attributes:
        fractions: (S,) of the cells that are removed (or inserted), ascending.
        scores: (B, S).

    >>> curve = Curve(torch.tensor([0.0, 0.5, 1.0]), torch.tensor([[1.0, 0.2, 0.0]]))
    >>> round(curve.area.item(), 6), round(curve.cost(0.25).item(), 6), round(curve.drop.item(), 6)
    (0.35, 0.4, 0.9)
    """

    fractions: Tensor
    scores: Tensor

    @property
    def area(self) -> Tensor:
        """Mean height (B,) of the curve, its integral by trapezoids over the range of the fractions."""
        width = self.fractions[-1] - self.fractions[0]
        return torch.trapezoid(self.scores, self.fractions.to(self.scores), dim=-1) / width.to(self.scores)

    @property
    def drop(self) -> Tensor:
        """(B,) how far the score falls from its first value, on average over the other fractions."""
        return self.scores[:, 0] - self.scores[:, 1:].mean(-1)

    def cost(self, fraction: float) -> Tensor:
        """(B,) how far the score has fallen from its first value at a fraction, with straight lines between steps."""
        place = self.fractions.to(self.scores)
        right = int(torch.searchsorted(place, fraction).clamp(1, len(place) - 1))
        share = ((fraction - place[right - 1]) / (place[right] - place[right - 1])).clamp(0, 1)
        return self.scores[:, 0] - torch.lerp(self.scores[:, right - 1], self.scores[:, right], share)


def deletion(
    score: Score,
    images: Tensor,
    maps: Tensor,
    *,
    steps: int = 20,
    fill: Fill = "blur",
    at_once: int = 1,
    progress: Progress | None = None,
) -> Curve:
    """The score while the cells with the most weight are removed first; a faithful map makes it fall early.

    At fraction f > 0, `1 + ⌊(N − 1) f⌋` of the N cells are removed: those at or above the (1 − f)-quantile of the map.

    Args:
        score: from images (B, ...) to (B,), without gradients. It may know which example stands where.
        images: (B, C, H, W), as the model takes them.
        maps: (B, h, w) weights of cells that divide the image evenly; real numbers, of which only the order counts.
        steps: number of equal steps from the whole image to nothing; the score is computed steps + 1 times.
        fill: stands where something was removed: "blur", "mean" (of the image), "road" (see `impute`), a tensor that
            broadcasts to the images, or a function from images and `gone` (B, h, w), booleans, to what is scored.
        at_once: number of steps in one call of `score`, one after another along the batch axis: (at_once · B, ...).
        progress: wraps the list of calls of `score`, for instance `tqdm.tqdm`; its length is known before the first.

    Returns:
        `Curve`; a low `area` is better.

    Reference: Petsiuk et al. 2018 (RISE); Bach et al. 2015 (pixel flipping).

    >>> images = torch.tensor([[[[0.0, 0.0], [0.0, 4.0]]]])
    >>> found = deletion(lambda x: x.amax((1, 2, 3)), images, images[:, 0], steps=4, fill="mean")
    >>> found.scores.tolist(), found.fractions.tolist()
    ([[4.0, 1.0, 1.0, 1.0, 1.0]], [0.0, 0.25, 0.5, 0.75, 1.0])
    """
    check_counts("deletion", steps=steps, at_once=at_once)
    fractions = torch.linspace(0, 1, steps + 1, dtype=torch.float64)
    return _measure("deletion", score, images, maps, fractions, fill, at_once, progress)


def insertion(
    score: Score,
    images: Tensor,
    maps: Tensor,
    *,
    steps: int = 20,
    fill: Fill = "blur",
    at_once: int = 1,
    progress: Progress | None = None,
) -> Curve:
    """The score while the cells with the most weight are inserted first into an image in which all are removed.

    Args:
        score, images, maps, steps, fill, at_once, progress: as in `deletion`.

    Returns:
        `Curve` over the fraction inserted; a high `area` is better.

    Reference: Petsiuk et al. 2018 (RISE).

    >>> images = torch.tensor([[[[0.0, 0.0], [0.0, 4.0]]]])
    >>> insertion(lambda x: x.amax((1, 2, 3)), images, images[:, 0], steps=4, fill="mean").scores.tolist()
    [[1.0, 4.0, 4.0, 4.0, 4.0]]
    """
    check_counts("insertion", steps=steps, at_once=at_once)
    fractions = torch.linspace(0, 1, steps + 1, dtype=torch.float64)
    return _measure("insertion", score, images, maps, fractions, fill, at_once, progress, keep=True)


def road(
    score: Score,
    images: Tensor,
    maps: Tensor,
    *,
    fractions: Sequence[float] = TENTHS,
    least_first: bool = False,
    noise: float = 0.01,
    seed: int = 0,
    at_once: int = 1,
    progress: Progress | None = None,
) -> Curve:
    """ROAD: the score while cells are replaced by noisy linear imputation from those that are left.

    Blurred or grey holes tell a model where something was removed; imputed ones hardly do.

    Args:
        score, images, maps, at_once, progress: as in `deletion`.
        fractions: removed, ascending, above 0; the score of the whole image is computed as well.
        least_first: remove the cells with the least weight first.
        noise: standard deviation of the noise, in the units of the images.
        seed: of the noise.

    Returns:
        `Curve` from fraction 0. `drop` is the ROAD score with its sign turned: high is better for the most weighted
        cells first, low for the least weighted first; half their difference is ROAD combined.

    Reference: Rong et al. 2022.

    >>> images = torch.eye(4)[None, None]
    >>> curve = road(lambda x: x.amax((1, 2, 3)), images, images[:, 0], fractions=(0.25,), noise=0.0)
    >>> [round(value, 4) for value in curve.scores[0].tolist()]
    [1.0, 0.0]
    """

    def fill(images: Tensor, gone: Tensor) -> Tensor:
        return impute(images, gone, noise=noise, generator=torch.Generator().manual_seed(seed))

    return _measure(
        "road", score, images, maps, _from_zero("road", fractions), fill, at_once, progress, least_first=least_first
    )


def comprehensiveness(
    score: Score,
    images: Tensor,
    maps: Tensor,
    *,
    fractions: Sequence[float] = AOPC,
    fill: Fill = "blur",
    at_once: int = 1,
    progress: Progress | None = None,
) -> Tensor:
    """How far the score falls without the most weighted cells, (B,), averaged over fractions: was all of it needed?

    mean over f of  score(x) − score(x without the top f)

    Args:
        score, images, maps, fill, at_once, progress: as in `deletion`.
        fractions: removed.

    Reference: DeYoung et al. 2020 (ERASER), equation 1 and the area over the perturbation curve.

    >>> images = torch.tensor([[[[0.0, 4.0]]]])
    >>> comprehensiveness(lambda x: x.amax((1, 2, 3)), images, images[:, 0], fractions=(0.5,), fill="mean").tolist()
    [2.0]
    """
    where = "comprehensiveness"
    return _measure(where, score, images, maps, _from_zero(where, fractions), fill, at_once, progress).drop


def sufficiency(
    score: Score,
    images: Tensor,
    maps: Tensor,
    *,
    fractions: Sequence[float] = AOPC,
    fill: Fill = "blur",
    at_once: int = 1,
    progress: Progress | None = None,
) -> Tensor:
    """How far the score falls when only the most weighted cells are left, (B,), averaged over fractions; low is better.

    mean over f of  score(x) − score(only the top f of x)

    Args:
        score, images, maps, fill, at_once, progress: as in `deletion`.
        fractions: left.

    Reference: DeYoung et al. 2020 (ERASER), equation 2.

    >>> images = torch.tensor([[[[0.0, 4.0]]]])
    >>> sufficiency(lambda x: x.amax((1, 2, 3)), images, images[:, 0], fractions=(0.5,), fill="mean").tolist()
    [0.0]
    """
    where = "sufficiency"
    # The whole image comes first: it is everything inserted.
    wanted = torch.cat([torch.ones(1, dtype=torch.float64), _from_zero(where, fractions)[1:]])
    return _measure(where, score, images, maps, wanted, fill, at_once, progress, keep=True).drop


def sensitivity(explain: Explain, images: Tensor, *, radius: float = 0.02, samples: int = 10, seed: int = 0) -> Tensor:
    """How much a map changes when the image changes by a little noise, (B,); 0 is a map that stays the same.

    max over draws δ of  ‖explain(x + δ) − explain(x)‖ / ‖explain(x)‖,  δ uniform in [−r, r]

    Args:
        explain: from images (B, C, H, W) to maps (B, h, w).
        images: (B, C, H, W).
        radius: r, in the units of the images.
        samples: number of draws.
        seed: of the draws.

    Reference: Yeh et al. 2019, max-sensitivity.

    >>> sensitivity(lambda x: x.mean(1), torch.ones(1, 3, 2, 2), radius=0.0).tolist()
    [0.0]
    """
    check_number("sensitivity", "radius", radius, least=0, advice="0.02 is little noise for images in [0, 1]")
    check_counts("sensitivity", samples=samples)
    generator = torch.Generator().manual_seed(seed)
    before = explain(images).flatten(1)
    length: Tensor = before.norm(dim=1)
    worst = torch.zeros_like(length)
    for _ in range(samples):
        noise = (2 * torch.rand(images.shape, generator=generator, dtype=images.dtype) - 1) * radius
        after = explain(images + noise.to(images.device)).flatten(1)
        worst = torch.maximum(worst, (after - before).norm(dim=1))
    return worst / length.where(length > 0, 1)


@dataclass(frozen=True, eq=False)
class Randomisation:
    """How similar maps stay to the original ones while layers of the model are drawn anew, from the last to the first.

    Attributes:
        layers: (L,) names, in the order in which they were drawn anew; each row has all before it drawn anew too.
        similarity: (L, B) to the maps of the model as it was.
        unrelated: (B,) mean similarity of a map to those of the other images; NaN for a single image.
    """

    layers: tuple[str, ...]
    similarity: Tensor
    unrelated: Tensor

    @property
    def is_sensitive(self) -> bool:
        """True if with all layers drawn anew maps are no more similar to the original than maps of other images.

        They are more similar when the 95 % bootstrap interval of the difference lies above zero.
        """
        difference = (self.similarity[-1] - self.unrelated).cpu().numpy()
        return bootstrap_interval(difference, resamples=2000).low <= 0


def randomisation(
    explain: Explain,
    images: Tensor,
    model: nn.Module,
    *,
    similarity: Callable[[Tensor, Tensor], Tensor] = spearman,
    seed: int = 0,
    cascading: bool = True,
    progress: Progress | None = None,
) -> Randomisation:
    """Draw the layers of a model anew, from the last to the first: a map that stays the same shows no model.

    The weights of a layer are drawn from a normal distribution with the mean and deviation of each of its tensors. The
    model is restored bit for bit, also after an error.

    Args:
        explain: from images (B, C, H, W) to maps (B, h, w), by the model.
        images: (B, C, H, W).
        model: whose parameters are drawn anew.
        similarity: of maps, (B,).
        seed: of the draws.
        cascading: compute maps after each layer; False draws all layers first, and computes maps once.
        progress: wraps the list of layers, for instance `tqdm.tqdm`.

    Reference: Adebayo et al. 2018, cascading randomisation.

    >>> layer = nn.Conv2d(1, 1, 1, bias=False)
    >>> images = torch.rand(3, 1, 4, 4)
    >>> found = randomisation(lambda x: x[:, 0], images, layer)
    >>> found.layers, [round(value, 6) for value in found.similarity[0].tolist()], found.is_sensitive
    (('',), [1.0, 1.0, 1.0], False)
    """
    before = explain(images)
    B = len(before)
    groups = _layers(model)
    found = []
    with _restored(model):
        for name in (progress or iter)(list(groups)):
            _draw_anew(groups[name], seed)
            if cascading or name == list(groups)[-1]:
                found.append(similarity(explain(images), before))
    others = [similarity(before.roll(shift, 0), before) for shift in range(1, B)]
    unrelated = torch.stack(others).mean(0) if others else torch.full((B,), torch.nan)
    names = tuple(groups) if cascading else ("all",)
    return Randomisation(names, torch.stack(found), unrelated)


def erase(images: Tensor, amount: Tensor, fill: str | Tensor = "blur") -> Tensor:
    """Images in which a fraction of every cell is replaced: `(1 − amount) · image + amount · fill`.

    Args:
        images: (B, C, H, W).
        amount: (B, h, w) in [0, 1]; booleans remove whole cells.
        fill: "blur", "mean", "road" (whole cells only), or a tensor that broadcasts to the images.

    >>> erase(torch.tensor([[[[0.0, 2.0]]]]), torch.tensor([[[0.0, 0.5]]]), "mean").tolist()
    [[[[0.0, 1.5]]]]
    """
    check_floating("erase", "images", images)
    check_shape("erase", "images", images, (None, None, None, None), "(B, C, H, W)")
    check_shape("erase", "amount", amount, (len(images), None, None), "(B, h, w)")
    if isinstance(fill, str) and fill not in FILLS:
        raise UnknownName("fill", fill, FILLS)
    if isinstance(fill, str) and fill == "road":
        return impute(images, amount > 0.5, noise=0.0)
    if isinstance(fill, str):
        fill = blurred(images) if fill == "blur" else images.mean((-2, -1), keepdim=True)
    share = F.interpolate(amount[:, None].to(images), images.shape[-2:], mode="nearest-exact")
    return torch.lerp(images, fill.to(images).expand_as(images), share)


def impute(
    images: Tensor,
    gone: Tensor,
    *,
    noise: float = 0.01,
    generator: torch.Generator | None = None,
    tolerance: float = 1e-9,
    iterations: int = 500,
) -> Tensor:
    """Images whose missing pixels are the weighted mean of their eight neighbours, missing or not, plus noise.

    Direct neighbours weigh 1/6, diagonal ones 1/12; the sparse linear system is solved by conjugate gradients in
    float64. An image with nothing left becomes its mean.

    Args:
        images: (B, C, H, W).
        gone: (B, h, w) booleans, missing cells.
        noise: standard deviation of the noise on imputed pixels.
        generator: of the noise.
        tolerance: of the residual, relative to the image.
        iterations: largest number of them.

    Reference: Rong et al. 2022 (ROAD), noisy linear imputation.

    >>> impute(torch.tensor([[[[0.0, 9.0, 3.0]]]]), torch.tensor([[[False, True, False]]]), noise=0.0).tolist()
    [[[[0.0, 1.5, 3.0]]]]
    """
    check_shape("impute", "gone", gone, (len(images), None, None), "(B, h, w)")
    holes = F.interpolate(gone[:, None].double(), images.shape[-2:], mode="nearest-exact").to(images.device)
    known, x = 1 - holes, images.double()
    # Constant images are solutions without holes; taking the mean of what is known out makes the residual relative.
    count = known.sum((-2, -1), keepdim=True)
    base = torch.where(count > 0, (known * x).sum((-2, -1), keepdim=True) / count.clamp(min=1), x.mean((-2, -1), True))
    # With no pixel known the system is singular; the zero start is already its solution.
    filled = base + _solve((x - base) * known, holes * (count > 0), tolerance, iterations)
    if noise:
        drawn = torch.randn(images.shape, generator=generator, dtype=torch.float64).to(images.device)
        filled = filled + noise * drawn
    return torch.where(holes.bool(), filled.to(images), images)


def _measure(
    where: str,
    score: Score,
    images: Tensor,
    maps: Tensor,
    fractions: Tensor,
    fill: Fill,
    at_once: int,
    progress: Progress | None,
    *,
    keep: bool = False,
    least_first: bool = False,
) -> Curve:
    """The score with each fraction of the cells removed, or with only that fraction kept."""
    check_floating(where, "images", images)
    check_floating(where, "maps", maps)
    check_shape(where, "maps", maps, (len(images), None, None), "(B, h, w)")
    rank = order_of_removal(-maps if least_first else maps)  # 0 goes first
    B, N = len(maps), maps[0].numel()
    filled = _filler(fill, images)
    batches = fractions.split(at_once)
    scores = []
    with torch.no_grad():
        for batch in (progress or iter)(batches):
            parts = []
            for fraction in batch.tolist():
                chosen = rank < cells_removed(fraction, N)
                gone = ~chosen if keep else chosen
                parts.append(filled(gone) if bool(gone.any()) or callable(fill) else images)
            found = score(torch.cat(parts) if len(parts) > 1 else parts[0])
            check_shape(where, "the result of score", found, (len(parts) * B,), "(B,), one number per image")
            scores.append(found.detach().reshape(len(parts), B).double())
    return Curve(fractions, torch.cat(scores).T)


def _filler(fill: Fill, images: Tensor) -> Callable[[Tensor], Any]:
    """From cells that are gone (B, h, w) to what is scored; what does not depend on them is computed once."""
    if isinstance(fill, str | Tensor):
        put = blurred(images) if isinstance(fill, str) and fill == "blur" else fill
        return lambda gone: erase(images, gone, put)
    make = fill
    return lambda gone: make(images, gone)


def cells_removed(fraction: float, N: int) -> int:
    """The number of cells at or above the (1 − f)-quantile of N different values."""
    return 0 if fraction <= 0 else min(N, 1 + int((N - 1) * fraction + 1e-9))


def _from_zero(where: str, fractions: Sequence[float]) -> Tensor:
    values = list(fractions)
    if not values or any(not 0 < value <= 1 for value in values) or values != sorted(values):
        raise WrongValue(f"{where}: expected ascending fractions above 0 and at most 1, got {values}; pass such as 0.2")
    return torch.tensor([0.0, *values], dtype=torch.float64)


def order_of_removal(maps: Tensor) -> Tensor:
    """(B, h, w) place of every cell in descending order; equal ones in a fixed random order."""
    flat = maps.flatten(1)
    if bool(flat.isnan().any()):
        raise ShapeError("faithfulness: expected maps without NaN, got some; check the maps")
    mixed = torch.randperm(flat.shape[1], generator=torch.Generator().manual_seed(0)).to(flat.device)
    order = mixed[flat[:, mixed].argsort(dim=1, descending=True, stable=True)]
    places = torch.arange(flat.shape[1], device=flat.device).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, places).view_as(maps)


def blurred(images: Tensor, deviation: float = 0.08) -> Tensor:
    """Images under a Gaussian with a standard deviation of a fraction of the longer side; edges are repeated."""
    sigma = deviation * max(images.shape[-2:])
    reach = max(1, round(2.5 * sigma))
    offsets = torch.arange(-reach, reach + 1, dtype=images.dtype, device=images.device)
    kernel = (-(offsets**2) / (2 * sigma**2)).exp()
    kernel = kernel / kernel.sum()
    x = images.flatten(0, 1)[:, None]
    x = F.conv2d(F.pad(x, (0, 0, reach, reach), mode="replicate"), kernel[:, None][None, None])
    x = F.conv2d(F.pad(x, (reach, reach, 0, 0), mode="replicate"), kernel[None][None, None])
    return x[:, 0].view_as(images)


def _neighbours(x: Tensor) -> Tensor:
    """The weighted sum of the eight neighbours, zero outside the image: [1 2 1]ᵀ[1 2 1] / 12 without its centre."""
    rows = F.pad(x, (0, 0, 1, 1))
    rows = rows[..., :-2, :] + 2 * x + rows[..., 2:, :]
    both = F.pad(rows, (1, 1))
    return (both[..., :-2] + 2 * rows + both[..., 2:] - 4 * x) / 12


def _solve(known: Tensor, holes: Tensor, tolerance: float, iterations: int) -> Tensor:
    """x in the holes with `s x − Σ w x' = Σ w known'`, by conjugate gradients for every channel at once."""
    total = _neighbours(torch.ones_like(holes))  # less than one at the edge of the image
    precondition = _preconditioner(holes, total)
    residual = holes * _neighbours(known)
    x = torch.zeros_like(residual)
    scaled = precondition(residual)
    direction, before = scaled, (residual * scaled).sum((-2, -1), keepdim=True)
    least = tolerance**2 * known.square().sum((-2, -1), keepdim=True).clamp(min=1e-300)
    for _ in range(iterations):
        if bool((before <= least).all()):
            break
        moved = holes * (total * direction - _neighbours(direction))
        curve = (direction * moved).sum((-2, -1), keepdim=True)
        step = before / curve.where(curve > 0, 1) * (curve > 0)
        x = x + step * direction
        residual = residual - step * moved
        scaled = precondition(residual)
        after = (residual * scaled).sum((-2, -1), keepdim=True)
        direction = scaled + after / before.where(before > 0, 1) * direction
        before = after
    return x


def _preconditioner(holes: Tensor, total: Tensor) -> Callable[[Tensor], Tensor]:
    """Corrections on grids of half, a quarter, ... the resolution, each divided by the energy of its bumps.

    Plain conjugate gradients need as many iterations as a hole has pixels across; with all scales at once 20 to 40 do
    (Bramble, Pasciak and Xu 1990).
    """
    levels = []
    # A bump pays for its slope (8/9 inside a hole) and for every link to a known pixel.
    links, mass = holes * (total - _neighbours(holes)), holes
    while max(mass.shape[-2:]) > 2:
        down, across = (_halving(n).to(holes) for n in mass.shape[-2:])
        links = down.square() @ links @ across.square().T
        mass = down @ mass @ across.T / 4
        energy = links + 8 / 9 * mass
        levels.append((down, across, torch.where(energy > 0, 1 / energy.where(energy > 0, 1), 0)))

    def precondition(residual: Tensor) -> Tensor:
        parts = [residual]
        for down, across, _ in levels:
            parts.append(down @ parts[-1] @ across.T)
        found: Tensor | None = None
        for (down, across, inverse), part in zip(reversed(levels), reversed(parts[1:]), strict=True):
            found = inverse * part if found is None else inverse * part + found
            found = down.T @ found @ across
        finest = residual / total
        return holes * (finest if found is None else finest + found)

    return precondition


def _halving(n: int) -> Tensor:
    """(⌈n/2⌉, n) how much every other bump of a grid holds of each cell: 1/4, 3/4, 3/4, 1/4."""
    fine, coarse = torch.arange(n, dtype=torch.float64), torch.arange((n + 1) // 2, dtype=torch.float64)
    return (1 - ((fine + 0.5) / 2 - coarse[:, None] - 0.5).abs()).clamp(min=0)


def _layers(model: nn.Module) -> dict[str, list[nn.Parameter]]:
    """Parameters by layer, the last first: modules up to the first number in their name, or each by itself."""
    groups: dict[str, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        parts = name.split(".")
        number = next((place for place, part in enumerate(parts[:-1]) if part.isdigit()), len(parts) - 2)
        groups.setdefault(".".join(parts[: number + 1]), []).append(parameter)
    return dict(reversed(groups.items()))


def _draw_anew(parameters: Sequence[nn.Parameter], seed: int) -> None:
    with torch.no_grad():
        for parameter in parameters:
            drawn = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed + parameter.numel()))
            value = parameter.detach().float()
            deviation = value.std() if value.numel() > 1 else value.abs().mean()
            parameter.copy_(value.mean() + deviation * drawn.to(value.device))


@contextmanager
def _restored(model: nn.Module) -> Iterator[None]:
    """Put the parameters of a model back on the way out."""
    before = [(parameter, parameter.detach().clone()) for parameter in model.parameters()]
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, value in before:
                parameter.copy_(value)
