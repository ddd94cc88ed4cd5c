"""Questions made from captions: balanced, agreed, with the boxes of what they are about."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from foveate.errors import DataError
from foveate.lab.data.flickr_questions import _describe, _question, make_questions, read_flickr_questions
from foveate.lab.data.nouns import may_mention
from foveate.lab.data.samples import Caption, Phrase
from foveate.ops.boxes import Box
from tests.lab.data.test_flickr import make

LEFT, RIGHT, SMALL = Box(0.0, 0.0, 0.4, 1.0), Box(0.6, 0.0, 1.0, 1.0), Box(0.7, 0.7, 0.8, 0.8)


def described(name: str, *captions: str, **entities: tuple[str, Box | None]):
    """An image; "[dog the brown dog]" is a phrase of the entity dog."""
    found = []
    for number, text in enumerate(captions):
        tokens, phrases, start, entity = [], [], 0, ""
        for word in text.split():
            if word.startswith("["):
                start, entity = len(tokens), word[1:]
                continue
            tokens.append(word.rstrip("]"))
            if word.endswith("]"):
                kind, box = entities[entity]
                boxes = () if box is None else (box,)
                phrases.append(Phrase(start, len(tokens), entity, (kind,), boxes, None if boxes else "nobndbox"))
        found.append(Caption(f"{name}{number}", name, " ".join(tokens), tuple(tokens), tuple(phrases)))
    return _describe(name, found)


def dog(name: str, colour: str, where: str):
    two = [f"[a a {colour} dog] is running", f"[a the {colour} dog] running in [g the {where}]"]
    return described(name, *two, a=("animals", LEFT), g=("scene", RIGHT))


def man(name: str):
    two = ["[m a man] in [s a red shirt] is holding [c a camera]", "[m the man] holding [c a camera]"]
    return described(name, *two, m=("people", RIGHT), s=("clothing", SMALL), c=("other", SMALL))


DOGS = [dog(f"dog{n}", "black" if n % 2 else "brown", "grass" if n < 4 else "water") for n in range(8)]
IMAGES = [*DOGS, *(man(f"man{n}") for n in range(8))]


def drafts(kind: str, images=IMAGES):
    return [draft for draft in make_questions(images, random.Random(0)) if draft.kind == kind]


def test_every_noun_is_there_as_often_as_not() -> None:
    for kind in ("existence", "both"):
        answers = Counter((draft.key, draft.answer) for draft in drafts(kind))
        assert answers, kind
        for key, _ in answers:
            assert answers[key, "yes"] == answers[key, "no"]


def test_no_is_said_only_where_nothing_suggests_the_noun() -> None:
    absent = {(draft.key[0], draft.image[:3]) for draft in drafts("existence") if draft.answer == "no"}
    assert ("dog", "man") in absent
    assert ("man", "dog") in absent
    assert not {noun for noun, image in absent if noun == image}
    assert may_mention("skateboard", ["skater"])
    assert may_mention("ball", ["soccer"])
    assert not may_mention("ball", ["a", "man", "sleeps"])
    woman = described("w", "[w a woman] sleeps", w=("people", LEFT))
    someone = described("p", "[p a climber] sleeps", p=("people", LEFT))
    assert woman.lacks("man")
    assert not someone.lacks("man")


def test_the_rules_agree_with_the_captions() -> None:
    assert {(d.text, d.answer) for d in drafts("colour")} >= {
        ("What colour is the dog?", "brown"),
        ("What colour is the dog?", "black"),
    }
    assert {(d.text, d.answer, d.boxes) for d in drafts("number")} == {
        ("How many dogs are there?", "1", (LEFT,)),
        ("How many men are there?", "1", (RIGHT,)),
    }
    assert {(d.text, d.answer) for d in drafts("clothing")} == {("What is the man wearing?", "shirt")}
    assert {(d.text, d.answer, d.boxes) for d in drafts("object")} == {
        ("What is the man holding?", "camera", (RIGHT, SMALL))
    }
    assert {(d.text, d.answer) for d in drafts("action")} == {("What is the dog doing?", "running")}


def test_captions_that_contradict_each_other_make_no_question() -> None:
    two = ["[a a brown dog] is running", "[a a black dog] is running"]
    assert not drafts("colour", [described(str(n), *two, a=("animals", LEFT)) for n in range(4)])
    others = ["[a two dogs] are there", "[a three dogs] are there"]
    assert not drafts("number", [described(str(n), *others, a=("animals", LEFT)) for n in range(4)])


def test_the_region_of_a_question_is_its_boxes() -> None:
    yes = next(draft for draft in drafts("existence") if draft.answer == "yes" and draft.key == ("dog",))
    question = _question(0, "val", yes)
    assert question.region is not None
    assert question.region().mean() == pytest.approx(0.4, abs=0.02)
    no = _question(1, "val", yes._replace(answer="no", boxes=()))
    assert no.region is None
    assert (question.answers, question.answer_type) == (("yes",), "yes/no")


def test_the_same_seed_makes_the_same_questions() -> None:
    assert make_questions(IMAGES, random.Random(3)) == make_questions(IMAGES, random.Random(3))
    assert make_questions(IMAGES, random.Random(3)) != make_questions(IMAGES, random.Random(4))


def test_without_boxes_there_is_nothing_to_ask(tmp_path) -> None:
    with pytest.raises(DataError, match=r"expected boxes of Flickr30k Entities in .*, got none"):
        read_flickr_questions(make(tmp_path), "val")
