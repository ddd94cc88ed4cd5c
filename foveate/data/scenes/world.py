"""What stands where: the things of one picture, placed by a seed, with a planted count and near misses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from foveate.data.scenes.dice import Dice

SIDE = 112
MOST = 8

# In the order of English adjectives; the noun comes last.
VALUES: Mapping[str, tuple[str, ...]] = {
    "size": ("small", "large"),
    "texture": ("plain", "striped", "dotted"),
    "colour": ("red", "green", "blue", "yellow", "purple", "orange", "grey"),
    "shape": ("circle", "square", "triangle", "star", "cross", "diamond"),
}
RADII = {"small": (8, 9), "large": (14, 15)}
TONES = ("dark", "light")
PLANS = (
    ("colour",),
    ("shape",),
    ("texture",),
    ("size",),
    ("colour", "shape"),
    ("size", "colour"),
    ("size", "shape"),
    ("texture", "colour"),
    ("texture", "shape"),
)
GAP = 4

Description = Mapping[str, str]


class Key(NamedTuple):
    """Which picture: everything about it follows from these three numbers."""

    seed: int
    split: int
    number: int

    def dice(self, purpose: int) -> Dice:
        """The random stream of this picture for one purpose (placing, painting, asking, telling)."""
        return Dice(self.seed, self.split, self.number, purpose)


@dataclass(frozen=True, slots=True)
class Thing:
    """One shape: its four attributes, its centre and radius in pixels, and how it is painted."""

    id: int
    size: str
    texture: str
    colour: str
    shape: str
    x: int
    y: int
    radius: int
    tint: int
    phase: int

    def fits(self, description: Description) -> bool:
        """True when every attribute named has the value named."""
        return all(getattr(self, kind) == value for kind, value in description.items())


@dataclass(frozen=True)
class Scene:
    """The things of a picture, the tone of its background, and a description that fits exactly `count` of them."""

    key: Key
    tone: str
    things: tuple[Thing, ...]
    plan: Description
    count: int


@lru_cache(maxsize=256)
def make_scene(key: Key) -> Scene:
    """The scene with a key.

    A description of one or two attributes and a count 0..4 are drawn first, then things so that exactly that many fit
    it: counts are as often 4 as 0, whatever is counted. The other things come from few colours and shapes, and half of
    them miss the description by one attribute only, so that a glance at colours or shapes alone does not answer.

    >>> scene = make_scene(Key(0, 0, 0))
    >>> sum(thing.fits(scene.plan) for thing in scene.things) == scene.count
    True
    """
    dice = key.dice(0)
    plan = {kind: dice.pick(VALUES[kind]) for kind in dice.pick(PLANS)}
    count = dice.below(5)
    total = min(dice.between(max(3, count + 1), MOST) for _ in range(2))
    pools = _pools(plan, dice)
    looks = [_fitting(plan, pools, dice) for _ in range(count)]
    looks += [_missing(plan, pools, dice) for _ in range(total - count)]
    things = _placed(dice.shuffled(looks), dice)
    return Scene(key, dice.pick(TONES), things, plan, count)


def _pools(plan: Description, dice: Dice) -> dict[str, list[str]]:
    """The values in one picture: all sizes and textures, four colours and four shapes with the plan's among them."""
    pools = {kind: dice.shuffled(values) for kind, values in VALUES.items()}
    for kind in ("colour", "shape"):
        kept = [plan[kind]] if kind in plan else []
        pools[kind] = (kept + [value for value in pools[kind] if value not in kept])[:4]
    return pools


def _fitting(plan: Description, pools: Mapping[str, list[str]], dice: Dice) -> dict[str, str]:
    return {kind: plan.get(kind) or dice.pick(pools[kind]) for kind in VALUES}


def _missing(plan: Description, pools: Mapping[str, list[str]], dice: Dice) -> dict[str, str]:
    """Attributes that do not fit the plan; of two named ones, half of the time exactly one fits."""
    shared = dice.pick(sorted(plan)) if len(plan) == 2 and dice.below(2) else None
    while True:
        look = {kind: dice.pick(pools[kind]) for kind in VALUES}
        if shared:
            look[shared] = plan[shared]
        if any(look[kind] != value for kind, value in plan.items()):
            return look


def _placed(looks: list[dict[str, str]], dice: Dice) -> tuple[Thing, ...]:
    """The things at places where none touches another or the edge; the order is that of `looks`."""
    radii = [dice.pick(RADII[look["size"]]) for look in looks]
    while (centres := _centres(radii, dice)) is None:
        pass
    return tuple(
        Thing(number, **look, x=x, y=y, radius=radius, tint=dice.below(17), phase=dice.below(12))
        for number, (look, radius, (x, y)) in enumerate(zip(looks, radii, centres, strict=True), start=1)
    )


def _centres(radii: list[int], dice: Dice) -> list[tuple[int, int]] | None:
    """Centres drawn one after the other, the widest first; None when one finds no room in forty attempts."""
    found: dict[int, tuple[int, int]] = {}
    for i in sorted(range(len(radii)), key=lambda i: -radii[i]):
        for _ in range(40):
            low, high = radii[i] + 1, SIDE - radii[i] - 2
            x, y = dice.between(low, high), dice.between(low, high)
            if all((x - p) ** 2 + (y - q) ** 2 >= (radii[i] + radii[j] + GAP) ** 2 for j, (p, q) in found.items()):
                found[i] = x, y
                break
        else:
            return None
    return [found[i] for i in range(len(radii))]
