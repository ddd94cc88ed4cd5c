"""English nouns in captions: singular forms, synonyms, and words that make the absence of a thing uncertain."""

from __future__ import annotations

import json
from collections.abc import Collection
from functools import lru_cache
from pathlib import Path
from typing import Any

_TABLES: dict[str, Any] = json.loads(Path(__file__).with_name("nouns.json").read_text(encoding="utf-8"))
IRREGULAR: dict[str, str] = _TABLES["irregular"]
SYNONYMS: dict[str, str] = _TABLES["synonyms"]
COLOURS: dict[str, str] = _TABLES["colours"]
NUMBERS: dict[str, int] = _TABLES["numbers"]
# By noun, the words that may mean it, show a part of it, or name a scene that often contains it.
RELATED: dict[str, list[str]] = {noun: words.split() for noun, words in _TABLES["related"].items()}
# Other names of the categories of COCO, as CHAIR (Rohrbach et al. 2018) lists them to count objects in captions.
COCO_NAMES: dict[str, tuple[str, ...]] = {kind: tuple(names.split(", ")) for kind, names in _TABLES["coco"].items()}


def _words(name: str) -> frozenset[str]:
    return frozenset(_TABLES[name].split())


UNCHANGED = _words("unchanged")  # end in s and are no plurals, or only plurals
PLURAL = frozenset(word for word in UNCHANGED if word.endswith("s")) - _words("unchanged_singular")
MASS, VAGUE, GROUPS = _words("mass"), _words("vague"), _words("groups")
PEOPLE, MALE, FEMALE, NEUTRAL = _words("people"), _words("male"), _words("female"), _words("neutral")
ANIMALS, VEHICLES, PLACES = _words("animals"), _words("vehicles"), _words("places")
ACTIONS, RELATIONS = _words("actions"), _words("relations")


def lemma(word: str) -> str:
    """The singular of a noun, with rare synonyms replaced by the usual word.

    >>> [lemma(word) for word in ("puppies", "women", "glasses", "boxes", "bicycles", "grass")]
    ['dog', 'woman', 'glasses', 'box', 'bike', 'grass']
    """
    if word in IRREGULAR:
        word = IRREGULAR[word]
    elif word not in UNCHANGED and len(word) > 3 and word.endswith("s") and not word.endswith("ss"):
        word = word[:-2] if word.endswith(("xes", "ches", "shes", "sses")) else word[:-1]
    return SYNONYMS.get(word, word)


def is_plural(word: str) -> bool:
    """True if a caption's word names several things."""
    return word in IRREGULAR or (word not in UNCHANGED and word.endswith("s") and not word.endswith("ss"))


def may_mention(noun: str, tokens: Collection[str]) -> bool:
    """True if words of the captions say or suggest that the noun may be in the image.

    Besides `RELATED`, every word counts that begins with the first four letters of the noun or contains it ("skater",
    "dirtbike").

    >>> may_mention("skateboard", {"a", "skater"}), may_mention("dog", {"a", "man", "sleeping"})
    (True, False)
    """
    return any(_suggests(noun, token) for token in tokens)


@lru_cache(maxsize=1 << 20)  # the same few words occur in all captions
def _suggests(noun: str, token: str) -> bool:
    own = lemma(token)
    if own == noun or token.startswith(noun[:4]) or (len(noun) > 3 and noun in token):
        return True
    return any(own == word or (len(word) > 3 and token.startswith(word)) for word in RELATED.get(noun, ()))


def is_there(*nouns: str) -> str:
    """The question whether things are in an image.

    >>> is_there("dog", "orange"), is_there("stairs")
    ('Is there a dog and an orange?', 'Are there stairs?')
    """
    verb = "Are" if nouns[0] in PLURAL else "Is"
    return f"{verb} there {' and '.join(map(with_article, nouns))}?"


def several(noun: str) -> str:
    """The plural of a noun.

    >>> several("child"), several("bench"), several("dog")
    ('children', 'benches', 'dogs')
    """
    irregular = {one: many for many, one in IRREGULAR.items() if lemma(many) == noun}
    if noun in irregular:
        return irregular[noun]
    return noun if noun in UNCHANGED else f"{noun}{'es' if noun.endswith(('ch', 'sh', 'x', 's')) else 's'}"


def with_article(noun: str) -> str:
    """A noun as it stands after "is there": with an article, or bare if it cannot be counted.

    >>> with_article("orange"), with_article("snow"), with_article("dog")
    ('an orange', 'snow', 'a dog')
    """
    if noun in MASS or noun in PLURAL:
        return noun
    return f"{'an' if noun[0] in 'aeiou' and not noun.startswith('uni') else 'a'} {noun}"
