from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from foveate.data import writing
from foveate.errors import DataError, ShapeError, UnknownName
from foveate.search import Index, IndexDescription, parts
from foveate.search import index as module
from foveate.search.parts import write_part
from tests.train.forks import die, forked, wait


def some(count: int, dim: int = 4, seed: int = 0) -> Tensor:
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(seed))


def filled(folder: Path, *counts: int, **options) -> Index:
    """An index of so many additions, its vectors called by their positions."""
    index = Index.create(folder, IndexDescription(4, **options))
    for number, count in enumerate(counts):
        start = len(index)
        index.add([f"p{n}" for n in range(start, start + count)], some(count, seed=number))
    return index


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.safetensors"))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_what_was_added_comes_back(tmp_path: Path, dtype: str) -> None:
    index = filled(tmp_path / "i", 3, 5, 1, dtype=dtype, run="runs/dan", weights="abc", kind="texts")
    again = Index(tmp_path / "i")
    assert again.description == index.description == IndexDescription(4, "texts", "runs/dan", "abc", dtype)
    everything = torch.cat([some(3, seed=0), some(5, seed=1), some(1, seed=2)])
    kept = everything.to(getattr(torch, dtype))
    for one in (index, again):
        assert len(one) == 9
        assert [one.name(n) for n in range(9)] == [f"p{n}" for n in range(9)]
        assert torch.equal(torch.cat([block for _, block in one.blocks(2)]), kept)
        assert next(start for start, _ in one.blocks(100)) == 0
        assert torch.equal(one.vector(4), kept[4].float())
        assert "p8" in one
        assert "p9" not in one
        one.verify()
    found = again.search(everything[:2], top=3)
    values, places = (everything[:2] @ kept.float().T).topk(3)
    assert torch.equal(found.positions, places)
    torch.testing.assert_close(found.scores, values)


def test_names_are_any_text(tmp_path: Path) -> None:
    names = ["ein Mädchen", "", "猫", "a\nb", "x" * 5000]
    index = Index.create(tmp_path / "i", IndexDescription(4))
    index.add(names[:2], some(2))
    index.add(names[2:], some(3))
    assert [Index(tmp_path / "i").name(n) for n in range(5)] == names
    alone = Index.create(tmp_path / "j", IndexDescription(4))
    alone.add([""], some(1))
    assert Index(tmp_path / "j").name(0) == ""


def test_small_parts_are_taken_in_and_full_ones_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FULL", 8)
    index, sizes = filled(tmp_path / "i"), []
    for n in range(20):
        index.add([f"p{n}"], some(1, seed=n))
        sizes.append([len(part) for part in index._parts])
        assert len(files(tmp_path / "i")) == len(index._parts)
    assert sizes[:4] == [[1], [2], [2, 1], [4]]
    assert sizes[-1] == [8, 8, 4]
    expected = torch.cat([some(1, seed=n) for n in range(20)]).half()
    assert torch.equal(torch.cat([block for _, block in Index(tmp_path / "i").blocks(3)]), expected)
    assert [index.name(n) for n in range(20)] == [f"p{n}" for n in range(20)]
    index.add([f"q{n}" for n in range(9)], some(9))
    assert [len(part) for part in index._parts] == [8, 8, 4, 9]


def test_an_empty_index_and_an_empty_addition(tmp_path: Path) -> None:
    index = filled(tmp_path / "i")
    index.add([], torch.zeros(0, 4))
    assert len(Index(tmp_path / "i")) == 0
    assert files(tmp_path / "i") == []
    assert index.search(torch.ones(1, 4)).positions.shape == (1, 0)


def test_an_index_goes_to_other_processes(tmp_path: Path) -> None:
    index = filled(tmp_path / "i", 3)
    assert pickle.loads(pickle.dumps(index)).name(2) == "p2"


def test_readers_go_on_with_what_they_opened(tmp_path: Path) -> None:
    index = filled(tmp_path / "i", 3)
    reader = Index(tmp_path / "i")
    index.add(["more"] + [f"m{n}" for n in range(4)], some(5))  # takes the first part in and removes its file
    assert len(reader) == 3
    assert torch.equal(torch.cat([block for _, block in reader.blocks(2)]), some(3).half())


def test_two_writers_do_not_lose_vectors(tmp_path: Path) -> None:
    first = filled(tmp_path / "i", 2)
    second = Index(tmp_path / "i")
    first.add(["a"], some(1))
    with pytest.raises(
        DataError, match=r"expected .* as it was opened, got one that has changed since; another program"
    ):
        second.add(["b"], some(1))
    with module._writing(tmp_path / "i"), pytest.raises(DataError, match="for itself, got another program that adds"):
        first.add(["c"], some(1))
    first.add(["c"], some(1))
    assert len(Index(tmp_path / "i")) == 4


def add_until_killed(folder: Path, at: int) -> None:
    """Add to an index, and die at the call with that number of what touches the disk."""
    calls = 0

    def counted(function):
        def call(*arguments, **options):
            nonlocal calls
            calls += 1
            if calls == at:
                die()
            return function(*arguments, **options)

        return call

    writing.sync, os.replace, Path.unlink = counted(writing.sync), counted(os.replace), counted(Path.unlink)
    parts.save_file = counted(parts.save_file)
    Index(folder).add([f"q{n}" for n in range(5)], some(5, seed=1))


def test_a_kill_leaves_the_old_index_or_the_new_one(tmp_path: Path) -> None:
    seen = set()
    for at in range(1, 40):
        folder = tmp_path / str(at)
        filled(folder, 3)
        ended = wait(forked(lambda at=at, folder=folder: add_until_killed(folder, at)))
        index = Index(folder)
        index.verify()
        seen.add(len(index))
        names, vectors = [f"p{n}" for n in range(3)], some(3)
        if len(index) == 8:
            names, vectors = names + [f"q{n}" for n in range(5)], torch.cat([vectors, some(5, seed=1)])
        assert [index.name(n) for n in range(len(index))] == names
        assert torch.equal(torch.cat([block for _, block in index.blocks(50)]), vectors.half())
        index.add(["after"], some(1))  # and what the kill left beside it is gone
        assert len(files(folder)) == len(Index(folder)._parts)
        assert len(Index(folder)) == len(names) + 1
        if ended == 0:
            break
    assert ended == 0
    assert at > 8
    assert seen == {3, 8}


def test_leftovers_are_no_part_of_the_index(tmp_path: Path) -> None:
    index = filled(tmp_path / "i", 4)
    write_part(tmp_path / "i" / "vectors-000002.safetensors", some(9), [str(n) for n in range(9)])
    (tmp_path / "i" / "notes.txt").write_text("mine")
    assert len(Index(tmp_path / "i")) == 4
    index.add(["a"], some(1))
    assert len(Index(tmp_path / "i")) == 5
    assert (tmp_path / "i" / "notes.txt").exists()


def damage(folder: Path, how: str) -> None:
    [name] = files(folder)
    part, manifest = folder / name, folder / "index.json"
    content = json.loads(manifest.read_text())
    match how:
        case "cut":
            os.truncate(part, part.stat().st_size - 8)
        case "grown":
            part.write_bytes(part.read_bytes() + bytes(8))
        case "removed":
            part.unlink()
        case "foreign":
            part.write_bytes(b"not tensors at all")
        case "empty":
            part.write_bytes(b"")
        case "huge header":
            part.write_bytes((1 << 60).to_bytes(8, "little") + b"{}")
        case "other rows":
            content["parts"][0]["rows"] = 10**15
        case "other dim":
            content["dim"] = 10**15
        case "other type":
            content["dtype"] = "float32"
        case "no rows":
            content["parts"][0]["rows"] = 0
        case "outside":
            content["parts"][0]["file"] = "../vectors-000001.safetensors"
        case "no number":
            content["parts"][0]["rows"] = "3"
        case "no parts":
            del content["parts"]
        case "parts no list":
            content["parts"] = 3
        case "unknown kind":
            content["kind"] = "sounds"
        case "named twice":
            content["parts"] *= 2
        case "no mark":
            content["format"] = "other"
        case "names cut":
            save_file(
                {"vectors": torch.zeros(3, 4).half(), "ends": torch.tensor([1, 2, 3]), "names": _bytes("ab")}, part
            )
        case "ends fall":
            save_file(
                {"vectors": torch.zeros(3, 4).half(), "ends": torch.tensor([2, 1, 3]), "names": _bytes("abc")}, part
            )
        case "no names":
            save_file({"vectors": torch.zeros(3, 4).half(), "ends": torch.tensor([1, 2, 3])}, part)
        case "more tensors":
            save_file(
                {
                    "vectors": torch.zeros(3, 4).half(),
                    "ends": torch.tensor([1, 2, 3]),
                    "names": _bytes("abc"),
                    "x": torch.zeros(1),
                },
                part,
            )
    if how not in ("cut", "grown", "removed"):
        manifest.write_text(json.dumps(content))


def _bytes(text: str) -> Tensor:
    return torch.tensor(list(text.encode()), dtype=torch.uint8)


DAMAGES = (
    "cut grown removed foreign empty,huge header,other rows,other dim,other type,no rows,outside,no number,no parts,"
    "parts no list,unknown kind,no mark,names cut,ends fall,no names,more tensors,named twice"
)


@pytest.mark.parametrize("how", [*DAMAGES.split(",")[0].split(), *DAMAGES.split(",")[1:]])
def test_damage_is_refused(tmp_path: Path, how: str) -> None:
    filled(tmp_path / "i", 3)
    damage(tmp_path / "i", how)
    with pytest.raises(DataError, match=r"index: expected a whole index, got .*; copy it again or write it again with"):
        Index(tmp_path / "i")


def test_changed_numbers_are_found_by_verify_and_never_copied(tmp_path: Path) -> None:
    index = filled(tmp_path / "i", 3)
    [name] = files(tmp_path / "i")
    raw = bytearray((tmp_path / "i" / name).read_bytes())
    place = raw.index(some(3).half().numpy().tobytes())
    raw[place] ^= 1
    (tmp_path / "i" / name).write_bytes(raw)
    index = Index(tmp_path / "i")
    with pytest.raises(DataError, match="another checksum than it was written with"):
        index.verify()
    with pytest.raises(DataError, match="another checksum than it was written with"):
        index.add([f"q{n}" for n in range(4)], some(4))
    assert len(Index(tmp_path / "i")) == 3


def test_names_that_are_no_text(tmp_path: Path) -> None:
    filled(tmp_path / "i", 1)
    [name] = files(tmp_path / "i")
    one = {
        "vectors": torch.zeros(1, 4).half(),
        "ends": torch.tensor([1]),
        "names": torch.tensor([255], dtype=torch.uint8),
    }
    save_file(one, tmp_path / "i" / name)
    index = Index(tmp_path / "i")
    with pytest.raises(DataError, match="codec can't decode byte 0xff"):
        index.name(0)
    with pytest.raises(DataError, match="codec can't decode byte 0xff"):
        _ = "a" in index


def test_a_manifest_that_is_cut_or_newer(tmp_path: Path) -> None:
    filled(tmp_path / "i", 3)
    manifest = tmp_path / "i" / "index.json"
    content = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(content | {"version": 2}))
    with pytest.raises(DataError, match=r"expected version 1 or older in .*, got 2; a newer foveate wrote it: run pip"):
        Index(tmp_path / "i")
    manifest.write_text(json.dumps(content)[:40])
    with pytest.raises(DataError, match=r"index: expected .*index.json"):
        Index(tmp_path / "i")


def test_a_full_disk_keeps_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = filled(tmp_path / "i", 3)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("foveate.search.parts.save_file", full)
    with pytest.raises(DataError, match=r"write: expected room and rights to write .* No space left on device"):
        index.add(["a"], some(1))
    monkeypatch.undo()
    assert len(Index(tmp_path / "i")) == len(index) == 3
    index.add(["a"], some(1))
    assert Index(tmp_path / "i").name(3) == "a"


def test_refusals(tmp_path: Path) -> None:
    index = filled(tmp_path / "i", 3)
    with pytest.raises(
        DataError, match=r"index: expected the folder of an index, got .* without index.json; foveate ind"
    ):
        Index(tmp_path / "nothing")
    with pytest.raises(DataError, match="index: expected a new or empty folder, got"):
        Index.create(tmp_path / "i", IndexDescription(4))
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="index: expected to make the folder"):
        Index.create(tmp_path / "file" / "i", IndexDescription(4))
    with pytest.raises(DataError, match=r"Index.add: expected new names, got 'p1' again; leave out what is there"):
        index.add(["p1"], some(1))
    with pytest.raises(DataError, match=r"Index.add: expected new names, got 'a' again"):
        index.add(["a", "a"], some(2))
    with pytest.raises(ShapeError, match=r"Index.add: expected vectors \(n, D\) of sizes \(1, 4\), got \(2, 4\)"):
        index.add(["a"], some(2))
    with pytest.raises(DataError, match=r"Index.add: expected vectors that are finite as float16, got another for 'b'"):
        index.add(["a", "b"], torch.tensor([[1.0] * 4, [1e5] * 4]))
    with pytest.raises(TypeError, match=r"Index.add: expected floating-point vectors"):
        index.add(["a"], torch.ones(1, 4, dtype=torch.long))
    with pytest.raises(IndexError, match="Index: expected a position from 0 to 2, got 3; see len"):
        index.name(3)
    with pytest.raises(UnknownName, match="index kind: expected a known name, got 'image'; did you mean 'images'"):
        IndexDescription(4, "image")  # type: ignore[arg-type]
    with pytest.raises(UnknownName, match="index dtype: expected a known name, got 'float64'; did you mean"):
        IndexDescription(4, dtype="float64")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="index: expected vectors of at least one number, got dim=0"):
        IndexDescription(0)
    assert len(index) == 3
