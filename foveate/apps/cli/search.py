"""`foveate index` and `foveate search`: embed images or texts, and find those that fit a text or an image."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Literal

from foveate.apps.cli.terminal import Count, FigureFile, print_table, save_figure
from foveate.errors import DataError
from foveate.io import decode_image
from foveate.lab import hub
from foveate.lab.data.files import IMAGE_SUFFIXES
from foveate.lab.search import (
    AveragedMatcher,
    BuildResult,
    Matcher,
    SearchResult,
    build_index,
    open_index,
    read_texts,
    search_by_image,
    search_by_text,
)
from foveate.lab.search.builder import build_with_ray, list_sources
from foveate.lab.search.find import image_of, is_lance

MAX_REPORTED = 20


def index(
    run: str,
    images: str,
    out: str,
    *,
    dtype: Literal["float16", "float32"] | None = None,
    batch_size: int = 32,
    device: str | None = None,
    no_verify: bool = False,
    engine: Literal["local", "ray"] = "local",
    actors: int | None = None,
) -> BuildResult:
    """Embed images or texts into an index; what the index already contains is not embedded again.

    If it is stopped or killed, at most the last few hundred are lost: run the same command again. Images that cannot be
    read are skipped and reported. An image is identified by its path: one that has changed needs a new index.

    Args:
        run: directory of a run with one vector per image (m-DAN), or name of an embedded one.
        images: directory of images, searched recursively; a .txt file with one text per line; a tar archive or a
            directory of them (WebDataset); or the address of either in an object store, such as s3://bucket/photos.
        out: directory of the index, new or to be extended. A name that ends in .lance, also an address such as
            s3://bucket/photos.lance, is a table of LanceDB for millions of images, which several processes can fill:
            torchrun --nproc-per-node N -m foveate index ...
        dtype: float16 halves the size and is the default; float32 is that of tables of LanceDB, which are indexed many
            times faster with it. An existing index keeps its own.
        batch_size: images or texts per forward pass.
        device: device of the model; by default the CPU.
        no_verify: skip the checksum of the names of an existing index; its last part, which is written again, is
            verified in any case.
        engine: ray embeds on the cluster that RAY_ADDRESS names, or on this machine without one, into a table of
            LanceDB.
        actors: processes of Ray that embed; by default one per GPU, or per two CPUs.
    """
    rank, world = _process(out)
    of_texts = Path(images).suffix.lower() == ".txt"
    items = read_texts(Path(images)) if of_texts else list_sources(images)
    embedder, name, weights = hub.load_embedder("index", run, device)
    if engine == "ray":
        made = partial(hub.load_embedder, "index", run, device)
        kind: Literal["images", "texts"] = "texts" if of_texts else "images"
        return _report_built(
            build_with_ray(out, made, items, kind=kind, dtype=dtype, batch_size=batch_size, actors=actors), out
        )
    built = build_index(
        out,
        embedder,
        items[rank::world],
        kind="texts" if of_texts else "images",
        run=name,
        weights=weights,
        dtype=dtype,
        batch_size=batch_size,
        progress=rank == 0,
        verify=not no_verify,
        finish=world == 1,
    )
    if world > 1:
        _finish_together(built, rank)
    return _report_built(built, out)


def _report_built(built: BuildResult, out: str) -> BuildResult:
    """Print what was added and what was skipped."""
    for path, reason in list(built.skipped.items())[:MAX_REPORTED]:
        print(f"skipped {path}: {reason}", file=sys.stderr)
    if len(built.skipped) > MAX_REPORTED:
        print(f"and {len(built.skipped) - MAX_REPORTED} more", file=sys.stderr)
    print(f"{built.added} {built.index.description.kind} added, {len(built.index)} in {out}")
    return built


def _process(out: str) -> tuple[int, int]:
    """Rank and number of the processes that torchrun started; raises DataError if they cannot share the index."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1 and not is_lance(out):
        raise DataError(
            f"index: expected a table that several processes can fill, got {out}; use a name that ends in .lance"
        )
    return int(os.environ.get("RANK", "0")), world


def _finish_together(built: BuildResult, rank: int) -> None:
    """Wait for the other processes; then the first one builds what makes searching fast."""
    from torch import distributed

    distributed.init_process_group("gloo", timeout=timedelta(days=30))
    try:
        distributed.barrier()
        if rank == 0:
            built.index.finish()
        distributed.barrier()
    finally:
        distributed.destroy_process_group()


COLUMNS = 5


def search(
    index: str,
    query: str,
    *,
    top: Count = 10,
    rerank: str | None = None,
    first: Count = 100,
    run: str | None = None,
    plot: FigureFile | None = None,
    no_verify: bool = False,
) -> list[SearchResult]:
    """Search an index by a text or by an image.

    In an index of images it finds the images that a text describes, or similar images; in an index of texts the texts
    that describe an image, or similar texts.

    Args:
        index: directory written by foveate index, or the path or address of a table of LanceDB (.lance).
        query: a text in plain words, or the path of an image.
        top: number of results.
        rerank: run with cross attention (SCAN, BFAN) that re-ranks the first results; the scores of several runs,
            separated by commas, are averaged.
        first: number of results to re-rank.
        run: present location of the run of the index, if it has moved.
        plot: PNG file with the images, under the attention of the words if the re-ranking run has any.
        no_verify: skip the checksums of the index.
    """
    opened = open_index(index, verify=not no_verify)
    image = _image(query)
    if plot is not None and image is None and opened.description.kind == "texts":
        raise DataError(f"search: expected images to draw, got a text and an index of texts; leave out --plot {plot}")
    embedder, _, weights = hub.load_embedder("search", run or opened.description.run)
    if weights != opened.description.weights:
        raise DataError(
            f"search: expected the run with weights {opened.description.weights} that made {index}, got "
            f"{run or opened.description.run} with {weights}; pass it with --run, or build the index again"
        )
    ask = search_by_text if image is None else search_by_image
    matcher = _matcher(rerank) if rerank else None
    found = ask(opened, query if image is None else image, embedder, top=top, reranker=matcher, first=first)
    heads = ("", "score", "similarity", opened.description.kind.removesuffix("s"))
    rows = [(str(n), f"{one.score:.4g}", f"{one.similarity:.4g}", one.name) for n, one in enumerate(found, 1)]
    print_table(query, heads, rows)
    if plot is not None and found:
        draw_results(query, found, image if opened.description.kind == "texts" else None, plot)
    return found


def _matcher(runs: str) -> Matcher:
    """The run that re-ranks, or the average of several."""
    names = [name.strip() for name in runs.split(",") if name.strip()]
    loaded = [hub.load_for("search", name, "match", "foveate train matching-scan-scenes") for name in names]
    return loaded[0] if len(loaded) == 1 else AveragedMatcher(tuple(loaded))


def draw_results(query: str, found: Sequence[SearchResult], asked: str | None, out: Path) -> None:
    """Draw the images that were found, or the query image, under the attention of each text."""
    from foveate.plot.canvas import add_scale, draw_image, heat_scale, make_panels, read_image, set_title
    from foveate.plot.heat import heat
    from foveate.plot.layers import draw_heat

    shown_as = [image_of(asked or one.name) for one in found]
    pixels = [read_image("search", decode_image(one) if isinstance(one, str) else one) for one in shown_as]
    looks = [None if one.attention is None else one.attention.mean_over_queries() for one in found]
    maps = [None if look is None or look.grid is None else heat(look, False) for look in looks]
    figure, panels = make_panels(len(found), COLUMNS, pixels[0])
    scale = heat_scale(max((float(shown.max()) for shown in maps if shown is not None), default=1.0))
    for axes, one, panel, shown in zip(panels, found, pixels, maps, strict=True):
        draw_image(axes, panel, pale=shown is not None)
        if shown is not None:
            draw_heat(axes, shown, scale, cells=False, edge=False)
        set_title(axes, one.name if asked else Path(one.name).name, f"score {one.score:.4g}")
    if any(shown is not None for shown in maps):
        add_scale(figure, panels, scale)
    figure.suptitle(query if asked is None else Path(query).name, parse_math=False)
    save_figure(figure, out)


def _image(query: str) -> str | None:
    """The path if the query is an image; raises DataError if it looks like the path of a missing one."""
    if os.path.isfile(query):  # Path.is_file raises for a text that is too long for a path
        return query
    if Path(query).suffix.lower() in IMAGE_SUFFIXES:
        raise DataError(f"search: expected a text or an existing image, got {query!r}; check the path")
    return None
