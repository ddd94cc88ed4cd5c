"""`foveate extract` and `foveate import`: feature stores from images and from published features."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Literal

from foveate.apps.cli.terminal import NewFile
from foveate.lab.data.feature_store import FeatureStore, StoreDescription
from foveate.lab.data.image_sources import is_stored, stored_images
from foveate.lab.data.published_features import read_published
from foveate.lab.data.store_writer import import_features
from foveate.lab.encoders import directory_images, extract_features, image_views, pretrained_encoder
from foveate.lab.encoders.ray_extraction import RayBlocks


def extract(
    encoder: str,
    images: str,
    out: NewFile,
    *,
    size: int | None = None,
    views: int = 1,
    batch_size: int = 32,
    workers: int = 2,
    skip_broken: bool = False,
    device: str | None = None,
    engine: Literal["local", "ray"] = "local",
    actors: int | None = None,
) -> FeatureStore:
    """Encode the images of a directory into a feature store; an interrupted extraction resumes where it stopped.

    Args:
        encoder: efficientnet-lite0, -lite1, -lite2 (7x7), efficientnet-lite0-middle (14x14), hf:<model>; several joined
            by a plus, such as efficientnet-lite0+efficientnet-lite2; regions for the features of 36 boxes by selective
            search, regions-hf:<model> for the boxes of a detector such as DETR.
        images: directory of images, including subdirectories; a tar archive or a directory of them (WebDataset); or the
            address of either in an object store, such as s3://bucket/photos.
        out: the file to write.
        size: side in pixels to which images are resized, the encoder's own by default; with 448, efficientnet-lite0
            has a 14x14 grid.
        views: store this many views per image for training: 2 adds the mirrored image, 4 also a crop and its mirror
            image, up to 12; `foveate train RECIPE images.views=4` trains on all of them.
        batch_size: images encoded at a time; an interruption loses at most one batch.
        workers: processes that decode images; 0 decodes in the process that encodes.
        skip_broken: skip unreadable images instead of failing at the end.
        device: device to encode on; by default CUDA if it is available.
        engine: ray encodes on the cluster that RAY_ADDRESS names, or on this machine without one, into the same store.
        actors: processes of Ray that encode; by default one per GPU, or per two CPUs.
    """
    made = partial(pretrained_encoder, encoder, size=size)
    found = stored_images(images) if is_stored(images) else directory_images(Path(images))
    return extract_features(
        made(),
        image_views(found, views),
        out,
        batch_size=batch_size,
        workers=workers,
        skip_broken=skip_broken,
        device=device,
        progress=True,
        write_blocks=RayBlocks(made, actors, device, progress=True) if engine == "ray" else None,
    )


def import_precomputed(
    format: str, source: Path, out: NewFile, *, split: str | None = None, names: Path | None = None
) -> FeatureStore:
    """Import published features into a feature store.

    Args:
        format: scan (a directory of arrays), bottom-up (a .tsv), grid-feats (a directory of .pth), openvqa (a directory
            of .npz), npy (a directory of one .npy per image) or lmdb (a directory with data.mdb).
        source: the directory or file.
        out: the file to write.
        split: split of SCAN's directory (train, dev, test, testall); the other formats have none.
        names: Karpathy's dataset_*.json, to store SCAN's features under the names of the images instead of its numbers.
    """
    return import_features(read_published(format, source, split, names), Path(out), StoreDescription(format))
