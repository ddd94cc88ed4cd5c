"""Where the datasets of a feature store lie in its HDF5 file; run as a program, print it as JSON.

HDF5 can refer to other files (external storage, external and soft links, virtual datasets), unpack a few bytes into
terabytes (filters, chunks that were never written) and hold objects of any type. None of this is part of a store:
every object must be a hard link to a contiguous dataset of numbers or of strings of fixed length, all of whose bytes
are in the file. The value of no dataset is read here.

The HDF5 library may crash or loop forever on a damaged file, so `store_file` runs this module in another process for
files that it did not write itself. It therefore imports nothing of foveate.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

FORMAT = "foveate-features"
MAX_OBJECTS = 16
MAX_ATTRIBUTE = 1 << 16


def read_layout(path: Path | str) -> dict[str, Any]:
    """Return the attributes of a file, and type, shape and offset of its datasets.

    Raises ValueError, or whatever h5py raises, for anything that a store does not contain.
    """
    import h5py

    size = Path(path).stat().st_size
    with h5py.File(path, "r", locking=False) as file:
        attributes = {name: _attribute(file, name) for name in file.attrs}
        if attributes.get("format") != FORMAT:
            raise ValueError("it is no feature store")
        group = file["/"].id
        if group.get_num_objs() > MAX_OBJECTS:
            raise ValueError(f"{group.get_num_objs()} objects in it")
        tables = {name.decode(): _dataset(group, name, size) for name in group}
        return {"attributes": attributes, "tables": tables}


def _dataset(group: Any, key: bytes, size: int) -> dict[str, Any]:
    from h5py import h5d, h5l, h5o, h5s

    name = key.decode()
    # The kind of a link and of an object is known without following or opening it.
    if group.links.get_info(key).type != h5l.TYPE_HARD:
        raise ValueError(f"{name!r} is a link to another place")
    if h5o.get_info(group, key).type != h5o.TYPE_DATASET:
        raise ValueError(f"{name!r} is not a dataset")
    dataset = h5d.open(group, key)
    plan = dataset.get_create_plist()
    # The layout comes first: asking a virtual dataset for its shape may open other files.
    if plan.get_layout() == h5d.VIRTUAL:
        raise ValueError(f"{name!r} is virtual, a view of other files")
    if plan.get_external_count():
        raise ValueError(f"{name!r} is stored in another file")
    if plan.get_nfilters():
        raise ValueError(f"{name!r} is stored with a filter such as compression")
    if plan.get_layout() != h5d.CONTIGUOUS:
        raise ValueError(f"{name!r} is not contiguous")
    space = dataset.get_space()
    if space.get_simple_extent_type() != h5s.SIMPLE:
        raise ValueError(f"{name!r} is not an array")
    nbytes = math.prod(space.shape) * dataset.get_type().get_size()
    if dataset.get_storage_size() != nbytes:
        raise ValueError(f"{name!r} has {nbytes} bytes, of which the file of {size} bytes holds another number")
    offset = dataset.get_offset() if nbytes else 0
    return {"type": _type(name, dataset.get_type()), "shape": list(space.shape), "offset": offset}


def _type(name: str, kind: Any) -> str:
    """Return the type of a dataset as numpy writes it; raises ValueError for types that no store has."""
    from h5py import h5t

    numbers = {"<f2": h5t.IEEE_F16LE, "<f4": h5t.IEEE_F32LE, "<i8": h5t.STD_I64LE}
    numbers |= {"<i4": h5t.STD_I32LE, "<u4": h5t.STD_U32LE}
    if isinstance(kind, h5t.TypeStringID) and not kind.is_variable_str():
        return f"S{kind.get_size()}"
    for text, number in numbers.items():
        if kind.equal(number):
            return text
    raise ValueError(f"{name!r} has another type than a store")


def _attribute(file: Any, name: str) -> str | int:
    """Return an attribute that is one string or one integer."""
    from h5py import h5a, h5s

    attribute = h5a.open(file.id, name.encode())
    if attribute.get_space().get_simple_extent_type() != h5s.SCALAR or attribute.get_storage_size() > MAX_ATTRIBUTE:
        raise ValueError(f"the attribute {name!r} is not a single value")
    value = file.attrs[name]
    found = value if isinstance(value, str) else value.item()
    if not isinstance(found, str | int):
        raise ValueError(f"the attribute {name!r} is neither text nor a whole number")
    return found


if __name__ == "__main__":
    try:
        print(json.dumps(read_layout(sys.argv[1])))
    except Exception as error:
        sys.exit(f"{type(error).__name__}: {error}")
