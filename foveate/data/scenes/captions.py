"""Five sentences on a scene, whose phrases are linked to the things they name, in the manner of Flickr30k Entities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from foveate.data.scenes.dice import Dice
from foveate.data.scenes.language import (
    NUMBERS,
    RELATIONS,
    fitting,
    noun_phrase,
    relates,
    sentence,
    with_article,
)
from foveate.data.scenes.world import SIDE, Description, Scene, Thing

# Only the most salient things are told of: the large ones first.
SALIENT = 4


@dataclass(frozen=True)
class Mention:
    """Words that name something.

    Attributes:
        words: of the phrase.
        things: ids of what they name; none for the background.
    """

    words: str
    things: tuple[int, ...]


@dataclass(frozen=True)
class Telling:
    """A caption before it is numbered: its words, and for each mention the slice of words and the ids it names."""

    words: tuple[str, ...]
    mentions: tuple[tuple[int, int, tuple[int, ...]], ...]

    @property
    def text(self) -> str:
        """The sentence with capital and full stop."""
        return sentence(" ".join(self.words)) + "."


def tell(scene: Scene, dice: Dice) -> list[Telling]:
    """Five captions: two pairs in relation, one group, one list, one with places or background.

    >>> from foveate.data.scenes.world import Key, make_scene
    >>> key = Key(0, 0, 0)
    >>> len(tell(make_scene(key), key.dice(3)))
    5
    """
    teller = Teller(scene, dice)
    last = dice.pick((teller.places, teller.background))
    return [make() for make in dice.shuffled((teller.pair, teller.pair, teller.group, teller.several, last))]


@dataclass(frozen=True)
class Teller:
    """Makes captions of a scene; each method is one way to tell."""

    scene: Scene
    dice: Dice

    def pair(self) -> Telling:
        """One thing in relation to another."""
        things = self._salient(len(self.scene.things))
        pairs = [(a, name, b) for a in things[:SALIENT] for b in things for name in RELATIONS if relates(a, name, b)]
        if not pairs:
            return self.several()
        a, name, b = self.dice.pick(pairs)
        template = self.dice.pick(("{0} {relation} {1}", "there is {0} {relation} {1}", "{0} is {relation} {1}"))
        return compose(template, [self._one(a), self._one(b)], relation=self.dice.pick(RELATIONS[name]))

    def group(self) -> Telling:
        """Several things of one colour or shape under one phrase, and something else."""
        things = self.scene.things
        looks: list[Description] = [{kind: getattr(thing, kind)} for thing in things for kind in ("colour", "shape")]
        groups = [look for look in looks if len(fitting(things, look)) > 1]
        if not groups:
            return self.several()
        look = self.dice.pick(groups)
        members = fitting(things, look)
        others = [thing for thing in self._salient(len(things)) if thing not in members][:SALIENT]
        words = f"{NUMBERS[len(members)]} {noun_phrase(look, self.dice, plural=True)}"
        crowd = Mention(words, tuple(thing.id for thing in members))
        if not others:
            return compose(self.dice.pick(("a picture of {0}", "there are {0}")), [crowd])
        template = self.dice.pick(("{0} and {1}", "{0} with {1}", "there are {0} and {1}"))
        return compose(template, [crowd, self._one(self.dice.pick(others))])

    def several(self) -> Telling:
        """A list of the three most salient things."""
        templates = ("{0} and {1} and {2}", "{0} with {1} and {2}", "a picture of {0} and {1} and {2}")
        return compose(self.dice.pick(templates), [self._one(thing) for thing in self._salient(3)])

    def places(self) -> Telling:
        """Two things and where in the picture they are."""
        a, b = self._salient(2)
        template = self.dice.pick(("{0} {there} and {1} {here}", "there is {0} {there} and {1} {here}"))
        return compose(template, [self._one(a), self._one(b)], there=_place(a), here=_place(b))

    def background(self) -> Telling:
        """Two things on the background, which is named and has no box."""
        behind = with_article(f"{self.scene.tone} {self.dice.pick(('background', 'ground', 'surface'))}")
        template = self.dice.pick(("{0} and {1} on {2}", "{0} on {2} with {1}", "on {2} there are {0} and {1}"))
        return compose(template, [*(self._one(thing) for thing in self._salient(2)), Mention(behind, ())])

    def _salient(self, count: int) -> list[Thing]:
        """The first `count` things, the large before the small, else in random order."""
        return sorted(self.dice.shuffled(self.scene.things), key=lambda thing: -thing.radius)[:count]

    def _one(self, thing: Thing) -> Mention:
        """A mention of one thing by colour and shape, often also by size and texture."""
        kinds = [kind for kind in ("size", "texture") if self.dice.below(2)] + ["colour", "shape"]
        look = {kind: getattr(thing, kind) for kind in kinds}
        return Mention(with_article(noun_phrase(look, self.dice)), (thing.id,))


def compose(template: str, mentions: Sequence[Mention], **words: str) -> Telling:
    """Fill a template; `{0}`, `{1}`, ... stand for mentions and may come in any order.

    >>> compose("there is {0} on {1}", [Mention("a star", (1,)), Mention("a surface", ())]).mentions
    ((2, 4, (1,)), (5, 7, ()))
    """
    tokens: list[str] = []
    spans = []
    for part in template.split():
        name = part.strip("{}")
        if name == part:
            tokens.append(part)
        elif name.isdigit():
            mention = mentions[int(name)]
            start = len(tokens)
            tokens += mention.words.split()
            spans.append((start, len(tokens), mention.things))
        else:
            tokens += words[name].split()
    return Telling(tuple(tokens), tuple(spans))


ROWS: Mapping[int, str] = {0: "top", 2: "bottom"}
COLUMNS: Mapping[int, str] = {0: "left", 2: "right"}


def _place(thing: Thing) -> str:
    """Where in the picture a thing is, by thirds."""
    row, column = ROWS.get(thing.y * 3 // SIDE), COLUMNS.get(thing.x * 3 // SIDE)
    if row and column:
        return f"in the {row} {column} corner"
    if row:
        return f"at the {row}"
    return f"on the {column}" if column else "in the middle"
