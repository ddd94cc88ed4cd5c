"""Extraction and indexing on a cluster of Ray: the same rows as on one process, also when a node is lost."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

from foveate.errors import DataError
from foveate.lab.data.image_sources import is_stored, named_image, stored_images
from foveate.lab.encoders import directory_images, extract_features, image_views
from foveate.lab.encoders.ray_extraction import RayBlocks, block_row, row_block
from foveate.lab.search import LanceIndex, build_index
from foveate.lab.search.builder import list_sources
from tests.lab.search.cluster import SlowColours, SlowEncoder, load
from tests.lab.search.runs import Colours, paint

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def packed(directory: Path, paths: list[str]) -> Path:
    """The images in two archives, as WebDataset has them, and a text beside each."""
    directory.mkdir()
    for number in range(2):
        with tarfile.open(directory / f"photos-{number}.tar", "w") as archive:
            for path in paths[number::2]:
                archive.add(path, f"sub/{Path(path).name}")
            note = directory / "note.txt"
            note.write_text("no image")
            archive.add(note, "note.txt")
            note.unlink()
    return directory


def test_archives_hold_the_same_images(tmp_path: Path) -> None:
    paths = paint(tmp_path / "photos", shades=2)
    shards = packed(tmp_path / "shards", paths)
    assert is_stored(shards)
    assert is_stored(shards / "photos-0.tar")
    assert not is_stored(tmp_path / "photos")
    records = stored_images(shards)
    assert len(records) == len(paths) == 8
    names = list_sources(str(shards))
    assert names[0] == f"{shards}/photos-0.tar/sub/{Path(paths[0]).name}"
    assert list_sources(str(shards / "photos-1.tar"))[0] == f"{shards}/photos-1.tar/sub/{Path(paths[1]).name}"
    for record, name in zip(records, names, strict=True):
        pixels = directory_images(tmp_path / "photos")
        [same] = [one.pixels() for one in pixels if one.id == Path(name).stem]
        assert np.array_equal(record.pixels(), same)
        assert np.array_equal(named_image(name), same)
    built = build_index(tmp_path / "i", Colours(), names)
    assert built.added == 8
    with pytest.raises(DataError, match=r"images: expected 'no.png' in .*photos-0.tar, got no such member"):
        named_image(f"{shards}/photos-0.tar/no.png")
    (tmp_path / "bad.tar").write_bytes(b"x" * 2000)
    with pytest.raises(DataError, match=r"images: expected a tar archive without compression, got .*bad.tar"):
        stored_images(tmp_path / "bad.tar")
    with pytest.raises(DataError, match=r"images: expected .*nowhere.tar, got nothing there"):
        stored_images(tmp_path / "nowhere.tar")


def test_an_address_is_read_through_its_file_system(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    paths = paint(tmp_path / "photos", shades=1)
    packed(tmp_path / "photos" / "shards", paths)
    address = f"file://{tmp_path}/photos"
    names = list_sources(address)
    assert len(names) == 8
    assert f"{address}/red0.png" in names
    images = {Path(name).stem: named_image(name) for name in names}
    assert {key: tuple(pixels[0, 0].tolist()) for key, pixels in images.items()}["red0"] == (255, 0, 0)
    inside = next(name for name in names if ".tar/" in name and "blue0" in name)
    assert tuple(named_image(inside)[0, 0].tolist()) == (0, 0, 255)


def test_blocks_travel_as_rows_of_plain_lists(tmp_path: Path) -> None:
    from foveate.lab.encoders.extraction import make_blocks

    paths = paint(tmp_path / "photos", shades=1)
    shards = packed(tmp_path / "shards", paths)
    for images in (directory_images(tmp_path / "photos"), stored_images(shards)):
        [block] = make_blocks(image_views(images, 3), 100, ["e"])
        again = row_block(block_row(block))
        assert again.key == block.key
        assert [one.id for one in again.images] == [one.id for one in block.images]
        for one, other in zip(again.images, block.images, strict=True):
            assert np.array_equal(one.pixels(), other.pixels())


def start(two: bool) -> Any:
    """A cluster of one or two nodes with two CPUs each."""
    pytest.importorskip("ray", reason='needs the extra "scale"')
    import ray
    from ray.cluster_utils import Cluster

    os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parents[3])
    memory = {"object_store_memory": 150 * 1024 * 1024, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, **memory})
    other = cluster.add_node(num_cpus=2, object_store_memory=150 * 1024 * 1024) if two else None
    cluster.wait_for_nodes()
    ray.init(address=cluster.address, log_to_driver=False)
    return cluster, other


@pytest.fixture
def cluster() -> Iterator[tuple[Any, Any]]:
    import ray

    made, other = start(two=True)
    yield made, other
    ray.shutdown()
    made.shutdown()


def kill_later(made: tuple[Any, Any], reached: Any) -> Thread:
    """Remove the second node as soon as some of the work is done."""
    cluster, other = made

    def wait() -> None:
        end = time.monotonic() + 300
        while not reached() and time.monotonic() < end:
            time.sleep(0.05)
        cluster.remove_node(other, allow_graceful=False)

    thread = Thread(target=wait)
    thread.start()
    return thread


@pytest.mark.slow
def test_an_index_loses_and_doubles_nothing_with_a_node(tmp_path: Path, cluster: tuple[Any, Any]) -> None:
    pytest.importorskip("lancedb", reason='needs the extra "scale"')
    from foveate.lab.search.builder import build_with_ray

    paths = paint(tmp_path / "photos", shades=10)
    broken = tmp_path / "photos" / "broken.png"
    broken.write_bytes(b"nothing")
    out = tmp_path / "a.lance"
    killer = kill_later(cluster, lambda: LanceIndex.exists(out) and len(LanceIndex(out)) >= 4)
    built = build_with_ray(out, load, [*paths, str(broken)], batch_size=2, actors=2, progress=False)
    killer.join()
    assert built.added == len(paths)
    assert list(built.skipped) == [str(broken)]
    rows = LanceIndex(out)._table.to_arrow()
    assert sorted(rows["name"].to_pylist()) == sorted(paths)
    alone = build_index(tmp_path / "b.lance", SlowColours(), paths, batch_size=20).index._table.to_arrow()  # type: ignore[attr-defined]
    vectors = [dict(zip(t["name"].to_pylist(), t["vector"].to_pylist(), strict=True)) for t in (rows, alone)]
    assert vectors[0] == vectors[1]
    again = build_with_ray(out, load, paths, batch_size=2, actors=1, progress=False)
    assert again.added == 0


@pytest.mark.slow
def test_a_store_is_the_same_after_a_node_was_lost(tmp_path: Path, cluster: tuple[Any, Any]) -> None:
    paths = paint(tmp_path / "photos", shades=10)
    shards = packed(tmp_path / "shards", paths)
    (shards / "broken.png").write_bytes(b"nothing")
    images = stored_images(shards)
    alone = extract_features(SlowEncoder(), images, tmp_path / "a.h5", batch_size=3, skip_broken=True)
    partial = tmp_path / "b.h5.partial"
    killer = kill_later(cluster, lambda: partial.is_dir() and len(list(partial.glob("[!.]*.h5"))) >= 2)
    blocks = RayBlocks(SlowEncoder, actors=2)
    store = extract_features(
        SlowEncoder(), images, tmp_path / "b.h5", batch_size=3, skip_broken=True, write_blocks=blocks
    )
    killer.join()
    assert store.ids == alone.ids
    assert store.skipped.keys() == alone.skipped.keys() == {"broken.png"}
    assert store.description == alone.description
    for one, other in zip(store, alone, strict=True):
        assert np.array_equal(one.values, other.values)


@pytest.mark.slow
def test_a_killed_driver_resumes(tmp_path: Path) -> None:
    pytest.importorskip("lancedb", reason='needs the extra "scale"')
    pytest.importorskip("ray", reason='needs the extra "scale"')
    paths = paint(tmp_path / "photos", shades=8)
    out = tmp_path / "a.lance"
    code = "import sys; from tests.lab.search.cluster import run_index; run_index(sys.argv[1], sys.argv[2:], 2)"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[3]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code, str(out), *paths]
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as first:
        end = time.monotonic() + 300
        while not (LanceIndex.exists(out) and len(LanceIndex(out)) >= 4) and time.monotonic() < end:
            time.sleep(0.05)
        first.kill()
    there = len(LanceIndex(out))
    assert there >= 4
    assert subprocess.run(command, env=environment, stderr=subprocess.DEVNULL).returncode == 0
    assert sorted(LanceIndex(out)._table.to_arrow()["name"].to_pylist()) == sorted(paths)
