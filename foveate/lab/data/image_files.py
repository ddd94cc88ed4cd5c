"""Opening images safely: the size is checked before pixels are decoded, and errors name the file."""

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

ImageFile: TypeAlias = str | Path | bytes
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM")
Result = TypeVar("Result")


def open_image(source: ImageFile, *, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Open an image as RGB, upright.

    The EXIF orientation is applied; transparency is composited on white; grey of 16 or 32 bits is scaled to 8 bits (see
    `_to_8_bits`); of several frames (GIF, TIFF) the first is used.

    Args:
        source: a path, or the bytes of the file.
        max_pixels: an image with more raises DataError before any pixel is decoded.

    Raises DataError with the name of the file if it is missing, truncated, too large or of another format than
    `FORMATS`; no others are tried, since some decoders of Pillow start other programs.

    >>> from PIL import Image
    >>> file = io.BytesIO()
    >>> Image.new("LA", (3, 2), (10, 0)).save(file, "PNG")
    >>> open_image(file.getvalue()).getpixel((0, 0))
    (255, 255, 255)
    """
    return _with_image("open_image", source, max_pixels, _upright_rgb)


def decode_image(source: ImageFile, *, max_pixels: int = MAX_PIXELS) -> np.ndarray:
    """Decode an image to (H, W, 3) uint8; see `open_image`."""
    return np.array(open_image(source, max_pixels=max_pixels))


def decode_grey(source: ImageFile, *, max_pixels: int = MAX_PIXELS) -> np.ndarray:
    """Decode the brightness of an image to (H, W) uint8; see `open_image`."""
    return np.array(open_image(source, max_pixels=max_pixels).convert("L"))


def image_size(source: ImageFile, *, max_pixels: int = MAX_PIXELS) -> tuple[int, int]:
    """Return the width and height that `open_image` would return, from the header alone.

    >>> from PIL import Image
    >>> file = io.BytesIO()
    >>> Image.new("RGB", (3, 2)).save(file, "PNG")
    >>> image_size(file.getvalue())
    (3, 2)
    """
    return _with_image("image_size", source, max_pixels, _upright_size)


def _with_image(where: str, source: ImageFile, max_pixels: int, work: Callable[[Image.Image], Result]) -> Result:
    from PIL import Image, UnidentifiedImageError

    name = f"{len(source)} bytes" if isinstance(source, bytes) else str(source)
    try:
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=FORMATS) as image:
            if image.width * image.height > max_pixels:
                raise Image.DecompressionBombError(f"{image.width} x {image.height}")
            return work(image)
    except FileNotFoundError:
        raise DataError(f"{where}: expected an image at {name}, got no file; check the directory") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DataError(
            f"{where}: expected at most {max_pixels} pixels, got {error} in {name}; resize the image"
        ) from None
    except Exception as error:  # the decoders of Pillow raise almost anything on broken files
        unknown = isinstance(error, UnidentifiedImageError)
        reason = "no known format" if unknown else f"{type(error).__name__}: {error}"
        raise DataError(
            f"{where}: expected a complete image ({', '.join(FORMATS)}), got {name}, which cannot be decoded "
            f"({reason}); replace the file"
        ) from None


def _upright_rgb(image: Image.Image) -> Image.Image:
    from PIL import Image, ImageOps

    image.load()
    format = image.format  # lost when the image is turned
    image = ImageOps.exif_transpose(image)
    if image.mode[0] in "IF":
        # Pillow reads 16 bits of a PNG or PPM as one of several modes, always scaled to 65535.
        sixteen = image.mode.startswith("I;16") or format in ("PNG", "PPM")
        image = Image.fromarray(_to_8_bits(np.asarray(image), 65535 if sixteen else None))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")


def _to_8_bits(values: np.ndarray, white: float | None) -> np.ndarray:
    """Scale grey values of more than 8 bits to uint8, so that black and white stay what they are.

    Args:
        values: (H, W) numbers.
        white: the value of white. None for 32 bits, where no format says it: the smallest of 1 (numbers with a
            fraction), 255, 65535 and 2³² − 1 that no value exceeds, or the largest value. Black is 0, or the smallest
            value if that is negative.
    """
    values = values.astype(np.float64)
    if not np.isfinite(values).all():
        raise ValueError("pixels that are not finite")
    low, high = min(0.0, values.min()), values.max()
    if white is None:
        scales = (255.0, 65535.0, 4294967295.0) if (values == values.round()).all() else (1.0, 255.0, 65535.0)
        white = next((scale for scale in scales if high <= scale), high)
    return np.asarray(((values - low) * (255 / (white - low))).round(), np.uint8)


def _upright_size(image: Image.Image) -> tuple[int, int]:
    orientation = 0x0112
    turned = image.getexif().get(orientation, 1) in (5, 6, 7, 8)
    return (image.height, image.width) if turned else (image.width, image.height)
