"""Words: synonyms, noun phrases, plurals, and expressions that refer to exactly one thing."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

from foveate.data.scenes.dice import Dice
from foveate.data.scenes.world import SIDE, VALUES, Description, Scene, Thing

# The first word is the canonical one, which answers use.
SYNONYMS: Mapping[str, tuple[str, ...]] = {
    **{value: (value,) for values in VALUES.values() for value in values},
    "small": ("small", "little", "tiny"),
    "large": ("large", "big", "huge"),
    "plain": ("plain", "solid"),
    "striped": ("striped", "stripy"),
    "dotted": ("dotted", "spotted"),
    "purple": ("purple", "violet"),
    "grey": ("grey", "gray"),
    "circle": ("circle", "disc"),
    "square": ("square", "box"),
    "cross": ("cross", "plus"),
    "diamond": ("diamond", "rhombus"),
}
NOUNS = ("shape", "thing", "object", "figure")
KIND_WORDS: Mapping[str, tuple[str, ...]] = {
    "size": ("size",),
    "texture": ("pattern", "texture"),
    "colour": ("colour", "color"),
    "shape": ("shape", "form"),
}
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight")
# How far the centres must be apart, in pixels, before a relation is said or asked.
CLEAR = 24
RELATIONS: Mapping[str, tuple[str, ...]] = {
    "left": ("left of", "to the left of"),
    "right": ("right of", "to the right of"),
    "above": ("above", "higher than"),
    "below": ("below", "lower than", "under"),
}
# How far a centre must be from the middle, in pixels, before its half of the picture is said or asked.
AHEAD = 12
HALVES: Mapping[str, tuple[str, ...]] = {
    "left": ("on the left side", "in the left half"),
    "right": ("on the right side", "in the right half"),
    "above": ("in the upper half", "in the top half"),
    "below": ("in the lower half", "in the bottom half"),
}


def beyond_middle(thing: Thing, side: str) -> float:
    """How many pixels the centre of a thing lies on this side of the middle; negative on the other side."""
    right, down = thing.x - SIDE / 2, thing.y - SIDE / 2
    return {"left": -right, "right": right, "above": -down, "below": down}[side]


def relates(a: Thing, relation: str, b: Thing) -> bool:
    """True when `a` stands in the relation to `b` by at least `CLEAR` pixels."""
    ahead = {"left": b.x - a.x, "right": a.x - b.x, "above": b.y - a.y, "below": a.y - b.y}[relation]
    return ahead >= CLEAR


def noun_phrase(description: Description, dice: Dice, *, plural: bool = False) -> str:
    """The words of a description without article, each by one of its synonyms.

    >>> noun_phrase({"colour": "red", "size": "small"}, Dice(0))
    'small red shape'
    """
    words = [dice.pick(SYNONYMS[description[kind]]) for kind in VALUES if kind in description]
    if "shape" not in description:
        words.append(dice.pick(NOUNS))
    if plural:
        words[-1] = pluralised(words[-1])
    return " ".join(words)


def pluralised(noun: str) -> str:
    """The plural of a noun.

    >>> pluralised("cross"), pluralised("star")
    ('crosses', 'stars')
    """
    return noun + ("es" if noun.endswith(("s", "x")) else "s")


def with_article(phrase: str) -> str:
    """The phrase after "a" or "an".

    >>> with_article("orange star")
    'an orange star'
    """
    return ("an " if phrase[0] in "aeiou" else "a ") + phrase


def sentence(text: str) -> str:
    """The text with a capital first letter.

    >>> sentence("is it?")
    'Is it?'
    """
    return text[0].upper() + text[1:]


@dataclass(frozen=True)
class Referrer:
    """Finds expressions that fit one thing of a scene and no other."""

    scene: Scene

    @cached_property
    def _alike(self) -> dict[tuple[str, str], int]:
        """For each attribute kind and value the set of things that have it, one bit a thing."""
        bits: dict[tuple[str, str], int] = {}
        for thing in self.scene.things:
            for kind in VALUES:
                value = getattr(thing, kind)
                bits[kind, value] = bits.get((kind, value), 0) | 1 << thing.id
        return bits

    def descriptions(
        self, thing: Thing, *, without: Collection[str] = (), needs: Collection[str] = ()
    ) -> list[Description]:
        """The descriptions of at most three attributes that only this thing fits, the shortest first.

        Args:
            thing: of the scene.
            without: kinds of attributes not to be named, because the question is about them.
            needs: kinds that must be named.
        """
        kinds = [kind for kind in VALUES if kind not in without]
        subsets = [subset for size in (1, 2, 3) for subset in combinations(kinds, size)]
        return [
            {kind: getattr(thing, kind) for kind in subset}
            for subset in subsets
            if self._sharing(thing, subset) == 1 << thing.id and all(kind in subset for kind in needs)
        ]

    def _sharing(self, thing: Thing, kinds: Collection[str]) -> int:
        """The things that share these attributes with a thing, one bit each."""
        shared = -1
        for kind in kinds:
            shared &= self._alike[kind, getattr(thing, kind)]
        return shared

    def refer(
        self, thing: Thing, dice: Dice, *, without: Collection[str] = (), needs: Collection[str] = ()
    ) -> str | None:
        """An expression such as "the small red star" for this thing alone, or None; mostly a shortest one."""
        found = self.descriptions(thing, without=without, needs=needs)
        if not found:
            return None
        if dice.below(4):
            found = [description for description in found if len(description) == len(found[0])]
        return "the " + noun_phrase(dice.pick(found), dice)

    def refer_by_place(self, thing: Thing, dice: Dice, *, without: Collection[str] = ()) -> str | None:
        """An expression such as "the star on the left side", or None; without the place it would fit others too."""
        kinds = [kind for kind in VALUES if kind not in without]
        subsets = [subset for size in (0, 1, 2) for subset in combinations(kinds, size)]
        found = [(subset, side) for subset in subsets for side in HALVES if self._told_by(thing, subset, side)]
        if not found:
            return None
        named, side = dice.pick(found)
        phrase = noun_phrase({kind: getattr(thing, kind) for kind in named}, dice)
        return f"the {phrase} {dice.pick(HALVES[side])}"

    def _told_by(self, thing: Thing, kinds: Collection[str], side: str) -> bool:
        """True when others share these attributes, and all of them lie clearly in the other half."""
        shared = self._sharing(thing, kinds)
        others = [other for other in self.scene.things if other.id != thing.id and shared >> other.id & 1]
        apart = all(beyond_middle(other, side) <= -AHEAD for other in others)
        return bool(others) and apart and beyond_middle(thing, side) >= AHEAD


def fitting(things: Sequence[Thing], description: Description) -> list[Thing]:
    """The things that fit a description."""
    return [thing for thing in things if thing.fits(description)]
