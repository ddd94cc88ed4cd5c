"""Tokens grouped into words, each with where it attends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from foveate.attention import Attended


@dataclass(frozen=True, eq=False)
class Word:
    """A word and where the model attended for it.

    Attributes:
        text: the word, or what was looked for.
        attention: over the image, with a batch of one; `attention.map(h, w)` is in the image's own pixels.
    """

    text: str
    attention: Attended


def group_words(tokenizer: Any, ids: Sequence[int]) -> list[tuple[str, list[int]]]:
    """The words that token ids spell, each with the positions of its tokens; special tokens belong to none.

    A token begins a word when it adds text after a space.
    """
    special = set(getattr(tokenizer, "all_special_ids", ()))
    words: list[tuple[str, list[int]]] = []
    before, kept = "", list[int]()
    for position, token in enumerate(ids):
        if token in special:
            continue
        kept.append(token)
        text = tokenizer.decode(kept, skip_special_tokens=True)
        added = text[len(before) :] if text.startswith(before) else tokenizer.decode([token])
        begins = not words or added[:1].isspace() or before[-1:].isspace()
        if begins or not added:
            words.append((added.strip(), [position]))
        else:
            words[-1] = (words[-1][0] + added.strip(), [*words[-1][1], position])
        before = text
    return [(text, positions) for text, positions in words if text]
