"""Published features: SCAN's arrays, bottom-up's tables, grid-feats' tensors; whole, cut and hostile."""

import base64
import pickle
import zipfile

import numpy as np
import pytest
import torch

from foveate.errors import DataError
from foveate.lab.data.feature_store import FeatureStore, StoreDescription
from foveate.lab.data.precomp import open_scan, read_bottom_up, read_grid_feats, read_scan
from foveate.lab.data.store_writer import import_features

RNG = np.random.default_rng(0)


def scan(directory, rows, captions, ids=None, split="dev"):
    np.save(directory / f"{split}_ims.npy", rows)
    (directory / f"{split}_caps.txt").write_text("".join(f"{c}\n" for c in captions), encoding="utf-8")
    if ids is not None:
        (directory / f"{split}_ids.txt").write_text("".join(f"{i}\n" for i in ids))


def test_scan_with_five_captions(tmp_path):
    rows = RNG.random((3, 36, 8), dtype=np.float32)
    scan(tmp_path, rows, [f"caption\u2028{i}" for i in range(15)])
    data = open_scan(tmp_path, "dev")
    assert isinstance(data.features, np.memmap)
    assert data.ids == ("0", "1", "2")
    assert data.captions[1] == tuple(f"caption\u2028{i}" for i in range(5, 10))
    items = list(read_scan(tmp_path, "dev"))
    assert [item.id for item in items] == ["0", "1", "2"]
    np.testing.assert_array_equal(np.stack([item.values for item in items]), rows)
    assert all(item.boxes is None and item.grid is None and item.size is None for item in items)


def test_scan_repeated_rows_and_ids(tmp_path):
    rows = RNG.random((2, 4, 8), dtype=np.float32)
    scan(tmp_path, np.repeat(rows, 5, axis=0), range(10), ids=[42] * 5 + [7] * 5)
    data = open_scan(tmp_path, "dev")
    assert data.ids == ("42", "7")
    np.testing.assert_array_equal(data.features, rows)
    scan(tmp_path, rows, range(10), ids=[3, 4])
    assert open_scan(tmp_path, "dev").ids == ("3", "4")


def test_scan_one_caption_each(tmp_path):
    scan(tmp_path, RNG.random((5, 4, 8)), "abcde")
    assert open_scan(tmp_path, "dev").captions == (("a",), ("b",), ("c",), ("d",), ("e",))


def test_scan_errors(tmp_path):
    with pytest.raises(DataError, match=r"open_scan: expected dev_ims.npy in .*; SCAN's precomputed features come as"):
        open_scan(tmp_path, "dev")
    rows = RNG.random((3, 4, 8), dtype=np.float32)
    scan(tmp_path, rows, range(14))
    with pytest.raises(
        DataError, match=r"5 captions or 1 for each of the 3 rows of .*dev_ims.npy, got 14; the two files"
    ):
        open_scan(tmp_path, "dev")
    scan(tmp_path, rows, range(15), ids=[1, 1, 2])
    with pytest.raises(
        DataError, match=r"expected 3 different ids in .*dev_ids.txt, got 3 with 2 different; remove the"
    ):
        open_scan(tmp_path, "dev")
    scan(tmp_path, rows[0], range(4))
    with pytest.raises(
        DataError, match=r"expected numbers \(images, regions, features\) in .*, got float32 of shape \(4, 8\)"
    ):
        open_scan(tmp_path, "dev")
    scan(tmp_path, rows, range(15), ids=[1, 2, 3])
    whole = (tmp_path / "dev_ims.npy").read_bytes()
    (tmp_path / "dev_ims.npy").write_bytes(whole[:-50])
    with pytest.raises(DataError, match=r"expected a complete array in .*dev_ims.npy, got a file that cannot be read"):
        open_scan(tmp_path, "dev")
    np.save(tmp_path / "dev_ims.npy", np.array([{"code": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match=r"cannot be read \(.*(allow_pickle|Python objects)"):
        open_scan(tmp_path, "dev")


def encode(array, dtype=np.float32):
    return base64.b64encode(np.ascontiguousarray(array, dtype)).decode()


def row(image="42", count=2, width=100, height=50, boxes=None, features=None):
    boxes = np.array([[10, 5, 50, 25], [0, 0, 100, 50]])[:count] if boxes is None else boxes
    features = np.arange(count * 8).reshape(count, 8) if features is None else features
    return "\t".join([image, str(width), str(height), str(count), encode(boxes), encode(features)])


def test_bottom_up_rows(tmp_path):
    path = tmp_path / "trainval.tsv"
    path.write_text(row() + "\n" + row("COCO_val2014_000000000007", count=1) + "\n")
    first, second = read_bottom_up(path)
    assert (first.id, second.id) == ("42", "7")
    assert first.size == (100, 50)
    np.testing.assert_allclose(first.boxes, [[0.1, 0.1, 0.5, 0.5], [0, 0, 1, 1]], atol=1e-7)
    np.testing.assert_array_equal(first.values, np.arange(16).reshape(2, 8))
    assert (first.grid, len(second.values)) == (None, 1)
    assert first.values.flags.writeable


def test_bottom_up_as_lxmert_has_them(tmp_path):
    cells = ["COCO_train2014_000000000009", "50", "100", *[encode([1, 2])] * 4, "2", *row().split("\t")[4:]]
    (tmp_path / "a.tsv").write_text("\t".join(cells) + "\r\n")
    (item,) = read_bottom_up(tmp_path / "a.tsv")
    assert (item.id, item.size) == ("9", (100, 50))
    np.testing.assert_allclose(item.boxes[0], [0.1, 0.1, 0.5, 0.5], atol=1e-7)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (row()[:-30], r"complete float32 rows, got .* in line 2 of .*a.tsv; the file may be truncated"),
        (
            row()[:40],
            r"expected 6 columns separated by tabs, got 5 in line 2 of .*a.tsv; bottom-up attention publishes",
        ),
        (
            row("x", boxes=[[0, 0, 500, 5]] * 2),
            r"expected boxes inside the 100 x 50 image, got one outside in line 2 of",
        ),
        (row("x", boxes=[[9, 0, 5, 5]] * 2), "got one outside in line 2"),
        (row("x", boxes=[[0, 0, np.nan, 5]] * 2), "got one outside in line 2"),
        (row("x", width="wide"), "got invalid literal .* in line 2"),
        (row("x", count=0), "got .* in line 2"),
        (row(), r"expected different ids, got '42' again in line 2 of .*a.tsv; remove the line"),
    ],
)
def test_bottom_up_errors(tmp_path, line, message):
    (tmp_path / "a.tsv").write_text(row() + "\n" + line + "\n")
    with pytest.raises(DataError, match=message):
        list(read_bottom_up(tmp_path / "a.tsv"))


def test_bottom_up_missing_and_empty(tmp_path):
    with pytest.raises(DataError, match=r"read_bottom_up: expected a.tsv in .*, got no such file; bottom-up attention"):
        list(read_bottom_up(tmp_path / "a.tsv"))
    (tmp_path / "a.tsv").write_text("")
    with pytest.raises(DataError, match=r"expected lines in .*a.tsv, got an empty file"):
        list(read_bottom_up(tmp_path / "a.tsv"))


def test_grid_feats(tmp_path):
    grid = torch.arange(2 * 3 * 4, dtype=torch.float32).reshape(1, 2, 3, 4)
    torch.save(grid, tmp_path / "10.pth")
    torch.save(grid[0].to(torch.bfloat16), tmp_path / "9.pth")
    first, second = read_grid_feats(tmp_path)
    assert (first.id, second.id) == ("9", "10")
    assert (second.grid, second.values.shape) == ((3, 4), (12, 2))
    assert second.values[5].tolist() == [5.0, 17.0]  # row 1, column 1 of both features
    assert first.values.tolist() == second.values.tolist()


class Hostile:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return open, (str(self.marker), "w")


def test_grid_feats_with_code_are_refused_and_not_run(tmp_path):
    hostile = Hostile(tmp_path / "was run")
    torch.save(hostile, tmp_path / "1.pth")
    with pytest.raises(
        DataError, match=r"expected only a tensor in .*1.pth, got a file with other Python objects or code"
    ):
        list(read_grid_feats(tmp_path))
    (tmp_path / "1.pth").write_bytes(pickle.dumps(hostile))
    with pytest.raises(DataError, match=r"1.pth"):
        list(read_grid_feats(tmp_path))
    assert not hostile.marker.exists()


def test_grid_feats_errors(tmp_path):
    with pytest.raises(DataError, match=r"expected <image_id>.pth in .*, got none; grid-feats publishes"):
        list(read_grid_feats(tmp_path))
    torch.save(torch.zeros(2, 3), tmp_path / "1.pth")
    with pytest.raises(
        DataError, match=r"expected floating-point \(1, D, H, W\) in .*1.pth, got torch.float32 \(2, 3\)"
    ):
        list(read_grid_feats(tmp_path))
    torch.save({"a": torch.zeros(2)}, tmp_path / "1.pth")
    with pytest.raises(DataError, match=r"expected a tensor in .*1.pth, got dict"):
        list(read_grid_feats(tmp_path))
    torch.save(torch.zeros(1, 64, 8, 8), tmp_path / "1.pth")
    whole = (tmp_path / "1.pth").read_bytes()
    for part in (whole[:0], whole[:100], whole[: len(whole) // 2]):
        (tmp_path / "1.pth").write_bytes(part)
        with pytest.raises(DataError, match=r"1.pth, got a file"):
            list(read_grid_feats(tmp_path))


def test_all_three_go_into_the_store(tmp_path):
    scan(tmp_path, RNG.random((2, 4, 8), dtype=np.float32), range(10))
    (tmp_path / "a.tsv").write_text(row() + "\n")
    torch.save(torch.ones(1, 8, 2, 3), tmp_path / "7.pth")
    readers = {"scan": read_scan(tmp_path, "dev"), "regions": read_bottom_up(tmp_path / "a.tsv")}
    for name, items in (readers | {"grid": read_grid_feats(tmp_path)}).items():
        import_features(items, tmp_path / f"{name}.h5", StoreDescription(name)).close()
    assert len(FeatureStore(tmp_path / "scan.h5")) == 2
    region, grid = FeatureStore(tmp_path / "regions.h5").get(42), FeatureStore(tmp_path / "grid.h5").get(7)
    np.testing.assert_allclose(region.boxes, [[0.1, 0.1, 0.5, 0.5], [0, 0, 1, 1]], atol=1e-7)
    assert (region.size, grid.grid, grid.values.shape) == ((100, 50), (2, 3), (6, 8))


def test_grids_that_grow_in_memory_are_rejected(tmp_path):
    torch.save(torch.ones(1).expand(1, 8, 200, 200), tmp_path / "1.pth")
    with pytest.raises(DataError, match=r"expected floating-point \(1, D, H, W\) in .*1\.pth, got .*200, 200"):
        list(read_grid_feats(tmp_path))
    torch.save(torch.zeros(1, 64, 32, 32), tmp_path / "1.pth")
    with zipfile.ZipFile(tmp_path / "1.pth") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(tmp_path / "1.pth", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    with pytest.raises(DataError, match=r"expected a complete tensor in .*1\.pth"):
        list(read_grid_feats(tmp_path))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(1, 2, 3, 4).to_sparse(),
        torch.zeros(1, 2, 3, 4, dtype=torch.long),
        torch.zeros(1, 0, 3, 4),
        torch.zeros(2, 2, 3, 4),
    ],
    ids=["sparse", "integers", "empty", "two"],
)
def test_other_tensors_are_rejected(tmp_path, tensor):
    torch.save(tensor, tmp_path / "1.pth")
    with pytest.raises(DataError, match="read_grid_feats: expected"):
        list(read_grid_feats(tmp_path))


def test_files_of_different_encoders_are_rejected(tmp_path):
    for number, dim in enumerate((4, 4, 5)):
        torch.save(torch.zeros(1, dim, 2, 2), tmp_path / f"{number}.pth")
    with pytest.raises(DataError, match=r"expected 4 features per location, got \(4, 5\) in .*2\.pth"):
        list(read_grid_feats(tmp_path))


def test_a_name_with_other_digits_is_read(tmp_path):
    torch.save(torch.zeros(1, 4, 2, 2), tmp_path / "².pth")
    assert [item.id for item in read_grid_feats(tmp_path)] == ["²"]


@pytest.mark.parametrize("dtype", ["U3", "c8", "O", "M8[s]", "f4,i4"])
def test_arrays_of_other_types_are_rejected(tmp_path, dtype):
    np.save(tmp_path / "dev_ims.npy", np.zeros((2, 3, 4), dtype), allow_pickle=True)
    (tmp_path / "dev_caps.txt").write_text("a\nb\n")
    with pytest.raises(DataError, match="open_scan: expected"):
        open_scan(tmp_path, "dev")
