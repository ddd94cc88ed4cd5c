"""The language of Scenes: synonyms, noun phrases, referring expressions, and how simulated annotators spell answers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

from foveate.lab.data.scenes.scene import SIDE, VALUES, Description, RandomStream, Scene, Thing

# The first word is the canonical one, used in answers.
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
# Minimum distance of two centres, in pixels, for a relation to be mentioned.
CLEAR = 24
RELATIONS: Mapping[str, tuple[str, ...]] = {
    "left": ("left of", "to the left of"),
    "right": ("right of", "to the right of"),
    "above": ("above", "higher than"),
    "below": ("below", "lower than", "under"),
}
# Minimum distance of a centre from the middle, in pixels, for its half of the image to be mentioned.
AHEAD = 12
HALVES: Mapping[str, tuple[str, ...]] = {
    "left": ("on the left side", "in the left half"),
    "right": ("on the right side", "in the right half"),
    "above": ("in the upper half", "in the top half"),
    "below": ("in the lower half", "in the bottom half"),
}
ANNOTATORS = 10
# How many of the ten disagree, drawn uniformly from this tuple: 0.7 on average, at most 3.
DISAGREEING = (0, 0, 0, 0, 0, 0, 1, 1, 2, 3)


def beyond_middle(thing: Thing, side: str) -> float:
    """Return how many pixels the centre of a thing lies on this side of the middle, negative on the other side."""
    right, down = thing.x - SIDE / 2, thing.y - SIDE / 2
    return {"left": -right, "right": right, "above": -down, "below": down}[side]


def relates(a: Thing, relation: str, b: Thing) -> bool:
    """Return True if `a` stands in the relation to `b` by at least `CLEAR` pixels."""
    ahead = {"left": b.x - a.x, "right": a.x - b.x, "above": b.y - a.y, "below": a.y - b.y}[relation]
    return ahead >= CLEAR


def noun_phrase(description: Description, rng: RandomStream, *, plural: bool = False) -> str:
    """Return a description as words without an article, each replaced by a random synonym.

    >>> noun_phrase({"colour": "red", "size": "small"}, RandomStream(0))
    'small red shape'
    """
    words = [rng.choice(SYNONYMS[description[kind]]) for kind in VALUES if kind in description]
    if "shape" not in description:
        words.append(rng.choice(NOUNS))
    if plural:
        words[-1] = pluralised(words[-1])
    return " ".join(words)


def pluralised(noun: str) -> str:
    """Return the plural of a noun.

    >>> pluralised("cross"), pluralised("star")
    ('crosses', 'stars')
    """
    return noun + ("es" if noun.endswith(("s", "x")) else "s")


def with_article(phrase: str) -> str:
    """Prefix a phrase with "a" or "an".

    >>> with_article("orange star")
    'an orange star'
    """
    return ("an " if phrase[0] in "aeiou" else "a ") + phrase


def sentence(text: str) -> str:
    """Capitalise the first letter.

    >>> sentence("is it?")
    'Is it?'
    """
    return text[0].upper() + text[1:]


@dataclass(frozen=True)
class Referrer:
    """Finds expressions that identify one thing of a scene."""

    scene: Scene

    @cached_property
    def _alike(self) -> dict[tuple[str, str], int]:
        """The set of things with each attribute value, as a bit set with one bit per thing."""
        bits: dict[tuple[str, str], int] = {}
        for thing in self.scene.things:
            for kind in VALUES:
                value = getattr(thing, kind)
                bits[kind, value] = bits.get((kind, value), 0) | 1 << thing.id
        return bits

    def descriptions(
        self, thing: Thing, *, without: Collection[str] = (), needs: Collection[str] = ()
    ) -> list[Description]:
        """Return the descriptions of at most three attributes that match only this thing, shortest first.

        Args:
            thing: of the scene.
            without: attributes to leave out, because the question is about them.
            needs: attributes that must be part of the description.
        """
        kinds = [kind for kind in VALUES if kind not in without]
        subsets = [subset for size in (1, 2, 3) for subset in combinations(kinds, size)]
        return [
            {kind: getattr(thing, kind) for kind in subset}
            for subset in subsets
            if self._sharing(thing, subset) == 1 << thing.id and all(kind in subset for kind in needs)
        ]

    def _sharing(self, thing: Thing, kinds: Collection[str]) -> int:
        """Return the things that share these attributes with a thing, one bit each."""
        shared = -1  # all bits set: the intersection of no sets
        for kind in kinds:
            shared &= self._alike[kind, getattr(thing, kind)]
        return shared

    def refer(
        self, thing: Thing, rng: RandomStream, *, without: Collection[str] = (), needs: Collection[str] = ()
    ) -> str | None:
        """Return an expression for this thing alone ("the small red star") or None; usually a shortest one."""
        found = self.descriptions(thing, without=without, needs=needs)
        if not found:
            return None
        if rng.below(4):
            found = [description for description in found if len(description) == len(found[0])]
        return "the " + noun_phrase(rng.choice(found), rng)

    def refer_by_place(self, thing: Thing, rng: RandomStream, *, without: Collection[str] = ()) -> str | None:
        """Return an expression such as "the star on the left side" that needs the place to be unambiguous, or None."""
        kinds = [kind for kind in VALUES if kind not in without]
        subsets = [subset for size in (0, 1, 2) for subset in combinations(kinds, size)]
        found = [(subset, side) for subset in subsets for side in HALVES if self._is_identified_by(thing, subset, side)]
        if not found:
            return None
        named, side = rng.choice(found)
        phrase = noun_phrase({kind: getattr(thing, kind) for kind in named}, rng)
        return f"the {phrase} {rng.choice(HALVES[side])}"

    def _is_identified_by(self, thing: Thing, kinds: Collection[str], side: str) -> bool:
        """Return True if others share these attributes and all of those lie clearly in the other half."""
        shared = self._sharing(thing, kinds)
        others = [other for other in self.scene.things if other.id != thing.id and shared >> other.id & 1]
        apart = all(beyond_middle(other, side) <= -AHEAD for other in others)
        return bool(others) and apart and beyond_middle(thing, side) >= AHEAD


def matching(things: Sequence[Thing], description: Description) -> list[Thing]:
    """Return the things that match a description."""
    return [thing for thing in things if thing.matches(description)]


def spellings(answer: str) -> tuple[str, ...]:
    """Return variants of an answer that the official VQA normalisation maps to the same answer.

    >>> spellings("2"), spellings("star")
    (('two', '2.'), ('Star', 'star.', 'a star', 'the star'))
    """
    if answer.isdigit():
        return NUMBERS[int(answer)], answer + "."
    plain = (answer.capitalize(), answer + ".")
    return (*plain, f"a {answer}", f"the {answer}") if answer in VALUES["shape"] else plain


def annotator_answers(answer: str, distractors: tuple[str, ...], rng: RandomStream) -> tuple[str, ...]:
    """Return ten answers, at least seven of which equal the true one after normalisation.

    An annotator who disagrees answers with a distractor or, if there is one, a synonym that normalisation does not
    unify ("gray" for "grey"). One in eight of the others spells the answer differently.

    >>> annotator_answers("yes", ("no",), RandomStream(1))
    ('yes', 'yes', 'yes', 'yes', 'yes', 'Yes', 'yes', 'yes', 'yes', 'yes')
    """
    synonyms = SYNONYMS.get(answer, (answer,))[1:]
    disagreeing = rng.choice(DISAGREEING)
    answers = [rng.choice(synonyms if synonyms and rng.below(2) else distractors) for _ in range(disagreeing)]
    answers += [answer if rng.below(8) else rng.choice(spellings(answer)) for _ in range(ANNOTATORS - disagreeing)]
    return tuple(rng.shuffled(answers))
