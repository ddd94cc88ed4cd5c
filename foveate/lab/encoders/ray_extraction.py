"""Encode images on a cluster: Ray Data decodes blocks in tasks, and actors with the encoder write them.

The blocks are those of `extract_features`: each is written atomically under a name that depends on its images and the
encoder, so that a task that Ray repeats after a node was lost writes the same file again, and the store is the same as
that of one process. All nodes need foveate, the images, and the directory of the store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from foveate.errors import DataError
from foveate.io import ProgressBar
from foveate.lab.data.image_sources import StoredImage
from foveate.lab.data.samples import ImageRecord
from foveate.lab.data.store_writer import Workspace
from foveate.lab.encoders.extraction import Block, BlockReader, DecodedBlock, choose_device, encode_block
from foveate.lab.encoders.image_encoder import ImageEncoder, Preprocess
from foveate.lab.encoders.pretrained import describe_encoder
from foveate.lab.encoders.views import ImageView
from foveate.registry import optional

Row = dict[str, Any]
MOST_BLOCKS = 10_000  # of a dataset of Ray


@dataclass(frozen=True)
class RayBlocks:
    """Writes blocks on the cluster of Ray; see `extract_features`.

    Attributes:
        make_encoder: makes the encoder, once per actor.
        actors: that encode, by default one per GPU, or per two CPUs of a cluster without GPUs.
        device: of the encoder, see `extract_features`.
        progress: show a progress bar.
    """

    make_encoder: Callable[[], ImageEncoder]
    actors: int | None = None
    device: str | None = None
    progress: bool = False

    def __call__(self, work: Workspace, blocks: Sequence[Block]) -> None:
        """Write the blocks; returns when all of them are written."""
        if not blocks:
            return
        rows = [block_row(block) for block in blocks]
        preprocess = self.make_encoder().preprocess
        write = {"make_encoder": self.make_encoder, "out": str(work.out.resolve()), "device": self.device}
        done = run_blocks(rows, partial(decode_row, preprocess=preprocess), BlockWriter, write, self.actors)
        with ProgressBar("extract", sum(len(b.images) for b in blocks), unit="image", show=self.progress) as bar:
            for row in done:
                bar.update(int(row["images"]))


class BlockWriter:
    """An actor: encodes decoded blocks and writes them."""

    def __init__(self, make_encoder: Callable[[], ImageEncoder], out: str, device: str | None) -> None:
        encoder = make_encoder()
        self.work = Workspace(Path(out), describe_encoder(encoder), dim=encoder.dim)
        self.encoder = encoder.to(choose_device(device))

    def __call__(self, row: Row) -> Row:
        """Write one block and report the number of its images."""
        pixels = torch.from_numpy(np.array(row["pixels"]))
        ids = [str(name) for name in row["ids"]]
        sizes = [(int(width), int(height)) for width, height in zip(row["widths"], row["heights"], strict=True)]
        broken = dict(zip(map(str, row["broken"]), map(str, row["reasons"]), strict=True))
        decoded = DecodedBlock(str(row["key"]), pixels, ids, sizes, broken)
        if not self.work.has(decoded.key):
            self.work.write(decoded.key, encode_block(self.encoder, decoded), skipped=broken)
        return {"images": len(ids) + len(broken)}


def decode_row(row: Row, preprocess: Preprocess) -> Row:
    """Decode the images of a block, in a task."""
    decoded = BlockReader(preprocess, [row_block(row)])[0]
    return {
        "key": decoded.key,
        "pixels": decoded.pixels.numpy(),
        "ids": decoded.ids,
        "widths": [width for width, _ in decoded.sizes],
        "heights": [height for _, height in decoded.sizes],
        "broken": list(decoded.broken),
        "reasons": list(decoded.broken.values()),
    }


def run_blocks(
    rows: Sequence[Row], read: Callable[[Row], Row], actor: type, arguments: Mapping[str, Any], actors: int | None
) -> Any:
    """Stream rows through tasks that read and actors that compute, and yield what the actors return.

    Ray repeats the tasks and restarts the actors of a node that is lost; both must be repeatable.

    Args:
        rows: one per block.
        read: called on each row in a task.
        actor: class, called on each row that was read; one GPU each if the cluster has any.
        arguments: of its constructor.
        actors: how many; None for as many as the cluster has room for.
    """
    ray = optional("engine ray", "ray", extra="scale")
    data = optional("engine ray", "ray.data", extra="scale")
    if not ray.is_initialized():
        ray.init(log_to_driver=False)
    context = data.DataContext.get_current()
    context.enable_progress_bars = False
    resources = ray.cluster_resources()
    gpus = int(resources.get("GPU", 0))
    count = actors or gpus or max(1, int(resources.get("CPU", 1)) // 2)
    each: dict[str, Any] = {"num_gpus": 1} if gpus else {"num_cpus": 0.5}
    # Few rows per block, so that a lost node costs little; the pool may shrink to one actor when a node is lost.
    dataset = data.from_items(list(rows), override_num_blocks=min(len(rows), MOST_BLOCKS))
    dataset = dataset.map(read, num_cpus=0.5)
    dataset = dataset.map(
        actor, fn_constructor_kwargs=dict(arguments), compute=data.ActorPoolStrategy(min_size=1, max_size=count), **each
    )
    yield from dataset.iter_rows()


def block_row(block: Block) -> Row:
    """A block as a row of plain lists; see `row_block`."""
    images = [image.source.image if isinstance(image.source, ImageView) else image for image in block.images]
    sources = [_stored(image) for image in images]
    return {
        "key": block.key,
        "ids": [str(image.id) for image in block.images],
        "views": [image.source.view if isinstance(image.source, ImageView) else 0 for image in block.images],
        "locations": [source.location for source in sources],
        "offsets": [source.offset for source in sources],
        "lengths": [-1 if source.length is None else source.length for source in sources],
    }


def row_block(row: Row) -> Block:
    """The block of a row."""
    images = []
    places = zip(row["ids"], row["views"], row["locations"], row["offsets"], row["lengths"], strict=True)
    for name, view, location, offset, length in places:
        whole = int(length) < 0
        source = Path(str(location)) if whole and "://" not in str(location) else None
        stored = StoredImage(str(location), int(offset), None if whole else int(length))
        image = ImageRecord(str(name), stored if source is None else source)
        images.append(ImageRecord(str(name), ImageView(image, int(view))) if int(view) else image)
    return Block(str(row["key"]), images)


def _stored(image: ImageRecord) -> StoredImage:
    """The location of an image; raises DataError for one that only this process can make."""
    if isinstance(image.source, Path):
        return StoredImage(str(image.source.resolve()))
    if isinstance(image.source, StoredImage):
        return image.source
    raise DataError(f"engine ray: expected images in files, got {image.source!r} for {image.id!r}; write them first")
