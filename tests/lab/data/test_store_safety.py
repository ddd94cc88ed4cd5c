"""A feature store from a stranger reads no file but itself and allocates no more than its size; damage is noticed."""

from __future__ import annotations

import json
import random
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from foveate.errors import DataError
from foveate.lab.data import hdf5_layout, store_file
from foveate.lab.data.feature_store import FeatureRecord, FeatureStore, StoreDescription
from foveate.lab.data.store_writer import write_store
from tests.lab.data.mutations import mutate_bytes

DIM, ROWS, IMAGES = 64, 24, 4
SECRET = bytes(range(256)) * 12
TABLES = ("offsets", "grids", "sizes", "ids", "skipped", "features", "boxes")


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Find the layout of version 1 here: another process per file would take minutes."""
    monkeypatch.setattr(store_file, "_layout_in_child", hdf5_layout.read_layout)


def content() -> dict[str, np.ndarray]:
    """The datasets of a store of regions, as version 1 wrote them: no checksums."""
    rng = np.random.default_rng(0)
    return {
        "offsets": np.arange(IMAGES + 1) * (ROWS // IMAGES),
        "grids": np.zeros((IMAGES, 2), np.int32),
        "sizes": np.full((IMAGES, 2), 100, np.int32),
        "ids": np.array([b"a", b"b", b"c", b"d"]),
        "skipped": np.array([[b"lost", b"no such file"]]),
        "features": rng.standard_normal((ROWS, DIM)).astype(np.float16),
        "boxes": rng.random((ROWS, 4), np.float32),
    }


def write_version_1(path: Path, change: Callable[[h5py.File], None] | None = None, **options: object) -> None:
    attributes = {"encoder": "e", "weights": "w", "preprocess": "p", "source": "s", "fingerprint": "f"}
    with h5py.File(path, "w", **options) as file:
        file.attrs.update(format="foveate-features", version=1, **attributes)
        for name, table in content().items():
            file[name] = table
        if change is not None:
            change(file)


def replaced(name: str, make: Callable[[h5py.File], None]) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        del file[name]
        make(file)

    return change


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_bytes(SECRET)
    with h5py.File(tmp_path / "other.h5", "w") as file:
        for name, table in content().items():
            file[name] = table
    return tmp_path / "secret"


def read_all(path: Path) -> list[FeatureRecord]:
    return list(FeatureStore(path))


def assert_rejected(path: Path, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        read_all(path)
    assert str(path) in str(caught.value)


def test_version_1_without_checksums_is_read(tmp_path: Path) -> None:
    write_version_1(tmp_path / "old.h5")
    store = FeatureStore(tmp_path / "old.h5")
    assert store.skipped == {"lost": "no such file"}
    assert np.array_equal(np.concatenate([record.values for record in store]), content()["features"])
    assert np.array_equal(np.concatenate([record.boxes for record in store]), content()["boxes"])


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize("name", TABLES)
def test_external_storage_is_rejected(tmp_path: Path, secret: Path, name: str) -> None:
    table = content()[name]

    def external(file: h5py.File) -> None:
        file.create_dataset(name, table.shape, table.dtype, external=[(str(secret), 0, table.nbytes)])

    write_version_1(tmp_path / "s.h5", replaced(name, external))
    assert_rejected(tmp_path / "s.h5", f"{name!r} .* another file")


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("kind", ["external", "soft"])
def test_links_are_rejected(tmp_path: Path, secret: Path, name: str, kind: str) -> None:
    target = "boxes" if name == "features" else "features"
    link = h5py.ExternalLink(str(tmp_path / "other.h5"), name) if kind == "external" else h5py.SoftLink(f"/{target}")
    write_version_1(tmp_path / "s.h5", replaced(name, lambda f: f.__setitem__(name, link)))
    assert_rejected(tmp_path / "s.h5", f"{name!r} is a link to another place")


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize("name", TABLES)
def test_virtual_datasets_are_rejected(tmp_path: Path, secret: Path, name: str) -> None:
    table = content()[name]

    def virtual(file: h5py.File) -> None:
        layout = h5py.VirtualLayout(table.shape, table.dtype)
        layout[...] = h5py.VirtualSource(str(tmp_path / "other.h5"), name, table.shape)
        file.create_virtual_dataset(name, layout)

    write_version_1(tmp_path / "s.h5", replaced(name, virtual), libver="latest")
    assert_rejected(tmp_path / "s.h5", f"{name!r} .* virtual")


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize("name", TABLES)
def test_filters_are_rejected(tmp_path: Path, name: str) -> None:
    table = content()[name]
    change = replaced(name, lambda f: f.create_dataset(name, data=table, chunks=table.shape, compression="gzip"))
    write_version_1(tmp_path / "s.h5", change)
    assert_rejected(tmp_path / "s.h5", f"{name!r} .* filter")


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize("name", ["features", "ids"])
def test_a_compression_bomb_is_not_unpacked(tmp_path: Path, name: str) -> None:
    shape = (1 << 34, DIM) if name == "features" else (1 << 34,)
    dtype = np.float16 if name == "features" else "S8"
    for options in ({"compression": "gzip", "chunks": True}, {"chunks": True}, {}):
        change = replaced(name, lambda f, options=options: f.create_dataset(name, shape, dtype, **options))
        write_version_1(tmp_path / "s.h5", change)
        assert_rejected(tmp_path / "s.h5", name)


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize("name", TABLES)
def test_other_types_are_rejected(tmp_path: Path, name: str) -> None:
    table = content()[name]
    text, objects = h5py.string_dtype(), h5py.vlen_dtype(np.uint8)
    wrong = {
        "strings of any length": lambda f: f.create_dataset(name, table.shape, text),
        "arrays of any length": lambda f: f.create_dataset(name, table.shape, objects),
        "references": lambda f: f.create_dataset(name, table.shape, h5py.ref_dtype),
        "pairs": lambda f: f.create_dataset(name, table.shape, np.dtype([("a", "i4"), ("b", "i4")])),
        "enumeration": lambda f: f.create_dataset(name, table.shape, h5py.enum_dtype({"a": 1}, basetype="i4")),
        "other numbers": lambda f: f.create_dataset(name, data=np.zeros(table.shape, np.complex64)),
        "an axis more": lambda f: f.create_dataset(name, data=table[None]),
        "one value": lambda f: f.create_dataset(name, data=table.reshape(-1)[0]),
        "nothing": lambda f: f.create_dataset(name, data=h5py.Empty(table.dtype)),
        "a group": lambda f: f.create_group(name),
        "a type": lambda f: f.__setitem__(name, np.dtype("f4")),
    }
    for make in wrong.values():
        write_version_1(tmp_path / "s.h5", replaced(name, make))
        assert_rejected(tmp_path / "s.h5", name)


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(
    ("label", "change"),
    [
        ("strangers", lambda f: f.create_dataset("more", data=np.zeros(3))),
        ("no rows of boxes", replaced("boxes", lambda f: f.create_dataset("boxes", data=np.zeros((3, 4), np.float32)))),
        ("negative grid", lambda f: f["grids"].__setitem__(0, (-2, -3))),
        ("half a grid", lambda f: f["grids"].__setitem__(0, (0, 3))),
        ("overflowing grid", lambda f: f["grids"].__setitem__(0, (65536, 65536))),
        ("negative size", lambda f: f["sizes"].__setitem__(0, (-1, 5))),
        ("twins", lambda f: f["ids"].__setitem__(0, b"b")),
        ("not UTF-8", lambda f: f["ids"].__setitem__(0, b"\xff")),
        ("no features", replaced("features", lambda f: f.create_dataset("features", (ROWS, 0), np.float16))),
        ("no encoder", lambda f: f.attrs.__delitem__("encoder")),
        ("no sizes", lambda f: f.__delitem__("sizes")),
        ("fewer ids", replaced("ids", lambda f: f.create_dataset("ids", data=np.array([b"a"])))),
        ("encoder in numbers", lambda f: f.attrs.__setitem__("encoder", np.arange(5))),
        ("version in words", lambda f: f.attrs.__setitem__("version", "one")),
        ("a list of versions", lambda f: f.attrs.__setitem__("version", np.ones(3))),
        ("format in bytes", lambda f: f.attrs.__setitem__("format", np.zeros(4))),
        ("later version", lambda f: f.attrs.__setitem__("version", 3)),
        ("version 2 without checksums", lambda f: f.attrs.__setitem__("version", 2)),
        ("not written", replaced("features", lambda f: f.create_dataset("features", (ROWS, DIM), np.float16))),
        (
            "not written, in chunks",
            replaced("features", lambda f: f.create_dataset("features", (ROWS, DIM), np.float16, chunks=(1, DIM))),
        ),
    ],
)
def test_inconsistent_stores_are_rejected(tmp_path: Path, label: str, change: Callable[[h5py.File], None]) -> None:
    write_version_1(tmp_path / "s.h5", change)
    assert_rejected(tmp_path / "s.h5", "FeatureStore: expected")


@pytest.mark.usefixtures("in_this_process")
def test_chunks_are_rejected(tmp_path: Path) -> None:
    """No store was ever written in chunks, and what was never written would be made up while reading."""
    table = content()["features"]
    change = replaced("features", lambda f: f.create_dataset("features", data=table, chunks=(5, DIM)))
    write_version_1(tmp_path / "s.h5", change)
    assert_rejected(tmp_path / "s.h5", "'features' is not contiguous")


def test_a_crash_of_the_hdf5_library_is_survived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_version_1(tmp_path / "s.h5")
    program = tmp_path / "crash.py"
    monkeypatch.setattr(hdf5_layout, "__file__", str(program))
    program.write_text("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert_rejected(tmp_path / "s.h5", "the HDF5 library stopped with signal 11")
    program.write_text("import time; time.sleep(60)")
    monkeypatch.setattr(store_file, "_TIMEOUT", 0.5)
    assert_rejected(tmp_path / "s.h5", r"did not finish within 0\.5 s")
    program.write_text("print('[' * 100000)")
    monkeypatch.setattr(store_file, "_TIMEOUT", 60)
    assert_rejected(tmp_path / "s.h5", "recursion")


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


@pytest.mark.slow
def test_mutated_files_of_version_1_raise_data_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The HDF5 library parses these, and hangs or crashes on a few: only its own process ends."""
    monkeypatch.setattr(store_file, "_TIMEOUT", 5)
    write_version_1(tmp_path / "w.h5")
    whole, outcomes = (tmp_path / "w.h5").read_bytes(), []
    for seed in range(150):
        head = mutate_bytes(whole[:6000], random.Random(seed))
        (tmp_path / "s.h5").write_bytes(head + whole[6000:])
        outcomes.append(is_noticed(tmp_path / "s.h5"))
    assert 50 < sum(outcomes) < 150
