"""The feature store: what goes in comes out, in any process; nothing broken or half-written is taken for whole."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import resource
import signal
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from foveate import io
from foveate.errors import DataError, ShapeError
from foveate.lab.data import store_writer
from foveate.lab.data.feature_store import FeatureRecord, FeatureStore, StoreDescription, stack_features
from foveate.lab.data.samples import ImageRecord
from foveate.lab.data.store_writer import Workspace, digest, import_features, merge_stores, write_store
from foveate.lab.features import ImageFeatures

DIM = 6
ABOUT = StoreDescription("test", weights="w", preprocess="p", source="s")
GRIDS = [(2, 3), (1, 1), (3, 1), (2, 2), (1, 5)]

fork = multiprocessing.get_context("fork")
pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")


def grid_items(count: int = 5, start: int = 0) -> list[FeatureRecord]:
    items = []
    for n in range(start, start + count):
        H, W = GRIDS[n % len(GRIDS)]
        values = np.random.default_rng(n).standard_normal((H * W, DIM)).astype(np.float16)
        items.append(FeatureRecord(f"image-{n}", values, grid=(H, W), size=(640 + n, 480) if n % 2 else None))
    return items


def region_items(count: int = 4) -> list[FeatureRecord]:
    rng = np.random.default_rng(7)
    return [
        FeatureRecord(
            str(n), rng.standard_normal((n + 1, DIM)).astype(np.float16), boxes=rng.random((n + 1, 4), np.float32)
        )
        for n in range(count)
    ]


def same(a: FeatureRecord, b: FeatureRecord) -> bool:
    boxes = (a.boxes is None and b.boxes is None) or np.array_equal(a.boxes, b.boxes)
    return (a.id, a.grid, a.size) == (b.id, b.grid, b.size) and np.array_equal(a.values, b.values) and boxes


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_store(tmp_path / "store.h5", grid_items(), ABOUT, dim=DIM, skipped={"lost": "no such file"})
    return tmp_path / "store.h5"


@pytest.mark.parametrize(
    "items", [grid_items(), region_items(), grid_items(1), []], ids=["grids", "regions", "one", "none"]
)
def test_what_is_written_is_read(tmp_path: Path, items: list[FeatureRecord]) -> None:
    write_store(tmp_path / "s.h5", items, ABOUT, dim=DIM)
    store = FeatureStore(tmp_path / "s.h5")
    assert len(store) == len(items)
    assert store.ids == [item.id for item in items]
    assert (store.dim, store.description, store.skipped) == (DIM, ABOUT, {})
    assert all(same(a, b) for a, b in zip(store, items, strict=True))
    assert all(item.values.dtype == np.float16 for item in store)


def test_ids_in_any_script_and_reasons_survive(tmp_path: Path) -> None:
    names = ["ä/öü", "写真 1", "a" * 300]
    items = [FeatureRecord(name, np.zeros((1, DIM)), grid=(1, 1)) for name in names]
    write_store(tmp_path / "s.h5", items, ABOUT, dim=DIM, skipped={"kaputt 写": "grund ü\nzwei"})
    store = FeatureStore(tmp_path / "s.h5")
    assert store.ids == names
    assert store.skipped == {"kaputt 写": "grund ü\nzwei"}


def test_positions_and_ids(path: Path) -> None:
    store, items = FeatureStore(path), grid_items()
    assert same(store[-1], items[-1])
    assert same(store.get("image-3"), items[3])
    assert same(store.get(ImageRecord("image-2", lambda: None)), items[2])
    assert same(store.get(ImageRecord(17, Path("/data/image-1.jpg"))), items[1])
    assert "image-0" in store
    assert ImageRecord(5, Path("elsewhere.png")) not in store
    with pytest.raises(IndexError, match="expected a position below 5, got 5"):
        store[5]
    with pytest.raises(DataError, match=r"expected one of the 5 images of .*store\.h5, got 'nobody'; extract"):
        store.get("nobody")
    with pytest.raises(DataError, match="got 9; extract"):
        store.get(ImageRecord(9, Path("x.png")))


def test_a_numeric_id_finds_its_text(tmp_path: Path) -> None:
    write_store(tmp_path / "s.h5", region_items(), ABOUT, dim=DIM)
    assert FeatureStore(tmp_path / "s.h5").get(2).id == "2"


def test_the_fingerprint_changes_with_content_only(tmp_path: Path) -> None:
    def fingerprint(items: list[FeatureRecord], about: StoreDescription = ABOUT) -> str:
        write_store(tmp_path / "s.h5", items, about, dim=DIM)
        return FeatureStore(tmp_path / "s.h5").fingerprint

    base, regions = grid_items(), region_items()
    changed = [*base[:2], FeatureRecord(base[2].id, base[2].values + np.float16(1), grid=base[2].grid), *base[3:]]
    renamed = [*base[:2], FeatureRecord("new", base[2].values, grid=base[2].grid), *base[3:]]
    moved = [FeatureRecord(r.id, r.values, boxes=r.boxes + np.float32(0.1)) for r in regions]
    assert fingerprint(base) == fingerprint(grid_items()) == fingerprint(base, StoreDescription("other"))
    assert len({fingerprint(items) for items in (base, changed, renamed, base[:-1], regions, moved)}) == 6


class Reader(Dataset):
    def __init__(self, store: FeatureStore) -> None:
        self.store = store

    def __len__(self) -> int:
        return len(self.store)

    def __getitem__(self, position: int) -> tuple[str, torch.Tensor, int]:
        item = self.store[position]
        return item.id, torch.from_numpy(item.values), os.getpid()


@pytest.mark.parametrize(("method", "workers"), [("fork", 2), ("spawn", 1)])
def test_worker_processes_read_for_themselves(path: Path, method: str, workers: int) -> None:
    store, items = FeatureStore(path), grid_items()
    _ = store[0]
    loader = DataLoader(Reader(store), batch_size=None, num_workers=workers, multiprocessing_context=method)
    rows = list(loader)
    assert [name for name, _, _ in rows] == store.ids
    assert all(np.array_equal(values.numpy(), item.values) for (_, values, _), item in zip(rows, items, strict=True))
    assert os.getpid() not in {pid for _, _, pid in rows}
    assert same(store[1], items[1])


def test_forked_processes_share_a_descriptor_without_harm(path: Path) -> None:
    store, items = FeatureStore(path), grid_items()
    _ = store[0]

    def read() -> bool:
        order = np.random.default_rng(os.getpid()).integers(0, 5, 2000).tolist()
        return all(same(store[n], items[n]) for n in order)

    receiver, sender = fork.Pipe()
    children = [fork.Process(target=lambda: sender.send(read())) for _ in range(2)]
    for child in children:
        child.start()
    assert read()
    assert [receiver.recv() for _ in children] == [True, True]
    for child in children:
        child.join()


def test_a_file_that_is_replaced_is_noticed(path: Path) -> None:
    store = FeatureStore(path)
    write_store(path, grid_items(500), ABOUT, dim=DIM)
    with pytest.raises(DataError, match="it was replaced after it had been opened"):
        store[0]
    path.unlink()
    with pytest.raises(DataError, match="No such file"):
        store[0]


def test_a_reader_does_not_leave_files_open(path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        assert FeatureStore(path)[0].id == "image-0"
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 1


def test_a_copy_or_a_closed_store_opens_again(path: Path) -> None:
    store = FeatureStore(path)
    assert same(pickle.loads(pickle.dumps(store))[2], grid_items()[2])
    store.close()
    assert same(store[2], grid_items()[2])


def test_every_cut_is_refused(path: Path) -> None:
    whole = path.read_bytes()
    for size in {0, 1, 100, 511, *range(512, len(whole), len(whole) // 40), len(whole) - 1}:
        path.write_bytes(whole[:size])
        with pytest.raises(
            DataError, match=r"expected a complete feature store, got .*store\.h5, which cannot be read"
        ):
            FeatureStore(path)


def test_other_files_are_refused(path: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected a feature store at .*none\.h5, got no file; write it with"):
        FeatureStore(tmp_path / "none.h5")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = 1
    with pytest.raises(DataError, match="it is no feature store"):
        FeatureStore(tmp_path / "other.h5")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f["offsets"].__setitem__(-1, 3), "offsets that do not cover the 19 rows"),
        (lambda f: f["offsets"].__setitem__(1, 9), "offsets that do not cover"),
        (lambda f: f["offsets"].__setitem__(0, 1), "offsets that do not cover"),
        (lambda f: f["grids"].__setitem__(0, (4, 4)), "grids that differ"),
        (lambda f: f["ids"].__setitem__(0, b"image-1"), "an id twice"),
        (lambda f: f["ids"].__setitem__(0, b"\xff"), "codec can't decode"),
    ],
)
def test_an_inconsistent_header_is_refused(path: Path, change: object, message: str) -> None:
    with h5py.File(path, "r+") as file:
        change(file)
    with pytest.raises(DataError, match=message):
        FeatureStore(path, verify=False)
    with pytest.raises(DataError, match=r"damaged|truncated or extended"):
        FeatureStore(path)


def test_stacking_pads_and_masks() -> None:
    items = grid_items(3)
    batch = stack_features(items)
    assert batch.values.shape == (3, 6, DIM)
    assert batch.values.dtype == torch.float16
    assert batch.mask.sum(1).tolist() == [6, 1, 3]
    assert batch.grid.tolist() == [[2, 3], [1, 1], [3, 1]]
    assert batch.boxes is None
    assert np.array_equal(batch.values[2, :3], items[2].values)
    assert not batch.values[2, 3:].any()


def test_stacking_equal_images_needs_no_mask() -> None:
    items = [grid_items(1)[0], grid_items(6)[5]]
    batch = stack_features(items)
    assert batch.mask is None
    assert batch.grid == (2, 3)
    regions = stack_features(region_items(2))
    assert regions.grid is None
    assert regions.boxes.shape == (2, 2, 4)
    assert not regions.boxes[0, 1].any()


def test_stacking_refuses_what_does_not_fit() -> None:
    wide = FeatureRecord("w", np.zeros((1, DIM + 1)), grid=(1, 1))
    with pytest.raises(ShapeError, match="stack_features: expected images with the same D"):
        stack_features([grid_items(1)[0], wide])
    with pytest.raises(ShapeError, match="all grids or all regions"):
        stack_features([grid_items(1)[0], region_items(1)[0]])
    with pytest.raises(ShapeError, match="expected at least one image"):
        stack_features([])


def test_a_batch_moves_all_its_tensors() -> None:
    batch = ImageFeatures(torch.ones(1, 2, 3), torch.ones(1, 2), torch.ones(1, 2).bool(), torch.ones(1, 2, 4)).to(
        "meta"
    )
    assert {t.device.type for t in vars(batch).values()} == {"meta"}


@pytest.mark.parametrize(
    ("index", "rows"),
    [
        (2, [2]),
        (-1, [2]),
        (slice(1, None), [1, 2]),
        ([2, 0, 2], [2, 0, 2]),
        (torch.tensor([1, 1]), [1, 1]),
        (torch.tensor([True, False, True]), [0, 2]),
        ([], []),
    ],
)
def test_a_batch_is_indexed_by_example(index: object, rows: list[int]) -> None:
    batch = stack_features(grid_items(3))
    picked = batch[index]
    for name in ("values", "grid", "mask"):
        assert torch.equal(getattr(picked, name), getattr(batch, name)[torch.tensor(rows, dtype=torch.long)])
    regions = stack_features(region_items(3))[index]
    assert regions.boxes.shape == (len(rows), 3, 4)
    assert ImageFeatures(torch.zeros(3, 4, 2), grid=(2, 2))[index].grid == (2, 2)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"values": np.zeros(3)}, r"expected values \(N, D\), got \(3,\) for image 'x'"),
        ({"values": np.zeros((3, 2)), "grid": (2, 2)}, r"expected H·W = 3 locations, got a grid \(2, 2\)"),
        ({"values": np.zeros((3, 2)), "boxes": np.zeros((2, 4))}, r"expected boxes \(3, 4\), got \(2, 4\)"),
    ],
)
def test_features_of_the_wrong_shape(fields: dict, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        FeatureRecord("x", **fields)


def test_the_writer_refuses_what_cannot_be_kept(tmp_path: Path) -> None:
    def write(*items: FeatureRecord) -> None:
        write_store(tmp_path / "s.h5", items, ABOUT, dim=DIM)

    with pytest.raises(DataError, match="finite as float16, got others for image 'big'"):
        write(FeatureRecord("big", np.full((1, DIM), 1e6)))
    with pytest.raises(DataError, match="got others for image 'nan'"):
        write(FeatureRecord("nan", np.full((1, DIM), np.nan)))
    with pytest.raises(ShapeError, match="expected 6 features per location, got 5 for image 'thin'"):
        write(FeatureRecord("thin", np.zeros((1, 5))))
    with pytest.raises(DataError, match="all images with boxes or none"):
        write(grid_items(1)[0], region_items(1)[0])
    with pytest.raises(DataError, match="write_store: expected images with different ids, got 'image-0' twice"):
        write(grid_items(1)[0], grid_items(1)[0])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("rows", [1, 4, 4096])
@pytest.mark.parametrize("make", [grid_items, region_items])
def test_merged_parts_are_the_whole(tmp_path: Path, make: object, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_writer, "WRITE_ROWS", rows)
    items = make(4)
    parts = []
    for n, chunk in enumerate((items[:2], [], items[2:3], items[3:])):
        write_store(tmp_path / f"{n}.h5", chunk, ABOUT, dim=DIM, skipped={f"bad {n}": "why"})
        parts.append(FeatureStore(tmp_path / f"{n}.h5"))
    merge_stores(parts, tmp_path / "merged.h5", ABOUT)
    skipped = {f"bad {n}": "why" for n in range(4)}
    write_store(tmp_path / "whole.h5", items, ABOUT, dim=DIM, skipped=skipped)
    assert (tmp_path / "merged.h5").read_bytes() == (tmp_path / "whole.h5").read_bytes()


def test_merging_refuses_strangers_twins_and_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, items, dim in [("a", grid_items(2), DIM), ("b", region_items(2), DIM), ("c", [], 3)]:
        write_store(tmp_path / name, items, ABOUT, dim=dim)
    a, b = (FeatureStore(tmp_path / name) for name in "ab")
    with pytest.raises(DataError, match="merge_stores: expected parts with the same D, all or none with boxes"):
        merge_stores([a, b], tmp_path / "m.h5", ABOUT)
    with pytest.raises(DataError, match="got 'image-0' twice"):
        merge_stores([a, a], tmp_path / "m.h5", ABOUT)
    monkeypatch.setattr(store_writer.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 3}))
    message = r"expected to write .*m\.h5, got 0\.000 GB free where 0\.001 are needed; the previous file.* is unchanged"
    with pytest.raises(DataError, match=message):
        merge_stores([a], tmp_path / "m.h5", ABOUT)
    assert not (tmp_path / "m.h5").exists()


def write_with_little_room(path: Path, room: int, sender: object) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
    try:
        items = [FeatureRecord(str(n), np.ones((100, 64)), grid=(10, 10)) for n in range(10)]
        write_store(path, items, ABOUT, dim=64)
    except Exception as error:
        sender.send((type(error).__name__, str(error)))
    else:
        sender.send(("", "nothing was raised"))


@pytest.mark.parametrize("room", [0, 1_000, 20_000, 131_000, 1_000_000])
def test_a_disk_that_fills_up_leaves_nothing(path: Path, room: int) -> None:
    before = path.read_bytes()
    receiver, sender = fork.Pipe()
    child = fork.Process(target=write_with_little_room, args=(path, room, sender))
    child.start()
    kind, message = receiver.recv()
    child.join()
    assert child.exitcode == 0
    assert kind == "DataError", message
    assert f"expected to write {path}" in message
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


BLOCKS = {f"key-{n}": grid_items(3, start=3 * n) for n in range(3)}


def all_blocks(out: Path) -> None:
    """What every process that works on the store does: the blocks that are missing, then the store."""
    work = Workspace(out, StoreDescription("test"), dim=DIM)
    if work.finished(list(BLOCKS)):
        work.clean()
        return
    for key, items in BLOCKS.items():
        if not work.has(key):
            work.write(key, items, skipped={f"broken {key}": "why"})
    work.finish(list(BLOCKS))


def killed_at(out: Path, moment: int) -> None:
    """Run `all_blocks` and die by SIGKILL just before or after its n-th lasting step."""
    steps = iter(range(10**6))

    def deadly(step: object) -> object:
        def run(*args: object, **options: object) -> object:
            if next(steps) == moment:
                os.kill(os.getpid(), signal.SIGKILL)
            result = step(*args, **options)
            if next(steps) == moment:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return run

    io.sync = deadly(io.sync)
    store_writer._copy = deadly(store_writer._copy)
    io.os.replace = deadly(os.replace)
    store_writer.shutil.rmtree = deadly(store_writer.shutil.rmtree)
    all_blocks(out)


def check_nothing_half_written(out: Path) -> None:
    for file in [*out.parent.glob("*.h5"), *out.parent.glob("*.partial/*.h5")]:
        FeatureStore(file)


def test_kill_9_at_every_step_loses_and_doubles_nothing(tmp_path: Path) -> None:
    (tmp_path / "reference").mkdir()
    all_blocks(tmp_path / "reference" / "s.h5")
    reference = (tmp_path / "reference" / "s.h5").read_bytes()
    kills = 0
    for moment in range(1000):
        directory = tmp_path / str(moment)
        directory.mkdir()
        child = fork.Process(target=killed_at, args=(directory / "s.h5", moment))
        child.start()
        child.join()
        check_nothing_half_written(directory / "s.h5")
        all_blocks(directory / "s.h5")
        assert (directory / "s.h5").read_bytes() == reference
        assert list(directory.iterdir()) == [directory / "s.h5"]
        if child.exitcode == 0:
            break
        assert child.exitcode == -signal.SIGKILL
        kills += 1
    assert kills > 20


def test_kill_9_at_any_time(tmp_path: Path) -> None:
    """The same with a real clock: wherever the kill falls, what is left is whole and the work can go on."""
    out, deaths = tmp_path / "s.h5", 0
    for attempt in range(60):
        child = fork.Process(target=all_blocks, args=(out,))
        child.start()
        child.join(0.0005 * attempt)
        if child.is_alive():
            os.kill(child.pid, signal.SIGKILL)
            deaths += 1
        child.join()
        check_nothing_half_written(out)
    all_blocks(out)
    assert deaths > 0
    assert FeatureStore(out).ids == [item.id for items in BLOCKS.values() for item in items]


def test_a_damaged_block_is_written_again(tmp_path: Path) -> None:
    work = Workspace(tmp_path / "s.h5", ABOUT, dim=DIM)
    work.write("a", grid_items(2))
    assert work.has("a")
    block = work.directory / "a.h5"
    block.write_bytes(block.read_bytes()[:-10])
    assert not work.has("a")
    assert not block.exists()


def test_the_order_of_keys_is_the_order_of_the_store(tmp_path: Path) -> None:
    work = Workspace(tmp_path / "s.h5", ABOUT, dim=DIM)
    for key, items in list(BLOCKS.items())[::-1]:
        work.write(key, items)
    work.write("of other images", grid_items(1, start=50))
    store = work.finish(list(BLOCKS)[:2])
    assert store.ids == [f"image-{n}" for n in range(6)]
    assert store.description.source == digest("key-0", "key-1")
    assert not work.directory.exists()


def test_a_finished_store_is_known_and_another_is_not_overwritten(tmp_path: Path) -> None:
    work = Workspace(tmp_path / "s.h5", StoreDescription("test"), dim=DIM)
    assert work.finished(["a"]) is None
    work.write("a", grid_items(1))
    work.finish(["a"])
    assert len(work.finished(["a"])) == 1
    with pytest.raises(DataError, match=r"expected no file at .*s\.h5 or the store of the same images"):
        work.finished(["b"])
    with pytest.raises(DataError, match="got 1 images encoded by 'test'; remove it or choose another name"):
        Workspace(tmp_path / "s.h5", StoreDescription("other"), dim=DIM).finished(["a"])


def test_the_directory_must_exist(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected a directory .*nowhere to write s\.h5 to, got none"):
        Workspace(tmp_path / "nowhere" / "s.h5", ABOUT, dim=DIM)


@pytest.mark.parametrize("block", [1, 2, 100])
def test_importing_streams_into_the_same_store(tmp_path: Path, block: int) -> None:
    held: list[int] = []

    def stream() -> object:
        for n, item in enumerate(region_items(5)):
            held.append(n - len(list((tmp_path / "s.h5.partial").glob("*.h5"))) * block)
            yield item

    store = import_features(stream(), tmp_path / "s.h5", StoreDescription("regions"), block=block)
    assert all(same(a, b) for a, b in zip(store, region_items(5), strict=True))
    assert store.description.encoder == "regions"
    assert max(held) <= block
    assert [p.name for p in tmp_path.iterdir()] == ["s.h5"]


def test_importing_refuses_nothing_twins_and_a_taken_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected at least one image for .*s\.h5, got none"):
        import_features([], tmp_path / "s.h5", ABOUT)
    with pytest.raises(DataError, match="got 'image-0' twice"):
        import_features(grid_items(1) * 2, tmp_path / "s.h5", ABOUT, block=1)
    import_features(grid_items(2), tmp_path / "s.h5", ABOUT)
    with pytest.raises(DataError, match=r"import_features: expected no file at .*s\.h5, got one"):
        import_features(grid_items(2), tmp_path / "s.h5", ABOUT)
