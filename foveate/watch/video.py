"""Several images and video: reading frames, joining their inputs into one call, and where each token lies in time."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from foveate.errors import DataError, ShapeError, WrongValue
from foveate.watch.layouts import Layout, grid_boxes
from foveate.watch.look_methods import Call, Found
from foveate.watch.model_families import DUAL, GENERATE, VISION, Family, by_id, find_layout
from foveate.watch.places import Setting, pair, visible_region
from foveate.watch.prompts import fit_inputs, make_inputs, read_pixels
from foveate.watch.reductions import gradient_weighted, normalise, positive_part
from foveate.watch.watching import watch

MOST = 64  # frames that are read without being asked for
MOVING = (".gif", ".webp", ".png", ".apng")
STILLS = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff")
UNREADABLE = (OSError, EOFError, SyntaxError, ValueError)
# Tokens that stand around those of an image and are repeated with it.
AROUND = re.compile(r"vision|img|image|global|row_|boi|eoi", re.IGNORECASE)
TILED = ("idefics3", "smolvlm")  # all images of an example are tiles along the second axis
PAIRED = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe")  # a patch of a video spans several frames
SEPARATE = ("qwen3_vl", "qwen3_vl_moe")  # every time step has tokens around it


@dataclass(frozen=True, eq=False)
class Frames:
    """Several images, or the frames of a video, in order.

    Attributes:
        pixels: (H, W, 3) uint8 each.
        names: of each, for titles.
        is_video: frames of one size that follow each other in time.
    """

    pixels: tuple[np.ndarray, ...]
    names: tuple[str, ...]
    is_video: bool

    def take(self, count: int) -> Frames:
        """Some of them, evenly spread."""
        kept = spread_evenly(len(self.pixels), count)
        return Frames(tuple(self.pixels[n] for n in kept), tuple(self.names[n] for n in kept), self.is_video)


def spread_evenly(total: int, count: int) -> list[int]:
    """The numbers of `count` of `total` frames: the middle of each of `count` equal parts.

    >>> spread_evenly(10, 2), spread_evenly(2, 5)
    ([2, 7], [0, 1])
    """
    count = min(count, total)
    return [int((n + 0.5) * total / count) for n in range(count)]


def read_frames(image: Any, most: int | None = None) -> Frames | None:
    """The frames of a list of images or of a video; None for one image.

    Args:
        image: a list of images; an array (T, H, W, 3) or a tensor (T, 3, H, W); a directory of frames, in the order of
            the numbers in their names; a file or PIL image with several frames, such as a GIF.
        most: take that many frames, evenly spread; None takes all, and raises an error where there are more than 64,
            before any is decoded.
    """
    if most is not None and most < 1:
        raise WrongValue(f"look: expected at least one frame, got frames={most}; pass frames=16, for example")
    if isinstance(image, list | tuple):
        return _read_list(image, most)
    if isinstance(image, np.ndarray | Tensor) and image.ndim == 4:
        kept = _within(len(image), most)
        return _video([partial(read_pixels, image[n]) for n in kept], [f"frame {n}" for n in kept])
    if isinstance(image, str | Path):
        path = Path(image)
        if path.is_dir():
            return _read_directory(path, most)
        if path.suffix.lower() in MOVING and path.is_file():
            return _read_moving(path, most)
        return None
    return _read_open(image, "the image", most) if getattr(image, "n_frames", 1) > 1 else None


def _within(count: int, most: int | None) -> list[int]:
    """The numbers of the frames to read; an error where there are too many."""
    if not count:
        raise DataError("look: expected at least one frame, got none; pass images, or a directory that holds some")
    if most is None and count > MOST:
        raise WrongValue(
            f"look: expected at most {MOST} frames, got {count}, none of which was read; pass frames=16 to take 16 of "
            "them, evenly spread"
        )
    return list(range(count)) if most is None else spread_evenly(count, most)


def _read_list(images: Sequence[Any], most: int | None) -> Frames:
    kept = _within(len(images), most)
    named = [
        image.name if isinstance(image, Path) else Path(image).name if isinstance(image, str) else ""
        for image in images
    ]
    pixels = tuple(read_pixels(images[n]) for n in kept)
    return Frames(pixels, tuple(named[n] or f"image {n}" for n in kept), is_video=False)


def _read_directory(path: Path, most: int | None) -> Frames:
    files = sorted((file for file in path.iterdir() if file.suffix.lower() in STILLS), key=_by_number)
    kept = [files[n] for n in _within(len(files), most)]
    return _video([partial(read_pixels, file) for file in kept], [file.name for file in kept])


def _by_number(file: Path) -> list[tuple[int, str]]:
    """Numbers inside a name count as numbers: frame2 stands before frame10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", file.name)]


def _read_moving(path: Path, most: int | None) -> Frames | None:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as opened:
            return _read_open(opened, str(path), most) if getattr(opened, "n_frames", 1) > 1 else None
    except UnidentifiedImageError:
        return None  # reading it as one image says what is wrong


def _read_open(opened: Any, where: str, most: int | None) -> Frames:
    def read(number: int) -> np.ndarray:
        try:
            opened.seek(number)
            return read_pixels(opened)
        except UNREADABLE as error:
            raise DataError(
                f"look: expected a readable frame {number} in {where}, got {error}; pass frames that are whole"
            ) from error

    kept = _within(int(opened.n_frames), most)
    return _video([partial(read, n) for n in kept], [f"frame {n}" for n in kept])


def _video(readers: Sequence[Callable[[], np.ndarray]], names: Sequence[str]) -> Frames:
    pixels = []
    for read, name in zip(readers, names, strict=True):
        pixels.append(read())
        if pixels[-1].shape != pixels[0].shape:
            (h, w), (first_h, first_w) = pixels[-1].shape[:2], pixels[0].shape[:2]
            raise ShapeError(
                f"look: expected frames of one size, {first_w} x {first_h} as {names[0]}, got {w} x {h} in {name}; "
                "pass a list of images if they do not follow each other in time"
            )
    return Frames(tuple(pixels), tuple(names), is_video=True)


# Where a model reads them


@dataclass(frozen=True)
class VideoFamily:
    """A vision model of video.

    Attributes:
        family: the modules that attend to patches; no text, or a text to compare with.
        pixels: name of the input.
        prefix: tokens before the patches.
        by_frame: every frame is attended to by itself, as one more example of the batch.
        arguments: further ones of the forward pass.
    """

    family: Family
    pixels: str = "pixel_values"
    prefix: int = 0
    by_frame: bool = False
    arguments: tuple[tuple[str, Any], ...] = ()


def _family(layers: str, kind: str = VISION) -> Family:
    return Family(kind, layers, lambda setting: torch.empty(0), lambda setting: torch.empty(0))


VIDEO: dict[str, VideoFamily] = {
    "videomae": VideoFamily(_family(r"encoder\.layer\.\d+\.attention")),
    "vjepa2": VideoFamily(_family(r"encoder\.layer\.\d+\.attention"), "pixel_values_videos",
                          arguments=(("skip_predictor", True),)),
    "timesformer": VideoFamily(_family(r"layer\.\d+\.attention\."), prefix=1, by_frame=True),
    "xclip": VideoFamily(_family(r"vision_model\.encoder\.layers\.\d+\.self_attn", DUAL), prefix=1, by_frame=True),
}  # fmt: skip


def video_family(model: nn.Module) -> VideoFamily | None:
    """The row of a vision model of video, None for other models."""
    kind = getattr(getattr(model, "config", None), "model_type", None)
    return VIDEO.get(kind) if isinstance(kind, str) else None


def joins_images(family: Family) -> bool:
    """True for a family that reads several images among the words of its prompt."""
    return family.kind == GENERATE and family.tokens is by_id and family.through is None


def fit_length(model: Any, row: VideoFamily, frames: Frames) -> Frames:
    """As many frames as the model takes; raises ShapeError where there are too few."""
    vision = Setting(model.config, {}).vision
    count = getattr(vision, "num_frames", None)
    if count is None:
        return frames
    if len(frames.pixels) < count:
        raise ShapeError(
            f"look: expected at least {count} frames for {type(model).__name__}, got {len(frames.pixels)}; pass a "
            "longer video"
        )
    return frames.take(count)


def video_inputs(
    model: Any, row: VideoFamily, processor: Any, frames: Frames, text: str
) -> tuple[dict[str, Any], Layout]:
    """The inputs of a vision model of video, and where its tokens lie."""
    from PIL import Image

    images = getattr(processor, "image_processor", processor)
    found = []
    for pixels in frames.pixels:
        made = images(images=Image.fromarray(pixels), return_tensors="pt")
        value = made["pixel_values"] if "pixel_values" in made else made["pixel_values_videos"]
        found.append(value.reshape(-1, *value.shape[-3:])[0])
    vision = Setting(model.config, {}).vision
    span = int(getattr(vision, "tubelet_size", 1))
    found += [found[-1]] * (-len(found) % span)  # whole tubelets
    clip = torch.stack(found)[None]
    inputs = {row.pixels: clip}
    if text:
        inputs |= dict(processor.tokenizer(text, return_tensors="pt"))
    tall, wide = pair(vision.patch_size)
    H, W = clip.shape[-2] // tall, clip.shape[-1] // wide
    region = visible_region(Setting(model.config, inputs, frames.pixels[0].shape[:2], processor))
    one = Layout(torch.arange(H * W), grid_boxes(H, W, region), (1, 1))
    T = len(frames.pixels)
    times = [(n, min(n + span, T)) for n in range(0, T, span)]
    return {**fit_inputs(model, inputs), **dict(row.arguments)}, Layout.of_frames([one] * len(times), times)


def look_at_video(call: Call, row: VideoFamily, *, by_gradient: bool) -> Found:
    """What a vision model of video attends to: the mean over all queries, or the first token of every frame.

    With `by_gradient`, for models that compare with a text, weights times their gradients: what raised the score,
    and in which frame.
    """
    layout, text = call.clip, call.text if by_gradient else ""
    assert layout is not None
    with torch.set_grad_enabled(bool(text)), watch(call.model, call.wanted, grad=bool(text)) as seen:
        output = call.model(**call.inputs)
        score = output.logits_per_video[0, 0] if text else None
        weights = [record.weights for record in seen]
        gradients = torch.autograd.grad(score, weights) if score is not None else ()
    names = [record.name for record in seen]
    places = slice(row.prefix, row.prefix + len(layout.tokens) // (layout.frames if row.by_frame else 1))

    def rows(each: Tensor) -> Tensor:
        """(M, 1, N) of weights (B, M, Q, K)."""
        if not row.by_frame:
            return each[0].mean(1, keepdim=True)[..., places]
        return each[:, :, 0, places].transpose(0, 1).flatten(1)[:, None] / len(each)

    weights = [each.detach() for each in weights]
    if score is None:
        return call.found("", [("", [0])], torch.stack([rows(each) for each in weights]), names, layout)
    total = gradient_weighted(weights, gradients, call.heads)  # (T, K, K)
    layers = torch.stack([rows(positive_part(*both)) for both in zip(weights, gradients, strict=True)])
    return Found(text, [text], normalise(total[:, 0, places].flatten())[None], layers, tuple(names), layout)


def join_inputs(model: Any, processor: Any, frames: Frames, text: str, family: Family) -> tuple[dict[str, Any], Layout]:
    """The inputs of a generative model for several images, joined from those for each alone, and where tokens lie.

    The tokens of an image, with those that stand around them, follow those of the image before it. Qwen's models read
    video as patches over several frames; others read its frames as images.
    """
    each = [make_inputs(model, processor, pixels, text, family) for pixels in frames.pixels]
    sizes = [pixels.shape[:2] for pixels in frames.pixels]
    layouts = [find_layout(model, one, size=size, processor=processor) for one, size in zip(each, sizes, strict=True)]
    kind, times = model.config.model_type, [(n, n + 1) for n in range(len(each))]
    is_paired = frames.is_video and kind in PAIRED
    if is_paired:
        span = model.config.vision_config.temporal_patch_size
        times = [(n, min(n + span, len(each))) for n in range(0, len(each), span)]
        each = [_pair(each, first, span) for first, _ in times]
        layouts = [layouts[first] for first, _ in times]
    inputs, tokens = _join(
        each, layouts, getattr(processor, "tokenizer", processor), is_paired and kind not in SEPARATE, kind
    )
    layout = Layout.of_frames([replace(one, tokens=at) for one, at in zip(layouts, tokens, strict=True)], times)
    return (_as_video(inputs, model.config) if is_paired else inputs), layout


def _pair(each: Sequence[dict[str, Any]], first: int, span: int) -> dict[str, Any]:
    """The inputs of one time step: the parts of its patches come from successive frames, the last one repeated."""
    group = [each[min(first + n, len(each) - 1)]["pixel_values"].unflatten(1, (3, span, -1)) for n in range(span)]
    return {**each[first], "pixel_values": torch.stack([one[:, :, n] for n, one in enumerate(group)], 2).flatten(1)}


def _as_video(inputs: dict[str, Any], config: Any) -> dict[str, Any]:
    grid = inputs.pop("image_grid_thw")
    video = {"pixel_values_videos": inputs.pop("pixel_values"), "video_grid_thw": grid[:1].clone()}
    video["video_grid_thw"][0, 0] = len(grid)
    is_image = inputs["input_ids"] == config.image_token_id
    return {
        **inputs, **video,
        "input_ids": inputs["input_ids"].masked_fill(is_image, config.video_token_id),
        "mm_token_type_ids": is_image.long() * 2,
    }  # fmt: skip


def _join(
    each: Sequence[dict[str, Any]], layouts: Sequence[Layout], words: Any, is_one_block: bool, kind: str
) -> tuple[dict[str, Any], list[Tensor]]:
    """The joined inputs, and the positions of the tokens of each image."""
    length = [one["input_ids"].shape[1] for one in each]
    bounds, tokens, cursor = [], [], 0
    for n, (one, layout) in enumerate(zip(each, layouts, strict=True)):
        inner = int(layout.tokens.min()), int(layout.tokens.max()) + 1
        outer = _with_around(one["input_ids"][0].tolist(), *inner, words)
        is_first, is_last = n == 0, n == len(each) - 1
        start = 0 if is_first else inner[0] if is_one_block else outer[0]
        stop = length[n] if is_last else inner[1] if is_one_block else outer[1]
        bounds.append((start, stop))
        tokens.append(layout.tokens - start + cursor)
        cursor += stop - start
    joined = {}
    for name, value in each[0].items():
        values = [one[name] for one in each]
        if value.ndim == 2 and [one.shape[1] for one in values] == length and value.shape[0] == 1:
            joined[name] = torch.cat([one[:, a:b] for one, (a, b) in zip(values, bounds, strict=True)], 1)
        else:
            joined[name] = _concatenate(values, 1 if kind in TILED and value.ndim > 2 else 0)
    return joined, tokens


def _with_around(ids: list[int], start: int, stop: int, words: Any) -> tuple[int, int]:
    """The tokens of an image with those that stand around them."""

    def is_around(number: int) -> bool:
        return AROUND.search(str(words.convert_ids_to_tokens(ids[number]))) is not None

    while start > 0 and is_around(start - 1):
        start -= 1
    while stop < len(ids) and is_around(stop):
        stop += 1
    return start, stop


def _concatenate(values: Sequence[Tensor], dim: int) -> Tensor:
    """Tensors along an axis, padded with zeros where their other axes differ."""
    most = [max(sizes) for sizes in zip(*(value.shape for value in values), strict=True)]
    padded = []
    for value in values:
        gaps = [0 if axis == dim else most[axis] - n for axis, n in enumerate(value.shape)]
        padded.append(nn.functional.pad(value, [side for gap in reversed(gaps) for side in (0, gap)]))
    return torch.cat(padded, dim)
