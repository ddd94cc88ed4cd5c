"""Questions about the photographs of Flickr8k and Flickr30k, made by rules from captions, phrases and boxes."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import combinations, pairwise
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

from foveate.errors import DataError
from foveate.lab.data.flickr import read_flickr
from foveate.lab.data.nouns import (
    ACTIONS,
    ANIMALS,
    COLOURS,
    FEMALE,
    GROUPS,
    MALE,
    NEUTRAL,
    NUMBERS,
    PEOPLE,
    PLACES,
    PLURAL,
    RELATIONS,
    VAGUE,
    VEHICLES,
    is_plural,
    is_there,
    lemma,
    may_mention,
    several,
)
from foveate.lab.data.samples import Caption, Dataset, Id, Phrase, Question
from foveate.ops.boxes import Box

TWO = "two"  # the tag of questions about two things
PAIRS = 3  # questions about two things that are there, per image
MASK = 56  # rows and columns of the mask of a region
WEARING = (("wearing",), ("wears",), ("in",), ("dressed", "in"), ("is", "wearing"))
# Nouns that people leave out although they are there, so that their absence from captions says nothing.
LEAST_MENTIONED = 0.4
MOST_COMMON = 0.4  # share of the most common answer of a kind of question


class Draft(NamedTuple):
    """A question before it is drawn.

    Attributes:
        kind: the rule that made it.
        image: its image.
        text, answer: of the question.
        boxes: what it is about.
        key: what must be balanced between yes and no; empty for other answers.
    """

    kind: str
    image: Id
    text: str
    answer: str
    boxes: tuple[Box, ...] = ()
    key: tuple[str, ...] = ()


@dataclass(frozen=True)
class MentionedThing:
    """An entity of an image with everything that its captions say about it.

    Attributes:
        noun: the lemma that most of its phrases end in.
        kinds: its categories.
        boxes: of it.
        mentions: the caption, the phrase and its words, once per mention.
    """

    noun: str
    kinds: frozenset[str]
    boxes: tuple[Box, ...]
    mentions: tuple[tuple[Caption, Phrase, tuple[str, ...]], ...]


@dataclass(frozen=True)
class Described:
    """An image as its captions describe it.

    Attributes:
        id: of the image.
        things: its entities.
        tokens: all words of all captions.
        nouns: the lemmas of all phrases.
        captions: how many there are.
    """

    id: Id
    things: tuple[MentionedThing, ...]
    tokens: frozenset[str]
    nouns: frozenset[str]
    captions: int

    def named(self, noun: str) -> tuple[MentionedThing, ...]:
        """The entities with a noun."""
        return tuple(thing for thing in self.things if thing.noun == noun)

    def boxes(self, noun: str) -> tuple[Box, ...]:
        """All boxes of a noun, each once."""
        return tuple(dict.fromkeys(box for thing in self.named(noun) for box in thing.boxes))

    def lacks(self, noun: str) -> bool:
        """True if the noun is not in the image, as far as its captions can tell."""
        if noun in PEOPLE:
            own = MALE if noun in ("man", "boy") else FEMALE if noun in ("woman", "girl") else MALE | FEMALE
            others = any("people" in t.kinds and t.noun not in ("man", "woman", "boy", "girl") for t in self.things)
            return not others and not self.tokens & (own | NEUTRAL)
        return not may_mention(noun, self.tokens)


Images: TypeAlias = Sequence[Described]


def read_flickr_questions(
    root: Path | None, split: str, *, name: str = "flickr8k", seed: int = 0, need_images: bool = True
) -> Dataset:
    """Make questions from the captions of a split and the boxes of Flickr30k Entities.

    The kinds of questions are existence, both (of two things), kind, colour, number, clothing, place, action and
    object; docs/photos-questions.md has the rules. Every noun and every pair of nouns has as many questions with the
    answer "yes" as with "no", so that words alone answer half of them.

    Args:
        root: directory with the files that `read_flickr` reads and those of Flickr30k Entities.
        split: "train", "val" or "test".
        name: "flickr8k" or "flickr30k".
        seed: of what is drawn at random.
        need_images: as in `read_flickr`.

    Returns:
        The dataset with questions instead of captions. `boxes` and `region` of a question are those of everything that
        it is about; none for the answer "no" and for places without a box.

    Raises DataError without Entities.
    """
    return _read(root, split, name, seed, need_images)


@lru_cache(maxsize=2)  # a training reads the same two splits several times
def _read(root: Path | None, split: str, name: str, seed: int, need_images: bool) -> Dataset:
    data = read_flickr(root, split, name=name, need_images=need_images)
    images = [_describe(image.id, data.captions_of(image.id)) for image in data.images]
    if not any(thing.boxes for image in images for thing in image.things):
        raise DataError(
            f"read_flickr_questions: expected boxes of Flickr30k Entities in {root}, got none; put its directories "
            "Sentences and Annotations into a directory `entities` there"
        )
    drafts = make_questions(images, random.Random(f"{seed} {split}"))
    questions = tuple(_question(number, split, draft) for number, draft in enumerate(drafts))
    return replace(data, name=f"{name}-questions", captions=(), questions=questions)


def make_questions(images: Images, draw: random.Random) -> list[Draft]:
    """All questions about the images, those about one image together."""
    drafts = [*_existence(images, draw), *_pairs(images, draw)]
    for rule in (_kinds, _colours, _numbers, _clothes, _places, _actions, _objects):
        drafts += _tamed([draft for image in images for draft in rule(image)], draw)
    order = {image.id: place for place, image in enumerate(images)}
    return sorted(dict.fromkeys(drafts), key=lambda draft: (order[draft.image], draft.kind, draft.text))


def _question(number: int, split: str, draft: Draft) -> Question:
    kind = {"existence": "yes/no", "both": "yes/no", "number": "number"}.get(draft.kind, "other")
    return Question(
        f"{split}-{number}",
        draft.image,
        draft.text,
        (draft.answer,),
        draft.answer,
        kind,
        draft.kind,
        boxes=draft.boxes,
        region=partial(_mask, draft.boxes) if draft.boxes else None,
        tags=frozenset({TWO} if draft.kind in ("both", "object", "clothing") else ()),
    )


def _mask(boxes: Sequence[Box]) -> np.ndarray:
    """(MASK, MASK) True inside the boxes."""
    mask = np.zeros((MASK, MASK), bool)
    for left, top, right, bottom in boxes:
        rows, columns = (slice(int(low * MASK), max(int(low * MASK) + 1, round(high * MASK)))
                         for low, high in ((top, bottom), (left, right)))  # fmt: skip
        mask[rows, columns] = True
    return mask


def _describe(image: Id, captions: Sequence[Caption]) -> Described:
    mentions = defaultdict(list)
    for caption in captions:
        for phrase in caption.phrases:
            if "notvisual" not in phrase.kinds:
                mentions[phrase.entity].append((caption, phrase, caption.words(phrase)))
    things = tuple(filter(None, map(_thing, mentions.values())))
    words = frozenset(word for caption in captions for word in caption.tokens)
    nouns = frozenset(lemma(own[2][-1]) for each in mentions.values() for own in each)
    return Described(image, things, words, nouns, len(captions))


def _thing(mentions: Sequence[tuple[Caption, Phrase, tuple[str, ...]]]) -> MentionedThing | None:
    heads = Counter(lemma(_head(words)) for _, _, words in mentions)
    noun = heads.most_common(1)[0][0]
    if not noun.isalpha() or noun in COLOURS or noun in VAGUE:
        return None
    kinds = frozenset(kind for _, phrase, _ in mentions for kind in phrase.kinds)
    return MentionedThing(noun, kinds, mentions[0][1].boxes, tuple(mentions))


def _head(words: Sequence[str]) -> str:
    """The noun of a phrase: its last word, but the word before "of" unless that only counts ("a group of men")."""
    if "of" in words[1:]:
        before = words[words.index("of") - 1]
        return words[-1] if before in GROUPS else before
    return words[-1]


def _existence(images: Images, draw: random.Random) -> Iterator[Draft]:
    """Is there a dog? As many images without a noun as with it, drawn by how usual it is beside what they show."""
    beside = _company(images)
    for noun in _asked(images):
        there = [image for image in images if image.boxes(noun)]
        absent = [image for image in images if image.lacks(noun)]
        chance = [max((beside[noun, other] for other in image.nouns), default=0.0) + 1e-4 for image in absent]
        count = min(len(there), len(absent))
        for image in draw.sample(there, count):
            yield Draft("existence", image.id, is_there(noun), "yes", image.boxes(noun), (noun,))
        for image in _weighted(absent, chance, count, draw):
            yield Draft("existence", image.id, is_there(noun), "no", (), (noun,))


def _pairs(images: Images, draw: random.Random) -> Iterator[Draft]:
    """Is there a dog and a ball? The answer is "no" where one of them is there and the other is not."""
    asked = set(_asked(images))
    there: dict[tuple[str, str], list[Described]] = defaultdict(list)
    for image in images:
        own = sorted({thing.noun for thing in image.things if thing.boxes} & asked)
        pairs = list(combinations(own, 2))
        for one, other in draw.sample(pairs, min(PAIRS, len(pairs))):
            there[one, other].append(image)
    with_noun = {noun: [image for image in images if image.boxes(noun)] for noun in sorted(asked)}
    for (one, other), found in sorted(there.items(), key=lambda item: item[0]):
        half = [image for a, b in ((one, other), (other, one)) for image in with_noun[a] if image.lacks(b)]
        count = min(len(found), len(half))
        text, key = is_there(one, other), (one, other)
        for image in draw.sample(found, count):
            yield Draft("both", image.id, text, "yes", image.boxes(one) + image.boxes(other), key)
        for image in draw.sample(half, count):
            yield Draft("both", image.id, text, "no", (), key)


def _asked(images: Images) -> list[str]:
    """Nouns that occur often enough and that captions rarely leave out."""
    found, parts, mentioned = Counter[str](), Counter[str](), defaultdict[str, float](float)
    for image in images:
        for noun in {thing.noun for thing in image.things if thing.boxes}:
            found[noun] += 1
            captions = {caption.id for thing in image.named(noun) for caption, _, _ in thing.mentions}
            mentioned[noun] += len(captions) / image.captions
            parts[noun] += all("bodyparts" in thing.kinds for thing in image.named(noun))
    least = max(2, len(images) // 400)
    return sorted(
        noun
        for noun, count in found.items()
        if count >= least and mentioned[noun] / count >= LEAST_MENTIONED and parts[noun] / count < 0.5
    )


def _company(images: Images) -> Mapping[tuple[str, str], float]:
    """How often a noun is in an image with another noun: P(noun | other)."""
    alone, together = Counter[str](), Counter[tuple[str, str]]()
    for image in images:
        alone.update(image.nouns)
        together.update((one, other) for one in image.nouns for other in image.nouns if one != other)
    return defaultdict(float, {pair: count / (alone[pair[1]] + 5) for pair, count in together.items()})


def _weighted(images: Images, weights: Sequence[float], count: int, draw: random.Random) -> list[Described]:
    """Images drawn without replacement, each with a probability in proportion to its weight."""
    # Efraimidis and Spirakis 2006: the largest u^(1/w).
    keys = [(draw.random() ** (1 / weight), place) for place, weight in enumerate(weights)]
    return [images[place] for _, place in sorted(keys, reverse=True)[:count]]


def _kinds(image: Described) -> Iterator[Draft]:
    """What animal is it? Where all entities of a category have one noun."""
    for kind, known, word in (("animals", ANIMALS, "animal"), ("vehicles", VEHICLES, "vehicle")):
        things = [thing for thing in image.things if kind in thing.kinds]
        nouns = {thing.noun for thing in things}
        if len(nouns) == 1 and nouns <= known and (boxes := _boxes(things)):
            yield Draft("kind", image.id, f"What {word} is it?", things[0].noun, boxes)


def _colours(image: Described) -> Iterator[Draft]:
    """What colour is the dress? Where a noun has one entity and its captions agree."""
    for thing in _unique(image):
        said = {_colour(words) for _, _, words in thing.mentions} - {None}
        if len(said) == 1 and "people" not in thing.kinds:
            verb = "are" if thing.noun in PLURAL else "is"
            if not any(is_plural(words[-1]) for _, _, words in thing.mentions):
                text = f"What colour {verb} the {thing.noun}?"
                yield Draft("colour", image.id, text, next(iter(filter(None, said))), thing.boxes)


def _colour(words: Sequence[str]) -> str | None:
    """The colours in a phrase, joined by "and"; None without one."""
    found = dict.fromkeys(COLOURS[word] for word in words if word in COLOURS)
    return " and ".join(sorted(found)) if found else None


def _numbers(image: Described) -> Iterator[Draft]:
    """How many men are there? Where the captions' numbers, singular or plural forms and boxes agree."""
    for thing in _unique(image):
        words = [words for _, _, words in thing.mentions]
        said = {NUMBERS[word] for own in words for word in own if word in NUMBERS}
        if not any(is_plural(own[-1]) for own in words) and not said - {1}:
            said = {1}
        others = [one for one in image.things if one is not thing and one.kinds & thing.kinds & {"people", "animals"}]
        countable = thing.kinds & {"people", "animals", "vehicles"} and not (thing.noun in PEOPLE and others)
        if countable and len(said) == 1 and len(thing.boxes) in said:
            text = f"How many {several(thing.noun)} are there?"
            if thing.noun not in GROUPS and thing.noun not in PLURAL:
                yield Draft("number", image.id, text, str(next(iter(said))), thing.boxes)


def _clothes(image: Described) -> Iterator[Draft]:
    """What is the man wearing? Where captions name one piece of clothing for the only person with that noun."""
    worn: dict[str, dict[str, tuple[Box, ...]]] = defaultdict(dict)
    for before, between, after in _chains(image):
        if "people" in before.kinds and "clothing" in after.kinds and between in WEARING:
            worn[before.noun][after.noun] = before.boxes + after.boxes
    for noun, pieces in worn.items():
        if len(pieces) == 1 and len(image.named(noun)) == 1:
            [(piece, boxes)] = pieces.items()
            yield Draft("clothing", image.id, f"What is the {noun} wearing?", piece, boxes)


def _places(image: Described) -> Iterator[Draft]:
    """What place is this? Where two captions or more name the same scene, and no other as often."""
    named = Counter(
        noun
        for thing in image.things
        if "scene" in thing.kinds
        for noun, caption in {(lemma(words[-1]), caption.id) for caption, _, words in thing.mentions}
        if noun in PLACES
    )
    best = named.most_common(2)
    if best and best[0][1] >= 2 and (len(best) == 1 or best[1][1] < best[0][1]):
        yield Draft("place", image.id, "What place is this?", best[0][0], image.boxes(best[0][0]))


def _actions(image: Described) -> Iterator[Draft]:
    """What is the dog doing? Where two captions or more say the same right after its noun, and no other as often."""
    for thing in _unique(image):
        said = Counter[str]()
        for caption, phrase, _ in thing.mentions:
            rest = [word for word in caption.tokens[phrase.stop : phrase.stop + 2] if word not in ("is", "are")]
            if rest and rest[0] in ACTIONS:
                said[rest[0]] += 1
        best = said.most_common(2)
        living = thing.kinds & {"people", "animals"} and thing.noun not in GROUPS
        one = not any(is_plural(words[-1]) for _, _, words in thing.mentions)
        if living and one and best and best[0][1] >= 2 and (len(best) == 1 or best[1][1] < best[0][1]):
            yield Draft("action", image.id, f"What is the {thing.noun} doing?", best[0][0], thing.boxes)


def _objects(image: Described) -> Iterator[Draft]:
    """What is the man holding? Where captions name one thing for a relation."""
    found: dict[tuple[str, str], dict[str, tuple[Box, ...]]] = defaultdict(dict)
    for before, between, after in _chains(image):
        relation = between[-1] if between else ""
        acts = before.kinds & {"people", "animals"} and before.noun not in GROUPS
        if acts and relation in RELATIONS and between[:-1] in ((), ("is",)) and after.boxes:
            found[before.noun, relation][after.noun] = before.boxes + after.boxes
    for (noun, relation), things in found.items():
        if len(things) == 1 and len(image.named(noun)) == 1:
            [(thing, boxes)] = things.items()
            if thing not in ("hand", "arm"):
                yield Draft("object", image.id, f"What is the {noun} {relation}?", thing, boxes)


def _chains(image: Described) -> Iterator[tuple[MentionedThing, tuple[str, ...], MentionedThing]]:
    """Two entities that follow each other in a caption, and the words between them."""
    by_caption: dict[Id, list[tuple[Phrase, MentionedThing, Caption]]] = defaultdict(list)
    for thing in image.things:
        for caption, phrase, _ in thing.mentions:
            by_caption[caption.id].append((phrase, thing, caption))
    for own in by_caption.values():
        own.sort(key=lambda mention: mention[0].start)
        for (first, one, caption), (second, other, _) in pairwise(own):
            yield one, caption.tokens[first.stop : second.start], other


def _unique(image: Described) -> Iterator[MentionedThing]:
    """Entities with boxes that are the only ones with their noun."""
    counted = Counter(thing.noun for thing in image.things)
    return (thing for thing in image.things if thing.boxes and counted[thing.noun] == 1)


def _boxes(things: Iterable[MentionedThing]) -> tuple[Box, ...]:
    return tuple(dict.fromkeys(box for thing in things for box in thing.boxes))


def _tamed(drafts: Sequence[Draft], draw: random.Random) -> list[Draft]:
    """Drafts of which the most common answer to a text is at most `MOST_COMMON`, and no answer is rare."""
    counts = Counter(draft.answer for draft in drafts)
    least = max(2, len(drafts) // 500)
    kept = [draft for draft in drafts if counts[draft.answer] >= least]
    if not kept:
        return []
    common, count = Counter(draft.answer for draft in kept).most_common(1)[0]
    others = len(kept) - count
    most = int(others * MOST_COMMON / (1 - MOST_COMMON))
    if count <= most or not others:
        return kept
    chosen = set(draw.sample([n for n, draft in enumerate(kept) if draft.answer == common], most))
    return [draft for n, draft in enumerate(kept) if draft.answer != common or n in chosen]
