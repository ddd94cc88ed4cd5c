"""Search over joint embeddings: an index on the disk, its nearest neighbours, and a second look at the best."""

from foveate.search.build import Built, build_index, pictures_in, texts_in
from foveate.search.find import Found, search_by_image, search_by_text
from foveate.search.index import Index, IndexDescription
from foveate.search.nearest import FaissIndex, Hits, nearest

__all__ = [
    "Built",
    "FaissIndex",
    "Found",
    "Hits",
    "Index",
    "IndexDescription",
    "build_index",
    "nearest",
    "pictures_in",
    "search_by_image",
    "search_by_text",
    "texts_in",
]
