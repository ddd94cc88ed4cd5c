"""Damage to files, drawn from a seed: bytes flipped, removed, repeated; values of JSON replaced by others."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from typing import Any

# Values that a file from anyone may hold in any place.
JUNK: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1,
    2**31,
    10**30,
    1e308,
    -0.5,
    "",
    "softmax",
    "../../etc/passwd",
    "\u0000",
    [],
    [[]],
    {},
    {"kind": "mcan"},
    [1, "a", None],
)


def rounds(few: int) -> int:
    """How many mutations to try: few in the suite, `FOVEATE_FUZZ` times as many in a long run."""
    return few * int(os.environ.get("FOVEATE_FUZZ", "1"))


def damage_bytes(content: bytes, draw: random.Random) -> bytes:
    """The content with a byte changed, a piece cut out, a piece repeated, or its end missing."""
    kind, place = draw.randrange(4), draw.randrange(max(1, len(content)))
    piece = draw.randrange(1, 40)
    if kind == 0:
        return content[:place] + bytes([content[place] ^ (1 << draw.randrange(8))]) + content[place + 1 :]
    if kind == 1:
        return content[:place] + content[place + piece :]
    if kind == 2:
        return content[: place + piece] + content[place:]
    return content[:place]


def damage_json(content: bytes, draw: random.Random) -> bytes:
    """JSON with one value, anywhere, replaced, removed or put under another key."""
    document = json.loads(content)
    holder, key = draw.choice(list(_places(document)))
    kind = draw.randrange(4)
    if kind == 0 and isinstance(holder, dict):
        holder[draw.choice(("steps", "kind", "data", "x"))] = holder.pop(key)
    elif kind == 1:
        del holder[key]
    else:
        holder[key] = draw.choice(JUNK)
    return json.dumps(document).encode()


def _places(part: Any) -> Iterator[tuple[Any, Any]]:
    keys = list(part) if isinstance(part, dict) else range(len(part)) if isinstance(part, list) else ()
    for key in keys:
        yield part, key
        yield from _places(part[key])
