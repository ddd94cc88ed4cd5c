"""What all kinds of questions share: the draft, the builder, and which things a question needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from foveate.lab.data.scenes.language import KIND_WORDS, Referrer, matching, sentence
from foveate.lab.data.scenes.scene import SIDE, VALUES, Description, RandomStream, Scene, Thing

# Centres at least half an image apart: a unimodal density cannot cover both without covering what lies between.
FAR = SIDE // 2


@dataclass(frozen=True)
class QuestionDraft:
    """A question without an id.

    Attributes:
        kind: key in `KINDS`.
        text: the question.
        answer: the true answer.
        needed: ids of the things one must see to answer.
        distractors: wrong answers of the same type, for annotators who disagree.
    """

    kind: str
    text: str
    answer: str
    needed: tuple[int, ...]
    distractors: tuple[str, ...]


@dataclass(frozen=True)
class QuestionBuilder:
    """Everything a question is built from: the scene, expressions that refer to its things, and a random stream."""

    scene: Scene
    refer: Referrer
    rng: RandomStream

    def fill(self, templates: Sequence[str], **parts: str) -> str:
        """Choose one of the templates and fill it in."""
        words = {kind: self.rng.choice(names) for kind, names in KIND_WORDS.items()}
        return sentence(self.rng.choice(templates).format(**words, **parts))

    def values(self, kind: str) -> list[str]:
        """Return the values of an attribute that occur in the scene."""
        return [value for value in VALUES[kind] if any(getattr(thing, kind) == value for thing in self.scene.things)]

    def pairs(self) -> list[tuple[Thing, Thing]]:
        """Return pairs of things in random order; two times in three only those far apart, if there are any."""
        pairs = list(combinations(self.scene.things, 2))
        far = [pair for pair in pairs if are_far(*pair)]
        chosen = far if far and self.rng.below(3) else pairs
        return [pair if self.rng.below(2) else (pair[1], pair[0]) for pair in self.rng.shuffled(chosen)]


def are_far(a: Thing, b: Thing) -> bool:
    """Return True if the centres of two things are at least half an image apart."""
    return (a.x - b.x) ** 2 + (a.y - b.y) ** 2 >= FAR**2


def needed_for(things: Sequence[Thing], description: Description) -> tuple[int, ...]:
    """Return the ids needed to find or count: the things that match; if none, those that match in part; else all."""
    found = matching(things, description) or [
        thing for thing in things if any(getattr(thing, kind) == value for kind, value in description.items())
    ]
    return tuple(thing.id for thing in found or things)


def yes_no(truth: bool, needed: tuple[int, ...]) -> tuple[str, tuple[int, ...], tuple[str, ...]]:
    """Return answer, needed and distractors of a yes/no question."""
    return ("yes", needed, ("no",)) if truth else ("no", needed, ("yes",))


def attribute(thing: Thing, kind: str) -> tuple[str, tuple[int, ...], tuple[str, ...]]:
    """Return answer, needed and distractors of a question for one attribute of one thing."""
    value = getattr(thing, kind)
    return value, (thing.id,), tuple(other for other in VALUES[kind] if other != value)
