"""Five captions per scene with phrases linked to the things they name, as in Flickr30k Entities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from foveate.lab.data.scenes.language import (
    NUMBERS,
    RELATIONS,
    matching,
    noun_phrase,
    relates,
    sentence,
    with_article,
)
from foveate.lab.data.scenes.scene import SIDE, Description, RandomStream, Scene, Thing

# Captions mention only the most salient things: large ones first.
SALIENT = 4


@dataclass(frozen=True)
class Mention:
    """A phrase that names something.

    Attributes:
        words: of the phrase.
        things: ids of the things it names, empty for the background.
    """

    words: str
    things: tuple[int, ...]


@dataclass(frozen=True)
class CaptionDraft:
    """A caption without an id: its words and, per mention, the slice of words and the ids it names."""

    words: tuple[str, ...]
    mentions: tuple[tuple[int, int, tuple[int, ...]], ...]

    @property
    def text(self) -> str:
        """The sentence with a capital letter and a full stop."""
        return sentence(" ".join(self.words)) + "."


def write_captions(scene: Scene, rng: RandomStream) -> list[CaptionDraft]:
    """Write five captions: two relations, one group, one list, and one with places or background.

    >>> from foveate.lab.data.scenes.scene import Key, make_scene
    >>> key = Key(0, 0, 0)
    >>> len(write_captions(make_scene(key), key.rng(3)))
    5
    """
    builder = CaptionBuilder(scene, rng)
    last = rng.choice((builder.places, builder.background))
    return [make() for make in rng.shuffled((builder.pair, builder.pair, builder.group, builder.several, last))]


@dataclass(frozen=True)
class CaptionBuilder:
    """Writes captions of a scene; each method is one type of caption."""

    scene: Scene
    rng: RandomStream

    def pair(self) -> CaptionDraft:
        """One thing in relation to another."""
        things = self._salient(len(self.scene.things))
        pairs = [(a, name, b) for a in things[:SALIENT] for b in things for name in RELATIONS if relates(a, name, b)]
        if not pairs:
            return self.several()
        a, name, b = self.rng.choice(pairs)
        template = self.rng.choice(("{0} {relation} {1}", "there is {0} {relation} {1}", "{0} is {relation} {1}"))
        return compose(template, [self._one(a), self._one(b)], relation=self.rng.choice(RELATIONS[name]))

    def group(self) -> CaptionDraft:
        """Several things of one colour or shape in one phrase, and another thing."""
        things = self.scene.things
        candidates: list[Description] = [
            {kind: getattr(thing, kind)} for thing in things for kind in ("colour", "shape")
        ]
        groups = [one for one in candidates if len(matching(things, one)) > 1]
        if not groups:
            return self.several()
        shared = self.rng.choice(groups)
        members = matching(things, shared)
        others = [thing for thing in self._salient(len(things)) if thing not in members][:SALIENT]
        words = f"{NUMBERS[len(members)]} {noun_phrase(shared, self.rng, plural=True)}"
        crowd = Mention(words, tuple(thing.id for thing in members))
        if not others:
            return compose(self.rng.choice(("a picture of {0}", "there are {0}")), [crowd])
        template = self.rng.choice(("{0} and {1}", "{0} with {1}", "there are {0} and {1}"))
        return compose(template, [crowd, self._one(self.rng.choice(others))])

    def several(self) -> CaptionDraft:
        """A list of the three most salient things."""
        templates = ("{0} and {1} and {2}", "{0} with {1} and {2}", "a picture of {0} and {1} and {2}")
        return compose(self.rng.choice(templates), [self._one(thing) for thing in self._salient(3)])

    def places(self) -> CaptionDraft:
        """Two things and their places in the image."""
        a, b = self._salient(2)
        template = self.rng.choice(("{0} {there} and {1} {here}", "there is {0} {there} and {1} {here}"))
        return compose(template, [self._one(a), self._one(b)], there=_place(a), here=_place(b))

    def background(self) -> CaptionDraft:
        """Two things and the background, a phrase without a box."""
        behind = with_article(f"{self.scene.tone} {self.rng.choice(('background', 'ground', 'surface'))}")
        template = self.rng.choice(("{0} and {1} on {2}", "{0} on {2} with {1}", "on {2} there are {0} and {1}"))
        return compose(template, [*(self._one(thing) for thing in self._salient(2)), Mention(behind, ())])

    def _salient(self, count: int) -> list[Thing]:
        """Return `count` things, large before small, otherwise in random order."""
        return sorted(self.rng.shuffled(self.scene.things), key=lambda thing: -thing.radius)[:count]

    def _one(self, thing: Thing) -> Mention:
        """Mention one thing by colour and shape, and with probability one half each by size and texture."""
        kinds = [kind for kind in ("size", "texture") if self.rng.below(2)] + ["colour", "shape"]
        description = {kind: getattr(thing, kind) for kind in kinds}
        return Mention(with_article(noun_phrase(description, self.rng)), (thing.id,))


def compose(template: str, mentions: Sequence[Mention], **words: str) -> CaptionDraft:
    """Fill a template; `{0}`, `{1}`, ... stand for mentions and may appear in any order.

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
    return CaptionDraft(tuple(tokens), tuple(spans))


ROWS: Mapping[int, str] = {0: "top", 2: "bottom"}
COLUMNS: Mapping[int, str] = {0: "left", 2: "right"}


def _place(thing: Thing) -> str:
    """Return the place of a thing in the image, by thirds."""
    row, column = ROWS.get(thing.y * 3 // SIDE), COLUMNS.get(thing.x * 3 // SIDE)
    if row and column:
        return f"in the {row} {column} corner"
    if row:
        return f"at the {row}"
    return f"on the {column}" if column else "in the middle"
