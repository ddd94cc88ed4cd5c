"""Loading runs, also from untrusted sources."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from foveate.errors import DataError, UnknownName
from foveate.lab import hub
from foveate.lab.tasks import TASKS
from foveate.lab.train import train_recipe
from tests.lab.train.toy import Toy, ToyPredictor, changed, toy_net_points


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "toy", Toy)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("hub") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TASKS, "toy", Toy)
        train_recipe(changed(toy_net_points(), epochs=1, settings={"dtype": "float32"}), directory, progress=False)
    return directory


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def edit(path: Path, *keys: str, value: object) -> None:
    data = json.loads(path.read_text())
    part = data
    for key in keys[:-1]:
        part = part[key]
    part[keys[-1]] = value
    path.write_text(json.dumps(data))


def test_a_run_offers_what_its_task_offers(run: Path) -> None:
    loaded = hub.load(run)
    assert isinstance(loaded, ToyPredictor)
    assert not loaded.model.training
    assert loaded.nearest(0.2, 0.2) in (0, 1, 2)
    assert {parameter.device for parameter in loaded.model.parameters()} == {torch.device("cpu")}
    moved = hub.load(run, device="meta")
    assert all(parameter.is_meta for parameter in moved.model.parameters())


def test_fields_of_a_run_can_be_changed(run: Path) -> None:
    assert hub.load(run, ["settings.noise=0.5"]).task.settings.noise == 0.5
    with pytest.raises(UnknownName, match="got 'nois'; did you mean 'noise'"):
        hub.load(run, ["nois=1"])


def test_a_run_inside_the_package_loads_by_name(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.move(run, tmp_path / "runs" / "small")
    monkeypatch.setattr("foveate.lab.train.recipe.EMBEDDED", tmp_path / "runs")
    assert isinstance(hub.load("small"), ToyPredictor)
    with pytest.raises(DataError, match=r"expected the directory of a run .* got 'smal'; .* embedded one: small"):
        hub.load("smal")


def test_saved_runs_are_small_and_load_offline(run: Path, tmp_path: Path) -> None:
    directory = hub.save_pretrained(run, tmp_path / "out")
    names = {"config.json", "vocabulary.json", "model.safetensors", "metrics.json", "environment.json"}
    assert {path.name for path in directory.iterdir()} == names
    first, second = hub.load(run), hub.from_pretrained(directory)
    for name, tensor in first.model.state_dict().items():
        assert torch.equal(tensor, second.model.state_dict()[name])
    with pytest.raises(DataError, match=r"save_pretrained: expected a new directory, got the run in"):
        hub.save_pretrained(run, directory)


def test_a_saved_run_may_be_in_half_precision(run: Path, tmp_path: Path) -> None:
    directory = hub.save_pretrained(run, tmp_path / "half", half=True)
    first, second = hub.load(run).model.state_dict(), hub.load(directory).model.state_dict()
    for name, tensor in first.items():
        expected = tensor.half().float() if tensor.ndim > 1 and tensor.dtype == torch.float32 else tensor
        assert torch.equal(second[name], expected), name


def test_fields_are_changed_by_keyword_and_saved(run: Path, tmp_path: Path) -> None:
    loaded = hub.load(run, noise=0.5)
    assert loaded.task.settings.noise == 0.5
    with torch.no_grad():
        next(iter(loaded.model.parameters())).add_(1.0)
    again = hub.load(loaded.save_pretrained(tmp_path / "changed"))
    assert again.task.settings.noise == 0.5
    for name, tensor in loaded.model.state_dict().items():
        assert torch.equal(tensor, again.model.state_dict()[name])
    with pytest.raises(UnknownName, match="did you mean 'noise'"):
        hub.load(run, nois=1)
    assert repr(loaded).startswith("ToyPredictor(")
    assert 1 <= len(repr(loaded).splitlines()) <= 5
    with pytest.raises(DataError, match=r"save_pretrained: expected a run that was loaded"):
        loaded.task.predictor(loaded.model).save_pretrained(tmp_path / "none")


def test_a_run_is_pushed_to_the_hub(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: dict[str, object] = {}

    class Api:
        def create_repo(self, name: str, **options: object) -> None:
            sent.update(options, name=name)

        def upload_folder(self, *, repo_id: str, folder_path: Path, commit_message: str) -> object:
            sent.update(files={path.name for path in folder_path.iterdir()}, message=commit_message)
            return type("Commit", (), {"commit_url": f"https://hub/{repo_id}"})()

    monkeypatch.setattr("huggingface_hub.HfApi", Api)
    assert hub.load(run).push_to_hub("owner/name", private=True) == "https://hub/owner/name"
    assert sent["files"] >= {"config.json", "vocabulary.json", "model.safetensors"}
    assert sent["private"] is True

    def refuse(*_: object, **__: object) -> None:
        raise OSError("401")

    monkeypatch.setattr(Api, "create_repo", refuse)
    with pytest.raises(DataError, match=r"push_to_hub: expected a repository .* got 401; .* hf auth login"):
        hub.load(run).push_to_hub("owner/name")


def test_a_name_of_the_hub_is_fetched_without_anything_else(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {}

    def fetch(name: str, **options: object) -> str:
        asked.update(options, name=name)
        return str(run)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    assert isinstance(hub.from_pretrained("owner/name", revision="v1"), ToyPredictor)
    assert asked["name"] == "owner/name"
    assert asked["revision"] == "v1"
    assert set(asked["allow_patterns"]) == {*hub.REQUIRED, *hub.OPTIONAL}


def test_a_failing_hub_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str, **options: object) -> str:
        raise OSError("no connection")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    with pytest.raises(DataError, match=r"from_pretrained: expected a directory or a repository .* got no connection"):
        hub.from_pretrained("owner/name")
    with pytest.raises(DataError, match=r"load: expected the directory of a run"):
        hub.from_pretrained("./no/such/directory")


def test_a_newer_configuration_is_refused(run: Path) -> None:
    edit(run / "config.json", "format", value=99)
    with pytest.raises(DataError, match=r"config.json: expected format 2, got 99; it was written by another"):
        hub.load(run)


def test_broken_json_is_named(run: Path) -> None:
    (run / "config.json").write_text('{"format": 1, ')
    with pytest.raises(DataError, match=r"load: expected JSON in .*config.json"):
        hub.load(run)


def test_a_missing_file_is_named(run: Path) -> None:
    (run / "model.safetensors").unlink()
    with pytest.raises(DataError, match=r"load: expected model.safetensors in .*, got none"):
        hub.load(run)


def test_weights_of_another_model_are_refused(run: Path) -> None:
    edit(run / "config.json", "settings", "hidden", value=9)
    with pytest.raises(DataError, match=r"expected first.weight \(9, 2\) of type F32 .* got \(8, 2\)"):
        hub.load(run)


@pytest.mark.parametrize("hidden", [10**9, 10**12])
def test_sizes_out_of_proportion_are_refused_before_they_are_made(run: Path, hidden: int) -> None:
    edit(run / "config.json", "settings", "hidden", value=hidden)
    with pytest.raises(
        DataError, match=r"load: expected sizes in .*config.json that suit its weights, got a model of at least"
    ):
        hub.load(run)


def test_damaged_weights_are_refused(run: Path) -> None:
    data = (run / "model.safetensors").read_bytes()
    (run / "model.safetensors").write_bytes(data[:-1] + b"\x01")
    with pytest.raises(DataError, match=r"the file is damaged"):
        hub.load(run)


def test_no_pickle_is_read(run: Path) -> None:
    """A file that is a pickle under the right name is refused by its header."""
    torch.save(Toy(toy_net_points().settings, 3).build_model().state_dict(), run / "model.safetensors")
    with pytest.raises(DataError, match=r"load: expected complete tensors in"):
        hub.load(run)


def test_loading_a_run_imports_neither_torch_compile_nor_matplotlib() -> None:
    """Either would take longer than everything else that `load` does."""
    slow = {"torch._dynamo", "sympy", "matplotlib", "pandas", "gradio", "transformers"}
    code = f"import sys, foveate; foveate.load('scenes-vqa'); print(sorted({slow} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_mistake_of_ours_is_not_called_a_damaged_file(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def mistaken(self) -> None:
        raise AttributeError("no such thing")

    monkeypatch.setattr(Toy, "build_model", mistaken)
    with pytest.raises(AttributeError, match="no such thing"):
        hub.load(run)
