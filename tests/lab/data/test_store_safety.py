"""A feature store from a stranger reads no file but itself and allocates no more than its size; damage is noticed."""

from __future__ import annotations

import json
import shutil
import struct
import zlib
from pathlib import Path

import h5py
import numpy as np
import pytest

from foveate.errors import DataError
from foveate.lab.data.feature_store import FeatureRecord, FeatureStore, StoreDescription
from foveate.lab.data.store_writer import write_store


def test_a_file_without_its_first_block_is_rejected(tmp_path: Path) -> None:
    """HDF5 alone could refer to other files and unpack a few bytes into terabytes: it is not parsed at all."""
    with h5py.File(tmp_path / "s.h5", "w") as file:
        file.attrs.update(format="foveate-features", version=2)
        file["features"] = np.zeros((4, 8), np.float16)
    with pytest.raises(DataError, match="no feature store, or truncated") as caught:
        FeatureStore(tmp_path / "s.h5")
    assert str(tmp_path / "s.h5") in str(caught.value)


HOSTILE = {
    "outside": lambda header: header["tables"]["features"].update(offset=1 << 40),
    "negative": lambda header: header["tables"]["features"].update(offset=-8),
    "enormous": lambda header: header["tables"]["features"].update(shape=[1 << 62, 192]),
    "empty rows": lambda header: header["tables"]["features"].update(shape=[1 << 62, 0]),
    "shared": lambda header: [table.update(offset=1024) for table in header["tables"].values()],
    "enormous strings": lambda header: header["tables"]["ids"].update(type="S999999999"),
    "strings of no length": lambda header: header["tables"]["ids"].update(type="S"),
    "pickled objects": lambda header: header["tables"]["ids"].update(type="O"),
    "other numbers": lambda header: header["tables"]["offsets"].update(type="<f8"),
    "fractions": lambda header: header["tables"]["offsets"].update(shape=[4.5]),
    "truth": lambda header: header["tables"]["offsets"].update(offset=True),
    "one axis": lambda header: header["tables"]["features"].update(shape=[8]),
    "no place": lambda header: header["tables"].update(features=None),
    "a list": lambda header: header.update(tables=[]),
    "a stranger": lambda header: header["tables"].update(more=header["tables"]["ids"]),
    "no checksums": lambda header: header["tables"].pop("checksums"),
    "no ids": lambda header: header["tables"].pop("ids"),
    "no encoder": lambda header: header["attributes"].pop("encoder"),
    "encoder in numbers": lambda header: header["attributes"].update(encoder=3),
    "later": lambda header: header["attributes"].update(version=3),
}


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_forged_header_is_rejected(written: Path, tmp_path: Path, name: str, verify: bool) -> None:
    """Whoever writes a file can also write its checksums: every number in it is checked."""
    whole = written.read_bytes()
    size, length = struct.unpack_from("<II", whole, 20)
    header = json.loads(whole[40 : 40 + length])
    HOSTILE[name](header)
    text = json.dumps(header).encode()
    head = whole[:24] + len(text).to_bytes(4, "little") + whole[28:40] + text
    head = head.ljust(size - 4, b"\0")
    (tmp_path / "s.h5").write_bytes(head + zlib.crc32(head).to_bytes(4, "little") + whole[size:])
    assert is_noticed(tmp_path / "s.h5", verify=verify)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store as it is written today, of 60 kB, most of it features."""
    path = tmp_path_factory.mktemp("written") / "s.h5"
    rng = np.random.default_rng(1)
    items = [
        FeatureRecord(f"p{n}", rng.standard_normal((16, 192)).astype(np.float16), boxes=rng.random((16, 4), np.float32))
        for n in range(8)
    ]
    write_store(path, items, StoreDescription("test"), dim=192, skipped={"lost": "why"})
    return path


def is_noticed(path: Path, *, verify: bool = True) -> bool:
    try:
        list(FeatureStore(path, verify=verify))
    except DataError as error:
        return str(error).startswith("FeatureStore: expected")
    return False


def test_every_damaged_byte_is_noticed(written: Path, tmp_path: Path) -> None:
    whole = written.read_bytes()
    places = np.random.default_rng(2).permutation(len(whole))[:400].tolist()
    for place in [0, 100, 511, 512, len(whole) - 1, *places]:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        (tmp_path / "s.h5").write_bytes(damaged)
        assert is_noticed(tmp_path / "s.h5"), f"byte {place} of {len(whole)}"


def test_longer_damage_is_noticed(written: Path, tmp_path: Path) -> None:
    whole = written.read_bytes()
    for place in range(0, len(whole), 4096):
        for change in (bytes(512), whole[:512], b"\xff" * 7):
            damaged = whole[:place] + change + whole[place + len(change) :]
            if damaged != whole:
                (tmp_path / "s.h5").write_bytes(damaged)
                assert is_noticed(tmp_path / "s.h5"), place
    (tmp_path / "s.h5").write_bytes(whole + b"\0")
    assert is_noticed(tmp_path / "s.h5")


def test_a_damaged_image_is_named_and_the_others_are_read(written: Path, tmp_path: Path) -> None:
    shutil.copy(written, tmp_path / "s.h5")
    with h5py.File(written, "r", locking=False) as file:
        place = file["features"].id.get_offset() + 3 * 16 * 192 * 2 + 5
    damaged = bytearray(written.read_bytes())
    damaged[place] ^= 64
    (tmp_path / "s.h5").write_bytes(damaged)
    store = FeatureStore(tmp_path / "s.h5")
    assert [store[n].id for n in (0, 1, 2, 4, 5, 6, 7)] == ["p0", "p1", "p2", "p4", "p5", "p6", "p7"]
    with pytest.raises(DataError, match=r"expected the checksum of image 'p3' in .*s\.h5, got another"):
        store[3]
    assert store[-1].id == "p7"


def test_verification_can_be_turned_off(written: Path, tmp_path: Path) -> None:
    damaged = bytearray(written.read_bytes())
    with h5py.File(written, "r", locking=False) as file:
        damaged[file["features"].id.get_offset()] ^= 1
        damaged[file["boxes"].id.get_offset()] ^= 1
        damaged[file["sizes"].id.get_offset()] ^= 1
    (tmp_path / "s.h5").write_bytes(damaged)
    store = FeatureStore(tmp_path / "s.h5", verify=False)
    assert len(list(store)) == 8
    assert not store.verify
