"""`foveate extract` and the import of published features: what the command line calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from foveate.data import precomp
from foveate.data.features import FeatureStore, PictureFeatures, StoreDescription
from foveate.data.store_writer import import_features
from foveate.encoders import extract_features, folder_pictures, pretrained_encoder
from foveate.errors import DataError
from foveate.registry import lookup

Reader = Callable[[Path, str], Iterator[PictureFeatures]]
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
    batch_size: int = 32,
    workers: int = 2,
    skip_broken: bool = False,
    device: str | None = None,
) -> FeatureStore:
    """Encode the pictures of a folder into a feature store; started again after a kill, it goes on where it stopped.

    Args:
        encoder: efficientnet-lite0 (7x7), efficientnet-lite0-middle (14x14), hf:<model>.
        images: folder of pictures; folders inside it are read too.
        out: the file to write.
        size: side in pixels to which pictures are stretched, the encoder's own when absent; 448 gives
            efficientnet-lite0 a 14x14 grid.
        batch_size: pictures encoded at a time, and lost at most by a kill.
        workers: processes that decode pictures; 0 decodes in the encoding one.
        skip_broken: leave unreadable pictures out instead of stopping at the end.
        device: to encode on; CUDA when there is one.
    """
    return extract_features(
        pretrained_encoder(encoder, size=size),
        folder_pictures(images),
        out,
        batch_size=batch_size,
        workers=workers,
        skip_broken=skip_broken,
        device=device,
        progress=True,
    )


def import_precomputed(format: str, source: Path, out: Path, *, split: str | None = None) -> FeatureStore:
    """Take features that others published over into a feature store.

    Args:
        format: scan (a folder of .npy), bottom-up (a .tsv) or grid-feats (a folder of .pth).
        source: the folder or file.
        out: the file to write.
        split: which split of SCAN's folder; the other formats have none.
    """
    reader = lookup("import", format, FORMATS)
    if (format == "scan") != (split is not None):
        raise DataError(
            f"import: expected a split for scan and none for other formats, got split={split!r} for {format}; "
            "for instance split=train with scan"
        )
    return import_features(reader(Path(source), split or ""), Path(out), StoreDescription(format))
