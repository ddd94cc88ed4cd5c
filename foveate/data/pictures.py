"""Opening pictures safely: the size is looked at before the pixels, and a broken file is named."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np

from foveate.data.samples import MAX_PIXELS
from foveate.errors import DataError

if TYPE_CHECKING:
    from PIL import Image

PictureSource: TypeAlias = str | Path | bytes
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM")
Result = TypeVar("Result")


def open_picture(source: PictureSource, *, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """The picture in RGB, upright.

    The EXIF orientation is applied; transparent parts are laid on white; grey of 16 bits is scaled to 8; of a film
    (GIF, TIFF) the first picture is taken.

    Args:
        source: a path, or the bytes of the file.
        max_pixels: more than these are refused before a pixel is decoded.

    A missing, cut, foreign or too large file raises DataError with its name. Formats: `FORMATS`, no others, since
    some decoders of Pillow start other programs.

    >>> from PIL import Image
    >>> file = io.BytesIO()
    >>> Image.new("LA", (3, 2), (10, 0)).save(file, "PNG")
    >>> open_picture(file.getvalue()).getpixel((0, 0))
    (255, 255, 255)
    """
    return _with_picture("open_picture", source, max_pixels, _upright_rgb)


def read_picture(source: PictureSource, *, max_pixels: int = MAX_PIXELS) -> np.ndarray:
    """The picture as (H, W, 3) uint8; see `open_picture`."""
    return np.array(open_picture(source, max_pixels=max_pixels))


def read_grey(source: PictureSource, *, max_pixels: int = MAX_PIXELS) -> np.ndarray:
    """The brightness of a picture as (H, W) uint8; see `open_picture`."""
    return np.array(open_picture(source, max_pixels=max_pixels).convert("L"))


def picture_size(source: PictureSource, *, max_pixels: int = MAX_PIXELS) -> tuple[int, int]:
    """Width and height as `open_picture` would return them, from the header alone.

    >>> from PIL import Image
    >>> file = io.BytesIO()
    >>> Image.new("RGB", (3, 2)).save(file, "PNG")
    >>> picture_size(file.getvalue())
    (3, 2)
    """
    return _with_picture("picture_size", source, max_pixels, _upright_size)


def _with_picture(where: str, source: PictureSource, max_pixels: int, work: Callable[[Image.Image], Result]) -> Result:
    from PIL import Image

    name = f"{len(source)} bytes" if isinstance(source, bytes) else str(source)
    try:
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=FORMATS) as image:
            if image.width * image.height > max_pixels:
                raise Image.DecompressionBombError(f"{image.width} x {image.height}")
            return work(image)
    except FileNotFoundError:
        raise DataError(f"{where}: expected a picture at {name}, got no file; check the folder") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DataError(
            f"{where}: expected at most {max_pixels} pixels, got {error} in {name}; make the picture smaller"
        ) from None
    except Exception as error:  # the decoders of Pillow raise almost anything on broken files
        raise DataError(
            f"{where}: expected a whole picture ({', '.join(FORMATS)}), got {name}, which cannot be decoded "
            f"({type(error).__name__}: {error}); replace the file"
        ) from None


def _upright_rgb(image: Image.Image) -> Image.Image:
    from PIL import Image, ImageOps

    image.load()
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):
        image = Image.fromarray((np.asarray(image) >> 8).clip(0, 255).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")


def _upright_size(image: Image.Image) -> tuple[int, int]:
    orientation = 0x0112
    turned = image.getexif().get(orientation, 1) in (5, 6, 7, 8)
    return (image.height, image.width) if turned else (image.width, image.height)
