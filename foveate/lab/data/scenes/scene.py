"""One scene: a random generator that never changes, and the things of an image and their places drawn from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypeVar

import numpy as np

SIDE = 112
MAX_THINGS = 8

# In the order of English adjectives, the noun last.
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

T = TypeVar("T")


class RandomStream:
    """A stream of random integers determined by its key.

    Only the raw 64-bit output of PCG64 is used, which numpy guarantees never to change. How numpy turns these bits into
    integers, choices and shuffles may change between versions, so this class does that itself.

    Args:
        key: non-negative integers; different keys yield independent streams.

    >>> RandomStream(0, 1).below(10), RandomStream(0, 1).below(10), RandomStream(0, 2).below(10)
    (5, 5, 4)
    """

    def __init__(self, *key: int) -> None:
        self._source = np.random.PCG64(np.random.SeedSequence(key))
        self._ready: list[int] = []

    def below(self, n: int) -> int:
        """Return an integer 0 ≤ i < n, uniform up to 2⁻³² n."""
        if not self._ready:
            self._ready = self._source.random_raw(128).tolist()
        # The product with the upper 32 bits needs no rejection loop, so each draw consumes exactly one raw value.
        return (self._ready.pop() >> 32) * n >> 32

    def between(self, low: int, high: int) -> int:
        """Return an integer low ≤ i ≤ high."""
        return low + self.below(high - low + 1)

    def choice(self, items: Sequence[T]) -> T:
        """Return one of the items."""
        return items[self.below(len(items))]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """Return the items in random order (Fisher-Yates)."""
        order = list(items)
        for i in range(len(order) - 1, 0, -1):
            j = self.below(i + 1)
            order[i], order[j] = order[j], order[i]
        return order

    def random_bytes(self, count: int) -> np.ndarray:
        """Return (count,) uint8 noise."""
        # "<u8" fixes the byte order, so that big-endian machines draw the same bytes.
        raw = self._source.random_raw((count + 7) // 8)
        return raw.astype("<u8").view(np.uint8)[:count]


class Key(NamedTuple):
    """Identifies an image; everything about it follows from these three numbers."""

    seed: int
    split: int
    number: int

    def rng(self, purpose: int) -> RandomStream:
        """Return the random stream of this image for one purpose: 0 layout, 1 background, 2 questions, 3 captions."""
        return RandomStream(self.seed, self.split, self.number, purpose)


@dataclass(frozen=True, slots=True)
class Thing:
    """One shape: its four attributes, centre and radius in pixels, tint and texture phase."""

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

    def matches(self, description: Description) -> bool:
        """Return True if every attribute in the description has the given value."""
        return all(getattr(self, kind) == value for kind, value in description.items())


@dataclass(frozen=True)
class Scene:
    """The things of an image, the tone of its background, and a description that matches exactly `count` things."""

    key: Key
    tone: str
    things: tuple[Thing, ...]
    plan: Description
    count: int


@lru_cache(maxsize=256)
def make_scene(key: Key) -> Scene:
    """Generate the scene of a key.

    A description of one or two attributes and a count from 0 to 4 are drawn first, then things such that exactly that
    many match, so that all counts are equally frequent. The other things share few colours and shapes, and half of
    them miss the description by a single attribute, so that colour or shape alone does not answer a question.

    >>> scene = make_scene(Key(0, 0, 0))
    >>> sum(thing.matches(scene.plan) for thing in scene.things) == scene.count
    True
    """
    rng = key.rng(0)
    plan = {kind: rng.choice(VALUES[kind]) for kind in rng.choice(PLANS)}
    count = rng.below(5)
    total = min(rng.between(max(3, count + 1), MAX_THINGS) for _ in range(2))
    pools = _pools(plan, rng)
    attributes = [_matching(plan, pools, rng) for _ in range(count)]
    attributes += [_missing(plan, pools, rng) for _ in range(total - count)]
    things = _place(rng.shuffled(attributes), rng)
    return Scene(key, rng.choice(TONES), things, plan, count)


def _pools(plan: Description, rng: RandomStream) -> dict[str, list[str]]:
    """Return the values used in one image: all sizes and textures, four colours and shapes, including the plan's."""
    pools = {kind: rng.shuffled(values) for kind, values in VALUES.items()}
    for kind in ("colour", "shape"):
        kept = [plan[kind]] if kind in plan else []
        pools[kind] = (kept + [value for value in pools[kind] if value not in kept])[:4]
    return pools


def _matching(plan: Description, pools: Mapping[str, list[str]], rng: RandomStream) -> dict[str, str]:
    return {kind: plan.get(kind) or rng.choice(pools[kind]) for kind in VALUES}


def _missing(plan: Description, pools: Mapping[str, list[str]], rng: RandomStream) -> dict[str, str]:
    """Return attributes that do not match the plan; of two, half of the time exactly one matches."""
    shared = rng.choice(sorted(plan)) if len(plan) == 2 and rng.below(2) else None
    while True:
        drawn = {kind: rng.choice(pools[kind]) for kind in VALUES}
        if shared:
            drawn[shared] = plan[shared]
        if any(drawn[kind] != value for kind, value in plan.items()):
            return drawn


def _place(attributes: list[dict[str, str]], rng: RandomStream) -> tuple[Thing, ...]:
    """Place things so that none touches another or the border, in the given order."""
    radii = [rng.choice(RADII[one["size"]]) for one in attributes]
    while (centres := _centres(radii, rng)) is None:
        pass
    return tuple(
        Thing(number, **one, x=x, y=y, radius=radius, tint=rng.below(17), phase=rng.below(12))
        for number, (one, radius, (x, y)) in enumerate(zip(attributes, radii, centres, strict=True), start=1)
    )


def _centres(radii: list[int], rng: RandomStream) -> list[tuple[int, int]] | None:
    """Draw centres one by one, largest thing first; None if one finds no room in forty attempts."""
    found: dict[int, tuple[int, int]] = {}
    for i in sorted(range(len(radii)), key=lambda i: -radii[i]):
        for _ in range(40):
            low, high = radii[i] + 1, SIDE - radii[i] - 2
            x, y = rng.between(low, high), rng.between(low, high)
            if all((x - p) ** 2 + (y - q) ** 2 >= (radii[i] + radii[j] + GAP) ** 2 for j, (p, q) in found.items()):
                found[i] = x, y
                break
        else:
            return None
    return [found[i] for i in range(len(radii))]
