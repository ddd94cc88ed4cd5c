"""Measures of attention maps over a split, beside those of baseline maps and of annotators among themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import permutations

import torch
from torch import Tensor

from foveate.checks import check_shape
from foveate.metrics.maps import (
    MapMeasure,
    baseline_maps,
    components,
    connected_regions,
    mass_inside,
    pointing,
    spearman,
    support_area,
)
from foveate.metrics.means import ExampleKey, MeanMetric
from foveate.ops.density import Density
from foveate.ops.divergence import entropy, js_divergence


@dataclass
class AttentionMetrics(MeanMetric):
    """Where a model looks, over a split: against the truth where it is known, and by the shape of its maps.

    Names: "js" and "spearman" compare with human maps or with the true region; "mass" and "pointing" with the true
    region; "area", "entropy" and "regions" describe every map; "components" counts the components of densities, and
    where there may be several, "components = k" is the fraction of examples with exactly k. The number of a subset is
    "<name>/<subset>".

    Baselines are reported as "<name> of uniform", "<name> of centre" and "<name> of random". "<name> of people" is the
    agreement of annotators with each other: a model is compared with each annotator and the results are averaged, so
    that it can hardly come closer to the annotators than they come to each other.

    Args:
        size: rows and columns of the grid on which everything is compared.
        base, distance: of the Jensen-Shannon divergence, see `js_divergence`.

    >>> metrics = AttentionMetrics(size=(1, 2))
    >>> metrics.update(torch.tensor([[[1.0, 0.0]]]), region=torch.tensor([[[1.0, 0.0]]]))
    >>> result = metrics.compute()
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
        human_maps: Tensor | None = None,
        groups: Sequence[Sequence[str]] | None = None,
        keys: Sequence[ExampleKey] | None = None,
    ) -> None:
        """Add a batch.

        Args:
            maps: (B, H, W), distributions on the grid `size`, as returned by `attended.map(*size)`.
            density: of batch shape (B,), if the attention was continuous.
            region: (B, H, W), fraction of each cell that must be attended to; zeros where that is not known.
            human_maps: (B, L, H, W), one distribution per annotator, zeros for examples with fewer than L; the
                region, spread evenly, if absent.
            groups: the subsets that each example belongs to.
            keys: of the examples, whose single values are then kept.
        """
        check_shape("AttentionMetrics", "maps", maps, (None, *self.size), "(B, H, W)")
        maps = maps.double().cpu()
        numbers = {"area": support_area(maps), "entropy": entropy(maps), "regions": connected_regions(maps)}
        if density is not None:
            numbers |= _component_numbers(density)
        if region is not None:
            check_shape("AttentionMetrics", "region", region, tuple(maps.shape), "(B, H, W)")
            region = region.double().cpu()
            human_maps = _distribution(region)[:, None] if human_maps is None else human_maps
        if human_maps is not None:
            check_shape("AttentionMetrics", "human_maps", human_maps, (len(maps), None, *self.size), "(B, L, H, W)")
            human_maps = human_maps.double().cpu()
            numbers |= self._compare("", maps, region, human_maps)
            for name, baseline in baseline_maps(*self.size).items():
                numbers |= self._compare(f" of {name}", baseline.expand_as(maps), region, human_maps)
            numbers |= self._human_agreement(human_maps)
        self.means.add(numbers, groups, keys)

    def _compare(self, suffix: str, maps: Tensor, region: Tensor | None, human_maps: Tensor) -> dict[str, Tensor]:
        """The scores of maps, NaN where the truth is not known."""
        numbers = self._mean_scores(suffix, maps[:, None].expand_as(human_maps), human_maps, _present(human_maps))
        if region is not None:
            known = region.sum((-2, -1)) > 0
            for name, measure in (("mass", mass_inside), ("pointing", pointing)):
                numbers[name + suffix] = measure(maps, region).where(known, torch.nan)
        return numbers

    def _human_agreement(self, human_maps: Tensor) -> dict[str, Tensor]:
        """The scores of annotators among themselves, NaN for examples with fewer than two."""
        pairs = list(permutations(range(human_maps.shape[1]), 2))
        if not pairs:
            return {}
        first, second = (human_maps[:, [pair[side] for pair in pairs]] for side in (0, 1))
        return self._mean_scores(" of people", first, second, _present(first) & _present(second))

    def _mean_scores(self, suffix: str, first: Tensor, second: Tensor, present: Tensor) -> dict[str, Tensor]:
        """Means over L of the measures between maps (B, L, H, W), where `present` (B, L) is True."""
        measures: dict[str, MapMeasure] = {
            "js": partial(js_divergence, base=self.base, distance=self.distance),
            "spearman": spearman,
        }
        numbers = {}
        for name, measure in measures.items():
            each = measure(first.flatten(0, 1), second.flatten(0, 1)).reshape(present.shape)
            # 0 / 0, where no pair is present, is the NaN that `Means` skips.
            numbers[name + suffix] = each.where(present, 0).sum(1) / present.sum(1)
        return numbers


def _present(human_maps: Tensor) -> Tensor:
    """(B, L), True where there is a map: missing annotators are all zeros."""
    return human_maps.sum((-2, -1)) > 0


def _component_numbers(density: Density) -> dict[str, Tensor]:
    """How many components each density has and, where it may have several, whether it has exactly k of them."""
    count, most = components(density).cpu(), density.ellipses(0.5).weight.shape[-1]
    exactly = {f"components = {k}": (count == k).double() for k in range(1, most + 1)} if most > 1 else {}
    return {"components": count, **exactly}


def _distribution(region: Tensor) -> Tensor:
    """The region as a distribution; an empty one stays zero."""
    total = region.sum((-2, -1), keepdim=True)
    return region / total.where(total > 0, 1)
