"""What part of the image each token shows, from a model's configuration, its inputs and its processor.

Every function takes a `Setting` and returns boxes (N, 4) in the order of the image tokens; see `foveate.watch.layouts`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from foveate.errors import ShapeError
from foveate.watch.layouts import WHOLE, Region, grid_boxes, tile_boxes, window_boxes


@dataclass(frozen=True)
class Setting:
    """What is known of one attention call on an image.

    Attributes:
        config: of the model.
        inputs: the model's inputs by name, with a batch axis; places are those of the first example.
        size: height and width of the image before the processor, None when not known.
        processor: that made the inputs, None when not known: the model then sees the whole image.
        name: of the module that attends.
        tokens: number of image tokens, 0 when the family counts them itself.
    """

    config: Any
    inputs: Mapping[str, Any]
    size: tuple[int, int] | None = None
    processor: Any = None
    name: str = ""
    tokens: int = 0

    @property
    def vision(self) -> Any:
        """The configuration of the vision tower, or the model's own."""
        for name in ("vision_config", "image_config", "encoder"):
            found = getattr(self.config, name, None)
            if found is not None:
                return found
        return self.config

    @property
    def image_processor(self) -> Any:
        """The part of the processor that handles images."""
        return getattr(self.processor, "image_processor", self.processor)

    def need(self, name: str) -> Tensor:
        """An input of the model by name."""
        value = self.inputs.get(name)
        if value is None:
            raise ShapeError(
                f"layout of {self.config.model_type}: expected the input {name!r}, got {sorted(self.inputs)}; pass the "
                "output of the model's processor, or grid= and tokens="
            )
        return torch.as_tensor(value)


Boxes = Callable[[Setting], Tensor]


def patch_shape(setting: Setting) -> tuple[int, int]:
    """Rows and columns of the patches that the vision tower cuts the pixels into."""
    height, width = setting.need("pixel_values").shape[-2:]
    rows, columns = pair(setting.vision.patch_size)
    return height // rows, width // columns


def patches(setting: Setting) -> Tensor:
    """One token per patch."""
    return grid_boxes(*patch_shape(setting), visible_region(setting))


def time_height_width(setting: Setting) -> Tensor:
    """Qwen: the processor states the grid in `image_grid_thw`; patches are merged two by two."""
    _, H, W = setting.need("image_grid_thw")[0].tolist()
    merge = setting.vision.spatial_merge_size
    return grid_boxes(H // merge, W // merge)


def spatial_shapes(setting: Setting) -> Tensor:
    """SigLIP 2: the processor states the grid in `spatial_shapes`."""
    H, W = setting.need("spatial_shapes")[0].tolist()
    return grid_boxes(H, W)


def image_sizes(setting: Setting) -> Tensor:
    """Pixtral: the size of each image after the processor, in patches that may be merged."""
    height, width = setting.need("image_sizes")[0].tolist()
    side = pair(setting.vision.patch_size)[0] * getattr(setting.config, "spatial_merge_size", 1)
    return grid_boxes(int(height) // side, int(width) // side)


def split_image(setting: Setting) -> Tensor:
    """Idefics3, SmolVLM: tiles in rows and columns, then the whole image; the processor states both numbers."""
    H, W = patch_shape(setting)
    side = math.isqrt(H * W // setting.config.scale_factor**2)
    if setting.tokens == side * side:
        return grid_boxes(side, side)
    from PIL import Image

    height, width = _known_size(setting)
    blank = Image.new("RGB", (width, height))
    info = _known_processor(setting)([[blank]], return_row_col_info=True)
    return tile_boxes(int(info["rows"][0][0]), int(info["cols"][0][0]), side, thumbnail=True)


def dynamic_tiles(setting: Setting) -> Tensor:
    """InternVL: as many tiles as fit the shape of the image, then the whole image where there are several."""
    per_tile = setting.config.image_seq_length
    side = math.isqrt(per_tile)
    if setting.tokens == per_tile:
        return grid_boxes(side, side)
    processor = _known_processor(setting)
    choose = import_module(type(processor).__module__).get_optimal_tiled_canvas
    tile = (processor.size["height"], processor.size["width"])
    columns, rows = choose(_known_size(setting), tile, processor.min_patches, processor.max_patches)
    return tile_boxes(rows, columns, side, thumbnail=True)


def any_resolution(setting: Setting) -> Tensor:
    """LLaVA-NeXT and OneVision: the whole image, then tiles without their padding, a token at the end of each row."""
    height, width = (int(n) for n in setting.need("image_sizes")[0].tolist())
    image, patch = setting.vision.image_size, pair(setting.vision.patch_size)[0]
    side = image // patch
    base = grid_boxes(side, side)
    if setting.tokens <= side * side + 1:
        return torch.cat([base, _no_place(setting.tokens - len(base))])
    choose = import_module("transformers.image_processing_utils").select_best_resolution
    best = choose([height, width], setting.config.image_grid_pinpoints)
    canvas = (best[0] // patch, best[1] // patch)
    # The image keeps its shape on the canvas; half of what is left is padding before it.
    scale = min(best[0] / height, best[1] / width)
    inner = (min(math.ceil(height * scale), best[0]), min(math.ceil(width * scale), best[1]))
    top, left = (best[0] - inner[0]) // 2, (best[1] - inner[1]) // 2
    region = (-left / inner[1], -top / inner[0], (best[1] - left) / inner[1], (best[0] - top) / inner[0])
    cells = _without_padding(grid_boxes(*canvas, region).reshape(*canvas, 4), height, width)
    cells = _at_most(cells, setting, side)
    ends = torch.full((len(cells), 1, 4), math.nan, dtype=torch.float64)
    return torch.cat([base, torch.cat([cells, ends], 1).reshape(-1, 4)])


def _without_padding(cells: Tensor, height: int, width: int) -> Tensor:
    """The cells that the model keeps, by its own rounding."""
    rows, columns = cells.shape[:2]
    if width / height > columns / rows:
        padding = (rows - int(round(height * (columns / width), 7))) // 2
        return cells[padding : rows - padding]
    padding = (columns - int(round(width * (rows / height), 7))) // 2
    return cells[:, padding : columns - padding]


def _at_most(cells: Tensor, setting: Setting, side: int) -> Tensor:
    """OneVision shrinks a map that exceeds the largest number of tiles."""
    rule = getattr(setting.config, "vision_aspect_ratio", "")
    if not str(rule).startswith("anyres_max_"):
        return cells
    rows, columns = cells.shape[:2]
    ratio = math.sqrt(rows * columns / (int(rule.removeprefix("anyres_max_")) * side**2))
    if ratio <= 1.1:
        return cells
    first, last = cells[0, 0].tolist(), cells[-1, -1].tolist()
    H, W = int(rows // ratio), int(columns // ratio)
    return grid_boxes(H, W, (first[0], first[1], last[2], last[3])).reshape(H, W, 4)


def backbone_cells(setting: Setting) -> Tensor:
    """DETR: one token per cell of a convolutional map of 1/32 of the pixels."""
    height, width = setting.need("pixel_values").shape[-2:]
    H, W = math.ceil(height / 32), math.ceil(width / 32)
    return grid_boxes(H, W, (0.0, 0.0, W * 32 / width, H * 32 / height))


def windows(setting: Setting) -> Tensor:
    """Swin: tokens in the order of windows; every second block of a stage shifts them by half a window."""
    config = setting.config
    stage, block = (int(part) for part in setting.name.split(".") if part.isdigit())
    H, W = (n // 2**stage for n in patch_shape(setting))
    window = min(config.window_size, H, W)
    shift = 0 if block % 2 == 0 or min(H, W) <= config.window_size else config.window_size // 2
    return window_boxes(H, W, window, shift)


def chosen_patches(setting: Setting) -> Tensor:
    """ViLT: patches in a random order, which the model drew."""
    index = setting.need("patch_index")
    H, W = patch_shape(setting)
    return grid_boxes(H, W)[index[0, :, 0] * W + index[0, :, 1]]


def given_boxes(setting: Setting) -> Tensor:
    """LXMERT: one token per region, whose box is an input."""
    return setting.need("visual_pos")[0, :, :4].double()


def square(setting: Setting) -> Tensor:
    """A square grid over what the model sees."""
    side = math.isqrt(setting.tokens)
    if side * side != setting.tokens:
        raise ShapeError(
            f"layout of {setting.config.model_type}: expected a square number of image tokens, got {setting.tokens}; "
            "pass grid=(rows, columns) and tokens=positions"
        )
    return grid_boxes(side, side, visible_region(setting))


def encoder_patches(setting: Setting) -> Tensor:
    """The patches of the vision encoder of an encoder-decoder."""
    return patches(replace(setting, config=setting.config.encoder))


def visible_region(setting: Setting) -> Region:
    """The part of the image that the model sees, in fractions of the image; beyond 0 and 1 where it sees padding.

    Follows the processor's settings: resizing by the shortest or longest edge, padding, cropping the centre.
    """
    processor = setting.image_processor
    if processor is None or setting.size is None:
        return WHOLE
    height, width = (float(n) for n in setting.size)
    if getattr(processor, "do_pad", False):
        padded = _padded(processor, height, width)
        if padded is not None:
            return padded
    if not getattr(processor, "do_center_crop", False):
        return WHOLE
    resized = _resized(processor, height, width)
    crop = processor.crop_size
    return _centred((crop["height"], crop["width"]), resized)


def _padded(processor: Any, height: float, width: float) -> Region | None:
    """The region that a padded image shows, None for processors that pad the images of a batch only."""
    name, side = type(processor).__name__.lower(), max(height, width)
    if "llava" in name:
        return _centred((side, side), (height, width))
    if "owlv2" in name:
        return 0, 0, side / width, side / height
    edge, pad = _entry(processor.size, "longest_edge"), getattr(processor, "pad_size", None)
    if "sam" in name and edge and pad is not None:
        tall, wide = (int(length * edge / side + 0.5) for length in (height, width))
        return 0, 0, (_entry(pad, "width") or wide) / wide, (_entry(pad, "height") or tall) / tall
    return None


def _resized(processor: Any, height: float, width: float) -> tuple[float, float]:
    size = processor.size if getattr(processor, "do_resize", False) else {}
    edge = _entry(size, "shortest_edge")
    if edge:
        scale = edge / min(height, width)
        return int(height * scale), int(width * scale)
    tall, wide = _entry(size, "height"), _entry(size, "width")
    return (tall, wide) if tall and wide else (height, width)


def _entry(size: Any, name: str) -> float | None:
    value = size.get(name) if hasattr(size, "get") else getattr(size, name, None)
    return None if value is None else float(value)


def _centred(seen: tuple[float, float], image: tuple[float, float]) -> Region:
    """The region of an image (height, width) that a centred window of `seen` covers."""
    top, left = ((image[axis] - seen[axis]) / 2 for axis in (0, 1))
    return left / image[1], top / image[0], (left + seen[1]) / image[1], (top + seen[0]) / image[0]


def _no_place(count: int) -> Tensor:
    return torch.full((max(count, 0), 4), math.nan, dtype=torch.float64)


def _known_size(setting: Setting) -> tuple[int, int]:
    if setting.size is None:
        raise ShapeError(
            f"layout of {setting.config.model_type}: expected the size of the image, got None; pass size=(height, "
            "width)"
        )
    return setting.size


def _known_processor(setting: Setting) -> Any:
    if setting.image_processor is None:
        raise ShapeError(
            f"layout of {setting.config.model_type}: expected the processor that cut the image into tiles, got None; "
            "pass processor="
        )
    return setting.image_processor


def pair(value: Any) -> tuple[int, int]:
    """A size as (rows, columns), whether it is one number or two.

    >>> pair(14), pair([2, 4])
    ((14, 14), (2, 4))
    """
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[1]))
