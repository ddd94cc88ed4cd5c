from __future__ import annotations

import json
import os
import pickle
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from foveate import io as writing
from foveate.errors import DataError, ShapeError, UnknownName
from foveate.lab.search import Index, IndexDescription, build_index, parts
from foveate.lab.search import exact_index as module
from foveate.lab.search.parts import write_part
from tests.lab.search.runs import Colours, paint
from tests.lab.train.forks import die, forked, wait
from tests.mutations import rounds


def some(count: int, dim: int = 4, seed: int = 0) -> Tensor:
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(seed))


def filled(directory: Path, *counts: int, **options) -> Index:
    """An index built by additions of these sizes, its vectors named by their positions."""
    index = Index.create(directory, IndexDescription(4, **options))
    for number, count in enumerate(counts):
        start = len(index)
        index.add([f"p{n}" for n in range(start, start + count)], some(count, seed=number))
    return index


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("*.safetensors"))


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


def test_finish_joins_the_small_parts_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SMALL", 8)
    index = filled(tmp_path / "i", 3, 2, 9, 1, 4, 2)
    expected = torch.cat([block for _, block in index.blocks(50)])
    assert [len(part) for part in index._parts] == [3, 2, 9, 1, 4, 2]
    index.finish()
    for one in (index, Index(tmp_path / "i")):
        assert [len(part) for part in one._parts] == [3, 2, 9, 7]  # a large part is not copied again
        assert [one.name(n) for n in range(21)] == [f"p{n}" for n in range(21)]
        assert torch.equal(torch.cat([block for _, block in one.blocks(3)]), expected)
    assert len(files(tmp_path / "i")) == 4
    before = files(tmp_path / "i")
    index.finish()
    assert files(tmp_path / "i") == before
    index.add([f"q{n}" for n in range(3)], some(3))
    index.finish()
    assert [len(part) for part in index._parts] == [3, 2, 9, 10]
    index.add(["last"], some(1))
    index.finish()
    assert [len(part) for part in index._parts] == [3, 2, 9, 10, 1]


def test_a_build_leaves_one_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foveate.lab.search.builder.SAVE_EVERY", 3)
    paths = paint(tmp_path / "photos")
    build_index(tmp_path / "i", Colours(), paths[:5], batch_size=2)
    build_index(tmp_path / "i", Colours(), paths, batch_size=2)
    assert len(files(tmp_path / "i")) == 1
    assert Index(tmp_path / "i").names(range(len(paths))) == paths


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
    index.add(["more"] + [f"m{n}" for n in range(4)], some(5))
    index.finish()  # joins both parts and removes their files
    assert len(files(tmp_path / "i")) == 1
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
    with (
        module._writing(tmp_path / "i"),
        pytest.raises(DataError, match=r"exclusive access to .*, got a lock held by another program that adds"),
    ):
        first.add(["c"], some(1))
    first.add(["c"], some(1))
    assert len(Index(tmp_path / "i")) == 4


def extend(index: Index) -> None:
    index.add([f"q{n}" for n in range(5)], some(5, seed=1))


def change_until_killed(directory: Path, change: Callable[[Index], object], at: int) -> None:
    """Change an index, and die at the call with that number of what touches the disk."""
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
    parts.write_tensors = counted(parts.write_tensors)
    change(Index(directory))


@pytest.mark.parametrize(("change", "sizes"), [(extend, {5, 10}), (Index.finish, {5})])
def test_a_kill_leaves_the_old_index_or_the_new_one(
    tmp_path: Path, change: Callable[[Index], object], sizes: set[int]
) -> None:
    seen, count = set(), set()
    for at in range(1, 40):
        directory = tmp_path / str(at)
        filled(directory, 3, 2)
        ended = wait(forked(lambda at=at, directory=directory: change_until_killed(directory, change, at)))
        index = Index(directory)
        index.verify()
        seen.add(len(index))
        count.add(len(index._parts))
        names, vectors = [f"p{n}" for n in range(5)], torch.cat([some(3), some(2, seed=1)])
        if len(index) == 10:
            names, vectors = names + [f"q{n}" for n in range(5)], torch.cat([vectors, some(5, seed=1)])
        assert [index.name(n) for n in range(len(index))] == names
        assert torch.equal(torch.cat([block for _, block in index.blocks(50)]), vectors.half())
        index.add(["after"], some(1))  # and what the kill left beside it is gone
        assert len(files(directory)) == len(Index(directory)._parts)
        assert len(Index(directory)) == len(names) + 1
        if ended == 0:
            break
    assert ended == 0
    assert at > 8
    assert seen == sizes
    assert count == ({2, 3} if change is extend else {1, 2})


def test_leftovers_are_no_part_of_the_index(tmp_path: Path) -> None:
    index = filled(tmp_path / "i", 4)
    write_part(tmp_path / "i" / "vectors-000002.safetensors", some(9), [str(n) for n in range(9)])
    (tmp_path / "i" / "notes.txt").write_text("mine")
    assert len(Index(tmp_path / "i")) == 4
    index.add(["a"], some(1))
    assert len(Index(tmp_path / "i")) == 5
    assert (tmp_path / "i" / "notes.txt").exists()


def damage(directory: Path, how: str) -> None:
    [name] = files(directory)
    part, manifest = directory / name, directory / "index.json"
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
        case "parts a text":
            content["parts"] = ""
        case "parts an object":
            content["parts"] = {}
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
        seal(manifest, content)


def seal(manifest: Path, content: dict) -> None:
    """Write index.json with a valid checksum, as a hostile program would."""
    manifest.write_text(json.dumps(content | {"checksum": module.manifest_checksum(content)}))


def _bytes(text: str) -> Tensor:
    return torch.tensor(list(text.encode()), dtype=torch.uint8)


DAMAGES = (
    "cut grown removed foreign empty,huge header,other rows,other dim,other type,no rows,outside,no number,no parts,"
    "parts no list,parts a text,parts an object,unknown kind,no mark,names cut,ends fall,no names,more tensors,"
    "named twice"
)


@pytest.mark.parametrize("how", [*DAMAGES.split(",")[0].split(), *DAMAGES.split(",")[1:]])
def test_damage_raises_data_error(tmp_path: Path, how: str) -> None:
    filled(tmp_path / "i", 3)
    damage(tmp_path / "i", how)
    with pytest.raises(DataError, match=r"index: expected an intact index, got .*; copy it again or write it again"):
        Index(tmp_path / "i")


def flip(path: Path, at: int, bit: int = 0) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1 << bit
    path.write_bytes(raw)


def read(directory: Path, **options: bool) -> tuple:
    """Everything that a search shows of an index."""
    index = Index(directory, **options)
    found = index.search(some(2, seed=9), top=5)
    names = [[index.name(n) for n in row] for row in found.positions.tolist()]
    return index.description, names, found.scores.tolist(), [index.vector(n).tolist() for n in range(len(index))]


def test_a_changed_number_is_noticed_when_read_and_never_copied(tmp_path: Path) -> None:
    filled(tmp_path / "i", 3, 1)
    name, _ = files(tmp_path / "i")
    flip(tmp_path / "i" / name, (tmp_path / "i" / name).read_bytes().index(some(3).half().numpy().tobytes()))
    index = Index(tmp_path / "i")
    reads = {
        "verify": index.verify,
        "search": lambda: index.search(some(1)),
        "vector": lambda: index.vector(0),
        "name": lambda: index.name(0),
        "contains": lambda: "p1" in index,
        "blocks": lambda: list(index.blocks(2)),
        "add": lambda: index.add(["q"], some(1)),
        "finish": lambda: index.finish(),
        "finish unverified": lambda: Index(tmp_path / "i", verify=False).finish(),
    }
    for use in reads.values():
        with pytest.raises(DataError, match="another checksum than it was written with"):
            use()
    assert len(Index(tmp_path / "i")) == 4


def test_verification_can_be_switched_off(tmp_path: Path) -> None:
    index = filled(tmp_path / "i", 3)
    [name] = files(tmp_path / "i")
    flip(tmp_path / "i" / name, (tmp_path / "i" / name).read_bytes().index(some(3).half().numpy().tobytes()))
    assert pickle.loads(pickle.dumps(Index(tmp_path / "i", verify=False))).search(some(1)).positions.shape == (1, 3)
    content = json.loads((tmp_path / "i" / "index.json").read_text())
    (tmp_path / "i" / "index.json").write_text(json.dumps(content | {"run": "moved"}))
    assert Index(tmp_path / "i", verify=False).description.run == "moved"
    with pytest.raises(DataError, match=r"index.json, which cannot be read \(another checksum"):
        Index(tmp_path / "i")
    assert len(index) == 3


def test_parts_are_verified_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path / "i", 3, 1)
    count = 0
    real = parts.part_checksum

    def counted(header: bytes, *tensors: Tensor) -> str:
        nonlocal count
        count += 1
        return real(header, *tensors)

    monkeypatch.setattr(parts, "part_checksum", counted)
    index = Index(tmp_path / "i")
    assert count == 0
    for _ in range(3):
        index.search(some(2))
        index.name(3)
    assert count == 2


def test_every_byte_of_a_part_is_covered(tmp_path: Path) -> None:
    filled(tmp_path / "i", 3)
    [name] = files(tmp_path / "i")
    whole = (tmp_path / "i" / name).read_bytes()
    for at in range(len(whole)):
        flip(tmp_path / "i" / name, at, at % 8)
        with pytest.raises(DataError):
            read(tmp_path / "i")
        (tmp_path / "i" / name).write_bytes(whole)


def test_pages_cannot_change_places() -> None:
    data = torch.arange(8192).to(torch.uint8)
    data[4096:] += 1
    swapped, longer = torch.cat([data[4096:], data[:4096]]), torch.cat([data, torch.zeros(1, dtype=torch.uint8)])
    different = [(b"h", data), (b"h", swapped), (b"h", longer), (b"h", data[:-1]), (b"g", data)]
    assert len({parts.part_checksum(*one) for one in different}) == 5


def test_a_part_that_is_no_plain_file(tmp_path: Path) -> None:
    filled(tmp_path / "i", 3)
    [name] = files(tmp_path / "i")
    (tmp_path / "i" / name).unlink()
    os.mkfifo(tmp_path / "i" / name)
    with pytest.raises(DataError, match="no such file"):
        Index(tmp_path / "i")


NONSENSE = (None, True, -1, 0, 10**40, 1.5, float("nan"), "", "\ud800", "x" * 300, [], {}, [[]], "../x", "images")


def mutate(directory: Path, rng: random.Random) -> None:
    """Damage one file of an index in one of several ways."""
    path = rng.choice(sorted(path for path in directory.iterdir() if path.name != ".lock"))
    raw, at = bytearray(path.read_bytes()), rng.randrange(path.stat().st_size)
    content = json.loads((directory / "index.json").read_text())
    match rng.randrange(7):
        case 0:
            raw[at] ^= 1 << rng.randrange(8)
        case 1:
            raw[at : at + rng.randrange(1, 40)] = rng.randbytes(rng.randrange(40))
        case 2:
            del raw[at:]
        case 3:
            raw[at : at + 8] = rng.choice([0, 1, 2**31, 2**63, 2**64 - 1]).to_bytes(8, "little")
        case 4:
            raw += raw[at:]
        case _:
            place = rng.choice([content, *content["parts"]])
            place[rng.choice(sorted(place))] = rng.choice(NONSENSE)
            if rng.randrange(2):
                place[str(at)] = rng.choice(NONSENSE)
            seal(directory / "index.json", content)
            return
    path.write_bytes(raw)


@pytest.mark.parametrize("seed", range(4))
def test_fuzzed_files_raise_data_error_or_change_nothing(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    filled(tmp_path / "i", 9, 4, 2, run="runs/dan", weights="abc")
    whole, noticed = read(tmp_path / "i"), 0
    for number in range(rounds(80)):
        directory = tmp_path / str(number)
        shutil.copytree(tmp_path / "i", directory)
        mutate(directory, rng)
        try:
            found = read(directory)
        except DataError:
            noticed += 1
        else:
            # a program that seals its own index.json may list no parts, but not change vectors, names or their order
            assert found[1:] == whole[1:] or found[3] == []
        shutil.rmtree(directory)
    assert noticed > rounds(60)


def test_names_that_are_no_text(tmp_path: Path) -> None:
    filled(tmp_path / "i", 1)
    [name] = files(tmp_path / "i")
    one = {
        "vectors": torch.zeros(1, 4).half(),
        "ends": torch.tensor([1]),
        "names": torch.tensor([255], dtype=torch.uint8),
    }
    save_file(one, tmp_path / "i" / name)
    index = Index(tmp_path / "i", verify=False)
    with pytest.raises(DataError, match="codec can't decode byte 0xff"):
        index.name(0)
    with pytest.raises(DataError, match="codec can't decode byte 0xff"):
        _ = "a" in index


def test_a_manifest_that_is_cut_or_newer(tmp_path: Path) -> None:
    filled(tmp_path / "i", 3)
    manifest = tmp_path / "i" / "index.json"
    content = json.loads(manifest.read_text())
    seal(manifest, content | {"version": 3})
    with pytest.raises(DataError, match=r"expected version 2 in .*, got 3; another version of foveate wrote it"):
        Index(tmp_path / "i")
    for nonsense in (0, -1, True, "2", 2.0, None, [2]):
        seal(manifest, content | {"version": nonsense})
        with pytest.raises(DataError, match="no version"):
            Index(tmp_path / "i")
    manifest.write_text(json.dumps(content)[:40])
    with pytest.raises(DataError, match=r"index: expected .*index.json"):
        Index(tmp_path / "i")


def test_a_full_disk_keeps_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = filled(tmp_path / "i", 3)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("foveate.lab.search.parts.write_tensors", full)
    with pytest.raises(DataError, match=r"atomic_write: expected to write .* No space left on device"):
        index.add(["a"], some(1))
    monkeypatch.undo()
    assert len(Index(tmp_path / "i")) == len(index) == 3
    index.add(["a"], some(1))
    assert Index(tmp_path / "i").name(3) == "a"


def test_errors(tmp_path: Path) -> None:
    index = filled(tmp_path / "i", 3)
    with pytest.raises(
        DataError, match=r"index: expected the directory of an index, got .* without index.json; foveate ind"
    ):
        Index(tmp_path / "nothing")
    with pytest.raises(DataError, match="index: expected a new or empty directory, got"):
        Index.create(tmp_path / "i", IndexDescription(4))
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="index: expected to create the directory"):
        Index.create(tmp_path / "file" / "i", IndexDescription(4))
    with pytest.raises(DataError, match=r"Index.add: expected new names, got 'p1' again; skip what the index has"):
        index.add(["p1"], some(1))
    with pytest.raises(DataError, match=r"Index.add: expected new names, got 'a' again"):
        index.add(["a", "a"], some(2))
    with pytest.raises(ShapeError, match=r"Index.add: expected vectors \(n, D\) of sizes \(1, 4\), got \(2, 4\)"):
        index.add(["a"], some(2))
    with pytest.raises(DataError, match=r"Index.add: expected vectors that are finite in float16, got others for 'b'"):
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
