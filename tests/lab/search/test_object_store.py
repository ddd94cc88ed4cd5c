"""Images, archives and tables in an object store: a server of moto on this machine that answers as S3 does."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from foveate.lab.data.image_sources import named_image, stored_images
from foveate.lab.search import LanceIndex, build_index, open_index, search_by_text
from foveate.lab.search.builder import list_sources
from tests.lab.search.runs import Colours, paint
from tests.lab.search.test_ray import packed

SERVER = shutil.which("moto_server")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(SERVER is None, reason='needs moto_server on the path: pip install "moto[server]"'),
]


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """The address of an empty bucket."""
    pytest.importorskip("lancedb", reason='needs the extra "scale"')
    from pyarrow import fs

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    settings = {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": address,
        "AWS_ALLOW_HTTP": "true",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    with (tmp_path / "server.log").open("w") as log:
        server = subprocess.Popen([str(SERVER), "-H", "127.0.0.1", "-p", str(port)], stdout=log, stderr=log)
    try:
        end = time.monotonic() + 120
        while time.monotonic() < end:
            with socket.socket() as trial:
                if trial.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        name = f"bucket{os.getpid()}"
        fs.S3FileSystem(endpoint_override=address, allow_bucket_creation=True).create_dir(name)
        yield f"s3://{name}"
    finally:
        server.terminate()
        server.wait()


def upload(directory: Path, address: str) -> None:
    from pyarrow import fs

    filesystem, path = fs.FileSystem.from_uri(address)
    fs.copy_files(str(directory), path, source_filesystem=fs.LocalFileSystem(), destination_filesystem=filesystem)


def test_images_archives_and_a_table_in_a_bucket(bucket: str, tmp_path: Path) -> None:
    paths = paint(tmp_path / "photos", shades=2)
    packed(tmp_path / "photos" / "shards", paths)
    (tmp_path / "photos" / "broken.png").write_bytes(b"nothing")
    upload(tmp_path / "photos", f"{bucket}/photos")
    names = list_sources(f"{bucket}/photos")
    assert len(names) == 17
    assert f"{bucket}/photos/red0.png" in names
    assert f"{bucket}/photos/shards/photos-0.tar/sub/{Path(paths[0]).name}" in names
    here = {record.id: record.pixels() for record in stored_images(tmp_path / "photos") if "broken" not in record.id}
    for name, pixels in here.items():
        assert np.array_equal(named_image(f"{bucket}/photos/{name}"), pixels)

    table = f"{bucket}/photos.lance"
    built = build_index(table, Colours(), names[:9], weights="abc")
    assert isinstance(built.index, LanceIndex)
    again = build_index(table, Colours(), names, weights="abc", batch_size=5)
    assert (len(again.index), list({**built.skipped, **again.skipped})) == (16, [f"{bucket}/photos/broken.png"])
    assert build_index(table, Colours(), names, weights="abc").added == 0
    index = open_index(table)
    local = build_index(tmp_path / "a.lance", Colours(), [f"{tmp_path}/photos/{n}" for n in here], weights="abc").index
    found, expected = (search_by_text(one, "a blue thing", Colours(), top=4) for one in (index, local))
    assert [one.score for one in found] == pytest.approx([one.score for one in expected])
    assert found[0].name.startswith(f"{bucket}/photos/")
