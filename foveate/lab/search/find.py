"""Search an index: embed the query, find the nearest vectors, and let a model with cross attention re-rank them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from foveate.attention import Attended
from foveate.checks import check_number
from foveate.errors import DataError
from foveate.lab.models import Fragments
from foveate.lab.search.exact_index import Index, IndexDescription
from foveate.lab.search.nearest import Hits

BATCH = 32  # candidates re-ranked at a time
LANCE = ".lance"


class VectorIndex(Protocol):
    """An index that can be searched and extended: `Index`, in a directory, or `LanceIndex`, in LanceDB."""

    @property
    def description(self) -> IndexDescription: ...

    @property
    def location(self) -> str:
        """Path or address, as text."""
        ...

    def __len__(self) -> int: ...

    def missing(self, names: Sequence[str]) -> list[str]:
        """Those of the names that are not in the index."""
        ...

    def names(self, positions: Sequence[int]) -> list[str]:
        """What the vectors at positions that `search` returned stand for."""
        ...

    def search(self, queries: Tensor, top: int = 10) -> Hits:
        """The vectors with the largest inner products with the queries (Q, D)."""
        ...

    def add(self, names: Sequence[str], vectors: Tensor, sizes: Sequence[tuple[int, int]] | None = None) -> int:
        """Add vectors (n, D), all of them or none; return how many were added."""
        ...

    def finish(self) -> None:
        """Called after the last addition: the place for what makes searching fast."""
        ...


def open_index(location: Path | str, *, verify: bool = True) -> VectorIndex:
    """Open an index: a table of LanceDB if the location ends in `.lance`, otherwise the directory of an exact index.

    Args:
        location: path, or address of a table in an object store.
        verify: compare an exact index with its checksums, see `Index`.
    """
    if is_lance(location):
        from foveate.lab.search.lance_index import LanceIndex

        return LanceIndex(location)
    return Index(location, verify=verify)


def is_lance(location: Path | str) -> bool:
    """True for the location of a table of LanceDB.

    >>> is_lance("s3://bucket/photos.lance"), is_lance(Path("photos.index"))
    (True, False)
    """
    return str(location).rstrip("/").endswith(LANCE)


Embeddings: TypeAlias = Tensor | Fragments


class Embedder(Protocol):
    """A run with a joint embedding space, for instance of m-DAN."""

    def encode_image(self, images: Sequence[Any]) -> Embeddings:
        """Vectors (B, D) of images (paths or uint8 arrays (H, W, 3)), or one fragment per image."""
        ...

    def encode_text(self, texts: Sequence[str]) -> Embeddings:
        """Vectors (B, D) of texts, or one fragment per text."""
        ...


class Matcher(Protocol):
    """A run that scores images and texts jointly, for instance of SCAN or BFAN.

    A run whose words attend to images says so by `words_attend = True`; its `look(image, text)` returns `words` and
    `attention`.
    """

    def match(self, images: Sequence[Any], texts: Sequence[str]) -> Tensor:
        """Scores (I, C) of every image with every text."""
        ...


@dataclass(frozen=True)
class AveragedMatcher:
    """Several runs as one: the mean of their scores, and the attention of the first whose words attend."""

    runs: tuple[Any, ...]

    def match(self, images: Sequence[Any], texts: Sequence[str]) -> Tensor:
        """The mean of the scores (I, C)."""
        return torch.stack([run.match(images, texts).float().cpu() for run in self.runs]).mean(0)

    @property
    def words_attend(self) -> bool:
        """True if words attend to images in one of the runs."""
        return any(_words_attend(run) for run in self.runs)

    def look(self, image: Any, text: str) -> Any:
        """Where the words of a text look in the first run in which they attend, or in the first one."""
        run = next((run for run in self.runs if _words_attend(run)), self.runs[0])
        return run.look(image, text)


def _words_attend(run: Any) -> bool:
    """True for a run whose words attend to images."""
    return bool(getattr(run, "words_attend", False))


@dataclass(frozen=True)
class SearchResult:
    """One result of a search.

    Attributes:
        name: the path of an image, or a text.
        score: determines the order: that of the re-ranking run, or the similarity.
        similarity: inner product of the embeddings.
        words, attention: the words of the text, and where they look in the image (batch size one, one query per
            word), if the re-ranking run provides it.
    """

    name: str
    score: float
    similarity: float
    words: tuple[str, ...] = ()
    attention: Attended | None = None


def as_vectors(embedded: Embeddings) -> Tensor:
    """Embeddings as vectors (B, D) in float32 on the CPU; raises DataError if there are several vectors per item.

    >>> as_vectors(Fragments(torch.ones(2, 1, 4))).shape
    torch.Size([2, 4])
    """
    values = embedded.values if isinstance(embedded, Fragments) else embedded[:, None]
    if values.ndim != 3 or values.shape[1] != 1:
        raise DataError(
            f"search: expected a run that embeds an image or a text as one vector, got {tuple(values.shape[1:])}; "
            "embed with m-DAN and use SCAN or BFAN for re-ranking"
        )
    return values[:, 0].detach().float().cpu()


def search_by_text(
    index: VectorIndex,
    text: str,
    embedder: Embedder,
    *,
    top: int = 10,
    reranker: Matcher | None = None,
    first: int = 100,
) -> list[SearchResult]:
    """The images that a text describes, best first; similar texts if the index contains texts.

    Args:
        index: built with the run of `embedder`.
        text: in plain words.
        embedder: embeds the text.
        top: number of results.
        reranker: scores the first candidates again. Raises DataError for an index of texts, because it compares images
            with texts.
        first: number of candidates to re-rank; those after them stay in the order of similarity.
    """
    pair = (lambda names: ([image_of(name) for name in names], [text])) if index.description.kind == "images" else None
    return _find(index, as_vectors(embedder.encode_text([text])), top, reranker, first, pair)


def image_of(name: str) -> Any:
    """The image that a name in an index stands for: a path, or the pixels of one in an archive or an object store."""
    if "://" not in name and ".tar/" not in name:
        return name
    from foveate.lab.data.image_sources import named_image

    return named_image(name)


def search_by_image(
    index: VectorIndex,
    image: Any,
    embedder: Embedder,
    *,
    top: int = 10,
    reranker: Matcher | None = None,
    first: int = 100,
) -> list[SearchResult]:
    """The texts that describe an image, best first; similar images if the index contains images.

    Args:
        index, embedder, top, first: as in `search_by_text`.
        image: a path or a uint8 array (H, W, 3).
        reranker: scores the first candidates again. Raises DataError for an index of images.
    """
    pair = (lambda names: ([image], names)) if index.description.kind == "texts" else None
    return _find(index, as_vectors(embedder.encode_image([image])), top, reranker, first, pair)


Pairing = Callable[[list[str]], tuple[list[Any], list[str]]]


def _find(
    index: VectorIndex, query: Tensor, top: int, reranker: Matcher | None, first: int, pair: Pairing | None
) -> list[SearchResult]:
    check_number("search", "first", first, least=1, advice="100 is a good start")
    check_number("search", "top", top, least=1, advice="10 is usual")
    hits = index.search(query, max(top, first) if reranker is not None else top)
    rows = zip(index.names(hits.positions[0].tolist()), hits.scores[0].tolist(), strict=True)
    found = [SearchResult(name, score, score) for name, score in rows]
    if reranker is None:
        return found
    if pair is None:
        kind = index.description.kind
        raise DataError(
            f"search: expected to re-rank images by a text or texts by an image, got {kind} to be found by "
            f"{'an image' if kind == 'images' else 'a text'}; search without re-ranking"
        )
    candidates, rest = found[:first], found[first:]
    scores = _match(reranker, [one.name for one in candidates], pair)
    ranked = [replace(one, score=score) for one, score in zip(candidates, scores.tolist(), strict=True)]
    ranked.sort(key=lambda one: -one.score)  # stable: equal scores keep the order of similarity
    best = (ranked + rest)[:top]
    return [_with_attention(one, reranker, pair) for one in best] if _words_attend(reranker) else best


def _match(reranker: Matcher, names: list[str], pair: Pairing) -> Tensor:
    """One score per name, a few images or texts at a time."""
    parts = [reranker.match(*pair(names[start : start + BATCH])) for start in range(0, len(names), BATCH)]
    scores = torch.cat([part.detach().float().cpu().flatten() for part in parts]) if parts else torch.zeros(0)
    broken = int(scores.isnan().sum())
    if len(scores) != len(names) or broken:
        raise DataError(
            f"search: expected one score for each of {len(names)} candidates, got {len(scores)}, {broken} of them NaN; "
            "check the run that re-ranks"
        )
    return scores


def _with_attention(one: SearchResult, reranker: Any, pair: Pairing) -> SearchResult:
    """The result with the attention of its words."""
    [image], [text] = pair([one.name])
    seen = reranker.look(image, text)
    return replace(one, words=tuple(seen.words), attention=seen.attention)
