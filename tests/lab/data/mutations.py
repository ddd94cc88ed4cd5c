"""Mutations of files: of their bytes, and of the structure of JSON, tables and XML."""

from __future__ import annotations

import base64
import json
import math
import random
import struct
import zlib
from collections.abc import Iterable
from copy import deepcopy
from typing import Any

ODD_VALUES = (
    *(None, True, False, 0, -1, 1, 7, 2**31, 2**63, -(2**63), 10**400, 0.5, -0.5, 1e308, -1e308, math.inf, math.nan),
    *("", "x", "\ud800", "\0", "../../../etc/passwd", "/etc/passwd", "a" * 5000, "٣", "9" * 5000, "1 2", "train"),
    *([], {}, [[]], {"a": 1}, [None], [1, 2, 3, 4], ["x"], [math.nan] * 4, [0, 0, 10**400, 0.5]),
)


def mutate_bytes(whole: bytes, rng: random.Random) -> bytes:
    """Flip, set, copy, remove or insert bytes, once or several times."""
    data = bytearray(whole)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        at, count = rng.randrange(len(data) + 1), rng.choice((1, 2, 4, 8, 60))
        action = rng.randrange(7)
        if action == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif action == 1:
            data[at : at + count] = rng.choice((b"\xff", b"\0", b"\x7f", b"9", b"-")) * min(count, 8)
        elif action == 2:
            source = rng.randrange(len(data) + 1)
            data[at : at + count] = data[source : source + count]
        elif action == 3:
            del data[at : at + count]
        elif action == 4:
            data[at:at] = rng.randbytes(min(count, 8))
        elif action == 5:
            data[at : at + 8] = struct.pack("<Q", rng.choice((2**31, 2**32 - 1, 2**40, 2**63, 2**64 - 1)))
        elif rng.random() < 0.3:
            del data[at:]
    return bytes(data)


def mutate_json(whole: bytes, rng: random.Random) -> bytes:
    """Replace, remove or repeat values anywhere in a JSON document; sometimes mutate its bytes."""
    if rng.random() < 0.25:
        return mutate_bytes(whole, rng)
    document = json.loads(whole)
    for _ in range(rng.choice((1, 1, 2, 5))):
        places = list(_places(document))
        if not places:
            break
        parent, key = rng.choice(places)
        action = rng.randrange(5)
        if action == 0:
            del parent[key]
        elif action == 1 and isinstance(parent, list):
            parent.append(parent[key])
        elif action == 2:
            other, name = rng.choice(places)
            parent[key] = json.loads(json.dumps(other[name]))
        else:
            parent[key] = deepcopy(rng.choice(ODD_VALUES))
    text = json.dumps(document)
    if rng.random() < 0.02:
        text = rng.choice(("[" * 100_000, '{"a":' * 100_000, "[" * 5000 + "]" * 5000))
    return text.encode()


def _places(node: Any) -> Iterable[tuple[Any, Any]]:
    keys = list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
    for key in keys:
        yield node, key
        yield from _places(node[key])


def mutate_lines(whole: bytes, rng: random.Random) -> bytes:
    """Mutate one line of JSON, or the bytes of all."""
    lines = whole.splitlines()
    at = rng.randrange(len(lines))
    if rng.random() < 0.3:
        return mutate_bytes(whole, rng)
    lines[at] = mutate_json(lines[at], rng)
    return b"\n".join(lines)


def mutate_cells(whole: bytes, rng: random.Random) -> bytes:
    """Replace a cell of a table of tabs, or mutate its bytes."""
    if rng.random() < 0.5:
        return mutate_bytes(whole, rng)
    rows = [line.split(b"\t") for line in whole.splitlines()]
    row = rng.choice(rows)
    odd = (b"", b"0", b"-1", b"9" * 400, b"\xff", b"nan", base64.b64encode(bytes(16)), base64.b64encode(b"\xff" * 64))
    row[rng.randrange(len(row))] = rng.choice((*odd, rng.choice(row)))
    return b"\n".join(b"\t".join(row) for row in rows) + b"\n"


def mutate_xml(whole: bytes, rng: random.Random) -> bytes:
    """Replace texts and tags, declare entities, change the encoding; or mutate the bytes."""
    action = rng.randrange(5)
    text = whole.decode()
    if action == 0:
        return mutate_bytes(whole, rng)
    for _ in range(rng.choice((1, 2, 4))):
        odd = rng.choice(("", "-1", "0", "1e9", "9" * 400, "9" * 5000, "x", "&lt;", "٣", "1.5", " 3 "))
        pieces = text.split(">")
        at = rng.randrange(len(pieces))
        pieces[at] = odd + pieces[at][pieces[at].find("<") :] if action < 4 else pieces[at].replace("/", "", 1)
        text = ">".join(pieces)
    bombs = ("<!ENTITY a 'aaaaaaaaaa'><!ENTITY b '&a;&a;&a;&a;&a;&a;'>", "<!ENTITY a SYSTEM 'file:///etc/passwd'>")
    if rng.random() < 0.3:
        text = f"<!DOCTYPE annotation [{rng.choice(bombs)}]>" + text.replace("people", "&a;")
    if rng.random() < 0.3:
        encoding = rng.choice(("utf-16", "utf-16-le", "utf-7", "cp037", "latin-1", "utf-8-sig"))
        text = f'<?xml version="1.0" encoding="{rng.choice((encoding, "unknown-8", "utf-8"))}"?>' + text
        return text.encode(encoding, "replace")
    return text.encode()


def mutate_block(whole: bytes, rng: random.Random) -> bytes:
    """Mutate the header of a store as JSON, or bytes anywhere; half of the time with a checksum that fits again."""
    size, length = struct.unpack_from("<II", whole, 20)
    if rng.random() < 0.5:
        header = mutate_json(whole[40 : 40 + length], rng)[: size - 44]
        start = whole[:24] + len(header).to_bytes(4, "little") + whole[28:40] + header
        data = bytearray(start.ljust(size, b"\0") + whole[size:])
    else:
        data = bytearray(mutate_bytes(whole, rng))
    if rng.random() < 0.5 and len(data) > size:
        data[size - 4 : size] = zlib.crc32(bytes(data[: size - 4])).to_bytes(4, "little")
    return bytes(data)
