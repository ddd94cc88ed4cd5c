"""One tokenizer for questions and captions, and the way from another tokenizer's words to its tokens."""

from __future__ import annotations

import re
import sys
import unicodedata
from bisect import bisect_right
from collections.abc import Sequence
from difflib import SequenceMatcher
from itertools import accumulate

_CLITIC = r"'(?:s|re|ve|ll|d|m)\b"
_WORD = r"[^\W_]+"
_OTHER = re.compile(r"[\W_]+")
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
    letters, ends = _letters(words)
    target, token_ends = _letters(tokens)
    blocks = _matches(letters, target)
    spans: list[tuple[int, int] | None] = []
    for begin, end in zip([0, *ends], ends, strict=False):
        found = [_image(block, begin, end) for block in blocks if block[0] < end and begin < block[1]]
        if begin == end or not found:
            spans.append(None)
            continue
        low, high = min(first for first, _ in found), max(last for _, last in found)
        spans.append((bisect_right(token_ends, low), bisect_right(token_ends, high) + 1))
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
    """The letters and digits of all words in one string, and where each word ends in it."""
    spelt = [_OTHER.sub("", _plain(word)) for word in words]
    return "".join(spelt), list(accumulate(map(len, spelt)))


def _matches(a: str, b: str) -> list[tuple[int, int, int, int, bool]]:
    """The corresponding parts a[i1:i2] and b[j1:j2], and whether they are the same."""
    if a == b:
        return [(0, len(a), 0, len(b), True)]
    codes = SequenceMatcher(None, a, b, autojunk=False).get_opcodes()
    return [(i1, i2, j1, j2, code == "equal") for code, i1, i2, j1, j2 in codes if code in ("equal", "replace")]


def _image(block: tuple[int, int, int, int, bool], begin: int, end: int) -> tuple[int, int]:
    """The first and the last position in b of a's letters begin:end, as far as they are in the block."""
    i1, i2, j1, j2, same = block
    return (max(begin, i1) - i1 + j1, min(end, i2) - i1 + j1 - 1) if same else (j1, j2 - 1)
