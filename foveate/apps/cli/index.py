"""`foveate index`: embed a directory of images, or a file of texts, into an index to search."""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Literal

from foveate.errors import DataError
from foveate.lab import hub
from foveate.lab.search import BuildResult, build_index, read_texts
from foveate.lab.search.builder import list_sources
from foveate.lab.search.find import is_lance
from foveate.lab.search.ray_build import build_with_ray

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
        return _report(
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
    return _report(built, out)


def _report(built: BuildResult, out: str) -> BuildResult:
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
