"""Tokenizers: ours, and those that published checkpoints were trained with."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from foveate.lab.data.alignment import align
from foveate.lab.data.samples import Caption
from foveate.lab.data.vocabulary import tokenize

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
