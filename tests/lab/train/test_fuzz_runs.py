"""The files of a run come from anyone: anything wrong in them raises DataError, and every damaged byte is noticed."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from foveate.errors import DataError
from foveate.io import read_json, with_checksum, write_json
from foveate.lab.hub import load
from foveate.lab.train.recipe import read_task, read_vocabulary
from foveate.lab.train.records import CONFIG, VOCABULARY
from foveate.lab.train.weights import CHECKPOINT, WEIGHTS, load_checkpoint, load_tensors, save_checkpoint
from tests.mutations import damage_bytes, damage_json, rounds
from tests.untrained import make_untrained

SMALL = {
    "vqa": ("vqa-mcan-scenes", "hidden=8", "heads=2", "layers=1", "word_dim=4", "channels=8,8", "images.start=random"),
    "captioning": ("captioning-lstm-scenes", "hidden=8", "word_dim=4", "channels=8,8", "images.start=random"),
    "matching": ("matching-scan-scenes", "hidden=8", "word_dim=4", "channels=8,8", "images.start=random"),
}


@pytest.fixture(scope="module", params=SMALL)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipe, *changes = SMALL[request.param]
    directory = make_untrained(tmp_path_factory.mktemp("runs") / request.param, recipe, *changes)
    write_json(directory / VOCABULARY, with_checksum(read_vocabulary(directory)))
    return directory


def try_to_load(run: Path, file: str, content: bytes, tmp_path: Path) -> bool:
    """True if the damaged run loads; any error but DataError fails the test."""
    copy = tmp_path / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(run, copy)
    (copy / file).write_bytes(content)
    try:
        load(copy)
    except DataError:
        return False
    return True


@pytest.mark.parametrize("damage", [damage_bytes, damage_json])
@pytest.mark.parametrize("file", [CONFIG, VOCABULARY])
def test_json_of_a_run(run: Path, file: str, damage: Callable[..., bytes], tmp_path: Path) -> None:
    draw, content = random.Random(f"{run.name} {file}"), (run / file).read_bytes()
    for _ in range(rounds(30)):
        try_to_load(run, file, damage(content, draw), tmp_path)


@pytest.mark.parametrize("size", [-1, 0])
def test_sizes_in_the_configuration_that_no_model_has(run: Path, size: int, tmp_path: Path) -> None:
    """Found by a long fuzz: torch raises RuntimeError for negative sizes and warns about empty ones."""
    config = read_json("test", run / CONFIG, "")
    for changed in ({"word_dim": size}, {"model": config["settings"]["model"] | {"hidden": size}}):
        content = json.dumps(config | {"settings": config["settings"] | changed}).encode()
        assert not try_to_load(run, CONFIG, content, tmp_path)


def test_every_flipped_byte_of_the_weights_is_noticed(run: Path, tmp_path: Path) -> None:
    draw, content = random.Random(run.name), bytearray((run / WEIGHTS).read_bytes())
    header = 8 + int.from_bytes(content[:8], "little")
    for number in range(rounds(40)):
        place = draw.randrange(header if number % 2 else 0, len(content))
        content[place] ^= 1 << draw.randrange(8)
        changed = bytes(content)
        content[place] = (run / WEIGHTS).read_bytes()[place]
        # whitespace that pads the header carries no meaning
        if bytes(content[place : place + 1]) != b" ":
            assert not try_to_load(run, WEIGHTS, changed, tmp_path), place


def test_every_flipped_byte_of_the_vocabulary_is_noticed(run: Path, tmp_path: Path) -> None:
    content, draw = (run / VOCABULARY).read_bytes(), random.Random(0)
    expected = read_task(run)
    shutil.copytree(run, tmp_path / "run")
    for _ in range(rounds(100)):
        place = draw.randrange(len(content))
        changed = content[:place] + bytes([content[place] ^ (1 << draw.randrange(8))]) + content[place + 1 :]
        (tmp_path / "run" / VOCABULARY).write_bytes(changed)
        try:
            found = read_task(tmp_path / "run")
        except DataError:
            continue
        assert found == expected  # only white space between values may change


def test_checkpoints(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimiser = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimiser.step()
    path, draw = tmp_path / CHECKPOINT, random.Random(0)
    save_checkpoint(path, model, optimiser, {"step": 3, "steps_per_epoch": 5, "processes": 1})
    content = path.read_bytes()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for _ in range(rounds(200)):
        path.write_bytes(damage_bytes(content, draw))
        try:
            position = load_checkpoint(path, model, optimiser)
        except DataError:
            continue
        assert position == {"step": 3, "steps_per_epoch": 5, "processes": 1}
        for name, value in model.state_dict().items():
            assert torch.equal(value, before[name])


def test_the_checksum_covers_the_type(tmp_path: Path) -> None:
    """The same bytes read as another type, F32 as I32, are not what was written."""
    from foveate.lab.train.weights import save_tensors

    path = tmp_path / WEIGHTS
    save_tensors(path, {"a": torch.ones(4)})
    path.write_bytes(path.read_bytes().replace(b'"F32"', b'"I32"'))
    with pytest.raises(DataError, match="expected the checksum"):
        load_tensors(path)


def test_a_vocabulary_without_checksum_is_read(run: Path, tmp_path: Path) -> None:
    plain = read_vocabulary(run)
    (tmp_path / "run").mkdir()
    write_json(tmp_path / "run" / VOCABULARY, plain)
    assert read_vocabulary(tmp_path / "run") == plain
    assert "checksum" in read_json("test", run / VOCABULARY, "")
