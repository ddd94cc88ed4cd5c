"""Every answer, region and phrase of Scenes again, from the words of the text and the list of objects alone.

Nothing here comes from the generator: the grammar, the synonyms and the rules are written anew.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import product

import numpy as np
import pytest

from foveate.lab.data.samples import Caption, Dataset, Object, Question
from foveate.lab.data.scenes import make_scenes

LEXICON = {
    "size": {"small": "small little tiny", "large": "large big huge"},
    "texture": {"plain": "plain solid", "striped": "striped stripy", "dotted": "dotted spotted"},
    "colour": {c: c for c in ("red", "green", "blue", "yellow", "orange")}
    | {"purple": "purple violet", "grey": "grey gray"},
    "shape": {"circle": "circle disc circles discs", "square": "square box squares boxes", "star": "star stars"}
    | {
        "cross": "cross plus crosses pluses",
        "triangle": "triangle triangles",
        "diamond": "diamond rhombus diamonds rhombuses",
    },
}
WORDS = {word: (kind, value) for kind, row in LEXICON.items() for value, names in row.items() for word in names.split()}
GENERIC = {noun + s for noun in ("shape", "thing", "object", "figure") for s in ("", "s")}
DIRECTIONS = {"left": (-1, 0), "right": (1, 0), "above": (0, -1), "higher": (0, -1)} | {
    "below": (0, 1),
    "lower": (0, 1),
    "under": (0, 1),
}
RELATION = r"(?:to the )?(left|right) of|(above|below|under)|(higher|lower) than"
KIND_OF_WORD = {"colour": "colour", "color": "colour", "shape": "shape", "form": "shape", "size": "size"} | {
    "pattern": "texture",
    "texture": "texture",
}
NUMBERS = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8}
DECIDED = 20 / 112


def look(thing: Object) -> dict[str, str]:
    return {**thing.attributes, "shape": thing.name}


def described(phrase: str) -> dict[str, str]:
    """The attributes a noun phrase names; fails on any word it does not know."""
    words = [w for w in phrase.split() if w not in {"a", "an", "the"} | GENERIC]
    found = dict(WORDS[w] for w in words)
    assert len(found) == len(words), phrase
    return found


def fitting(things: tuple[Object, ...], wanted: dict[str, str]) -> list[Object]:
    return [t for t in things if wanted.items() <= look(t).items()]


def the(things: tuple[Object, ...], phrase: str) -> Object:
    """The one thing that the phrase refers to."""
    assert phrase.startswith("the "), phrase
    noun, _, half = re.fullmatch(r"(.+?)( (?:on|in) the (\w+) (?:side|half))?", phrase).groups()
    found = fitting(things, described(noun))
    if half:
        assert len(found) > 1, f"{phrase!r} needs no place"
        found = [thing for thing in found if inside(thing, half) > 0]
    assert len(found) == 1, f"{phrase!r} fits {len(found)}"
    return found[0]


def inside(thing: Object, half: str) -> float:
    """How far the thing lies in a half of the image; decided by more than a few pixels."""
    assert half in {"left", "right", "upper", "top", "lower", "bottom"}
    x, y = thing.box.centre
    away = {"left": 0.5 - x, "right": x - 0.5, "upper": 0.5 - y, "top": 0.5 - y}.get(half, y - 0.5)
    assert abs(away) > 6 / 112
    return away


def ahead(a: Object, b: Object, direction: tuple[int, int]) -> float:
    (ax, ay), (bx, by) = a.box.centre, b.box.centre
    return (ax - bx) * direction[0] + (ay - by) * direction[1]


def searched(things, wanted):
    partly = [t for t in things if wanted.items() & look(t).items()]
    return fitting(things, wanted) or partly or list(things)


def yes(truth: bool) -> str:
    return "yes" if truth else "no"


def count(things, text):
    phrase = re.fullmatch(
        r"(?:how many|what is the number of|what number of) (.+?)"
        r"(?: are there| do you see| are in the picture| can you count)?\?",
        text,
    )[1]
    wanted = described(phrase)
    return str(len(fitting(things, wanted))), searched(things, wanted)


def exist(things, text):
    phrase = re.fullmatch(
        r"(?:is there|can you see|do you see|does the picture show) (an? .+?)(?: in the picture| here)?\?", text
    )[1]
    noun = phrase.split(maxsplit=1)[1]
    assert phrase.startswith("an ") == (noun[0] in "aeiou")
    wanted = described(phrase)
    return yes(bool(fitting(things, wanted))), searched(things, wanted)


def verify(things, text):
    body = re.fullmatch(r"(?:is it true that|would you say that|is) (.+)\?", text)[1].replace(" is ", " ")
    ways = [body[: m.start()] for m in re.finditer(r" (?=\S+$| ?a \S+$)", body)]
    subject = ways[0]
    value = described(body[len(subject) :])
    thing = the(things, subject)
    assert not value.keys() & described(subject).keys()
    return yes(value.items() <= look(thing).items()), [thing]


def same(things, text):
    forms = (
        r"do (the .+) and (the .+) have the same (\w+)\?",
        r"are (the .+) and (the .+) of the same (\w+)\?",
        r"is the (\w+) of (the .+) the same as that of (the .+)\?",
        r"does (the .+) have the same (\w+) as (the .+)\?",
    )
    groups = next(m.groups() for m in (re.fullmatch(form, text) for form in forms) if m)
    kind = KIND_OF_WORD[next(g for g in groups if not g.startswith("the "))]
    pair = [the(things, g) for g in groups if g.startswith("the ")]
    return yes(look(pair[0])[kind] == look(pair[1])[kind]), pair


def relation(things, text):
    found = re.fullmatch(
        rf"(?:is it true that|can you see|would you say that|is) (the .+?)(?: is)? (?:{RELATION}) (the .+)\?", text
    )
    a, b = the(things, found[1]), the(things, found[5])
    distance = ahead(a, b, DIRECTIONS[found[2] or found[3] or found[4]])
    assert abs(distance) > DECIDED, text
    return yes(distance > 0), [a, b]


def place(things, text):
    found = re.fullmatch(
        r"(?:is it true that|would you say that|is) (the .+?)(?: is)? (?:on|in) the (\w+) (?:side|half)"
        r"(?: of the picture)?\?",
        text,
    )
    thing = the(things, found[1])
    return yes(inside(thing, found[2]) > 0), [thing]


def more(things, text):
    found = re.fullmatch(
        r"(?:are there more|do you see more|does the picture show more|is the number of) (.+?)"
        r"(?: larger than the number of| than) (.+)\?",
        text,
    )
    a, b = (fitting(things, described(found[i])) for i in (1, 2))
    assert a
    assert b
    assert len(a) != len(b)
    return yes(len(a) > len(b)), a + b


def query(things, text):
    forms = (
        r"(?:what|which) (\w+) (?:is|is on|does) (the .+?)(?: have| covered with)?\?",
        r"what is the (\w+) of (the .+)\?",
        r"(how big) is (the .+)\?",
        r"(is) (the .+) small or large\?",
    )
    asked, phrase = next(m.groups() for m in (re.fullmatch(form, text) for form in forms) if m)
    thing, kind = the(things, phrase), KIND_OF_WORD.get(asked, "size")
    assert kind not in described(re.sub(r" (?:on|in) the .+", "", phrase))
    return look(thing)[kind], [thing]


def larger(things, text):
    forms = (
        r"which (?:one )?is (smaller|larger|bigger), (the .+) or (the .+)\?",
        r"of (the .+) and (the .+), which is (smaller|larger|bigger)\?",
    )
    groups = next(m.groups() for m in (re.fullmatch(form, text) for form in forms) if m)
    size = "small" if "smaller" in groups else "large"
    pair = [the(things, g) for g in groups if g.startswith("the ")]
    found = [t for t in pair if look(t)["size"] == size]
    assert len(found) == 1
    assert pair[0].name != pair[1].name
    return found[0].name, pair


def extreme(things, text):
    asked = re.search(r"(?:what|which|the) (colour|color|shape|form) (?:is|of|does)", text)[1]
    side = re.search(r"(left)|(right)|(topmost|highest|top)|(lowest|bottom)", text.split(" the ", 1)[1])
    direction = ((-1, 0), (1, 0), (0, -1), (0, 1))[side.lastindex - 1]
    first, second = sorted(things, key=lambda t: -ahead(t, things[0], direction))[:2]
    assert ahead(first, second, direction) > 6 / 112
    return look(first)[KIND_OF_WORD[asked]], [first]


CHECKS = {"count": count, "exist": exist, "verify": verify, "same": same, "relation": relation, "more": more} | {
    "place": place,
    "colour": query,
    "shape": query,
    "texture": query,
    "size": query,
    "larger": larger,
    "extreme": extreme,
}


@pytest.fixture(scope="module")
def data() -> Dataset:
    return make_scenes(split="val", count=400)


@pytest.mark.parametrize("kind", CHECKS)
def test_answers_and_regions_follow_from_the_objects(data, kind):
    asked = [q for q in data.questions if q.question_type == kind]
    assert len(asked) > 100
    for question in asked:
        answer, needed = CHECKS[kind](data.objects_of(question.image_id), question.text.lower())
        assert question.answer == answer, question.text
        assert set(question.objects) == {t.id for t in needed}, question.text
        assert set(question.boxes) == {t.box for t in needed}
        assert len(question.objects) == len(needed)


def test_every_question_has_a_check(data):
    assert {q.question_type for q in data.questions} == set(CHECKS)


def test_regions_are_the_masks_of_the_needed_objects(data):
    for question in data.questions[:600]:
        things = {t.id: t for t in data.objects_of(question.image_id)}
        union = np.any([things[i].mask() for i in question.objects], axis=0)
        assert np.array_equal(question.region(), union)


def is_tagged(question: Question, things: tuple[Object, ...]) -> set[str]:
    needed = [t for t in things if t.id in question.objects]
    tags = set()
    if len(needed) == 2 and np.hypot(*np.subtract(needed[0].box.centre, needed[1].box.centre)) >= 0.5:
        tags.add("two-distant")
    if len(needed) == 1 and look(needed[0])["size"] == "small" and len(things) >= 5:
        tags.add("small")
    return tags


def test_tags(data):
    # A box is centred up to four pixels beside the shape's own centre, so a few pairs lie on either side of one half.
    agree = [set(q.tags) == is_tagged(q, data.objects_of(q.image_id)) for q in data.questions]
    assert np.mean(agree) > 0.98
    counts = Counter(tag for q in data.questions for tag in q.tags)
    assert min(counts["two-distant"], counts["small"]) > 0.1 * len(data.questions)


def relations_in(caption: Caption) -> list[tuple[int, str, int]]:
    """Pairs of phrases with the relation said between them."""
    found = []
    for i, j in product(range(len(caption.phrases)), repeat=2):
        a, b = caption.phrases[i], caption.phrases[j]
        between = " ".join(caption.tokens[a.stop : b.start])
        if match := re.fullmatch(rf"(?:is )?(?:{RELATION})", between):
            found.append((i, match[1] or match[2] or match[3], j))
    return found


def test_phrases_name_what_they_are_linked_to(data):
    named = Counter()
    for caption in data.captions:
        things = data.objects_of(caption.image_id)
        for phrase in caption.phrases:
            words = caption.words(phrase)
            if phrase.unlinked:
                assert phrase.unlinked == "scene"
                assert words[-1] in {"background", "ground", "surface"}
                named["scene"] += 1
                continue
            linked = [t for t in things if t.box in phrase.boxes]
            number = NUMBERS.get(words[0], 1)
            assert len(linked) == len(phrase.boxes) == number, caption.text
            wanted = described(" ".join(words[1:]))
            assert all(wanted.items() <= look(t).items() for t in linked), caption.text
            assert phrase.entity == "+".join(str(t.id) for t in linked)
            if number > 1:
                assert fitting(things, wanted) == linked, "a counted group is the whole group"
            named["group" if number > 1 else "one"] += 1
    assert min(named.values()) > 100


def test_relations_and_places_in_captions_hold(data):
    said = 0
    for caption in data.captions:
        box = {i: p.boxes[0].centre for i, p in enumerate(caption.phrases) if p.boxes}
        for i, word, j in relations_in(caption):
            (ax, ay), (bx, by), (dx, dy) = box[i], box[j], DIRECTIONS[word]
            assert (ax - bx) * dx + (ay - by) * dy > DECIDED, caption.text
            said += 1
        for i, phrase in enumerate(caption.phrases):
            after = " ".join(caption.tokens[phrase.stop : phrase.stop + 5])
            if match := re.match(r"(?:in|at|on) the (top|bottom|middle)? ?(left|right)?", after):
                x, y = box[i]
                assert match[1] != "top" or y < 0.4, caption.text
                assert match[1] != "bottom" or y > 0.6, caption.text
                assert match[2] != "left" or x < 0.4, caption.text
                assert match[2] != "right" or x > 0.6, caption.text
    assert said > 500
