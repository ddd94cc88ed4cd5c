"""Encode images into a feature store: resumable, and parallel over processes and machines that share a directory."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor, distributed
from torch.utils.data import DataLoader, Dataset

from foveate.errors import DataError, WrongValue
from foveate.io import ProgressBar
from foveate.lab.data.feature_store import FeatureRecord, FeatureStore, unstack_features
from foveate.lab.data.files import IMAGE_SUFFIXES, need_directory
from foveate.lab.data.image_sources import StoredImage
from foveate.lab.data.samples import ImageRecord
from foveate.lab.data.store_writer import Workspace, check_unique, digest
from foveate.lab.encoders.image_encoder import ImageEncoder, Preprocess
from foveate.lab.encoders.pretrained import describe_encoder
from foveate.lab.encoders.views import ImageView

MAX_REPORTED = 20


@dataclass(frozen=True)
class Block:
    """Images that are encoded together; the key is a digest of the images and the encoder."""

    key: str
    images: Sequence[ImageRecord]


@dataclass(frozen=True)
class DecodedBlock:
    """A decoded block: pixels (n, 3, h, w), ids and sizes of the readable images, errors of the others."""

    key: str
    pixels: Tensor
    ids: list[str]
    sizes: list[tuple[int, int]]
    broken: dict[str, str]


WriteBlocks: TypeAlias = Callable[[Workspace, Sequence[Block]], None]


def directory_images(directory: Path) -> list[ImageRecord]:
    """Return the images in a directory and its subdirectories, sorted by id.

    The id is the path inside the directory without the suffix: "COCO_val2014_000000000042", "train/0001".

    Raises DataError if there are no images or two files have the same id.
    """
    directory = need_directory("extract", directory, "pass the directory of the images")
    found: dict[str, Path] = {}
    for path in sorted(directory.rglob("*")):
        if path.suffix.lower() not in IMAGE_SUFFIXES or path.name.startswith(".") or not path.is_file():
            continue
        name = path.relative_to(directory).with_suffix("").as_posix()
        if name in found:
            raise DataError(
                f"extract: expected one file per id, got {found[name]} and {path} for {name!r}; rename or remove one"
            )
        found[name] = path
    if not found:
        raise DataError(
            f"extract: expected images ({', '.join(sorted(IMAGE_SUFFIXES))}) in {directory}, got none; check the path"
        )
    return [ImageRecord(name, path) for name, path in sorted(found.items())]


def extract_features(
    encoder: ImageEncoder,
    images: Sequence[ImageRecord],
    out: Path,
    *,
    batch_size: int = 32,
    workers: int = 0,
    skip_broken: bool = False,
    device: torch.device | str | None = None,
    progress: bool = False,
    write_blocks: WriteBlocks | None = None,
) -> FeatureStore:
    """Encode images into the store at `out`; an interrupted extraction resumes where it stopped.

    A batch is a block of the store (see `store_writer`). The same images always form the same batches, so the result
    depends neither on interruptions nor on the number of processes. Under `torchrun` each process encodes every
    `WORLD_SIZE`-th block and the first one merges them.

    Args:
        encoder: pretrained, in evaluation mode.
        images: with different ids, in the order of the store.
        out: the file to write.
        batch_size: images encoded at a time; an interruption loses at most one batch.
        workers: processes that decode images; 0 decodes in this process.
        skip_broken: skip unreadable images and record the reasons in `store.skipped`. Otherwise DataError is raised
            after all other images are encoded, so that nothing is computed twice once the images are fixed.
        device: to encode on; CUDA if available by default.
        progress: show a progress bar, under `torchrun` that of the first process.
        write_blocks: writes the blocks that are missing, instead of this process, see `RayBlocks`.
    """
    work = Workspace(out, describe_encoder(encoder), dim=encoder.dim)
    blocks = make_blocks(images, batch_size, [encoder.name, work.description.weights, work.description.preprocess])
    keys = [block.key for block in blocks]
    with _processes() as (rank, world):
        done = work.finished(keys)
        if done is None:
            if write_blocks is not None:
                write_blocks(work, [block for block in blocks if not work.has(block.key)])
            else:
                encoder.to(choose_device(device))
                _write_blocks(encoder, work, blocks[rank::world], workers, progress and rank == 0)
            _wait(world)
        _check_broken(work.skipped(keys) if done is None else done.skipped, len(images), skip_broken)
        if done is None and rank == 0:
            work.finish(keys)
        elif rank == 0:
            work.clean()
        _wait(world)
    return FeatureStore(out)


def _write_blocks(
    encoder: ImageEncoder, work: Workspace, blocks: Sequence[Block], workers: int, progress: bool
) -> None:
    missing = [block for block in blocks if not work.has(block.key)]
    with keep_freed_memory(), _bar(blocks, missing, progress) as bar:
        for decoded in _decode_all(encoder.preprocess, missing, workers):
            work.write(decoded.key, encode_block(encoder, decoded), skipped=decoded.broken)
            bar.update(len(decoded.ids) + len(decoded.broken))


def make_blocks(images: Sequence[ImageRecord], batch_size: int, encoder: Sequence[str]) -> list[Block]:
    """The images in blocks of `batch_size`; `encoder` is what the features depend on besides the images."""
    if not images:
        raise DataError("extract: expected at least one image, got none; check the source of the images")
    if batch_size < 1:
        raise WrongValue(f"extract: expected batch_size >= 1, got {batch_size}; 32 is a good start")
    check_unique("extract", (str(image.id) for image in images))
    parts = [images[i : i + batch_size] for i in range(0, len(images), batch_size)]
    return [Block(digest(*encoder, [(str(p.id), _file_size(p)) for p in part]), part) for part in parts]


def _file_size(image: ImageRecord) -> int | None:
    """Return the size of the image file, which changes when a broken image is fixed; None without a file."""
    path = image.source.file if isinstance(image.source, ImageView) else image.source
    if isinstance(path, StoredImage):
        return path.length
    return path.stat().st_size if isinstance(path, Path) and path.is_file() else None


class BlockReader(Dataset[DecodedBlock]):
    """Decodes whole blocks, in a worker process or in this one."""

    def __init__(self, preprocess: Preprocess, blocks: Sequence[Block]) -> None:
        self.preprocess, self.blocks = preprocess, blocks

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitem__(self, position: int) -> DecodedBlock:
        block, (h, w) = self.blocks[position], self.preprocess.size
        pixels, ids, sizes, broken = [torch.empty(0, 3, h, w, dtype=torch.uint8)], [], [], {}
        for image in block.images:
            try:
                array = image.pixels()
            except DataError as error:
                broken[str(image.id)] = str(error)
                continue
            pixels.append(self.preprocess.pixels(array)[None])
            ids.append(str(image.id))
            sizes.append((array.shape[1], array.shape[0]))
        return DecodedBlock(block.key, torch.cat(pixels), ids, sizes, broken)


def _decode_all(preprocess: Preprocess, blocks: Sequence[Block], workers: int) -> Iterator[DecodedBlock]:
    workers = min(workers, len(blocks))
    return iter(DataLoader(BlockReader(preprocess, blocks), batch_size=None, num_workers=workers))


def encode_block(encoder: ImageEncoder, decoded: DecodedBlock) -> list[FeatureRecord]:
    """The features of a decoded block, one record per readable image."""
    if not decoded.ids:
        return []
    features = encoder.encode_pixels(decoded.pixels.to(next(encoder.parameters()).device))
    return unstack_features(features, decoded.ids, decoded.sizes)


def _check_broken(broken: Mapping[str, str], total: int, skip: bool) -> None:
    if not broken or (skip and len(broken) < total):
        return
    lines = [f"  {name}: {reason}" for name, reason in list(broken.items())[:MAX_REPORTED]]
    if len(broken) > MAX_REPORTED:
        lines.append(f"  and {len(broken) - MAX_REPORTED} more")
    advice = "fix them and run again" if skip else "fix them and run again, or skip them with --skip-broken"
    raise DataError(
        f"extract: expected all images to be readable, got {len(broken)} of {total} unreadable; "
        f"{advice} (the others are done):\n" + "\n".join(lines)
    )


@contextmanager
def _processes() -> Iterator[tuple[int, int]]:
    """Yield rank and world size, with a process group if `torchrun` started several processes."""
    joined = distributed.is_available() and distributed.is_initialized()
    world = distributed.get_world_size() if joined else int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1 and not joined:
        # Wait for the slowest process as long as it takes; torchrun ends all of them when one fails.
        distributed.init_process_group("gloo", timeout=timedelta(days=30))
    try:
        yield (distributed.get_rank() if world > 1 else 0), world
    finally:
        if world > 1 and not joined:
            distributed.destroy_process_group()


def _wait(world: int) -> None:
    if world > 1:
        distributed.barrier()


def choose_device(device: torch.device | str | None) -> torch.device:
    """The device, or by default the GPU of this process if there is one."""
    if device is not None:
        return torch.device(device)
    return (
        torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        if torch.cuda.is_available()
        else torch.device("cpu")
    )


def _bar(blocks: Sequence[Block], missing: Sequence[Block], progress: bool) -> ProgressBar:
    total, left = (sum(len(block.images) for block in part) for part in (blocks, missing))
    return ProgressBar("extract", total, initial=total - left, unit="image", show=progress)


# Parameters of mallopt, from malloc.h of glibc.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4
# The values that glibc's own adjustment of the thresholds ends with.
_LARGEST_THRESHOLD, _DEFAULT_MMAP_MAX = 32 << 20, 65536


@contextmanager
def keep_freed_memory() -> Iterator[None]:
    """While the body runs, freed memory stays with the process and is used again.

    By default glibc returns large buffers to the system as soon as they are freed, and every page of the next one is
    a page fault: for EfficientNet-Lite0 on one core that is half of the time. Afterwards the memory is returned.
    Changes nothing on other C libraries.

    >>> with keep_freed_memory():
    ...     len(bytearray(1 << 20))
    1048576
    """
    libc = _glibc()
    if libc is None:
        yield
        return
    libc.mallopt(_MMAP_MAX, 0)
    libc.mallopt(_TRIM_THRESHOLD, (1 << 31) - 1)
    try:
        yield
    finally:
        # Any call of mallopt ends glibc's adjustment of its thresholds, so that they are set to its largest values.
        libc.mallopt(_MMAP_MAX, _DEFAULT_MMAP_MAX)
        libc.mallopt(_MMAP_THRESHOLD, _LARGEST_THRESHOLD)
        libc.mallopt(_TRIM_THRESHOLD, 2 * _LARGEST_THRESHOLD)
        libc.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    try:
        libc = ctypes.CDLL(None)
        libc.gnu_get_libc_version  # noqa: B018  (raises AttributeError on other C libraries)
    except (OSError, TypeError, AttributeError):
        return None
    return libc
