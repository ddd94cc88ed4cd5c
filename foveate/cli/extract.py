"""`foveate extract` and `foveate import`: feature stores from images and from published features."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from foveate.data import precomp
from foveate.data.feature_store import FeatureRecord, FeatureStore, StoreDescription
from foveate.data.store_writer import import_features
from foveate.encoders import directory_images, extract_features, image_views, pretrained_encoder
from foveate.errors import DataError
from foveate.registry import lookup

Reader = Callable[[Path, str], Iterator[FeatureRecord]]
FORMATS: Mapping[str, Reader] = {
    "scan": precomp.read_scan,
    "bottom-up": lambda path, split: precomp.read_bottom_up(path),
    "grid-feats": lambda path, split: precomp.read_grid_feats(path),
}


def extract(
    encoder: str,
    images: Path,
    out: Path,
    *,
    size: int | None = None,
    views: int = 1,
    batch_size: int = 32,
    workers: int = 2,
    skip_broken: bool = False,
    device: str | None = None,
) -> FeatureStore:
    """Encode the images of a directory into a feature store; an interrupted extraction resumes where it stopped.

    Args:
        encoder: efficientnet-lite0, -lite1, -lite2 (7x7), efficientnet-lite0-middle (14x14), hf:<model>; several joined
            by a plus, such as efficientnet-lite0+efficientnet-lite2; regions for the features of 36 boxes by selective
            search, regions-hf:<model> for the boxes of a detector such as DETR.
        images: directory of images, including subdirectories.
        out: the file to write.
        size: side in pixels to which images are resized, the encoder's own by default; with 448, efficientnet-lite0
            has a 14x14 grid.
        views: store this many views per image for training: 2 adds the mirrored image, 4 also a crop and its mirror
            image, up to 12; `foveate train RECIPE images.views=4` trains on all of them.
        batch_size: images encoded at a time; an interruption loses at most one batch.
        workers: processes that decode images; 0 decodes in the process that encodes.
        skip_broken: skip unreadable images instead of failing at the end.
        device: to encode on; CUDA if available by default.
    """
    return extract_features(
        pretrained_encoder(encoder, size=size),
        image_views(directory_images(images), views),
        out,
        batch_size=batch_size,
        workers=workers,
        skip_broken=skip_broken,
        device=device,
        progress=True,
    )


def import_precomputed(format: str, source: Path, out: Path, *, split: str | None = None) -> FeatureStore:
    """Import published features into a feature store.

    Args:
        format: scan (a directory of .npy), bottom-up (a .tsv) or grid-feats (a directory of .pth).
        source: the directory or file.
        out: the file to write.
        split: of SCAN's directory; the other formats have none.
    """
    reader = lookup("import", format, FORMATS)
    if (format == "scan") != (split is not None):
        raise DataError(
            f"import: expected a split for scan and none for other formats, got split={split!r} for {format}; "
            "for instance split=train with scan"
        )
    return import_features(reader(Path(source), split or ""), Path(out), StoreDescription(format))
