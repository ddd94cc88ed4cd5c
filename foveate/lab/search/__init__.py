"""Search over joint embeddings: an index on the disk or in LanceDB, and re-ranking by cross attention."""

from foveate.lab.search.builder import BuildResult, build_index, list_images, read_texts
from foveate.lab.search.exact_index import Index, IndexDescription
from foveate.lab.search.find import (
    AveragedMatcher,
    Matcher,
    SearchResult,
    VectorIndex,
    open_index,
    search_by_image,
    search_by_text,
)
from foveate.lab.search.lance_index import LanceIndex
from foveate.lab.search.nearest import Hits, nearest

__all__ = [
    "AveragedMatcher",
    "BuildResult",
    "Hits",
    "Index",
    "IndexDescription",
    "LanceIndex",
    "Matcher",
    "SearchResult",
    "VectorIndex",
    "build_index",
    "list_images",
    "nearest",
    "open_index",
    "read_texts",
    "search_by_image",
    "search_by_text",
]
