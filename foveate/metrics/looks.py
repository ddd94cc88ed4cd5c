"""The measures of maps over a split, each beside maps that know nothing and, where several looked, beside people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import permutations

import torch
from torch import Tensor

from foveate.checks import check_shape
from foveate.metrics.maps import (
    Measure,
    centre_maps,
    components,
    connected_regions,
    mass_inside,
    pointing,
    random_maps,
    spearman,
    support_area,
    uniform_maps,
)
from foveate.metrics.means import Averaged
from foveate.ops.density import Density
from foveate.ops.divergence import entropy, js_divergence


@dataclass
class LookMetrics(Averaged):
    """Where a model looks, over a split: against the truth where there is one, and by the shape of its maps.

    Names: "js" and "spearman" against where people looked or the true region; "mass" and "pointing" against the true
    region; "area", "entropy" and "regions" of every map; "components" of densities, and the shares "components = k" of
    the examples with k of them where there may be several. A subset's number is "<name>/<subset>". What maps that know
    nothing score is "<name> of uniform", "... of centre", "... of random", what people score among themselves "<name>
    of people": a model is compared with each person and the results averaged, so it can hardly come closer to people
    than they come to each other.

    Args:
        size: rows and columns of the grid that all is compared on.
        base, distance: of the Jensen-Shannon divergence, see `js_divergence`.

    >>> looks = LookMetrics(size=(1, 2))
    >>> looks.update(torch.tensor([[[1.0, 0.0]]]), region=torch.tensor([[[1.0, 0.0]]]))
    >>> result = looks.compute()
    >>> result["js"], result["mass"], result["mass of uniform"]
    (0.0, 1.0, 0.5)
    """

    size: tuple[int, int] = (14, 14)
    base: float = 2.0
    distance: bool = False

    def update(
        self,
        maps: Tensor,
        *,
        density: Density | None = None,
        region: Tensor | None = None,
        people: Tensor | None = None,
        groups: Sequence[Sequence[str]] | None = None,
    ) -> None:
        """Add a batch.

        Args:
            maps: (B, H, W) distributions on the grid `size`, as `attended.map(*size)` gives them.
            density: of batch shape (B,), where attention was continuous.
            region: (B, H, W) share of each cell that must be looked at; zeros where that is not known.
            people: (B, L, H, W) one distribution a person, zeros where there are fewer than L; the region, spread
                evenly, when absent.
            groups: the subsets that each example belongs to.
        """
        check_shape("LookMetrics", "maps", maps, (None, *self.size), "(B, H, W)")
        maps = maps.double().cpu()
        numbers = {"area": support_area(maps), "entropy": entropy(maps), "regions": connected_regions(maps)}
        if density is not None:
            numbers |= _component_numbers(density)
        if region is not None:
            check_shape("LookMetrics", "region", region, tuple(maps.shape), "(B, H, W)")
            region = region.double().cpu()
            people = _distribution(region)[:, None] if people is None else people
        if people is not None:
            check_shape("LookMetrics", "people", people, (len(maps), None, *self.size), "(B, L, H, W)")
            people = people.double().cpu()
            numbers |= self._compare("", maps, region, people)
            for name, rival in _rivals(*self.size).items():
                numbers |= self._compare(f" of {name}", rival.expand_as(maps), region, people)
            numbers |= self._ceiling(people)
        self.means.add(numbers, groups)

    def _compare(self, suffix: str, maps: Tensor, region: Tensor | None, people: Tensor) -> dict[str, Tensor]:
        """The scores of maps, NaN where the truth is not known."""
        many = maps[:, None].expand_as(people).flatten(0, 1)
        there = people.sum((-2, -1)) > 0
        scores = {}
        for name, measure in self._measures().items():
            each = measure(many, people.flatten(0, 1)).reshape(there.shape)
            scores[name + suffix] = each.where(there, 0).sum(1) / there.sum(1)
        if region is not None:
            known = region.sum((-2, -1)) > 0
            for name, measure in (("mass", mass_inside), ("pointing", pointing)):
                scores[name + suffix] = measure(maps, region).where(known, torch.nan)
        return scores

    def _ceiling(self, people: Tensor) -> dict[str, Tensor]:
        """What people score among themselves, NaN for fewer than two."""
        pairs = list(permutations(range(people.shape[1]), 2))
        if not pairs:
            return {}
        first, second = (people[:, [pair[side] for pair in pairs]] for side in (0, 1))
        there = (first.sum((-2, -1)) > 0) & (second.sum((-2, -1)) > 0)
        scores = {}
        for name, measure in self._measures().items():
            each = measure(first.flatten(0, 1), second.flatten(0, 1)).reshape(there.shape)
            scores[f"{name} of people"] = each.where(there, 0).sum(1) / there.sum(1)
        return scores

    def _measures(self) -> dict[str, Measure]:
        return {"js": partial(js_divergence, base=self.base, distance=self.distance), "spearman": spearman}


def _rivals(H: int, W: int) -> dict[str, Tensor]:
    """Maps that know nothing; the random one is the same for every example, whatever batch it comes in."""
    return {
        "uniform": uniform_maps(1, H, W).double(),
        "centre": centre_maps(1, H, W).double(),
        "random": random_maps(1, H, W, torch.Generator().manual_seed(0)).double(),
    }


def _component_numbers(density: Density) -> dict[str, Tensor]:
    """How many components each density has, and where it may have several, whether it has exactly k of them."""
    count, most = components(density).cpu(), density.ellipses(0.5).weight.shape[-1]
    shares = {f"components = {k}": (count == k).double() for k in range(1, most + 1)} if most > 1 else {}
    return {"components": count, **shares}


def _distribution(region: Tensor) -> Tensor:
    total = region.sum((-2, -1), keepdim=True)
    return region / total.where(total > 0, 1)
