"""One tokenizer for questions and captions, and the way from another tokenizer's words to its tokens."""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Sequence
from difflib import SequenceMatcher

_CLITIC = r"'(?:s|re|ve|ll|d|m)\b"
_WORD = r"[^\W_]+"
_TOKEN = re.compile(
    rf"n't\b|{_CLITIC}|\d+(?:[.,]\d+)+|{_WORD}(?=n't\b)|{_WORD}(?={_CLITIC})|{_WORD}(?:'{_WORD})*",
)


def tokenize(text: str) -> tuple[str, ...]:
    """The lower-case words of a sentence.

    Rules: compatibility forms and typographic apostrophes are made plain, all is lower-cased; a word is a run of
    letters and digits in any script; "n't" and "'s", "'re", "'ve", "'ll", "'d", "'m" are words of their own, as in the
    usual word vectors; other apostrophes inside a word stay ("o'clock"); periods and commas between digits stay
    ("3.5"); hyphens separate ("t-shirt" is two words, so that "t shirt" is the same); every other mark is dropped.

    >>> tokenize("The dogs' T-shirt isn't John's; it costs $3.50!")
    ('the', 'dogs', 't', 'shirt', 'is', "n't", 'john', "'s", 'it', 'costs', '3.50')
    """
    return tuple(map(sys.intern, _TOKEN.findall(_plain(text))))


def align(words: Sequence[str], tokens: Sequence[str]) -> list[tuple[int, int] | None]:
    """For each of another tokenizer's words, the (start, stop) of the tokens that it covers.

    Letters and digits are matched, not words: it does not matter where either side separates, nor case and
    punctuation. Where the spelling differs, the longest common parts are matched and what lies between them is taken
    as corresponding.

    Args:
        words: of a sentence, with any case and punctuation.
        tokens: of the same sentence, as from `tokenize`.

    Returns:
        One pair a word, None for a word without letters or digits and for one that the tokens do not have.

    >>> align("A short-sleeved shirt .".split(), tokenize("a short sleeved blond shirt"))
    [(0, 1), (1, 3), (4, 5), None]
    """
    letters, word_of = _letters(words)
    target, token_of = _letters(tokens)
    spans: list[tuple[int, int] | None] = [None] * len(words)
    for first, last, to_first, to_last in _matches(letters, target):
        one_to_one = last - first == to_last - to_first and letters[first:last] == target[to_first:to_last]
        for i in range(first, last):
            low, high = (to_first + i - first,) * 2 if one_to_one else (to_first, to_last - 1)
            start, stop = token_of[low], token_of[high] + 1
            known = spans[word_of[i]]
            spans[word_of[i]] = (min(known[0], start), max(known[1], stop)) if known else (start, stop)
    return spans


def pair_sentences(left: Sequence[str], right: Sequence[str], least: float = 0.6) -> list[int | None]:
    """For each sentence of `left` the position of the same sentence in `right`, each used once.

    First those with the same letters and digits, then, of what is left over, the most similar pair after the most
    similar (`difflib` ratio of the letters), down to the ratio `least`.

    >>> pair_sentences(["A blond girl .", "Two dogs", "Rain"], ["Two dogs .", "A blonde girl"])
    [1, 0, None]
    """
    keys, others = [_letters([text])[0] for text in left], [_letters([text])[0] for text in right]
    pairs: list[int | None] = [None] * len(keys)
    free = dict.fromkeys(range(len(others)))
    for i, key in enumerate(keys):
        pairs[i] = next((j for j in free if others[j] == key), None)
        if pairs[i] is not None:
            del free[pairs[i]]  # type: ignore[arg-type]
    open_ = [i for i, pair in enumerate(pairs) if pair is None]
    ratios = [(SequenceMatcher(None, keys[i], others[j], autojunk=False).ratio(), i, j) for i in open_ for j in free]
    for ratio, i, j in sorted(ratios, key=lambda row: (-row[0], row[1], row[2])):
        if ratio >= least and pairs[i] is None and j in free:
            pairs[i] = j
            del free[j]
    return pairs


def _plain(text: str) -> str:
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text).replace("’", "'").replace("‘", "'")
    return text.lower()


def _letters(words: Sequence[str]) -> tuple[str, list[int]]:
    pairs = [(letter, i) for i, word in enumerate(words) for letter in _plain(word) if letter.isalnum()]
    return "".join(letter for letter, _ in pairs), [i for _, i in pairs]


def _matches(a: str, b: str) -> list[tuple[int, int, int, int]]:
    if a == b:
        return [(0, len(a), 0, len(b))]
    codes = SequenceMatcher(None, a, b, autojunk=False).get_opcodes()
    return [(i1, i2, j1, j2) for code, i1, i2, j1, j2 in codes if code in ("equal", "replace")]
