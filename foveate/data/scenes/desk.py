"""What every kind of question shares: the draft it becomes, the desk it is made at, what must be looked at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from foveate.data.scenes.dice import Dice
from foveate.data.scenes.language import KIND_WORDS, Referrer, fitting, sentence
from foveate.data.scenes.world import SIDE, VALUES, Description, Scene, Thing

# Centres at least half a picture apart: one bump of attention cannot cover both and leave out what lies between.
FAR = SIDE // 2


@dataclass(frozen=True)
class Draft:
    """A question before it is numbered.

    Attributes:
        kind: the row of `KINDS` it comes from.
        text: the question.
        answer: the true answer.
        needed: ids of the things that must be looked at.
        rivals: wrong answers of the same sort, for people who disagree.
    """

    kind: str
    text: str
    answer: str
    needed: tuple[int, ...]
    rivals: tuple[str, ...]


@dataclass(frozen=True)
class Desk:
    """What a question is made from: the scene, ways to refer to its things, and dice."""

    scene: Scene
    refer: Referrer
    dice: Dice

    def ask(self, template: Sequence[str], **parts: str) -> str:
        """One of the templates, filled in."""
        words = {kind: self.dice.pick(names) for kind, names in KIND_WORDS.items()}
        return sentence(self.dice.pick(template).format(**words, **parts))

    def values(self, kind: str) -> list[str]:
        """The values of an attribute that occur in the scene."""
        return [value for value in VALUES[kind] if any(getattr(thing, kind) == value for thing in self.scene.things)]

    def pairs(self) -> list[tuple[Thing, Thing]]:
        """All pairs of things in random order inside the pair; two times in three only those far apart, if any."""
        pairs = list(combinations(self.scene.things, 2))
        far = [pair for pair in pairs if are_far(*pair)]
        chosen = far if far and self.dice.below(3) else pairs
        return [pair if self.dice.below(2) else (pair[1], pair[0]) for pair in self.dice.shuffled(chosen)]


def are_far(a: Thing, b: Thing) -> bool:
    """True when the centres of two things are at least half a picture apart."""
    return (a.x - b.x) ** 2 + (a.y - b.y) ** 2 >= FAR**2


def needed_for(things: Sequence[Thing], description: Description) -> tuple[int, ...]:
    """What must be looked at to find or count: the things that fit; if none, those that fit in part; else all."""
    found = fitting(things, description) or [
        thing for thing in things if any(getattr(thing, kind) == value for kind, value in description.items())
    ]
    return tuple(thing.id for thing in found or things)


def yes_no(truth: bool, needed: tuple[int, ...]) -> tuple[str, tuple[int, ...], tuple[str, ...]]:
    """Answer, needed and rivals of a draft that is answered by yes or no."""
    return ("yes", needed, ("no",)) if truth else ("no", needed, ("yes",))


def attribute(thing: Thing, kind: str) -> tuple[str, tuple[int, ...], tuple[str, ...]]:
    """Answer, needed and rivals of a draft that is answered by one attribute of one thing."""
    value = getattr(thing, kind)
    return value, (thing.id,), tuple(other for other in VALUES[kind] if other != value)
