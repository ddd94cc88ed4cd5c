"""The index in LanceDB: the same calls and results as the exact index, and nothing lost or doubled by many writers."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

from foveate.apps.cli import main
from foveate.errors import DataError, ShapeError
from foveate.lab.search import Index, IndexDescription, LanceIndex, build_index, open_index, search_by_text
from foveate.lab.search import lance_index as module
from tests.lab.search.runs import Colours, Contrary, paint

pytest.importorskip("lancedb", reason='needs the extra "scale"')


def some(count: int, dim: int = 8, seed: int = 0) -> Tensor:
    return torch.nn.functional.normalize(torch.randn(count, dim, generator=torch.Generator().manual_seed(seed)), dim=1)


def filled(location: Path, count: int, dim: int = 8, **options) -> LanceIndex:
    index = LanceIndex.create(location, IndexDescription(dim, **options))
    assert index.add([f"p{n}" for n in range(count)], some(count, dim)) == count
    return index


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_it_finds_what_the_exact_index_finds(tmp_path: Path, dtype: str) -> None:
    index = filled(tmp_path / "a.lance", 50, dtype=dtype)
    exact = Index.create(tmp_path / "exact", IndexDescription(8, dtype=dtype))
    exact.add([f"p{n}" for n in range(50)], some(50))
    queries = some(3, seed=1)
    found, expected = index.search(queries, top=7), exact.search(queries, top=7)
    torch.testing.assert_close(found.scores, expected.scores)
    for row, other in zip(found.positions, expected.positions, strict=True):
        assert index.names(row.tolist()) == exact.names(other.tolist())
    assert index.search(queries, top=99).positions.shape == (3, 50)
    assert index.names([]) == []


def test_a_name_is_added_once(tmp_path: Path) -> None:
    index = filled(tmp_path / "a.lance", 10)
    names = ["p3", "it's", "ein Mädchen", ""]
    assert index.missing([*names, "p9"]) == names[1:]
    assert index.add(names, some(4, seed=2)) == 3
    assert index.add(names, some(4, seed=3)) == 0
    again = open_index(tmp_path / "a.lance")
    assert len(again) == 13
    assert "it's" in again  # type: ignore[operator]
    [place] = again.search(some(4, seed=2)[1:2], top=1).positions[0].tolist()
    assert again.names([place]) == ["it's"]
    assert index.add([], torch.zeros(0, 8)) == 0


def test_description_and_sizes_come_back(tmp_path: Path) -> None:
    index = LanceIndex.create(tmp_path / "a.lance", IndexDescription(8, "images", "runs/dan", "abc", "float32"))
    index.add(["a", "b"], some(2), [(4, 3), (7, 9)])
    index.add(["c"], some(1))
    again = pickle.loads(pickle.dumps(index))
    assert again.description == IndexDescription(8, "images", "runs/dan", "abc", "float32")
    assert again.sizes(["a", "b", "c", "d"]) == {"a": (4, 3), "b": (7, 9)}


def test_readers_go_on_with_what_they_opened(tmp_path: Path) -> None:
    index = filled(tmp_path / "a.lance", 5)
    reader = LanceIndex(tmp_path / "a.lance")
    index.add(["new"], some(1, seed=9))
    assert (len(reader), len(index)) == (5, 6)
    reader.refresh()
    assert len(reader) == 6


@pytest.mark.parametrize(
    ("exact", "graph", "length", "kind"),
    [(500, 900, 1, "hnsw"), (500, 900, 3, "hnsw"), (100, 200, 1, "ivf-pq-l2-4"), (100, 200, 3, "ivf-sq-dot-4")],
)
def test_the_index_of_vectors_is_chosen_by_size_and_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exact: int, graph: int, length: int, kind: str
) -> None:
    monkeypatch.setattr(module, "EXACT", exact)
    monkeypatch.setattr(module, "GRAPH", graph)
    monkeypatch.setattr(module, "PARTITION", 200)
    index = LanceIndex.create(tmp_path / "a.lance", IndexDescription(16, dtype="float32"))
    lengths = torch.linspace(1, length, 800)[:, None]
    index.add([f"p{n}" for n in range(90)], some(90, 16) * lengths[:90])
    index.finish()
    assert [one.name for one in index._table.list_indices()] == ["names"]
    index.add([f"q{n}" for n in range(710)], some(710, 16, seed=1) * lengths[90:])
    index.finish()
    index.finish()  # nothing is left to do
    kinds = sorted(one.name for one in index._table.list_indices())
    assert kinds == [kind, "names"]
    assert all(one.num_unindexed_rows == 0 for one in index._table.list_indices())
    queries = some(50, 16, seed=2)
    found, expected = index.search(queries), LanceIndex(tmp_path / "a.lance", exact=True).search(queries)
    again = LanceIndex(tmp_path / "a.lance").search(queries)
    assert torch.equal(again.scores, found.scores)
    right = (found.positions[:, :, None] == expected.positions[:, None]).any(1).float().mean()
    assert float(right) >= 0.95
    torch.testing.assert_close(found.scores[:, 0], expected.scores[:, 0], atol=0.1, rtol=0)


def test_a_grown_table_is_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert module._serves("ivf-pq-l2-4", "ivf-pq-l2-15")
    assert not module._serves("ivf-pq-l2-4", "ivf-pq-l2-16")
    assert not module._serves("hnsw", "ivf-pq-l2-4")
    assert not module._serves("ivf-pq-4", "ivf-pq-l2-4")  # of earlier versions, which missed more
    for name, value in {"EXACT": 100, "GRAPH": 100, "PARTITION": 150}.items():
        monkeypatch.setattr(module, name, value)
    index = filled(tmp_path / "a.lance", 300, dim=16, dtype="float32")
    index.finish()
    assert {one.name for one in index._table.list_indices()} == {"names", "ivf-pq-l2-2"}
    index.add([f"q{n}" for n in range(1000)], some(1000, 16, seed=1))
    index.finish()
    assert {one.name for one in index._table.list_indices()} == {"names", "ivf-pq-l2-8"}


def test_build_search_and_rerank(tmp_path: Path) -> None:
    paths = paint(tmp_path / "photos")
    built = build_index(tmp_path / "a.lance", Colours(), paths[:9], weights="abc")
    assert (built.added, len(built.index)) == (9, 9)
    again = build_index(str(tmp_path / "a.lance"), Colours(), paths, weights="abc", batch_size=5)
    assert (again.added, len(again.index)) == (3, 12)
    assert isinstance(again.index, LanceIndex)
    assert again.index.sizes(paths) == dict.fromkeys(paths, (8, 6))
    exact = build_index(tmp_path / "exact", Colours(), paths, weights="abc", dtype="float32").index
    for reranker in (None, Contrary()):
        found, expected = (
            search_by_text(index, "a blue thing", Colours(), top=4, reranker=reranker, first=8)
            for index in (again.index, exact)
        )
        assert [one.score for one in found] == pytest.approx([one.score for one in expected])
        assert found[0].name == expected[0].name
    with pytest.raises(DataError, match=r"index: expected weights = 'abc' as in .*a\.lance, got 'x'"):
        build_index(tmp_path / "a.lance", Colours(), paths, weights="x")


def test_errors(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"index: expected a table of LanceDB at .*, got Table 'no' was not found"):
        open_index(tmp_path / "no.lance")
    with pytest.raises(DataError, match=r"index: expected a table such as photos.lance, got x"):
        LanceIndex("x")
    index = filled(tmp_path / "a.lance", 3)
    with pytest.raises(DataError, match=r"index: expected no table at .*, got one of IndexDescription"):
        LanceIndex.create(tmp_path / "a.lance", IndexDescription(9))
    with pytest.raises(ShapeError):
        index.add(["x"], torch.zeros(1, 7))
    with pytest.raises(DataError, match="expected vectors that are finite in float16, got others for 'x'"):
        index.add(["x"], torch.full((1, 8), 1e9))
    with pytest.raises(DataError, match="expected new names, got 'x' again"):
        index.add(["x", "x"], torch.zeros(2, 8))
    with pytest.raises(ValueError, match="expected finite queries"):
        index.search(torch.full((1, 8), torch.inf))
    module._connect(str(tmp_path)).create_table("other", [{"a": 1}])
    with pytest.raises(DataError, match=r"index: expected a table written by foveate index, got .*other.lance"):
        open_index(tmp_path / "other.lance")


WRITER = """
import os, sys, time
import torch
from foveate.lab.search import LanceIndex
location, first, last, size, crash = sys.argv[1], *map(int, sys.argv[2:6])
index = LanceIndex(location)
for number, start in enumerate(range(first, last, size)):
    if number == crash:
        os.kill(os.getpid(), 9)
    names = [f"p{n}" for n in range(start, min(start + size, last))]
    vectors = torch.tensor([[float(name[1:]), 1.0] for name in names])
    index.add(names, vectors)
    print(start, flush=True)
"""


def writer(location: Path, first: int, last: int, size: int, crash: int = -1) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(location), *map(str, (first, last, size, crash))]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> int:
    """The exit code of a writer, after its output is closed."""
    process.communicate()
    return process.returncode


def contents(location: Path) -> list[str]:
    return sorted(LanceIndex(location)._table.to_arrow()["name"].to_pylist())


def test_writers_at_the_same_moment_add_a_name_once(tmp_path: Path) -> None:
    location = tmp_path / "a.lance"
    LanceIndex.create(location, IndexDescription(2, dtype="float32"))
    names = [f"p{n}" for n in range(40)]

    def add(index: LanceIndex) -> None:
        for start in range(0, len(names), 10):
            index.add(names[start : start + 10], torch.ones(10, 2))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, [LanceIndex(location) for _ in range(4)]))
    assert contents(location) == sorted(names)


def test_several_writers_of_the_same_names_add_each_once(tmp_path: Path) -> None:
    location = tmp_path / "a.lance"
    LanceIndex.create(location, IndexDescription(2, dtype="float32"))
    started = [writer(location, 0, 120, 12), writer(location, 0, 120, 10), writer(location, 60, 180, 15)]
    assert [ended(process) for process in started] == [0, 0, 0]
    assert contents(location) == sorted(f"p{n}" for n in range(180))
    index = LanceIndex(location)
    index.finish()  # compaction keeps every row
    assert contents(location) == sorted(f"p{n}" for n in range(180))
    rows = index._table.to_arrow()
    numbers = [vector[0] for vector in rows["vector"].to_pylist()]
    assert numbers == [float(name[1:]) for name in rows["name"].to_pylist()]


@pytest.mark.slow
def test_killed_writers_lose_and_double_nothing(tmp_path: Path) -> None:
    location = tmp_path / "a.lance"
    LanceIndex.create(location, IndexDescription(2, dtype="float32"))
    confirmed = 0
    for attempt in range(4):  # two processes, each killed at another moment, between additions and inside one
        crashing, other = writer(location, 0, 400, 10, crash=attempt + 1), writer(location, 200, 400, 10)
        assert other.stdout is not None
        for _ in range(attempt + 1):
            confirmed = max(confirmed, int(other.stdout.readline() or 0))
        other.kill()
        assert (ended(crashing), ended(other)) == (-9, -9)
        names = contents(location)
        assert len(names) == len(set(names))
        assert {f"p{n}" for n in range(200, confirmed + 10)} <= set(names)
    assert ended(writer(location, 0, 400, 10)) == 0
    assert contents(location) == sorted(f"p{n}" for n in range(400))


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def load(where: str, run: str, device: str | None = None) -> tuple[Colours, str, str]:
        return Colours(), run, "abc"

    monkeypatch.setattr("foveate.lab.hub.load_embedder", load)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("runs")
def test_commands(capsys: pytest.CaptureFixture[str]) -> None:
    paint(Path("photos"))
    assert main(["index", "dan", "photos", "a.lance"]) == 0
    assert capsys.readouterr().out == "12 images added, 12 in a.lance\n"
    Image.new("RGB", (4, 4), "yellow").save("photos/yellow.png")
    Path("photos/broken.jpg").write_bytes(b"nothing")
    assert main(["index", "dan", "photos", "a.lance"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "1 images added, 13 in a.lance\n"
    assert "skipped" in shown.err
    assert main(["search", "a.lance", "something blue", "--top", "3"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if ".png" in line]
    assert len(lines) == 3
    assert "blue0.png" in lines[0]


@pytest.mark.usefixtures("runs")
def test_several_processes_need_a_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    paint(Path("photos"))
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["index", "dan", "photos", "found"]) == 1
    assert "index: expected a table that several processes can fill, got found" in capsys.readouterr().err


@pytest.mark.slow
def test_processes_of_torchrun_fill_one_table(tmp_path: Path) -> None:
    paths = paint(tmp_path / "photos", shades=5)
    command = ["torchrun", "--nproc-per-node", "2", "--standalone", "-m", "tests.lab.search.index_colours"]
    arguments = ["index", "dan", str(tmp_path / "photos"), str(tmp_path / "a.lance"), "--batch-size", "3"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [str(Path(sys.executable).with_name("torchrun")), *command[1:], *arguments],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    assert "10 images added" in done.stdout
    assert contents(tmp_path / "a.lance") == sorted(paths)
