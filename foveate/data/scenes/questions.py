"""Questions about a scene, each with its answer and the things one must look at to give it.

Every kind draws its answer first where it can, and only among questions that the scene could answer in more than one
way; so the words of a question alone say little about the answer, and neither does the picture alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product

from foveate.data.scenes.desk import Desk, Draft, attribute, needed_for, yes_no
from foveate.data.scenes.dice import Dice
from foveate.data.scenes.language import (
    AHEAD,
    HALVES,
    KIND_WORDS,
    NOUNS,
    RELATIONS,
    SYNONYMS,
    Referrer,
    beyond_middle,
    fitting,
    noun_phrase,
    relates,
    with_article,
)
from foveate.data.scenes.world import VALUES, Scene


def count(desk: Desk) -> Draft | None:
    """How many fit the planted description: 0 to 4, each as often."""
    number = desk.scene.count
    text = desk.ask(
        (
            "how many {things} are there?",
            "how many {things} do you see?",
            "how many {things} are in the picture?",
            "what is the number of {things}?",
            "what number of {things} can you count?",
        ),
        things=noun_phrase(desk.scene.plan, desk.dice, plural=True),
    )
    rivals = tuple(str(other) for other in (number - 1, number + 1) if other >= 0)
    return Draft("count", text, str(number), needed_for(desk.scene.things, desk.scene.plan), rivals)


def exist(desk: Desk) -> Draft | None:
    """Is there one with this value, or with these two, each of which something in the picture has?"""
    things = desk.scene.things
    kinds = desk.dice.pick((*combinations(VALUES, 1), *combinations(VALUES, 2)))
    present = {tuple(getattr(thing, kind) for kind in kinds) for thing in things}
    allowed = [VALUES[kind] if len(kinds) == 1 else desk.values(kind) for kind in kinds]
    absent = set(product(*allowed)) - present
    if not absent:
        return None
    truth = bool(desk.dice.below(2))
    description = dict(zip(kinds, desk.dice.pick(sorted(present if truth else absent)), strict=True))
    text = desk.ask(
        (
            "is there {thing}?",
            "is there {thing} in the picture?",
            "can you see {thing}?",
            "do you see {thing} here?",
            "does the picture show {thing}?",
        ),
        thing=with_article(noun_phrase(description, desk.dice)),
    )
    return Draft("exist", text, *yes_no(truth, needed_for(things, description)))


def verify(desk: Desk) -> Draft | None:
    """Is this thing red? If it is not, then something else in the picture is."""
    kind = desk.dice.pick(tuple(VALUES))
    seen = desk.values(kind)
    thing = desk.dice.pick(desk.scene.things)
    name = desk.refer.refer(thing, desk.dice, without=(kind,))
    if name is None or len(seen) < 2:
        return None
    truth = bool(desk.dice.below(2))
    own = getattr(thing, kind)
    value = desk.dice.pick(SYNONYMS[own if truth else desk.dice.pick([other for other in seen if other != own])])
    text = desk.ask(
        ("is {thing} {value}?", "would you say that {thing} is {value}?", "is it true that {thing} is {value}?"),
        thing=name,
        value=with_article(value) if kind == "shape" else value,
    )
    return Draft("verify", text, *yes_no(truth, (thing.id,)))


def same(desk: Desk) -> Draft | None:
    """Do two things share their colour, shape or pattern?"""
    kind = desk.dice.pick(("colour", "shape", "texture"))
    sides: dict[bool, list[tuple[str, str, tuple[int, ...]]]] = {True: [], False: []}
    for a, b in desk.pairs():
        side = sides[getattr(a, kind) == getattr(b, kind)]
        if not side:
            first, second = (desk.refer.refer(thing, desk.dice, without=(kind,)) for thing in (a, b))
            if first and second:
                side.append((first, second, (a.id, b.id)))
    if not (sides[True] and sides[False]):
        return None
    truth = bool(desk.dice.below(2))
    first, second, needed = sides[truth][0]
    text = desk.ask(
        (
            f"do {{a}} and {{b}} have the same {{{kind}}}?",
            f"are {{a}} and {{b}} of the same {{{kind}}}?",
            f"is the {{{kind}}} of {{a}} the same as that of {{b}}?",
            f"does {{a}} have the same {{{kind}}} as {{b}}?",
        ),
        a=first,
        b=second,
    )
    return Draft("same", text, *yes_no(truth, needed))


def relation(desk: Desk) -> Draft | None:
    """Is this to the left of, to the right of, above or below that?"""
    name = desk.dice.pick(tuple(RELATIONS))
    for a, b in desk.pairs():
        if not (relates(a, name, b) or relates(b, name, a)):
            continue
        first, second = (desk.refer.refer(thing, desk.dice) for thing in (a, b))
        if first and second:
            text = desk.ask(
                (
                    "is {a} {relation} {b}?",
                    "is it true that {a} is {relation} {b}?",
                    "can you see {a} {relation} {b}?",
                    "would you say that {a} is {relation} {b}?",
                ),
                a=first,
                b=second,
                relation=desk.dice.pick(RELATIONS[name]),
            )
            return Draft("relation", text, *yes_no(relates(a, name, b), (a.id, b.id)))
    return None


def place(desk: Desk) -> Draft | None:
    """Is this in the left, right, upper or lower half of the picture?"""
    side = desk.dice.pick(tuple(HALVES))
    thing = desk.dice.pick(desk.scene.things)
    inside = beyond_middle(thing, side)
    name = desk.refer.refer(thing, desk.dice)
    if name is None or abs(inside) < AHEAD:
        return None
    text = desk.ask(
        (
            "is {thing} {place}?",
            "is it true that {thing} is {place}?",
            "would you say that {thing} is {place} of the picture?",
        ),
        thing=name,
        place=desk.dice.pick(HALVES[side]),
    )
    return Draft("place", text, *yes_no(inside > 0, (thing.id,)))


def more(desk: Desk) -> Draft | None:
    """Are there more of this colour, shape or pattern than of that?"""
    kind = desk.dice.pick(("colour", "shape", "texture"))
    groups = {value: fitting(desk.scene.things, {kind: value}) for value in VALUES[kind]}
    pairs = [
        (a, b) for a, b in combinations(VALUES[kind], 2) if groups[a] and groups[b] and len(groups[a]) != len(groups[b])
    ]
    if not pairs:
        return None
    a, b = desk.dice.shuffled(desk.dice.pick(pairs))
    text = desk.ask(
        (
            "are there more {a} than {b}?",
            "do you see more {a} than {b}?",
            "is the number of {a} larger than the number of {b}?",
            "does the picture show more {a} than {b}?",
        ),
        a=noun_phrase({kind: a}, desk.dice, plural=True),
        b=noun_phrase({kind: b}, desk.dice, plural=True),
    )
    needed = tuple(thing.id for thing in groups[a] + groups[b])
    return Draft("more", text, *yes_no(len(groups[a]) > len(groups[b]), needed))


def _query(kind: str, template: Sequence[str]) -> Callable[[Desk], Draft | None]:
    """A question for one attribute of one thing; every value in the picture is as likely, however often it is there.

    Half of the time the thing is told from others by the half of the picture that it lies in, where that is possible.
    """

    def query(desk: Desk) -> Draft | None:
        values = desk.values(kind)
        thing = desk.dice.pick(fitting(desk.scene.things, {kind: desk.dice.pick(values)}))
        by_place = desk.refer.refer_by_place(thing, desk.dice, without=(kind,)) if desk.dice.below(2) else None
        name = by_place or desk.refer.refer(thing, desk.dice, without=(kind,))
        if name is None or len(values) < 2:
            return None
        return Draft(kind, desk.ask(template, thing=name), *attribute(thing, kind))

    return query


def larger(desk: Desk) -> Draft | None:
    """Which of two things of different shape is larger, or smaller?"""
    for a, b in desk.pairs():
        if a.size == b.size or a.shape == b.shape:
            continue
        first, second = (desk.refer.refer(thing, desk.dice, without=("size",), needs=("shape",)) for thing in (a, b))
        if first and second:
            wanted = desk.dice.pick(VALUES["size"])
            answer, other = (a, b) if a.size == wanted else (b, a)
            text = desk.ask(
                (
                    "which is {more}, {a} or {b}?",
                    "which one is {more}, {a} or {b}?",
                    "of {a} and {b}, which is {more}?",
                ),
                a=first,
                b=second,
                more=desk.dice.pick({"small": ("smaller",), "large": ("larger", "bigger")}[wanted]),
            )
            return Draft("larger", text, answer.shape, (a.id, b.id), (other.shape,))
    return None


EXTREMES: Mapping[str, tuple[str, ...]] = {
    "left": ("leftmost {thing}", "{thing} furthest to the left"),
    "right": ("rightmost {thing}", "{thing} furthest to the right"),
    "above": ("topmost {thing}", "highest {thing}", "{thing} nearest to the top"),
    "below": ("lowest {thing}", "{thing} nearest to the bottom"),
}


def extreme(desk: Desk) -> Draft | None:
    """What colour or shape has the leftmost, rightmost, highest or lowest thing?"""
    side, kind = desk.dice.pick(tuple(EXTREMES)), desk.dice.pick(("colour", "shape"))
    places = {"left": lambda t: t.x, "right": lambda t: -t.x, "above": lambda t: t.y, "below": lambda t: -t.y}
    first, second = sorted(desk.scene.things, key=places[side])[:2]
    if places[side](second) - places[side](first) < AHEAD:
        return None
    nouns = [noun for noun in NOUNS if noun not in KIND_WORDS[kind]]
    text = desk.ask(
        (
            f"what {{{kind}}} is {{thing}}?",
            f"what is the {{{kind}}} of {{thing}}?",
            f"which {{{kind}}} does {{thing}} have?",
        ),
        thing="the " + desk.dice.pick(EXTREMES[side]).format(thing=desk.dice.pick(nouns)),
    )
    return Draft("extreme", text, *attribute(first, kind))


@dataclass(frozen=True)
class Kind:
    """A row of the table of questions: who makes it, its answer type, how often it is tried."""

    make: Callable[[Desk], Draft | None]
    answer_type: str
    tickets: int = 1


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
        tickets=2,
    ),
    "shape": Kind(
        _query(
            "shape", ("what {shape} is {thing}?", "what is the {shape} of {thing}?", "which {shape} does {thing} have?")
        ),
        "other",
        tickets=2,
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
        tickets=2,
    ),
    "size": Kind(
        _query("size", ("what {size} is {thing}?", "how big is {thing}?", "is {thing} small or large?")), "other"
    ),
    "larger": Kind(larger, "other", tickets=2),
    "extreme": Kind(extreme, "other"),
}
PER_PICTURE = {"number": 1, "yes/no": 3, "other": 4}
# How often every kind is tried; a try fails when the thing it picks cannot be told from another in words.
ROUNDS = 3


def ask(scene: Scene, dice: Dice) -> list[Draft]:
    """About eight questions of all three answer types on a scene, no two the same.

    >>> from foveate.data.scenes.world import Key, make_scene
    >>> key = Key(0, 0, 0)
    >>> ask(make_scene(key), key.dice(2))[0].kind
    'count'
    """
    desk = Desk(scene, Referrer(scene), dice)
    drafts: dict[str, Draft] = {}
    for answer_type, wanted in PER_PICTURE.items():
        rows = [row for row in KINDS.values() if row.answer_type == answer_type for _ in range(row.tickets)]
        before = len(drafts)
        for row in [row for _ in range(ROUNDS) for row in dice.shuffled(rows)]:
            draft = row.make(desk) if len(drafts) < before + wanted else None
            if draft is not None:
                drafts.setdefault(draft.text, draft)
    return list(drafts.values())
