"""`foveate index`: embed a folder of pictures, or a file of texts, into an index to search."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any, Literal, cast

from foveate import hub
from foveate.errors import DataError
from foveate.search import Built, build_index, pictures_in, texts_in
from foveate.search.build import Embedder
from foveate.train.checkpoint import WEIGHTS
from foveate.train.folder import run_folder

LISTED = 20


def index(
    run: str,
    images: Path,
    out: Path,
    *,
    dtype: Literal["float16", "float32"] | None = None,
    batch_size: int = 32,
    device: str | None = None,
) -> Built:
    """Embed pictures or texts and keep the vectors in an index; what an index has already is not embedded again.

    Stopped or killed, it loses the last few hundred at most: start the same command again. Pictures that cannot be read
    are left out and told. A picture is known by its path: one that has changed needs a new index.

    Args:
        run: folder of a run with a joint space (m-DAN), or the name of an embedded one.
        images: folder of pictures, folders inside it are read too; or a .txt file with one text a line.
        out: folder of the index, new or to be extended.
        dtype: float16 halves the size and is the default; an index keeps the one it began with.
        batch_size: pictures or texts embedded at a time.
        device: to embed on; the CPU when absent.
    """
    of_texts = images.suffix.lower() == ".txt"
    items = texts_in(images) if of_texts else pictures_in(images)
    embedder, name, weights = load_embedder("index", run, device)
    built = build_index(
        out,
        embedder,
        items,
        kind="texts" if of_texts else "images",
        run=name,
        weights=weights,
        dtype=dtype,
        batch_size=batch_size,
        progress=True,
    )
    for path, reason in list(built.skipped.items())[:LISTED]:
        print(f"left out {path}: {reason}", file=sys.stderr)
    if len(built.skipped) > LISTED:
        print(f"and {len(built.skipped) - LISTED} more", file=sys.stderr)
    print(f"{built.added} {built.index.description.kind} added, {len(built.index)} in {out}")
    return built


def load_embedder(where: str, run: str, device: str | None = None) -> tuple[Embedder, str, str]:
    """A run with a joint space, by what name to find it again, and a digest of its weights."""
    predictor: Any = hub.load(run, device=device)
    if not (hasattr(predictor, "embed_image") and hasattr(predictor, "embed_text")):
        raise DataError(
            f"{where}: expected a run with a joint space, got {run!r} of {type(predictor.task).__name__}; "
            "train one of image-text matching by m-DAN"
        )
    folder, sha = run_folder(run), hashlib.sha256()
    with (folder / WEIGHTS).open("rb") as file:
        while piece := file.read(1 << 20):
            sha.update(piece)
    # the folder of a run, wherever the search is started; embedded runs are known by their names
    name = str(folder.resolve()) if Path(run).expanduser().is_dir() else run
    return cast(Embedder, predictor), name, sha.hexdigest()[:16]
