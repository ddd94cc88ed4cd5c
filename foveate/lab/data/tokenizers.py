"""Tokenizers of published checkpoints beside ours, and the alignment of their words with our tokens."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from itertools import accumulate
from types import MappingProxyType

from foveate.lab.data.samples import Caption
from foveate.lab.data.vocabulary import plain_text, tokenize

_OTHER = re.compile(r"[\W_]+")


def align(words: Sequence[str], tokens: Sequence[str]) -> list[tuple[int, int] | None]:
    """Return, for each word of another tokenizer, the (start, stop) of the tokens it covers.

    Letters and digits are matched rather than words, so that token boundaries, case and punctuation do not matter.
    Where the spelling differs, the longest common parts are matched, and the parts between them correspond.

    Args:
        words: of a sentence, with any case and punctuation.
        tokens: of the same sentence, as from `tokenize`.

    Returns:
        One pair per word; None for a word without letters or digits, or without counterpart in the tokens.

    >>> from foveate.lab.data.vocabulary import tokenize
    >>> align("A short-sleeved shirt .".split(), tokenize("a short sleeved blond shirt"))
    [(0, 1), (1, 3), (4, 5), None]
    """
    letters, ends = _letters(words)
    target, token_ends = _letters(tokens)
    blocks = _matches(letters, target)
    spans: list[tuple[int, int] | None] = []
    for begin, end in zip([0, *ends], ends, strict=False):
        found = [_positions(block, begin, end) for block in blocks if block[0] < end and begin < block[1]]
        if begin == end or not found:
            spans.append(None)
            continue
        low, high = min(first for first, _ in found), max(last for _, last in found)
        spans.append((bisect_right(token_ends, low), bisect_right(token_ends, high) + 1))
    return spans


def pair_sentences(left: Sequence[str], right: Sequence[str], min_ratio: float = 0.6) -> list[int | None]:
    """Return, for each sentence of `left`, the position of the same sentence in `right`, each used once.

    Sentences with equal letters and digits are paired first, then greedily the most similar remaining pair (`difflib`
    ratio of the letters), down to the ratio `min_ratio`.

    >>> pair_sentences(["A blond girl .", "Two dogs", "Rain"], ["Two dogs .", "A blonde girl"])
    [1, 0, None]
    """
    keys, others = [_letters([text])[0] for text in left], [_letters([text])[0] for text in right]
    pairs: list[int | None] = [None] * len(keys)
    free = dict.fromkeys(range(len(others)))  # an ordered set: of equal sentences the first is taken
    for i, key in enumerate(keys):
        match = next((j for j in free if others[j] == key), None)
        if match is not None:
            pairs[i] = match
            del free[match]
    open_ = [i for i, pair in enumerate(pairs) if pair is None]
    ratios = [(SequenceMatcher(None, keys[i], others[j], autojunk=False).ratio(), i, j) for i in open_ for j in free]
    for ratio, i, j in sorted(ratios, key=lambda row: (-row[0], row[1], row[2])):
        if ratio >= min_ratio and pairs[i] is None and j in free:
            pairs[i] = j
            del free[j]
    return pairs


def _letters(words: Sequence[str]) -> tuple[str, list[int]]:
    """Return the letters and digits of all words as one string, and the end of each word in it."""
    spelt = [_OTHER.sub("", plain_text(word)) for word in words]
    return "".join(spelt), list(accumulate(map(len, spelt)))


def _matches(a: str, b: str) -> list[tuple[int, int, int, int, bool]]:
    """Return the corresponding parts a[i1:i2] and b[j1:j2], and whether they are equal."""
    if a == b:
        return [(0, len(a), 0, len(b), True)]
    codes = SequenceMatcher(None, a, b, autojunk=False).get_opcodes()
    return [(i1, i2, j1, j2, code == "equal") for code, i1, i2, j1, j2 in codes if code in ("equal", "replace")]


def _positions(block: tuple[int, int, int, int, bool], begin: int, end: int) -> tuple[int, int]:
    """Return the first and last position in b of the letters a[begin:end] that lie in the block."""
    i1, i2, j1, j2, same = block
    return (max(begin, i1) - i1 + j1, min(end, i2) - i1 + j1 - 1) if same else (j1, j2 - 1)


_DROPPED = re.compile(r"[.,'!?\"()*#:;]")
_OPENING_QUOTE = re.compile(r'^"|(?<=[ (\[{<])"')
_PUNCTUATION = re.compile(r"\.\.+|--+|``|''|[;@#$%&?!()\[\]{}<>]|[:,](?!\d)")
_LAST_PERIOD = re.compile(r"(?<![.\s])\.(?=\s*(?:''|[)\]}>\"'])*\s*$|\s)")
_ENDINGS = re.compile(r"(?<=[^' ])(n't|'(?:s|m|d|ll|re|ve)|')(?=\s|$)")
_JOINED = re.compile(r"\b(?:(can)(not)|(gim)(me)|(gon)(na)|(got)(ta)|(lem)(me)|(wan)(na))\b")


def openvqa_tokens(text: str) -> tuple[str, ...]:
    """Split a question as MCAN's released code does: some punctuation is dropped, hyphens and slashes separate.

    >>> openvqa_tokens("What's on the T-shirt?")
    ('whats', 'on', 'the', 't', 'shirt')
    """
    return tuple(_DROPPED.sub("", text.lower()).replace("-", " ").replace("/", " ").split())


def treebank_tokens(text: str) -> tuple[str, ...]:
    """Split a sentence by the rules of the Penn Treebank, as NLTK's `word_tokenize` does: punctuation marks are tokens.

    The released SCAN and BFAN read lower-case captions that were split this way. A period is split off at the end of
    the text and before a space; hyphenated words stay together.

    >>> treebank_tokens("A man isn't wearing a t-shirt, he's bare.")
    ('a', 'man', 'is', "n't", 'wearing', 'a', 't-shirt', ',', 'he', "'s", 'bare', '.')
    """
    text = _OPENING_QUOTE.sub(" `` ", text.lower()).replace('"', " '' ")
    text = _PUNCTUATION.sub(r" \g<0> ", text)
    text = _LAST_PERIOD.sub(" . ", text)
    text = _ENDINGS.sub(r" \1 ", text)
    return tuple(_JOINED.sub(lambda found: " ".join(part for part in found.groups() if part), text).split())


TOKENIZERS: Mapping[str, Callable[[str], tuple[str, ...]]] = MappingProxyType(
    {"foveate": tokenize, "openvqa": openvqa_tokens, "treebank": treebank_tokens}
)


def retokenize(caption: Caption, split: Callable[[str], tuple[str, ...]]) -> Caption:
    """The caption with the tokens of another tokenizer; its phrases cover the same letters.

    A phrase without a counterpart among the new tokens is dropped.

    >>> from foveate.lab.data.samples import Phrase
    >>> caption = Caption(1, 1, "A T-shirt.", ("a", "t", "shirt"), (Phrase(1, 3, 7, unlinked="scene"),))
    >>> retokenize(caption, treebank_tokens).phrases[0].start, retokenize(caption, treebank_tokens).tokens
    (1, ('a', 't-shirt', '.'))
    """
    tokens = split(caption.text)
    spans = align(caption.tokens, tokens)
    phrases = []
    for phrase in caption.phrases:
        found = [span for span in spans[phrase.start : phrase.stop] if span is not None]
        if found:
            start, stop = min(first for first, _ in found), max(last for _, last in found)
            phrases.append(replace(phrase, start=start, stop=stop))
    return replace(caption, tokens=tokens, phrases=tuple(phrases))
