"""Questions about a scene, each with its answer and the things one must see to answer it.

Where possible the answer is drawn first, and only questions to which the scene offers more than one answer are used.
Neither the words of a question nor the image alone therefore reveal much about the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product

from foveate.lab.data.scenes.language import (
    AHEAD,
    HALVES,
    KIND_WORDS,
    NOUNS,
    RELATIONS,
    SYNONYMS,
    Referrer,
    beyond_middle,
    matching,
    noun_phrase,
    relates,
    sentence,
    with_article,
)
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


def count(builder: QuestionBuilder) -> QuestionDraft | None:
    """How many things match the planted description? 0 to 4, equally frequent."""
    number = builder.scene.count
    text = builder.fill(
        (
            "how many {things} are there?",
            "how many {things} do you see?",
            "how many {things} are in the picture?",
            "what is the number of {things}?",
            "what number of {things} can you count?",
        ),
        things=noun_phrase(builder.scene.plan, builder.rng, plural=True),
    )
    distractors = tuple(str(other) for other in (number - 1, number + 1) if other >= 0)
    return QuestionDraft("count", text, str(number), needed_for(builder.scene.things, builder.scene.plan), distractors)


def exist(builder: QuestionBuilder) -> QuestionDraft | None:
    """Is there a thing with this value, or with these two, each of which occurs in the image?"""
    things = builder.scene.things
    kinds = builder.rng.choice((*combinations(VALUES, 1), *combinations(VALUES, 2)))
    present = {tuple(getattr(thing, kind) for kind in kinds) for thing in things}
    allowed = [VALUES[kind] if len(kinds) == 1 else builder.values(kind) for kind in kinds]
    absent = set(product(*allowed)) - present
    if not absent:
        return None
    truth = bool(builder.rng.below(2))
    description = dict(zip(kinds, builder.rng.choice(sorted(present if truth else absent)), strict=True))
    text = builder.fill(
        (
            "is there {thing}?",
            "is there {thing} in the picture?",
            "can you see {thing}?",
            "do you see {thing} here?",
            "does the picture show {thing}?",
        ),
        thing=with_article(noun_phrase(description, builder.rng)),
    )
    return QuestionDraft("exist", text, *yes_no(truth, needed_for(things, description)))


def verify(builder: QuestionBuilder) -> QuestionDraft | None:
    """Is this thing red? If it is not, another thing in the image is."""
    kind = builder.rng.choice(tuple(VALUES))
    seen = builder.values(kind)
    thing = builder.rng.choice(builder.scene.things)
    name = builder.refer.refer(thing, builder.rng, without=(kind,))
    if name is None or len(seen) < 2:
        return None
    truth = bool(builder.rng.below(2))
    own = getattr(thing, kind)
    value = builder.rng.choice(
        SYNONYMS[own if truth else builder.rng.choice([other for other in seen if other != own])]
    )
    text = builder.fill(
        ("is {thing} {value}?", "would you say that {thing} is {value}?", "is it true that {thing} is {value}?"),
        thing=name,
        value=with_article(value) if kind == "shape" else value,
    )
    return QuestionDraft("verify", text, *yes_no(truth, (thing.id,)))


def same(builder: QuestionBuilder) -> QuestionDraft | None:
    """Do two things share their colour, shape or pattern?"""
    kind = builder.rng.choice(("colour", "shape", "texture"))
    sides: dict[bool, list[tuple[str, str, tuple[int, ...]]]] = {True: [], False: []}
    for a, b in builder.pairs():
        side = sides[getattr(a, kind) == getattr(b, kind)]
        if not side:
            first, second = (builder.refer.refer(thing, builder.rng, without=(kind,)) for thing in (a, b))
            if first and second:
                side.append((first, second, (a.id, b.id)))
    if not (sides[True] and sides[False]):
        return None
    truth = bool(builder.rng.below(2))
    first, second, needed = sides[truth][0]
    text = builder.fill(
        (
            f"do {{a}} and {{b}} have the same {{{kind}}}?",
            f"are {{a}} and {{b}} of the same {{{kind}}}?",
            f"is the {{{kind}}} of {{a}} the same as that of {{b}}?",
            f"does {{a}} have the same {{{kind}}} as {{b}}?",
        ),
        a=first,
        b=second,
    )
    return QuestionDraft("same", text, *yes_no(truth, needed))


def relation(builder: QuestionBuilder) -> QuestionDraft | None:
    """Is this to the left of, to the right of, above or below that?"""
    name = builder.rng.choice(tuple(RELATIONS))
    for a, b in builder.pairs():
        if not (relates(a, name, b) or relates(b, name, a)):
            continue
        first, second = (builder.refer.refer(thing, builder.rng) for thing in (a, b))
        if first and second:
            text = builder.fill(
                (
                    "is {a} {relation} {b}?",
                    "is it true that {a} is {relation} {b}?",
                    "can you see {a} {relation} {b}?",
                    "would you say that {a} is {relation} {b}?",
                ),
                a=first,
                b=second,
                relation=builder.rng.choice(RELATIONS[name]),
            )
            return QuestionDraft("relation", text, *yes_no(relates(a, name, b), (a.id, b.id)))
    return None


def place(builder: QuestionBuilder) -> QuestionDraft | None:
    """Is this in the left, right, upper or lower half of the image?"""
    side = builder.rng.choice(tuple(HALVES))
    thing = builder.rng.choice(builder.scene.things)
    inside = beyond_middle(thing, side)
    name = builder.refer.refer(thing, builder.rng)
    if name is None or abs(inside) < AHEAD:
        return None
    text = builder.fill(
        (
            "is {thing} {place}?",
            "is it true that {thing} is {place}?",
            "would you say that {thing} is {place} of the picture?",
        ),
        thing=name,
        place=builder.rng.choice(HALVES[side]),
    )
    return QuestionDraft("place", text, *yes_no(inside > 0, (thing.id,)))


def more(builder: QuestionBuilder) -> QuestionDraft | None:
    """Are there more of this colour, shape or pattern than of that?"""
    kind = builder.rng.choice(("colour", "shape", "texture"))
    groups = {value: matching(builder.scene.things, {kind: value}) for value in VALUES[kind]}
    pairs = [
        (a, b) for a, b in combinations(VALUES[kind], 2) if groups[a] and groups[b] and len(groups[a]) != len(groups[b])
    ]
    if not pairs:
        return None
    a, b = builder.rng.shuffled(builder.rng.choice(pairs))
    text = builder.fill(
        (
            "are there more {a} than {b}?",
            "do you see more {a} than {b}?",
            "is the number of {a} larger than the number of {b}?",
            "does the picture show more {a} than {b}?",
        ),
        a=noun_phrase({kind: a}, builder.rng, plural=True),
        b=noun_phrase({kind: b}, builder.rng, plural=True),
    )
    needed = tuple(thing.id for thing in groups[a] + groups[b])
    return QuestionDraft("more", text, *yes_no(len(groups[a]) > len(groups[b]), needed))


def _query(kind: str, template: Sequence[str]) -> Callable[[QuestionBuilder], QuestionDraft | None]:
    """Return a maker of questions for one attribute; every value in the image is equally likely to be the answer.

    Half of the time, where possible, the thing is identified by the half of the image it lies in.
    """

    def query(builder: QuestionBuilder) -> QuestionDraft | None:
        values = builder.values(kind)
        thing = builder.rng.choice(matching(builder.scene.things, {kind: builder.rng.choice(values)}))
        by_place = builder.refer.refer_by_place(thing, builder.rng, without=(kind,)) if builder.rng.below(2) else None
        name = by_place or builder.refer.refer(thing, builder.rng, without=(kind,))
        if name is None or len(values) < 2:
            return None
        return QuestionDraft(kind, builder.fill(template, thing=name), *attribute(thing, kind))

    return query


def larger(builder: QuestionBuilder) -> QuestionDraft | None:
    """Which of two things of different shape is larger, or smaller?"""
    for a, b in builder.pairs():
        if a.size == b.size or a.shape == b.shape:
            continue
        first, second = (
            builder.refer.refer(thing, builder.rng, without=("size",), needs=("shape",)) for thing in (a, b)
        )
        if first and second:
            wanted = builder.rng.choice(VALUES["size"])
            answer, other = (a, b) if a.size == wanted else (b, a)
            text = builder.fill(
                (
                    "which is {more}, {a} or {b}?",
                    "which one is {more}, {a} or {b}?",
                    "of {a} and {b}, which is {more}?",
                ),
                a=first,
                b=second,
                more=builder.rng.choice({"small": ("smaller",), "large": ("larger", "bigger")}[wanted]),
            )
            return QuestionDraft("larger", text, answer.shape, (a.id, b.id), (other.shape,))
    return None


EXTREMES: Mapping[str, tuple[str, ...]] = {
    "left": ("leftmost {thing}", "{thing} furthest to the left"),
    "right": ("rightmost {thing}", "{thing} furthest to the right"),
    "above": ("topmost {thing}", "highest {thing}", "{thing} nearest to the top"),
    "below": ("lowest {thing}", "{thing} nearest to the bottom"),
}


def extreme(builder: QuestionBuilder) -> QuestionDraft | None:
    """What is the colour or shape of the leftmost, rightmost, highest or lowest thing?"""
    side, kind = builder.rng.choice(tuple(EXTREMES)), builder.rng.choice(("colour", "shape"))
    places = {"left": lambda t: t.x, "right": lambda t: -t.x, "above": lambda t: t.y, "below": lambda t: -t.y}
    first, second = sorted(builder.scene.things, key=places[side])[:2]
    if places[side](second) - places[side](first) < AHEAD:
        return None
    nouns = [noun for noun in NOUNS if noun not in KIND_WORDS[kind]]
    text = builder.fill(
        (
            f"what {{{kind}}} is {{thing}}?",
            f"what is the {{{kind}}} of {{thing}}?",
            f"which {{{kind}}} does {{thing}} have?",
        ),
        thing="the " + builder.rng.choice(EXTREMES[side]).format(thing=builder.rng.choice(nouns)),
    )
    return QuestionDraft("extreme", text, *attribute(first, kind))


@dataclass(frozen=True)
class Kind:
    """A row of the table of questions: how it is made, its answer type, its relative frequency."""

    make: Callable[[QuestionBuilder], QuestionDraft | None]
    answer_type: str
    weight: int = 1


KINDS: Mapping[str, Kind] = {
    "count": Kind(count, "number"),
    "exist": Kind(exist, "yes/no"),
    "verify": Kind(verify, "yes/no"),
    "same": Kind(same, "yes/no"),
    "relation": Kind(relation, "yes/no"),
    "place": Kind(place, "yes/no"),
    "more": Kind(more, "yes/no"),
    "colour": Kind(
        _query(
            "colour",
            (
                "what {colour} is {thing}?",
                "what is the {colour} of {thing}?",
                "which {colour} does {thing} have?",
            ),
        ),
        "other",
        weight=2,
    ),
    "shape": Kind(
        _query(
            "shape", ("what {shape} is {thing}?", "what is the {shape} of {thing}?", "which {shape} does {thing} have?")
        ),
        "other",
        weight=2,
    ),
    "texture": Kind(
        _query(
            "texture",
            (
                "what {texture} does {thing} have?",
                "what is the {texture} of {thing}?",
                "which {texture} is on {thing}?",
                "what {texture} is {thing} covered with?",
            ),
        ),
        "other",
        weight=2,
    ),
    "size": Kind(
        _query("size", ("what {size} is {thing}?", "how big is {thing}?", "is {thing} small or large?")), "other"
    ),
    "larger": Kind(larger, "other", weight=2),
    "extreme": Kind(extreme, "other"),
}
PER_IMAGE = {"number": 1, "yes/no": 3, "other": 4}
# Number of attempts per kind; an attempt fails if no expression identifies the chosen thing.
ROUNDS = 3


def write_questions(scene: Scene, rng: RandomStream) -> list[QuestionDraft]:
    """Write about eight different questions of all three answer types.

    >>> from foveate.lab.data.scenes.scene import Key, make_scene
    >>> key = Key(0, 0, 0)
    >>> write_questions(make_scene(key), key.rng(2))[0].kind
    'count'
    """
    builder = QuestionBuilder(scene, Referrer(scene), rng)
    drafts: dict[str, QuestionDraft] = {}
    for answer_type, wanted in PER_IMAGE.items():
        rows = [row for row in KINDS.values() if row.answer_type == answer_type for _ in range(row.weight)]
        before = len(drafts)
        for row in [row for _ in range(ROUNDS) for row in rng.shuffled(rows)]:
            draft = row.make(builder) if len(drafts) < before + wanted else None
            if draft is not None:
                drafts.setdefault(draft.text, draft)
    return list(drafts.values())
