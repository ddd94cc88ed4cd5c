"""Ask an index: embed the question, take the nearest, and let a model with cross attention look at the first again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from foveate.attention import Attended
from foveate.checks import check_number
from foveate.errors import DataError, FoveateError
from foveate.search.build import Embedder, as_vectors
from foveate.search.index import Index

BATCH = 32


class Matcher(Protocol):
    """A run that looks at a picture and a text together, for instance of SCAN or BFAN.

    One that can also tell where the words look has `look(image, text)`, which gives `words` and their `attention`.
    """

    def match(self, images: Sequence[Any], texts: Sequence[str]) -> Tensor:
        """Scores (I, C) of every picture with every text."""
        ...


@dataclass(frozen=True)
class Found:
    """One thing that was found.

    Attributes:
        name: a picture's path, or a text.
        score: by which it is ranked: the re-ranking run's, or the nearness.
        nearness: inner product of the embeddings.
        words, attention: of the text, and where they look in the picture, of batch size one with one query a word; if
            the re-ranking run can tell.
    """

    name: str
    score: float
    nearness: float
    words: tuple[str, ...] = ()
    attention: Attended | None = None


def search_by_text(
    index: Index, text: str, embedder: Embedder, *, top: int = 10, reranker: Matcher | None = None, first: int = 100
) -> list[Found]:
    """What a text describes, best first: pictures, or similar texts where the index is of texts.

    Args:
        index: made by the run of `embedder`.
        text: in plain words.
        embedder: gives the text its vector.
        top: how many to return.
        reranker: scores the first anew. Only pictures with texts: an index of texts raises DataError.
        first: how many the reranker looks at; what comes after them stays in the order of nearness.
    """
    pair = (lambda names: (names, [text])) if index.description.kind == "images" else None
    return _find(index, as_vectors(embedder.embed_text([text])), top, reranker, first, pair)


def search_by_image(
    index: Index, image: Any, embedder: Embedder, *, top: int = 10, reranker: Matcher | None = None, first: int = 100
) -> list[Found]:
    """The texts that describe a picture, best first, or similar pictures where the index is of pictures.

    Args:
        index, embedder, top, first: as in `search_by_text`.
        image: a path or an array (H, W, 3) of uint8.
        reranker: scores the first anew. Only texts with pictures: an index of pictures raises DataError.
    """
    pair = (lambda names: ([image], names)) if index.description.kind == "texts" else None
    return _find(index, as_vectors(embedder.embed_image([image])), top, reranker, first, pair)


Pairing = Callable[[list[str]], tuple[list[Any], list[str]]]


def _find(
    index: Index, query: Tensor, top: int, reranker: Matcher | None, first: int, pair: Pairing | None
) -> list[Found]:
    check_number("search", "first", first, least=1, advice="100 is a good start")
    check_number("search", "top", top, least=1, advice="10 is usual")
    hits = index.search(query, max(top, first) if reranker is not None else top)
    rows = zip(hits.positions[0].tolist(), hits.scores[0].tolist(), strict=True)
    found = [Found(index.name(position), score, score) for position, score in rows]
    if reranker is None:
        return found
    if pair is None:
        raise DataError(
            f"search: expected pictures to be ranked by a text or texts by a picture, got an index of "
            f"{index.description.kind} asked with its own kind; leave the re-ranking out"
        )
    again, rest = found[:first], found[first:]
    scores = _match(reranker, [one.name for one in again], pair)
    again = [replace(one, score=score) for one, score in zip(again, scores.tolist(), strict=True)]
    again.sort(key=lambda one: -one.score)
    return [_with_attention(one, reranker, pair) for one in (again + rest)[:top]]


def _match(reranker: Matcher, names: list[str], pair: Pairing) -> Tensor:
    """One score a name, a few pictures or texts at a time."""
    parts = [reranker.match(*pair(names[start : start + BATCH])) for start in range(0, len(names), BATCH)]
    scores = torch.cat([part.detach().float().cpu().flatten() for part in parts]) if parts else torch.zeros(0)
    broken = int(scores.isnan().sum())
    if len(scores) != len(names) or broken:
        raise DataError(
            f"search: expected one score for each of {len(names)} candidates, got {len(scores)}, {broken} of them NaN; "
            "check the run that re-ranks"
        )
    return scores


def _with_attention(one: Found, reranker: Matcher, pair: Pairing) -> Found:
    if not hasattr(reranker, "look"):
        return one
    [image], [text] = pair([one.name])
    try:
        seen = reranker.look(image, text)
    except FoveateError:
        raise
    except ValueError:  # a model whose words are looked at and do not look
        return one
    return replace(one, words=tuple(seen.words), attention=seen.attention)
