"""Encode pictures into a feature store: resumable, in several processes, on several machines that share a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, distributed
from torch.utils.data import DataLoader, Dataset

from foveate.data.features import FeatureStore, PictureFeatures
from foveate.data.files import PICTURE_SUFFIXES, need_folder
from foveate.data.samples import Picture
from foveate.data.store_writer import Workspace, check_unique, digest
from foveate.encoders.images import PictureEncoder
from foveate.encoders.preprocess import Preprocess
from foveate.encoders.table import describe_encoder
from foveate.errors import DataError

if TYPE_CHECKING:
    from tqdm import tqdm

LISTED = 20


@dataclass(frozen=True)
class _Block:
    """Pictures that are encoded together; the key is a digest of them and of the encoder."""

    key: str
    pictures: Sequence[Picture]


@dataclass(frozen=True)
class _Decoded:
    """A block after decoding: pixels (n, 3, h, w), ids and sizes of what was readable, reasons for what was not."""

    key: str
    pixels: Tensor
    ids: list[str]
    sizes: list[tuple[int, int]]
    broken: dict[str, str]


def folder_pictures(folder: Path) -> list[Picture]:
    """The pictures of a folder and of the folders in it, in the order of their ids.

    The id is the path inside the folder without the ending: "COCO_val2014_000000000042", "train/0001".

    A folder without pictures and two files with the same id raise DataError.
    """
    folder = need_folder("extract", folder, "give the folder that holds the pictures")
    found: dict[str, Path] = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() not in PICTURE_SUFFIXES or path.name.startswith(".") or not path.is_file():
            continue
        name = path.relative_to(folder).with_suffix("").as_posix()
        if name in found:
            raise DataError(
                f"extract: expected one file an id, got {found[name]} and {path} for {name!r}; rename or remove one"
            )
        found[name] = path
    if not found:
        raise DataError(
            f"extract: expected pictures ({', '.join(sorted(PICTURE_SUFFIXES))}) in {folder}, got none; "
            "check the folder"
        )
    return [Picture(name, path) for name, path in sorted(found.items())]


def extract_features(
    encoder: PictureEncoder,
    pictures: Sequence[Picture],
    out: Path,
    *,
    batch_size: int = 32,
    workers: int = 0,
    skip_broken: bool = False,
    device: torch.device | str | None = None,
    progress: bool = False,
) -> FeatureStore:
    """Encode pictures into the store at `out`; started again after a kill, it goes on where it stopped.

    A batch is a block of the store (see `store_writer`): the same pictures always form the same batches, so that the
    result does not depend on where the work was cut or on how many processes shared it. Under `torchrun` each process
    takes every `WORLD_SIZE`-th block and the first one puts the store together.

    Args:
        encoder: pretrained, in evaluation mode.
        pictures: with different ids, in the order of the store.
        out: the file to appear.
        batch_size: pictures encoded at a time, and lost at most by a kill.
        workers: further processes that decode pictures; 0 decodes in this one.
        skip_broken: leave unreadable pictures out, with their reasons in `store.skipped`. Otherwise they raise
            DataError after all others are done, so that nothing is computed twice once they are mended or skipped.
        device: to encode on; CUDA when there is one.
        progress: draw a bar, under `torchrun` of the first process's share.
    """
    work = Workspace(out, describe_encoder(encoder), dim=encoder.dim)
    blocks = _blocks(pictures, batch_size, [encoder.name, work.description.weights, work.description.preprocess])
    keys = [block.key for block in blocks]
    with _processes() as (rank, world):
        done = work.finished(keys)
        if done is None:
            _write_blocks(encoder.to(_device(device)), work, blocks[rank::world], workers, progress and rank == 0)
            _wait(world)
        _check_broken(work.skipped(keys) if done is None else done.skipped, len(pictures), skip_broken)
        if done is None and rank == 0:
            work.finish(keys)
        elif rank == 0:
            work.clean()
        _wait(world)
    return FeatureStore(out)


def _write_blocks(
    encoder: PictureEncoder, work: Workspace, blocks: Sequence[_Block], workers: int, progress: bool
) -> None:
    missing = [block for block in blocks if not work.has(block.key)]
    with _bar(blocks, missing, progress) as bar:
        for decoded in _decode_all(encoder.preprocess, missing, workers):
            work.write(decoded.key, _encode(encoder, decoded), skipped=decoded.broken)
            bar.update(len(decoded.ids) + len(decoded.broken))


def _blocks(pictures: Sequence[Picture], batch_size: int, encoder: Sequence[str]) -> list[_Block]:
    if not pictures:
        raise DataError("extract: expected at least one picture, got none; check where they are read from")
    if batch_size < 1:
        raise ValueError(f"extract: expected batch_size >= 1, got {batch_size}; 32 is a good start")
    check_unique("extract", (str(picture.id) for picture in pictures))
    parts = [pictures[i : i + batch_size] for i in range(0, len(pictures), batch_size)]
    return [_Block(digest(*encoder, [(str(p.id), _file_size(p)) for p in part]), part) for part in parts]


def _file_size(picture: Picture) -> int | None:
    """Size of the picture's file, which tells a mended picture from a broken one; None without a file."""
    return picture.source.stat().st_size if isinstance(picture.source, Path) and picture.source.is_file() else None


class _BlockReader(Dataset[_Decoded]):
    """Decodes whole blocks, in whichever process asks."""

    def __init__(self, preprocess: Preprocess, blocks: Sequence[_Block]) -> None:
        self.preprocess, self.blocks = preprocess, blocks

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitem__(self, position: int) -> _Decoded:
        block, (h, w) = self.blocks[position], self.preprocess.size
        pixels, ids, sizes, broken = [torch.empty(0, 3, h, w, dtype=torch.uint8)], [], [], {}
        for picture in block.pictures:
            try:
                array = picture.pixels()
            except DataError as error:
                broken[str(picture.id)] = str(error)
                continue
            pixels.append(self.preprocess.pixels(array)[None])
            ids.append(str(picture.id))
            sizes.append((array.shape[1], array.shape[0]))
        return _Decoded(block.key, torch.cat(pixels), ids, sizes, broken)


def _decode_all(preprocess: Preprocess, blocks: Sequence[_Block], workers: int) -> Iterator[_Decoded]:
    workers = min(workers, len(blocks))
    return iter(DataLoader(_BlockReader(preprocess, blocks), batch_size=None, num_workers=workers))


def _encode(encoder: PictureEncoder, decoded: _Decoded) -> list[PictureFeatures]:
    if not decoded.ids:
        return []
    features = encoder.encode_pixels(decoded.pixels.to(next(encoder.parameters()).device))
    if not isinstance(features.grid, tuple) or features.mask is not None:
        raise TypeError(
            f"extract: expected one grid for all pictures from {encoder.name}, got {features.grid}; stretch them"
        )
    values = features.values.half().cpu().numpy()
    rows = zip(decoded.ids, values, decoded.sizes, strict=True)
    return [PictureFeatures(name, value, grid=features.grid, size=size) for name, value, size in rows]


def _check_broken(broken: Mapping[str, str], total: int, skip: bool) -> None:
    if not broken or (skip and len(broken) < total):
        return
    lines = [f"  {name}: {reason}" for name, reason in list(broken.items())[:LISTED]]
    if len(broken) > LISTED:
        lines.append(f"  and {len(broken) - LISTED} more")
    advice = "mend them and start again" if skip else "mend them and start again, or leave them out with --skip-broken"
    raise DataError(
        f"extract: expected {total} readable pictures, got {len(broken)} that are not; {advice}, the others are done:\n"
        + "\n".join(lines)
    )


@contextmanager
def _processes() -> Iterator[tuple[int, int]]:
    """The number of this process and how many there are, joined in a group when `torchrun` started several."""
    joined = distributed.is_available() and distributed.is_initialized()
    world = distributed.get_world_size() if joined else int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1 and not joined:
        # Processes wait for the slowest as long as it takes; torchrun ends them all when one fails.
        distributed.init_process_group("gloo", timeout=timedelta(days=30))
    try:
        yield (distributed.get_rank() if world > 1 else 0), world
    finally:
        if world > 1 and not joined:
            distributed.destroy_process_group()


def _wait(world: int) -> None:
    if world > 1:
        distributed.barrier()


def _device(device: torch.device | str | None) -> torch.device:
    if device is not None:
        return torch.device(device)
    return (
        torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        if torch.cuda.is_available()
        else torch.device("cpu")
    )


def _bar(blocks: Sequence[_Block], missing: Sequence[_Block], progress: bool) -> tqdm:
    from tqdm import tqdm

    total, left = (sum(len(block.pictures) for block in part) for part in (blocks, missing))
    return tqdm(total=total, initial=total - left, unit="picture", desc="extract", disable=not progress)
