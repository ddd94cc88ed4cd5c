"""Rendering a scene in integer arithmetic only, so that every machine draws the same pixels.

Edges are antialiased with four by four samples per pixel; no font and no drawing library is used.
"""

from __future__ import annotations

from functools import cache, lru_cache

import numpy as np

from foveate.lab.data.scenes.scene import SIDE, VALUES, Key, RandomStream, Thing, make_scene
from foveate.ops.boxes import Box

RGB = {
    "red": (214, 36, 40),
    "green": (42, 160, 52),
    "blue": (44, 84, 220),
    "yellow": (242, 218, 44),
    "purple": (146, 46, 176),
    "orange": (244, 132, 20),
    "grey": (128, 128, 128),
}
# Corners in thousandths of the radius.
POLYGONS = {
    "square": ((-780, -780), (780, -780), (780, 780), (-780, 780)),
    "diamond": ((0, -1000), (660, 0), (0, 1000), (-660, 0)),
    "triangle": ((0, -1000), (866, 500), (-866, 500)),
    "star": (
        *((0, -1000), (294, -405), (951, -309), (476, 155), (588, 809)),
        *((0, 500), (-588, 809), (-476, 155), (-951, -309), (-294, -405)),
    ),
    "cross": (
        *((-340, -930), (340, -930), (340, -340), (930, -340), (930, 340), (340, 340)),
        *((340, 930), (-340, 930), (-340, 340), (-930, 340), (-930, -340), (-340, -340)),
    ),
}
SHADES = {"dark": (24, 76), "light": (152, 204)}


def render(key: Key) -> np.ndarray:
    """Render the image of a key, (112, 112, 3) uint8.

    >>> render(Key(0, 0, 0)).shape
    (112, 112, 3)
    """
    scene = make_scene(key)
    canvas = _background(scene.tone, key.rng(1))
    for thing in scene.things:
        _stamp(canvas, thing)
    return canvas.astype(np.uint8)


def outline(key: Key, ids: tuple[int, ...]) -> np.ndarray:
    """Return the mask of some things of an image, (112, 112) boolean: pixels at least half covered by one of them.

    >>> int(outline(Key(0, 0, 0), ()).sum())
    0
    """
    mask = np.zeros((SIDE, SIDE), bool)
    for thing in make_scene(key).things:
        if thing.id in ids:
            _window(mask, thing)[...] |= _solid(thing)
    return mask


def bounds(thing: Thing) -> Box:
    """Return the smallest box around the outline of a thing."""
    rows, columns = np.nonzero(_solid(thing))
    left, top = thing.x - thing.radius - 1, thing.y - thing.radius - 1
    return Box.from_pixels(
        left + int(columns.min()),
        top + int(rows.min()),
        left + int(columns.max()) + 1,
        top + int(rows.max()) + 1,
        width=SIDE,
        height=SIDE,
    )


def _background(tone: str, rng: RandomStream) -> np.ndarray:
    """Return (112, 112, 3) int32: a gradient between four shades, blotches, noise, lines, speckles, coloured specks."""
    low, high = SHADES[tone]
    base = rng.between(low, high)
    corners = np.array([[base + rng.between(-22, 22) for _ in range(3)] for _ in range(4)], np.int32)
    canvas = ((_corner_weights() @ corners) // (SIDE - 1) ** 2).reshape(SIDE, SIDE, 3)
    blotches = rng.random_bytes(16 * 16).reshape(16, 16).astype(np.int32) % 17 - 8
    noise = rng.random_bytes(SIDE * SIDE).reshape(SIDE, SIDE).astype(np.int32) % 21 - 10
    canvas += (noise + blotches.repeat(7, axis=0).repeat(7, axis=1))[..., None]
    for _ in range(rng.between(3, 6)):
        _line(canvas, rng)
    spots = rng.random_bytes(3 * 64).reshape(64, 3).astype(np.int32)
    canvas[spots[:, 0] * SIDE >> 8, spots[:, 1] * SIDE >> 8] += (spots[:, 2:] % 101) - 50
    for _ in range(8):
        x, y, tall = rng.below(SIDE - 3), rng.below(SIDE - 3), rng.between(1, 3)
        canvas[y : y + tall, x : x + 4 - tall] = RGB[rng.choice(VALUES["colour"])]
    return canvas.clip(0, 255)


@lru_cache(maxsize=1)
def _corner_weights() -> np.ndarray:
    """Return (112*112, 4) integer weights of the four corners at each pixel, which sum to (112 - 1)²."""
    along = np.arange(SIDE, dtype=np.int32)
    x, y = np.meshgrid(along, along)
    left, up = SIDE - 1 - x, SIDE - 1 - y
    return np.stack([left * up, x * up, left * y, x * y], axis=-1).reshape(-1, 4)


def _line(canvas: np.ndarray, rng: RandomStream) -> None:
    """Lighten or darken the pixels between two random points."""
    x0, y0, x1, y1 = (rng.below(SIDE) for _ in range(4))
    steps = max(abs(x1 - x0), abs(y1 - y0), 1)
    along = np.arange(steps + 1)
    shift = rng.between(18, 40) * (1, -1)[rng.below(2)]
    canvas[y0 + (y1 - y0) * along // steps, x0 + (x1 - x0) * along // steps] += shift


def _window(canvas: np.ndarray, thing: Thing) -> np.ndarray:
    """Return the part of the canvas that the thing covers."""
    reach = thing.radius + 1
    return canvas[thing.y - reach : thing.y + reach + 1, thing.x - reach : thing.x + reach + 1]


def _stamp(canvas: np.ndarray, thing: Thing) -> None:
    window = _window(canvas, thing)
    cover = _cover(thing.shape, thing.radius)[..., None]
    light = np.array(RGB[thing.colour], np.int32) * (92 + thing.tint) // 100
    dark = _pattern(thing.texture, thing.radius, thing.phase) & _inner(thing.shape, thing.radius)
    paint = np.where(dark[..., None], light * 2 // 5, light)
    # Blend in sixteenths, rounded to the nearest.
    window[...] = (window * (16 - cover) + paint.clip(0, 255) * cover + 8) // 16


def _solid(thing: Thing) -> np.ndarray:
    return _cover(thing.shape, thing.radius) >= 8


@cache
def _cover(shape: str, radius: int) -> np.ndarray:
    """Return (2r+3, 2r+3): how many of a pixel's sixteen samples lie inside the shape."""
    pixels = np.arange(-radius - 1, radius + 2, dtype=np.int64)
    # In eighths of a pixel, the sample positions -3, -1, 1, 3 are symmetric about the centre and stay integers.
    samples = (8 * pixels[:, None] + np.array([-3, -1, 1, 3])).ravel()
    u, v = np.meshgrid(samples, samples)
    side = len(pixels)
    inside = _inside(shape, u, v, 8 * radius).reshape(side, 4, side, 4)
    return np.asarray(inside.sum(axis=(1, 3), dtype=np.int32))


@cache
def _inner(shape: str, radius: int) -> np.ndarray:
    """Return (2r+3, 2r+3): the shape without its rim, which stays plain so that no texture breaks the outline."""
    return np.pad(_cover(shape, radius - 1) == 16, 1)


def _inside(shape: str, u: np.ndarray, v: np.ndarray, R: int) -> np.ndarray:
    """Return which points (u, v), y down, lie inside the shape of radius R."""
    if shape == "circle":
        return np.asarray(100 * (u * u + v * v) <= 81 * R * R)
    return _inside_polygon(np.array(POLYGONS[shape], np.int64) * R, 1000 * u, 1000 * v)


def _inside_polygon(corners: np.ndarray, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Even-odd rule: a ray to the right of the point crosses the outline an odd number of times."""
    inside = np.zeros(u.shape, bool)
    for (x0, y0), (x1, y1) in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        spans = (y0 > v) != (y1 > v)
        # Cross-multiplied form of u < x0 + (v - y0)(x1 - x0) / (y1 - y0): exact in integers.
        left = (u - x0) * (y1 - y0) < (v - y0) * (x1 - x0)
        inside ^= spans & (left == (y1 > y0))
    return inside


@cache
def _pattern(texture: str, radius: int, phase: int) -> np.ndarray:
    """Return (2r+3, 2r+3): True where the texture is dark."""
    side = 2 * radius + 3
    y, x = np.mgrid[0:side, 0:side] + phase // 3
    if texture == "striped":
        return np.asarray((x, y, x + y)[phase % 3] % 4 < 2)
    if texture == "dotted":
        return np.asarray((x % 4 < 2) & (y % 4 < 2))
    return np.zeros((side, side), bool)
